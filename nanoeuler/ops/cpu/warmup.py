"""Compile the kernels on two cores: the first start takes two thirds of the time.

Numba compiles one function at a time in a process, but what it has compiled lies in a cache on disk that all processes
share, and it looks there first. So when the cache is cold, a second process goes through the kernels from the end while
this one goes through them from the beginning, as it needs them; where they meet, each finds the other's work done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.sources import DIGEST

_CHILD = "NANOEULER_WARMUP"  # set in the second process, so that it does not start a third
_running: list[subprocess.Popen[bytes]] = []  # kept, since Python complains of a child that is forgotten while it runs


@njit(cache=True)
def _beside_the_kernels():  # type: ignore[no-untyped-def]
    """Never called: Numba tells where it would keep it, which is where it keeps the kernels of this folder."""


def is_cold(module: str = "attention", kernel: str = "attention_backward") -> bool:
    """Whether a kernel, the largest of training, still has to be compiled. (Importing it to ask would compile it.)"""
    cached = Path(_beside_the_kernels.stats.cache_path).glob(f"{module}.{kernel}-*.nbi")
    return not any(DIGEST in file.read_bytes() for file in cached)  # an index begins with its stamp


def start() -> None:
    """Start the second process if there is something to compile and a core to do it on. Never waits, never fails."""
    if _running or os.environ.get(_CHILD) or (os.cpu_count() or 1) < 2:
        return
    try:
        if is_cold():
            child = subprocess.Popen(
                [sys.executable, "-m", "nanoeuler.ops.cpu.warmup"],
                env={**os.environ, _CHILD: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            _running.append(child)
    except OSError:
        pass  # then this process compiles everything itself


def wait() -> None:
    """Wait until the second process, if there is one, leaves its core: before measuring how fast this machine is."""
    for child in _running:
        child.wait()


def compile_from_the_end() -> None:
    """Call every kernel of a training step once on next to nothing, the last ones first."""
    from nanoeuler.ops.cpu.engine import CpuOps

    ops = CpuOps()
    C, N, V = 4, 2, 3
    x, y, z, qkv = (ops.zeros((N, n)) for n in (C, C, C, 3 * C))
    w, b, square, stats, lse = (ops.zeros(s) for s in ((C,), (C,), (C, C), (N,), (1, 1, N)))
    wte, ids = ops.zeros((V, C)), np.zeros((1, N), np.int32)
    param, grad, m, v = (ops.zeros((N * C,)) for _ in range(4))
    rows = y.reshape(1, N, C)
    ops.adamw(param, grad, m, v, 1, 1, 1e-3, 0.9, 0.99, 1e-8, 0.1, 1.0)
    ops.global_norm(grad)
    ops.add(grad, m)
    ops.embedding_backward(wte, square, rows, ids)
    ops.attention_backward(qkv.reshape(1, N, 3 * C), rows, rows, lse, qkv.reshape(1, N, 3 * C), 1)
    ops.layernorm_backward(x, w, b, y, z, stats, stats, w)
    ops.linear_backward(x, square, b, y, z, square)
    ops.classifier(stats, x, wte, ids.reshape(-1), y, wte)
    ops.attention(rows, lse, qkv.reshape(1, N, 3 * C), 1)
    ops.linear(y, x, square, b)
    ops.layernorm(y, stats, stats, x, w, b)
    ops.embedding(rows, ids, wte, square)


if __name__ == "__main__":
    compile_from_the_end()
