"""Training: settings, the loop, checkpoints, and what is shown of it.

What is named here is imported when it is first used: the settings alone, say, need no model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoeuler.training.config import TrainConfig
    from nanoeuler.training.events import TrainResult
    from nanoeuler.training.run import train
    from nanoeuler.training.runfolder import FoundModel, find_model
    from nanoeuler.training.trainer import Trainer, TrainingDiverged

_HOME = {
    "FoundModel": "runfolder",
    "TrainConfig": "config",
    "TrainResult": "events",
    "Trainer": "trainer",
    "TrainingDiverged": "trainer",
    "find_model": "runfolder",
    "train": "run",
}

__all__ = [
    "FoundModel",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "TrainingDiverged",
    "find_model",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nanoeuler.training' has no attribute {name!r}")
    return getattr(import_module(f"nanoeuler.training.{_HOME[name]}"), name)
