"""GELU by itself, for training that does not keep its output: otherwise it is part of a matrix product's epilogue.

Reads 4 bytes and writes 4 bytes an element, for some twenty operations: bound by memory beyond the caches.
"""

from __future__ import annotations

from numba import njit, prange

from nanoeuler.ops.cpu.activation import gelu
from nanoeuler.ops.cpu.options import FAST

BLOCK = 16384


@njit("void(f4[::1], f4[::1])", parallel=True, **FAST)
def gelu_again(out, pre):  # type: ignore[no-untyped-def]
    """``out = gelu(pre)``, both flat, the elements in blocks dealt out to the threads."""
    n = pre.shape[0]
    for block in prange((n + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        x, y = pre[first : min(n, first + BLOCK)], out[first : min(n, first + BLOCK)]
        for i in range(x.shape[0]):
            y[i] = gelu(x[i])
