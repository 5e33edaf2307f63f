"""Sums over rows: the gradient of whatever is added to every row, such as a bias.

A core sums the rows that it has just written and still holds; its shares, one a block of rows, are then added in order.
(Cutting the columns among the cores would need no shares, but each core would fetch half of every row from the other
one's cache: after layer norm's backward, 768 x 128 on two cores, that took 34 us where this is free.)
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part
from nanoeuler.ops.cpu.row_kernels import add_row
from nanoeuler.ops.cpu.scratch import SUM_BLOCKS as BLOCKS


@fast_part("void(f4[::1], f4[::1], i8, i8, i8, b1)")
def sum_shares(out, shares, at, stride, n, accumulate):  # type: ignore[no-untyped-def]
    """``out (C,) (+)= sum over i < n of shares[at + i*stride + c]``, in order."""
    C, target, source = out.shape[0], out.ctypes.data, shares.ctypes.data + 4 * at
    if not accumulate:
        out[:] = np.float32(0.0)
    for i in range(n):
        add_row(C, target, target, source + 4 * i * stride)


@fast_part()
def sum_block(block, shares, x, rows, each, C):  # type: ignore[no-untyped-def]
    """The share of ``each`` rows of :func:`column_sums`."""
    share = shares[block * C : (block + 1) * C]
    share[:] = np.float32(0.0)
    target, source = share.ctypes.data, x.ctypes.data
    for r in range(block * each, min(rows, (block + 1) * each)):
        add_row(C, target, target, source + 4 * r * C)


@njit(**KERNEL)
def column_sums(out, x, rows, accumulate, shares):  # type: ignore[no-untyped-def]
    """``out (C,) (+)= sum of x (rows, C) over rows``."""
    C = out.shape[0]
    each = max(32, (rows + BLOCKS - 1) // BLOCKS)
    blocks = (rows + each - 1) // each
    fork(sum_block, blocks, (shares, x, rows, each, C))
    sum_shares(out, shares, 0, C, blocks, accumulate)
