"""What a trainer tells while it works. It prints nothing itself; whoever calls it draws these.

``train(config, progress=True)`` draws them as the command line does; ``on_event=print`` is a display too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nanoeuler.model.config import GPTConfig
from nanoeuler.training.config import TrainConfig

if TYPE_CHECKING:
    from nanoeuler.ops.gpu.runtime.profile import KernelTime


@dataclass(frozen=True)
class Started:
    """All is loaded; the first step comes next (and compiles kernels, on an engine that does)."""

    config: TrainConfig
    model: GPTConfig
    out: Path
    step: int  # steps done before: 0, or where a resumed run goes on
    train_tokens: int
    val_tokens: int | None  # None: no validation data
    tokens_per_step: int
    epochs: float  # how often the whole run will see the training data


@dataclass(frozen=True)
class Step:
    """One change of the parameters. ``step`` counts from 1; ``loss`` in nats a token."""

    step: int
    loss: float
    lr: float
    grad_norm: float  # before clipping
    tokens: int  # seen since the start of the run
    tokens_per_s: float  # smoothed
    seconds_left: float | None  # for the steps that remain; None until measured


@dataclass(frozen=True)
class Evaluating:
    """An evaluation begins: it may take a while."""

    step: int


@dataclass(frozen=True)
class Evaluated:
    step: int
    val_loss: float
    bits_per_byte: float | None
    best: bool  # the lowest so far


@dataclass(frozen=True)
class Sampled:
    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Saved:
    step: int
    folder: Path
    kind: Literal["last", "best", "kept"]


@dataclass(frozen=True)
class Profiled:
    """The GPU time of each kernel in one more step, longest first; ``picture`` shows it."""

    kernels: list[KernelTime]
    picture: Path


@dataclass(frozen=True)
class Stopping:
    """Ctrl-C (or SIGTERM) was heard: the step in progress ends, then all is saved. A second one kills."""

    signal: str


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. ``step`` of ``steps``; ``interrupted``: stopped by Ctrl-C, go on with ``resume_command``."""

    out: Path
    step: int
    steps: int
    tokens: int
    seconds: float  # of training, all sessions together
    loss: float | None  # of the last step
    val_loss: float | None  # of the last evaluation
    bits_per_byte: float | None
    best_val_loss: float | None
    best_step: int | None
    model_folder: Path  # best/, or last/ without validation data
    interrupted: bool = False

    @property
    def resume_command(self) -> str:
        return f"nanoeuler train --resume {self.out}"


@dataclass(frozen=True)
class Finished:
    result: TrainResult


Event = Started | Step | Evaluating | Evaluated | Sampled | Saved | Profiled | Stopping | Finished
