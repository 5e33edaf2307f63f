"""The caches of compiled kernels, Numba's and the GPU engine's: is the first step going to take a while?"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def folder(device: str = "cpu") -> Path:
    """Where compiled kernels are kept.

    For the CPU where Numba does: in NUMBA_CACHE_DIR, else beside their source, else (a package installed by the
    administrator) in the user's own cache.
    """
    if device.startswith("gpu"):
        from nanoeuler.ops.gpu.runtime.compiler import cache_folder

        return cache_folder() / "kernels"
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen)
    source = Path(__file__).parents[1] / "ops" / "cpu"
    return source if os.access(source, os.W_OK) else _users_own(source)


def _users_own(source: Path) -> Path:
    """Numba's folder for the kernels of a package that it may not write into: named by a hash of where they lie.

    Asking a kernel would be simpler, but importing one compiles the first of them.
    """
    from numba.misc.appdirs import AppDirs

    name = f"{source.name}_{hashlib.sha1(str(source.absolute()).encode()).hexdigest()}"
    return Path(AppDirs(appname="numba", appauthor=False).user_cache_dir) / name


def size(device: str = "cpu") -> int:
    """Bytes in the cache; 0 if nothing was compiled yet."""
    pattern = "*.kernel" if device.startswith("gpu") else "*.nb[ic]"
    try:
        return sum(file.stat().st_size for file in folder(device).rglob(pattern))
    except OSError:
        return 0


def notice(device: str) -> str | None:
    """What to tell a user who is about to wait for the compiler; None if there is nothing to wait for.

    Raises UserError if there is no such device here.
    """
    from nanoeuler.ops import check_device

    check_device(device)
    if device.startswith("gpu"):
        from nanoeuler.ops.gpu.runtime.driver import open_device

        open_device()
    if device == "reference" or size(device):
        return None
    what = "this GPU" if device.startswith("gpu") else "this processor"
    return f"compiling kernels for {what}: once, some seconds; later runs find them in the cache"
