"""The caches of compiled kernels, Numba's and the GPU engine's: is the first step going to take a while?"""

from __future__ import annotations

import os
from pathlib import Path


def folder(device: str = "cpu") -> Path:
    """Where compiled kernels are kept. For the CPU beside their source, unless NUMBA_CACHE_DIR says otherwise."""
    if device.startswith("gpu"):
        from nanoeuler.ops.gpu.runtime.compiler import cache_folder

        return cache_folder() / "kernels"
    return Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1] / "ops" / "cpu")


def size(device: str = "cpu") -> int:
    """Bytes in the cache; 0 if nothing was compiled yet."""
    pattern = "*.kernel" if device.startswith("gpu") else "*.nb[ic]"
    try:
        return sum(file.stat().st_size for file in folder(device).rglob(pattern))
    except OSError:
        return 0


def notice(device: str) -> str | None:
    """What to tell a user who is about to wait for the compiler; None if there is nothing to wait for."""
    if device == "reference" or size(device):
        return None
    what = "this GPU" if device.startswith("gpu") else "this processor"
    return f"compiling kernels for {what}: once, some seconds; later runs find them in the cache"
