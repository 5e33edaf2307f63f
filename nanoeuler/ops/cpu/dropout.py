"""Dropout with counter-based masks: see ``ops/table.py`` for the hash that all engines share."""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part

_16, _15 = np.uint32(16), np.uint32(15)
_M1, _M2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)


@fast_part("u4(u4)")
def hash32(x):  # type: ignore[no-untyped-def]
    """32-bit mixing function, kept in uint32 throughout so that loops over it vectorise."""
    x = np.uint32(x ^ (x >> _16))
    x = np.uint32(x * _M1)
    x = np.uint32(x ^ (x >> _15))
    x = np.uint32(x * _M2)
    return np.uint32(x ^ (x >> _16))


@fast_part()
def drop_block(block, out, x, start, threshold, scale):  # type: ignore[no-untyped-def]
    """4096 elements of :func:`dropout`."""
    n, b0 = x.shape[0], block * 4096
    xs, os = x[b0 : min(n, b0 + 4096)], out[b0 : min(n, b0 + 4096)]
    base = np.uint32(b0)
    for i in range(xs.shape[0]):
        keep = hash32(np.uint32(base + np.uint32(i)) ^ start) >= threshold
        os[i] = xs[i] * scale if keep else np.float32(0.0)


@njit(**KERNEL)
def dropout(out, x, start, threshold, scale):  # type: ignore[no-untyped-def]
    """``out[i] = x[i] * scale`` where ``hash32(i ^ start) >= threshold``, else 0; blocks of 4096 elements."""
    fork(drop_block, (x.shape[0] + 4095) // 4096, (out, x, start, threshold, scale))
