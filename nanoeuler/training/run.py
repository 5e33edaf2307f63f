"""Training in one call: :func:`train` starts a run or goes on with one, and shows it if it is to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.training import events
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.runfolder import RunFolder
from nanoeuler.training.trainer import OnEvent, Trainer


def train(
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
    profile: bool = False,
    **settings: Any,
) -> events.TrainResult:
    """Train a model as ``config`` says, with single ``settings`` laid over it; or go on with the run in ``resume``.

    Nothing is printed, unless ``progress`` is set: then what `nanoeuler train` prints while it trains. ``on_event`` is
    called with each :data:`~nanoeuler.training.events.Event`. Ctrl-C ends the step, saves, and returns a result with
    ``interrupted`` set. With ``resume``, only the settings in :data:`~nanoeuler.training.setup.CHANGEABLE` may be
    given. ``profile``: on a GPU, time the kernels of one more step when the last is done and saved, tell them
    (:class:`~nanoeuler.training.events.Profiled`) and draw them into the run's ``profile.svg``.

    Raises UserError for settings, data or folders that do not fit, a full disk, and (as :class:`TrainingDiverged`)
    for a loss that is no finite number; the last checkpoint then stays as it is.

    >>> import tempfile
    >>> from nanoeuler.data.prepare import prepare
    >>> from nanoeuler.tokenizer import CharTokenizer
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("to be or not to be " * 50)
    >>> _ = prepare([folder / "text.txt"], folder / "data", CharTokenizer("to bern"))
    >>> sizes = dict(n_layer=1, n_head=1, n_embd=8, block_size=8)
    >>> result = train(data=folder / "data", out=folder / "run", device="reference", steps=20, **sizes)
    >>> result.step, result.model_folder.name
    (20, 'best')
    """
    if config is not None and not isinstance(config, TrainConfig):
        raise UserError(
            f"config must be a TrainConfig, not {type(config).__name__}: TrainConfig.load reads a preset or a file"
        )
    if progress:
        with _shown(on_event) as both:
            return train(config, resume=resume, on_event=both, profile=profile, **settings)
    if resume is not None:
        if config is not None:
            raise UserError("a run that goes on has its settings already: give resume alone, or with single settings")
        if profile:
            _require_gpu(settings.get("device") or RunFolder(resume).read_config().device)
        trainer = Trainer.resume(resume, settings, on_event)
    else:
        config = TrainConfig.load(overrides=settings) if config is None else config.changed(**settings)
        if profile:
            _require_gpu(config.device)
        trainer = Trainer.start(config, on_event)
    trainer.profile = profile
    return trainer.run()


@contextmanager
def _shown(on_event: OnEvent | None) -> Iterator[OnEvent]:
    """Tells events to the command line's display, and to ``on_event``."""
    from nanoeuler.cli.training_display import TrainingDisplay

    with TrainingDisplay() as display:

        def both(event: events.Event) -> None:
            display(event)
            if on_event is not None:
                on_event(event)

        yield both


def _require_gpu(device: str) -> None:
    if not device.startswith("gpu"):
        raise UserError("profile times the kernels of a GPU: leave it out, or set device to gpu")
