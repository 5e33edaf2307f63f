"""Numba's cache of compiled kernels: is the first step going to take a while?"""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Where compiled kernels are kept: beside their source, unless NUMBA_CACHE_DIR says otherwise."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1] / "ops" / "cpu")


def size() -> int:
    """Bytes in the cache; 0 if nothing was compiled yet."""
    try:
        return sum(file.stat().st_size for file in folder().rglob("*.nb[ic]"))
    except OSError:
        return 0


def notice(device: str) -> str | None:
    """What to tell a user who is about to wait for the compiler; None if there is nothing to wait for."""
    if device != "cpu" or size():
        return None
    return "compiling kernels for this processor: once, some seconds; later runs find them in the cache"
