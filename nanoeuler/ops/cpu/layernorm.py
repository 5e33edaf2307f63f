"""Layer norm: one pass over each row forward, with the residual addition folded in; blocks of rows backward.

Bound by memory: forward reads x (and delta) and writes out (and residual): 8 to 16 bytes an element. At GPT-2's
widths a row (3 KB) stays in L1 between the three passes (sum, squared deviations, output) that accuracy wants.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part, part
from nanoeuler.ops.cpu.row_kernels import add_row, norm_row_backward, norm_row_backward_add, normalize_row
from nanoeuler.ops.cpu.scratch import NORM_ROWS as ROWS
from nanoeuler.ops.cpu.sums import sum_shares

EPS = 1e-5


@part()
def rows_forward(block, out, mean, rstd, residual, x, delta, weight, bias, add):  # type: ignore[no-untyped-def]
    """A block of ROWS rows of :func:`layernorm`."""
    C, r0, r1 = weight.shape[0], block * ROWS, min(mean.shape[0], (block + 1) * ROWS)
    w, b, o, source = weight.ctypes.data, bias.ctypes.data, out.ctypes.data, x.ctypes.data
    m, rs = mean.ctypes.data, rstd.ctypes.data
    for r in range(r0, r1):
        at = 4 * r * C
        if add:
            add_row(C, residual.ctypes.data + at, source + at, delta.ctypes.data + at)
            normalize_row(C, o + at, residual.ctypes.data + at, w, b, m + 4 * r, rs + 4 * r, np.float32(EPS))
        else:
            normalize_row(C, o + at, source + at, w, b, m + 4 * r, rs + 4 * r, np.float32(EPS))


@part("void(f4[::1], f4[::1], f4[::1], f4[::1])")
def norm_row(out, row, weight, bias):  # type: ignore[no-untyped-def]
    """One row of layer norm, for decoding: the same bits."""
    stats = np.empty(2, np.float32)
    at = stats.ctypes.data
    addresses = out.ctypes.data, row.ctypes.data, weight.ctypes.data, bias.ctypes.data
    normalize_row(weight.shape[0], *addresses, at, at + 4, np.float32(EPS))


@njit(**KERNEL)
def layernorm(out, mean, rstd, residual, x, delta, weight, bias, add):  # type: ignore[no-untyped-def]
    """Rows of flat (N, C) buffers. With ``add``: ``residual = x + delta`` is written and normalised."""
    blocks = (mean.shape[0] + ROWS - 1) // ROWS
    fork(rows_forward, blocks, (out, mean, rstd, residual, x, delta, weight, bias, add))


@fast_part()
def rows_backward(block, dx, partial, dout, x, mean, rstd, weight, dresidual, add):  # type: ignore[no-untyped-def]
    """A block of ROWS rows of :func:`layernorm_backward`, with its share of dweight, dbias and dx_sum."""
    C, r0, r1 = weight.shape[0], block * ROWS, min(mean.shape[0], (block + 1) * ROWS)
    shares = partial[block * 3 * C : (block + 1) * 3 * C]
    shares[:] = np.float32(0.0)
    sums, w = shares.ctypes.data, weight.ctypes.data
    for r in range(r0, r1):
        at = 4 * r * C
        d, g, row = dx.ctypes.data + at, dout.ctypes.data + at, x.ctypes.data + at
        if add:
            norm_row_backward_add(C, d, sums, g, row, w, dresidual.ctypes.data + at, mean[r], rstd[r])
        else:
            norm_row_backward(C, d, sums, g, row, w, g, mean[r], rstd[r])


@njit(**KERNEL)
def layernorm_backward(dx, dweight, dbias, dx_sum, dout, x, mean, rstd, weight, dresidual, add, accumulate, partial):  # type: ignore[no-untyped-def]
    """``dx = rstd (g - mean(g) - xhat mean(g xhat))`` with ``g = dout weight``; ``+ dresidual`` with ``add``.

    Programs own blocks of ROWS rows and leave their share of ``dweight = sum dout xhat``, ``dbias = sum dout`` and
    ``dx_sum = sum dx`` in ``partial`` (blocks, 3C). The shares are then summed in order, so the bits do not depend on
    the number of threads. ``dx_sum`` may be of another size than (C,): then it is not wanted.
    """
    C, blocks = weight.shape[0], (mean.shape[0] + ROWS - 1) // ROWS
    fork(rows_backward, blocks, (dx, partial, dout, x, mean, rstd, weight, dresidual, add))
    sum_shares(dweight, partial, 0, 3 * C, blocks, accumulate)
    sum_shares(dbias, partial, C, 3 * C, blocks, accumulate)
    if dx_sum.shape[0] == C:
        sum_shares(dx_sum, partial, 2 * C, 3 * C, blocks, accumulate)
