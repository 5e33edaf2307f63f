"""Layer norm: one pass over each row forward, with the residual addition folded in; rows then columns backward.

Bound by memory: forward reads x (and delta) and writes out (and residual): 8 to 16 bytes an element. At GPT-2's
widths a row (3 KB) stays in L1 between the three passes (sum, squared deviations, output) that accuracy wants.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from nanoeuler.ops.cpu.gemm import FAST

EPS = 1e-5
COLUMNS = 64


@njit(parallel=True, **FAST)
def layernorm(out, mean, rstd, residual, x, delta, weight, bias, add):  # type: ignore[no-untyped-def]
    """Rows of flat (N, C) buffers. With ``add``: ``residual = x + delta`` is written and normalised."""
    C = weight.shape[0]
    N = mean.shape[0]
    scale = np.float32(1.0) / np.float32(C)
    for r in prange(N):
        row = x[r * C : (r + 1) * C]
        if add:
            d, s = delta[r * C : (r + 1) * C], residual[r * C : (r + 1) * C]
            for c in range(C):
                s[c] = row[c] + d[c]
            row = s
        total = np.float32(0.0)
        for c in range(C):
            total += row[c]
        mu = total * scale
        square = np.float32(0.0)
        for c in range(C):
            square += (row[c] - mu) * (row[c] - mu)
        rs = np.float32(1.0) / np.sqrt(square * scale + np.float32(EPS))
        o = out[r * C : (r + 1) * C]
        for c in range(C):
            o[c] = (row[c] - mu) * rs * weight[c] + bias[c]
        mean[r] = mu
        rstd[r] = rs


@njit(parallel=True, **FAST)
def layernorm_backward(dx, dweight, dbias, dout, x, mean, rstd, weight, dresidual, add, accumulate):  # type: ignore[no-untyped-def]
    """First by rows: ``dx = rstd (g - mean(g) - xhat mean(g xhat))``, ``g = dout weight``, ``+ dresidual`` with ``add``.

    Then by columns, each program owning 64 and summing in L1: ``dweight (+)= sum dout xhat``, ``dbias (+)= sum dout``. The second pass
    reads dout and x again, from cache, in exchange for needing neither partial sums nor atomics.
    """
    C = weight.shape[0]
    N = mean.shape[0]
    scale = np.float32(1.0) / np.float32(C)
    for r in prange(N):
        row, g, d = x[r * C : (r + 1) * C], dout[r * C : (r + 1) * C], dx[r * C : (r + 1) * C]
        past = dresidual[r * C : (r + 1) * C]
        mu, rs = mean[r], rstd[r]
        sum_g, sum_gx = np.float32(0.0), np.float32(0.0)
        for c in range(C):
            gw = g[c] * weight[c]
            sum_g += gw
            sum_gx += gw * (row[c] - mu)
        a, b = sum_g * scale, sum_gx * rs * rs * scale
        if add:
            for c in range(C):
                d[c] = past[c] + rs * (g[c] * weight[c] - a - (row[c] - mu) * b)
        else:
            for c in range(C):
                d[c] = rs * (g[c] * weight[c] - a - (row[c] - mu) * b)
    for block in prange((C + COLUMNS - 1) // COLUMNS):
        c0 = block * COLUMNS
        n = min(COLUMNS, C - c0)
        dw, db = np.zeros(COLUMNS, np.float32), np.zeros(COLUMNS, np.float32)
        for r in range(N):
            row, g = x[r * C + c0 : r * C + c0 + n], dout[r * C + c0 : r * C + c0 + n]
            mu, rs = mean[r], rstd[r]
            for c in range(n):
                dw[c] += g[c] * (row[c] - mu) * rs
                db[c] += g[c]
        for c in range(n):
            dweight[c0 + c] = dw[c] + (dweight[c0 + c] if accumulate else np.float32(0.0))
            dbias[c0 + c] = db[c] + (dbias[c0 + c] if accumulate else np.float32(0.0))
