"""``nanoeuler plan``: the memory of a training run, before it starts."""

from __future__ import annotations

from typing import Any

import click

from nanoeuler.cli.config_options import ConfigCommand, config_options, load
from nanoeuler.cli.console import human_bytes, table
from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.training.config import TrainConfig


@click.command(cls=ConfigCommand)
@click.option("--memory", type=float, metavar="GIB", help="Plan for so many GiB, not for what is free here.")
@config_options
def command(memory: float | None, preset: str | None, config: str | None, **settings: Any) -> None:
    """Show how much memory a training run needs, and the largest batch that fits.

    Takes the settings of `nanoeuler train`. Without --data or --vocab-size, a preset's usual vocabulary counts.

    \b
    Examples:
      nanoeuler plan --preset gpt2 --batch-size 4 --seq-len 256
      nanoeuler plan --n-layer 8 --n-head 8 --n-embd 512 --block-size 512 --memory 16
    """
    from nanoeuler.training.plan import alternatives, plan

    if memory is not None and not 0 < memory <= 1e9:
        raise UserError(f"--memory must be above 0 and at most 1e9, in GiB, not {memory}")
    run = load(preset, config, settings)
    model = _sizes(run, preset)
    budget = None if memory is None else int(memory * 2**30)
    made = plan(model, run.batch_size, run.seq_len, run.device, budget, run.recompute)
    click.echo(
        f"{model.n_params:,} parameters ({model.n_layer} layers, {model.n_head} heads, {model.n_embd} channels, "
        f"vocabulary {model.vocab_size:,}), device {made.device}, {made.B} sequences of {made.T} tokens\n"
    )
    rows = [[row.name, human_bytes(row.bytes), f"  {row.note}"] for row in made.rows]
    width = max(len(row[2]) for row in rows)
    table([[name, size, note.ljust(width)] for name, size, note in [*rows, ["total", human_bytes(made.total), ""]]])
    click.echo()
    choices = [
        [f"--recompute {p.recompute}", human_bytes(p.total), "?" if p.largest_batch is None else str(p.largest_batch)]
        for p in alternatives(made)
    ]
    table(choices, ["time for memory", "total", "largest batch_size"])
    if made.available is None or made.largest_batch is None:
        click.echo("\nhow much memory is free here is not known; --memory GIB says it")
        return
    verdict = "fits" if made.fits else "does not fit"
    largest = made.largest_batch or "none: choose a smaller model or seq_len"
    click.echo(f"\n{verdict} into {human_bytes(made.available)}; largest batch_size: {largest}")


def _sizes(run: TrainConfig, preset: str | None) -> GPTConfig:
    """The model that `nanoeuler train` would train with these settings."""
    if run.init_from == "scratch":
        return run.model_config(_vocabulary(run, preset))
    from nanoeuler.training.runfolder import find_model
    from nanoeuler.training.setup import pretrained_sizes

    return pretrained_sizes(run, find_model(run.init_from).folder)


def _vocabulary(run: TrainConfig, preset: str | None) -> int:
    """The vocabulary's size: as set, the data's, or the one that goes with the preset."""
    from nanoeuler.data.dataset import Dataset
    from nanoeuler.model.config import PRESETS

    if run.vocab_size is not None:
        return run.vocab_size
    if run.data and (n_vocab := Dataset.open(run.data, "train").n_vocab) is not None:
        return n_vocab
    return PRESETS.get(preset or "", {}).get("vocab_size", 50257)
