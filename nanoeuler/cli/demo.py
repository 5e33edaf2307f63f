"""``nanoeuler demo``: the whole way in three minutes: stories, tokenizer, tokens, training, writing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import human_bytes, human_time, quoted, stages
from nanoeuler.cli.values import PLACE
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.training.config import TrainConfig
    from nanoeuler.training.events import Event, TrainResult


@dataclass(frozen=True)
class DemoSettings:
    """Everything that was tuned for the demo, in one place; the rest is the training preset ``demo``."""

    n_stories: int = 25_000
    n_tokenizer_stories: int = 2_000  # the tokenizer learns from the first so many
    vocab_size: int = 1024
    preset: str = "demo"  # of the training settings
    training: dict[str, Any] = field(default_factory=dict)  # settings laid over the preset's
    minutes: float = 2.8  # for everything, on whatever machine this is
    seconds_after: float = 8.0  # kept for plotting and writing three stories
    seconds_to_compile: float = 20.0  # kept for compiling what writes, the first time
    slack: float = 10.0  # seconds behind the plan that do not matter
    evaluations: int = 5  # during training
    overhead: float = 1.1  # evaluating and saving, as a factor on the time of the steps alone
    min_steps: int = 20
    max_steps: int = 10_000  # two and a half epochs: more would need more stories
    temperature: float = 0.5
    n_samples: int = 3
    steps_to_sentences: int = 200  # before that the model writes noise


SETTINGS = DemoSettings()
DEFAULT_OUT = "nanoeuler-demo"


@click.command()
@click.option(
    "--out", type=PLACE, metavar="FOLDER", help=f"Where everything goes.  [default: ./{DEFAULT_OUT}, numbered if taken]"
)
@click.option("--minutes", type=float, help=f"Time for everything.  [default: {SETTINGS.minutes:g}]")
@click.option("--steps", type=int, help="Train so many steps, however long it takes.")
@click.option("--seed", type=int, default=1337, show_default=True, help="Fixes parameters, data order and stories.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
def command(out: str | None, minutes: float | None, steps: int | None, seed: int, device: str) -> None:
    """Make stories, train a tokenizer and a GPT-2 of a million parameters on them, and let it write.

    It measures how long a step takes here, and plans as many as fit into the time.

    \b
    Example:
      nanoeuler demo
    """
    demo(out, minutes, steps, seed, device, SETTINGS)


def demo(out: str | None, minutes: float | None, steps: int | None, seed: int, device: str, s: DemoSettings) -> None:
    """Run the demo with settings ``s``: see :func:`command`."""
    begun = time.perf_counter()
    from nanoeuler.ops.cpu.warmup import is_cold

    if minutes is not None and not 0 < minutes < 60 * 24:
        raise UserError(f"--minutes must be above 0, and at most a day, not {minutes}")
    if steps is not None and steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    if steps is not None and minutes is not None:
        raise UserError("--steps and --minutes contradict each other: give one of the two")
    budget = 60 * (s.minutes if minutes is None else minutes) - s.seconds_after
    if device == "cpu" and is_cold("decode", "decode"):
        budget -= s.seconds_to_compile
    check_settings(seed, device, s)
    folder = new_folder(out)

    data = make_data(folder, s)
    config = plan_training(folder, data, seed, device, steps, budget, begun, s)
    result = train_in_time(config, float("inf") if steps is not None else begun + budget, s)
    finish(result, config, s)
    click.echo(f"\nall of it took {human_time(time.perf_counter() - begun)}. Go on with:")
    run = quoted(config.out)
    for what, line in (
        ("a new story", f"nanoeuler sample --model {run}"),
        ("your beginning", f'nanoeuler sample --model {run} "Once upon a time, there was a cat"'),
        ("train longer", f"nanoeuler train --resume {run} --steps {max(3 * result.steps, 1000)}"),
        ("your own text", "nanoeuler data prepare FILE... --vocab-size 2048 --out data/mine"),
        ("", "nanoeuler train --preset demo --data data/mine --out runs/mine"),
    ):
        click.echo(f"  {what:15} {line}")


def check_settings(seed: int, device: str, s: DemoSettings) -> None:
    """Raise UserError for what training would refuse, before the first file is written."""
    from nanoeuler.ops import get_engine
    from nanoeuler.training.config import TrainConfig

    TrainConfig.load(s.preset, **{**s.training, "steps": s.max_steps, "seed": seed})
    get_engine(device)


def new_folder(out: str | None) -> Path:
    """The folder for everything. Never one with something in it: by default the next free number is taken."""
    folder = Path(DEFAULT_OUT if out is None else out)
    if out is not None:
        if folder.is_file():
            raise UserError(f"{folder} is a file: name a folder for the demo")
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose another --out (a run in it goes on with: train --resume)")
        return folder
    number = 1
    while folder.exists():
        number += 1
        folder = Path(f"{DEFAULT_OUT}-{number}")
    return folder


def make_data(folder: Path, s: DemoSettings) -> Path:
    """Stories, a tokenizer, and the stories as tokens; returns the folder of these."""
    from nanoeuler.data.prepare import prepare
    from nanoeuler.data.stories import stories, write_stories
    from nanoeuler.tokenizer import Tokenizer

    _heading(1, "stories")
    folder.mkdir(parents=True, exist_ok=True)
    text, data = folder / "stories.txt", folder / "data"
    with stages("stories") as progress:
        size = write_stories(text, s.n_stories, progress=_stage(progress, "stories"))
    click.echo(f"{s.n_stories:,} stories, {human_bytes(size)}, in {text}")

    _heading(2, "tokenizer")
    with stages("merges") as progress:
        learnt_from = stories(s.n_tokenizer_stories)
        tokenizer = Tokenizer.train(learnt_from, s.vocab_size, progress=_stage(progress, "merges"))
    with stages() as progress:
        report = prepare([text], data, tokenizer, val_fraction=0.02, progress=progress)
    example = "Once upon a time, there was a little girl named Lily."
    pieces = "|".join(tokenizer.decode([id]) for id in tokenizer.encode(example))
    click.echo(
        f"{tokenizer.n_vocab:,} entries; {report.train.tokens:,} tokens to train on, "
        f"{report.train.bytes / max(1, report.train.tokens):.1f} bytes each, such as:\n{pieces}"
    )
    return data


def plan_training(
    folder: Path, data: Path, seed: int, device: str, steps: int | None, budget: float, begun: float, s: DemoSettings
) -> TrainConfig:
    """The run's settings, with as many steps as fit into what is left of the time."""
    from nanoeuler.training.config import TrainConfig

    _heading(3, "training")
    settings = {**s.training, "data": str(data), "out": str(folder / "run"), "device": device, "seed": seed}
    if steps is None:
        probe = TrainConfig.load(s.preset, **{**settings, "steps": s.max_steps})
        if text := compile_cache.notice(device):
            click.echo(text)
        seconds = seconds_per_step(probe)
        left = budget - (time.perf_counter() - begun)
        steps = round(min(max(left / (seconds * s.overhead), s.min_steps), s.max_steps))
        fits = f"{steps:,} steps fit into the {human_time(left)} left"
        if left <= 0:
            fits = f"the time is up already, so this machine is slow or busy: {steps:,} steps all the same"
        click.echo(f"a step takes {1000 * seconds:.0f} ms here, so {fits}")
    every = max(1, steps // s.evaluations)
    return TrainConfig.load(s.preset, **{**settings, "steps": steps, "eval_every": every, "save_every": every})


def seconds_per_step(config: TrainConfig) -> float:
    """How long a step takes here, once everything is compiled: the best of a few."""
    from nanoeuler.data.dataset import Dataset
    from nanoeuler.data.loader import Loader
    from nanoeuler.model.gpt import GPT

    dataset = Dataset.open(config.data)
    model = GPT(config.model_config(dataset.n_vocab or 0), device=config.device)
    loader = Loader(dataset, config.batch_size, model.config.block_size, config.seed)
    moments = model.moments()
    times = []
    for step in range(16):
        begun = time.perf_counter()
        model.loss_and_grad(*loader.batch(step))
        model.ops.global_norm(model.grads)
        model.update(moments, step=1, lr=0.0)
        times.append(time.perf_counter() - begun)
        if step == 0 and config.device == "cpu":
            from nanoeuler.ops.cpu import warmup

            warmup.wait()
    return sorted(times[1:])[7]  # the median: other programs take their share later, too


class Replan(Exception):
    """Raised right after a checkpoint when another number of steps fits the time better: ``steps``."""

    def __init__(self, steps: int) -> None:
        self.steps = steps


class Pace:
    """Shows a run on ``display``, and breaks it off after a checkpoint (:class:`Replan`) to end it in time.

    ``deadline`` in seconds of ``time.perf_counter()``. Fewer steps are planned when the run would miss it by more than
    ``slack`` seconds; more, up to ``max_steps``, when it would be done much too early and the learning rate has not
    begun to fall.
    """

    def __init__(self, display: Callable[[Event], None], deadline: float, slack: float, max_steps: int) -> None:
        self.display, self.deadline, self.slack, self.max_steps = display, deadline, slack, max_steps
        self.stopping = False  # Ctrl-C was pressed: whatever is saved now is the end

    def __call__(self, event: Event) -> None:
        from nanoeuler.training.events import Saved, Started, Stopping

        self.display(event)
        now = time.perf_counter()
        if isinstance(event, Started):
            self.config, self.since = event.config, (event.step, now)
        elif isinstance(event, Stopping):
            self.stopping = True
        elif self.stopping:
            return
        elif isinstance(event, Saved) and event.kind == "last" and event.step < self.config.steps:
            per_step = (now - self.since[1]) / max(1, event.step - self.since[0])
            self.since = (event.step, now)
            steps, fit = self.config.steps, event.step + max(1, int(min((self.deadline - now) / per_step, 1e9)))
            steady = event.step < (1 - self.config.decay_fraction) * steps
            if now + per_step * (steps - event.step) > self.deadline + self.slack:
                raise Replan(fit)
            if steady and min(fit, self.max_steps) > 1.15 * steps:
                raise Replan(min(fit, self.max_steps))


def train_in_time(config: TrainConfig, deadline: float, s: DemoSettings) -> TrainResult:
    """Train. If that turns out slower or faster than measured, go on with other steps, to end in time."""
    from nanoeuler.cli.training_display import TrainingDisplay
    from nanoeuler.training.run import train

    arguments: dict[str, Any] = {"config": config}
    with TrainingDisplay() as display:
        while True:
            try:
                limit = s.max_steps if deadline < float("inf") else config.steps
                return train(**arguments, on_event=Pace(display, deadline, s.slack, limit))
            except Replan as plan:
                display.line(f"another pace than measured: {plan.steps:,} steps fit into the time")
                arguments = {"resume": config.out, "steps": plan.steps}


def finish(result: TrainResult, config: TrainConfig, s: DemoSettings) -> None:
    """Show the curve, and let the model write."""
    from nanoeuler.cli.sample import write
    from nanoeuler.cli.train import report
    from nanoeuler.inference.generator import Generator

    click.echo()
    report(result)
    if result.interrupted:
        raise SystemExit(130)
    _heading(4, "writing")
    if result.steps < s.steps_to_sentences:
        click.echo(f"After {result.steps:,} steps a model knows words at best, not sentences: expect noise.\n")
    generator = Generator.from_pretrained(result.model_folder, config.device)
    for i in range(s.n_samples):
        if i:
            click.echo()
        stream = generator.stream(max_new_tokens=300, temperature=s.temperature, seed=config.seed, sample=i)
        write(generator, "", stream)


def _heading(number: int, title: str) -> None:
    click.echo(f"{chr(10) if number > 1 else ''}{number}. {title}")


def _stage(progress: Callable[[str, int, int], None], name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)
