"""Layer norm: one pass over each row forward, with the residual addition folded in; blocks of rows backward.

Bound by memory: forward reads x (and delta) and writes out (and residual): 8 to 16 bytes an element. At GPT-2's
widths a row (3 KB) stays in L1 between the three passes (sum, squared deviations, output) that accuracy wants.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from nanoeuler.ops.cpu.options import FAST, PART

EPS = 1e-5
ROWS = 32  # rows a program takes at a time in backward


@njit("UniTuple(f4, 2)(f4[::1], f4[::1], f4[::1], f4[::1])", **PART)
def norm_row(out, row, weight, bias):  # type: ignore[no-untyped-def]
    """One row of layer norm; returns its mean and 1 / standard deviation. Decoding calls it too, for the same bits."""
    C = weight.shape[0]
    scale = np.float32(1.0) / np.float32(C)
    total = np.float32(0.0)
    for c in range(C):
        total += row[c]
    mu = total * scale
    square = np.float32(0.0)
    for c in range(C):
        square += (row[c] - mu) * (row[c] - mu)
    rs = np.float32(1.0) / np.sqrt(square * scale + np.float32(EPS))
    for c in range(C):
        out[c] = (row[c] - mu) * rs * weight[c] + bias[c]
    return mu, rs


@njit(parallel=True, **FAST)
def layernorm(out, mean, rstd, residual, x, delta, weight, bias, add):  # type: ignore[no-untyped-def]
    """Rows of flat (N, C) buffers. With ``add``: ``residual = x + delta`` is written and normalised."""
    C = weight.shape[0]
    N = mean.shape[0]
    for r in prange(N):
        row = x[r * C : (r + 1) * C]
        if add:
            d, s = delta[r * C : (r + 1) * C], residual[r * C : (r + 1) * C]
            for c in range(C):
                s[c] = row[c] + d[c]
            row = s
        mean[r], rstd[r] = norm_row(out[r * C : (r + 1) * C], row, weight, bias)


@njit("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], b1, i8, i8)", **PART)
def rows_backward(dx, shares, dout, x, mean, rstd, weight, dresidual, add, r0, r1):  # type: ignore[no-untyped-def]
    """Rows r0..r1 of :func:`layernorm_backward`; ``shares`` (2C,) receives their part of dweight and dbias."""
    C = weight.shape[0]
    scale = np.float32(1.0) / np.float32(C)
    dw, db = shares[:C], shares[C:]
    shares[:] = np.float32(0.0)
    for r in range(r0, r1):
        row, g, d = x[r * C : (r + 1) * C], dout[r * C : (r + 1) * C], dx[r * C : (r + 1) * C]
        mu, rs = mean[r], rstd[r]
        sum_g, sum_gx = np.float32(0.0), np.float32(0.0)
        for c in range(C):
            gw = g[c] * weight[c]
            sum_g += gw
            sum_gx += gw * (row[c] - mu)
        a, b = sum_g * scale, sum_gx * rs * rs * scale
        for c in range(C):
            dw[c] += g[c] * (row[c] - mu) * rs
            db[c] += g[c]
        if add:
            past = dresidual[r * C : (r + 1) * C]
            for c in range(C):
                d[c] = past[c] + rs * (g[c] * weight[c] - a - (row[c] - mu) * b)
        else:
            for c in range(C):
                d[c] = rs * (g[c] * weight[c] - a - (row[c] - mu) * b)


@njit(parallel=True, **FAST)
def layernorm_backward(dx, dweight, dbias, dout, x, mean, rstd, weight, dresidual, add, accumulate, partial):  # type: ignore[no-untyped-def]
    """``dx = rstd (g - mean(g) - xhat mean(g xhat))`` with ``g = dout weight``; ``+ dresidual`` with ``add``.

    Programs own blocks of ROWS rows and leave their share of ``dweight = sum dout xhat`` and ``dbias = sum dout`` in
    ``partial`` (blocks, 2C). The shares are then summed in order, so the bits do not depend on the number of threads.
    """
    C = weight.shape[0]
    N = mean.shape[0]
    blocks = (N + ROWS - 1) // ROWS
    for index in prange(blocks):
        block = np.int64(index)
        shares = partial[block * 2 * C : (block + 1) * 2 * C]
        rows_backward(dx, shares, dout, x, mean, rstd, weight, dresidual, add, block * ROWS, min(N, (block + 1) * ROWS))
    if not accumulate:
        dweight[:] = np.float32(0.0)
        dbias[:] = np.float32(0.0)
    for i in range(blocks):
        w, b = partial[i * 2 * C : i * 2 * C + C], partial[i * 2 * C + C : (i + 1) * 2 * C]
        for c in range(C):
            dweight[c] += w[c]
            dbias[c] += b[c]
