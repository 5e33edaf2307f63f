"""Sum of two gradients, global norm and AdamW: each one pass over the flat buffers, bound by memory.

Bytes an element: 12, 4 and 28.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part, part
from nanoeuler.ops.cpu.row_kernels import add_row
from nanoeuler.ops.cpu.scratch import FLAT_BLOCK as BLOCK


@part()
def add_block(b, out, x):  # type: ignore[no-untyped-def]
    """Block b of :func:`add`."""
    first = b * BLOCK
    n, at = min(out.shape[0], first + BLOCK) - first, out.ctypes.data + 4 * first
    add_row(n, at, at, x.ctypes.data + 4 * first)


@njit(**KERNEL)
def add(out, x):  # type: ignore[no-untyped-def]
    """``out += x``: two workers' gradients."""
    fork(add_block, (out.shape[0] + BLOCK - 1) // BLOCK, (out, x))


@fast_part()
def square_sum(b, partial, x):  # type: ignore[no-untyped-def]
    """Block b of :func:`block_square_sums`."""
    block = x[b * BLOCK : min(x.shape[0], (b + 1) * BLOCK)]
    total = 0.0
    for s in range(0, block.shape[0], 512):  # float32 within 512 elements, float64 across
        few: Any = np.float32(0.0)
        piece = block[s : min(block.shape[0], s + 512)]
        for i in range(piece.shape[0]):
            few += piece[i] * piece[i]
        total += few
    partial[b] = total


@njit(**KERNEL)
def block_square_sums(partial, x):  # type: ignore[no-untyped-def]
    """``partial[b]`` = sum of squares of block b in float64: fixed blocks, so the bits do not depend on threads."""
    fork(square_sum, partial.shape[0], (partial, x))


@fast_part()
def adamw_block(b, param, grad, m, v, n_decay, lr, beta1, beta2, correct1, correct2, eps, weight_decay, grad_scale):  # type: ignore[no-untyped-def]
    """Block b of :func:`adamw`."""
    one = np.float32(1.0)
    lo, hi = b * BLOCK, min(param.shape[0], (b + 1) * BLOCK)
    boundary = min(hi, max(lo, n_decay))
    for decays in (True, False):
        s, e = (lo, boundary) if decays else (boundary, hi)
        keep = one - lr * weight_decay if decays else one
        ps, gs, ms, vs = param[s:e], grad[s:e], m[s:e], v[s:e]
        for i in range(e - s):
            g = gs[i] * grad_scale
            m1 = beta1 * ms[i] + (one - beta1) * g
            v1 = beta2 * vs[i] + (one - beta2) * g * g
            ms[i] = m1
            vs[i] = v1
            ps[i] = ps[i] * keep - lr * (m1 * correct1) / (np.sqrt(v1 * correct2) + eps)


@njit(**KERNEL)
def adamw(param, grad, m, v, n_decay, lr, beta1, beta2, correct1, correct2, eps, weight_decay, grad_scale):  # type: ignore[no-untyped-def]
    """AdamW over blocks; all scalars float32. ``correct1 = 1/(1-beta1^step)``, ``correct2 = 1/(1-beta2^step)``."""
    blocks = (param.shape[0] + BLOCK - 1) // BLOCK
    scalars = (lr, beta1, beta2, correct1, correct2, eps, weight_decay, grad_scale)
    fork(adamw_block, blocks, (param, grad, m, v, n_decay, *scalars))
