"""Kernels that are imported when they are first called, since importing them compiles them where the cache is cold."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Kernels:
    """The module ``nanoeuler.ops.cpu.NAME``, from the first use on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(f"nanoeuler.ops.cpu.{self._name}"), attribute)
        setattr(self, attribute, value)  # the next use does not come here
        return value
