"""NanoEuler: GPT-2 complete and from scratch in Python.

>>> import nanoeuler as ne
>>> ne.GPTConfig.preset("gpt2").n_params
124439808

What is named here is imported when it is first used, so that ``import nanoeuler`` takes no time: no compiler, no
terminal library, and no NumPy before you ask for something that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nanoeuler.errors import UserError
    from nanoeuler.inference.generator import Generator
    from nanoeuler.model.config import GPTConfig
    from nanoeuler.model.gpt import GPT
    from nanoeuler.tokenizer import CharTokenizer, Tokenizer
    from nanoeuler.training import TrainConfig, train

_HOME = {
    "CharTokenizer": "nanoeuler.tokenizer",
    "GPT": "nanoeuler.model.gpt",
    "GPTConfig": "nanoeuler.model.config",
    "Generator": "nanoeuler.inference.generator",
    "Tokenizer": "nanoeuler.tokenizer",
    "TrainConfig": "nanoeuler.training",
    "UserError": "nanoeuler.errors",
    "train": "nanoeuler.training",
}

__all__ = ["GPT", "CharTokenizer", "GPTConfig", "Generator", "Tokenizer", "TrainConfig", "UserError", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nanoeuler' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
