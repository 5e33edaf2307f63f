"""What the tests of the command line share: a result, tiny settings, and a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SIZES = {"n-layer": 1, "n-head": 2, "n-embd": 16, "block-size": 32, "batch-size": 2}
TINY = ["--device", "reference", *[str(part) for name, size in SIZES.items() for part in (f"--{name}", size)]]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and terminals")


class Result(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def shell(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    command = [sys.executable, "-m", "nanoeuler", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **kwargs)  # type: ignore[call-overload]


def sample(world: Path, *args: object) -> list[object]:
    """The arguments of a short ``sample`` from the run in ``world``."""
    return ["sample", "--model", world / "run", "--device", "reference", "--max-new-tokens", 5, *args]
