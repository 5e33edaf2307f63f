"""Training: settings, the loop, checkpoints, and what is shown of it."""

from nanoeuler.training.config import TrainConfig
from nanoeuler.training.evaluate import EvalResult, evaluate
from nanoeuler.training.events import TrainResult
from nanoeuler.training.runfolder import FoundModel, find_model
from nanoeuler.training.trainer import Trainer, TrainingDiverged, train

__all__ = [
    "EvalResult",
    "FoundModel",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "TrainingDiverged",
    "evaluate",
    "find_model",
    "train",
]
