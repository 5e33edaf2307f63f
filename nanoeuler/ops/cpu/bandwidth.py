"""How fast this machine reads memory: what bounds decoding."""

from __future__ import annotations

import time

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import ORDERED
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.simd_rows import COLUMNS, columns

ROWS = 4096


@part()
def read_of_thread(t, data, one, each):  # type: ignore[no-untyped-def]
    """Thread t's ``each`` floats of :func:`read_all`."""
    out, block = np.empty(COLUMNS, np.float32), ROWS * COLUMNS
    for i in range(each // block):
        place = data.ctypes.data + 4 * (t * each + i * block)
        columns(ROWS, one.ctypes.data, place, 4 * COLUMNS, out.ctypes.data, 0)


@njit(**ORDERED)
def read_all(data, threads):  # type: ignore[no-untyped-def]
    """Read ``data`` (n,) float32, a part of it in each thread, as decoding reads its weights."""
    fork(read_of_thread, threads, (data, np.ones(ROWS, np.float32), data.shape[0] // threads))


def read_bandwidth(threads: int, size: int = 1 << 29) -> float:
    """Bytes a second that the threads together read: the best of five passes over ``size`` bytes."""
    data = np.ones(size // 4, np.float32)
    best = 0.0
    for _ in range(6):
        begun = time.perf_counter()
        read_all(data, threads)
        best = max(best, data.nbytes / (time.perf_counter() - begun))
    return best
