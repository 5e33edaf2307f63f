"""Logits of a few rows: each row of the embedding is read once, in order, and met by all of them.

Bound by memory: 4 V C bytes, 2 N V C operations. Each logit adds in the same order whatever N is (``simd_rows.dots``),
so a row's bits do not depend on its neighbours. Work is split over the vocabulary.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import ORDERED
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.simd import VL
from nanoeuler.ops.cpu.simd_rows import DOT_ROWS, dots, dots1, dots1_last, dots_last, fma


@part("void(f4[::1], i8, f4[::1], f4[::1], i8, i8, i8, i8, i8)")
def dot_rows(out, ldo, x, w, w0, N, C, v0, v1):  # type: ignore[no-untyped-def]
    """``out[n, v] = x[n] . w[v]`` for v0 <= v < v1; x (N, C), rows of w from ``w0`` on, out with stride ``ldo``."""
    whole = C // VL
    for v in range(v0, v1, DOT_ROWS):
        m = min(DOT_ROWS, v1 - v)
        wp = w.ctypes.data + 4 * (w0 + v * C)
        for r in range(0, N, DOT_ROWS):
            n = min(DOT_ROWS, N - r)
            xp, o = x.ctypes.data + 4 * r * C, out.ctypes.data + 4 * (r * ldo + v)
            if whole == 0:
                for i in range(n):
                    for j in range(m):
                        out[(r + i) * ldo + v + j] = np.float32(0.0)
            elif n == DOT_ROWS and m == DOT_ROWS:
                dots(whole, xp, 4 * C, wp, 4 * C, o, 4 * ldo)
            elif m == DOT_ROWS:
                for i in range(n):
                    dots1(whole, xp + 4 * i * C, 4 * C, wp, 4 * C, o + 4 * i * ldo, 4 * ldo)
            elif n == DOT_ROWS:
                for j in range(m):
                    dots_last(whole, xp, 4 * C, wp + 4 * j * C, 4 * C, o + 4 * j, 4 * ldo)
            else:
                for i in range(n):
                    for j in range(m):
                        dots1_last(whole, xp + 4 * i * C, 4 * C, wp + 4 * j * C, 4 * C, o + 4 * (i * ldo + j), 4 * ldo)
            for i in range(n):
                for j in range(m):
                    rest = np.float32(0.0)
                    for c in range(whole * VL, C):
                        rest = fma(x[(r + i) * C + c], w[w0 + (v + j) * C + c], rest)
                    out[(r + i) * ldo + v + j] += rest


@part()
def logits_of_thread(t, out, x, wte, N, V, C, threads):  # type: ignore[no-untyped-def]
    """Thread t's part of the vocabulary."""
    dot_rows(out, V, x, wte, 0, N, C, t * V // threads, (t + 1) * V // threads)


@njit(**ORDERED)
def logits(out, x, wte, N, V, C, threads):  # type: ignore[no-untyped-def]
    """``out (N, V) = x (N, C) @ wte (V, C).T`` on flat buffers."""
    fork(logits_of_thread, threads, (out, x, wte, N, V, C, threads))
