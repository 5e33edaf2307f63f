"""GELU by itself, for training that does not keep its output: otherwise it is part of a matrix product's epilogue.

Reads 4 bytes and writes 4 bytes an element, for some twenty operations: bound by memory beyond the caches.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from nanoeuler.ops.cpu.options import ORDERED
from nanoeuler.ops.cpu.row_kernels import gelu_row

BLOCK = 16384


@njit("void(f4[::1], f4[::1])", parallel=True, **ORDERED)
def gelu_again(out, pre):  # type: ignore[no-untyped-def]
    """``out = gelu(pre)``, both flat, the elements in blocks dealt out to the threads."""
    n = pre.shape[0]
    for block in prange((n + BLOCK - 1) // BLOCK):
        first = np.int64(block) * BLOCK
        gelu_row(min(n, first + BLOCK) - first, out.ctypes.data + 4 * first, pre.ctypes.data + 4 * first)
