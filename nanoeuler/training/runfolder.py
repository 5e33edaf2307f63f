"""The folder of one run, and the way from any path to the model in it.

    RUN/config.toml     every setting
    RUN/metrics.jsonl   what happened
    RUN/loss.png        its picture
    RUN/profile.svg     where a step's time goes, if that was asked for
    RUN/last/           the newest checkpoint, to go on from
    RUN/best/           the model with the lowest validation loss

Readers need no lock: a checkpoint is replaced as a whole, and found even in the moment between two renames.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from nanoeuler.durable import present, recover, write_errors, write_text
from nanoeuler.errors import UserError
from nanoeuler.training.checkpoint import MODEL_FILE, has_state, is_whole, load_state
from nanoeuler.training.config import TrainConfig


class RunFolder:
    """Paths of a run; and, once :meth:`lock`-ed, the right to write there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.plot_file = self.path / "loss.png"
        self.profile_file = self.path / "profile.svg"
        self.last, self.best = self.path / "last", self.path / "best"
        self._lock: IO[bytes] | None = None

    def kept(self, step: int) -> Path:
        """Where ``keep_every`` puts the model of ``step``."""
        return self.path / f"step_{step:08d}"

    def check_new(self) -> None:
        """Raise UserError unless the folder is free to start a run in: missing or empty."""
        if self.path.is_file():
            raise UserError(f"{self.path} is a file: name a folder for the run")
        if self.is_run():
            raise UserError(
                f"{self.path} already holds a run: go on with --resume {self.path}, or choose another --out"
            )
        if self.path.is_dir() and any(p.name not in (".lock", "config.toml.new") for p in self.path.iterdir()):
            raise UserError(f"{self.path} is not empty: choose another --out for the run")

    def is_run(self) -> bool:
        return self.config_file.is_file()

    def create(self, config: TrainConfig) -> None:
        """Make the folder with its ``config.toml``, and lock it."""
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        self.write_config(config)

    def write_config(self, config: TrainConfig) -> None:
        write_text(self.config_file, config.to_toml())

    def read_config(self) -> TrainConfig:
        """The run's settings; UserError if this is no run folder or the file is damaged."""
        if not self.path.is_dir():
            raise UserError(f"no run at {self.path}: there is no such folder")
        if not self.is_run():
            raise UserError(f"{self.path} is no run folder (it has no config.toml): name the folder given as --out")
        return TrainConfig.load(toml=self.config_file)

    def recover(self) -> None:
        """Bring ``last/`` and ``best/`` into order after a kill. Only once locked."""
        for folder in (self.last, self.best):
            recover(folder, is_whole)

    def lock(self) -> None:
        """Claim the folder until :meth:`unlock` or the end of the process. UserError if another has it."""
        with write_errors(self.path):
            self._lock = (self.path / ".lock").open("ab")
        if not _try_lock(self._lock):
            self.unlock()
            raise UserError(f"{self.path} is in use: another training run is writing there")

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _try_lock(file: IO[bytes]) -> bool:
    """An advisory lock that the system drops when the process ends, however it ends."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


Which = Literal["best", "last"]


@dataclass(frozen=True)
class FoundModel:
    """A model's folder, and how it was chosen: ``kind`` is ``"best"``, ``"last"`` or ``"folder"`` (named itself)."""

    folder: Path
    kind: Literal["best", "last", "folder"]
    step: int | None = None
    val_loss: float | None = None

    def __str__(self) -> str:
        """Say what was chosen, for the screen: ``runs/a/best (step 500, validation loss 1.8862)``."""
        facts = [f"step {self.step}"] if self.step is not None else []
        facts += [f"validation loss {self.val_loss:.4f}"] if self.val_loss is not None else []
        return f"{self.folder} ({', '.join(facts)})" if facts else str(self.folder)


def find_model(path: str | Path, which: Which | None = None) -> FoundModel:
    """The model that ``path`` means: a run folder's best (else last) checkpoint, or a model's folder itself.

    ``which`` insists on one of the two. Reads only, so it works beside a running training. Raises UserError when there
    is no model, or when the checkpoint is damaged; nothing else is ever loaded in its place.
    """
    folder = Path(path)
    if not folder.exists():
        raise UserError(f"no model at {folder}: there is no such folder")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: name the folder that holds the model")
    run = RunFolder(folder)
    if run.is_run():
        choices: list[Which] = [which] if which else ["best", "last"]
        for kind in choices:
            if (found := present(run.path / kind, is_whole)) is not None:
                return _describe(found, kind)
        what = f"no {which} checkpoint" if which else "no checkpoint yet"
        raise UserError(f"the run {folder} has {what}: start it again with --resume {folder}")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"no model in {folder}: it is neither a run folder (config.toml) nor a model's (config.json, {MODEL_FILE})"
        )
    if which:
        raise UserError(f"{folder} is a model's own folder: it has no '{which}'; name the run folder instead")
    return _describe(folder, "folder")


def _describe(folder: Path, kind: Literal["best", "last", "folder"]) -> FoundModel:
    if kind == "folder" and not has_state(folder):
        return FoundModel(folder, kind)  # not from a run of ours: the loader of its format judges it
    state = load_state(folder, with_optimizer=False)
    return FoundModel(folder, kind, state.step, state.val_loss)
