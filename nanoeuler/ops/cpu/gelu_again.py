"""GELU by itself, for training that does not keep its output: otherwise it is part of a matrix product's epilogue.

Reads 4 bytes and writes 4 bytes an element, for some twenty operations: bound by memory beyond the caches.
"""

from __future__ import annotations

from numba import njit

from nanoeuler.ops.cpu.options import ORDERED
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.row_kernels import gelu_row

BLOCK = 16384


@part()
def gelu_block(block, out, pre):  # type: ignore[no-untyped-def]
    """A block of :func:`gelu_again`."""
    first = block * BLOCK
    gelu_row(min(pre.shape[0], first + BLOCK) - first, out.ctypes.data + 4 * first, pre.ctypes.data + 4 * first)


@njit(nogil=True, **ORDERED)
def gelu_again(out, pre):  # type: ignore[no-untyped-def]
    """``out = gelu(pre)``, both flat, the elements in blocks dealt out to the threads."""
    fork(gelu_block, (pre.shape[0] + BLOCK - 1) // BLOCK, (out, pre))
