"""Token and position embedding. Bound by memory: a row is read and written per token."""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part


@part()
def embed_row(n, out, idx, wte, wpe, T):  # type: ignore[no-untyped-def]
    """Row n of :func:`embedding`."""
    token, position, o = wte[idx[n]], wpe[n % T], out[n]
    for c in range(wte.shape[1]):
        o[c] = token[c] + position[c]


@njit(**KERNEL)
def embedding(out, idx, wte, wpe, T):  # type: ignore[no-untyped-def]
    """``out (B*T, C)``: row n is token ``idx[n]`` plus position ``n % T``. Programs own rows."""
    fork(embed_row, idx.shape[0], (out, idx, wte, wpe, T))


@part()
def scatter_columns(block, dwte, dwpe, dout, idx, T, accumulate):  # type: ignore[no-untyped-def]
    """A block of 64 columns of :func:`embedding_backward`."""
    N, C = dout.shape
    c0 = block * 64
    c1 = min(C, c0 + 64)
    if not accumulate:
        for t in range(dwpe.shape[0]):
            dwpe[t, c0:c1] = np.float32(0.0)
    for n in range(N):
        token, position, g = dwte[idx[n], c0:c1], dwpe[n % T, c0:c1], dout[n, c0:c1]
        for c in range(c1 - c0):
            token[c] += g[c]
            position[c] += g[c]


@njit(**KERNEL)
def embedding_backward(dwte, dwpe, dout, idx, T, accumulate):  # type: ignore[no-untyped-def]
    """Scatter-add of rows. Programs own *columns*, so two tokens with the same id never meet: no atomics, one order."""
    fork(scatter_columns, (dout.shape[1] + 63) // 64, (dwte, dwpe, dout, idx, T, accumulate))
