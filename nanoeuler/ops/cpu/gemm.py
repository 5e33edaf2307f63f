"""The matrix product, ours from the first instruction to the last: ``C (+)= op(A) op(B)`` with fused epilogues.

Three levels of blocking, each for one level of memory (Goto & van de Geijn 2008):

- registers: a tile of MR x NR of C (``simd.tile``);
- L1/L2: operands are *packed* into panels, ``a[k][MR]`` and ``b[k][NR]``, so the tile reads straight ahead whatever
  the layout was. Packing also makes transposition free: it is only another pair of strides;
- threads: the longer side of C is cut into one range a thread. The operand along the shorter side is packed
  once for all threads (``shared``); each thread packs its own part of the other, block by block.

Work: 2 M N K operations. Bytes: each operand is read once and its packed copy once more from cache. With AVX-512 a core
does 64 operations a cycle, so for K >= 128 the product is bound by arithmetic.

Why not NumPy's BLAS: its threads and Numba's fight for the same cores (the loss was measured at 1.7-1.9 times), it
cannot add to C (a pass more over every weight gradient), and bias, GELU and GELU's gradient would each be a pass of
their own. See docs/performance-log.md for the measurements.

Determinism: each element of C sums over k in one fixed order, whatever the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import BIAS, BIAS_GELU, KERNEL, NONE
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.row_kernels import add_row, bias_gelu_row, gelu_grad_row
from nanoeuler.ops.cpu.scratch import KC, KS, MC, NC
from nanoeuler.ops.cpu.simd import MR, NR, VL, copy_a, copy_b, tile, turn_a, turn_b


@part("void(f4[::1], i8, f4[::1], i8, i8, i8, i8, i8, i8)")
def pack_rest(dst, d0, src, s0, n, k, sn, sk, R):  # type: ignore[no-untyped-def]
    """What packing leaves: the last k's of whole panels where k is no multiple of VL, and the panel with an edge."""
    full = n // R
    if sn != 1 and k % VL != 0:
        for p in range(full):
            for kk in range(k // VL * VL, k):
                for i in range(R):
                    dst[d0 + p * R * k + kk * R + i] = src[s0 + (p * R + i) * sn + kk]
    if full * R < n:
        panel, s = dst[d0 + full * R * k : d0 + (full + 1) * R * k], s0 + full * R * sn
        panel[:] = np.float32(0.0)
        for kk in range(k):
            for i in range(n - full * R):
                panel[kk * R + i] = src[s + i * sn + kk * sk]


@part("void(f4[::1], i8, f4[::1], i8, i8, i8, i8, i8)")
def pack_a(dst, d0, src, s0, n, k, sn, sk):  # type: ignore[no-untyped-def]
    """``dst[d0 + panel*R*k + kk*R + i] = src[s0 + (panel*R+i)*sn + kk*sk]`` for an (n, k) operand, R = MR.

    Rows beyond n are zero, so the tile needs no edge cases. ``sn`` or ``sk`` must be 1.
    """
    if sn == 1:
        for kk in range(k):  # along the rows of src as they lie in memory, into all panels at once
            source, target = src.ctypes.data + 4 * (s0 + kk * sk), dst.ctypes.data + 4 * (d0 + kk * MR)
            for p in range(n // MR):
                copy_a(target + 4 * p * MR * k, source + 4 * p * MR)
    else:
        for p in range(n // MR):
            source, target = src.ctypes.data + 4 * (s0 + p * MR * sn), dst.ctypes.data + 4 * (d0 + p * MR * k)
            for kk in range(0, k // VL * VL, VL):
                turn_a(target + 4 * kk * MR, MR, source + 4 * kk, sn)
    pack_rest(dst, d0, src, s0, n, k, sn, sk, MR)


@part("void(f4[::1], i8, f4[::1], i8, i8, i8, i8, i8)")
def pack_b(dst, d0, src, s0, n, k, sn, sk):  # type: ignore[no-untyped-def]
    """The same with R = NR. (One function for both, made with R, would be a closure, which Numba's cache never finds
    again: it was compiled at every start.)"""
    if sn == 1:
        for kk in range(k):
            source, target = src.ctypes.data + 4 * (s0 + kk * sk), dst.ctypes.data + 4 * (d0 + kk * NR)
            for p in range(n // NR):
                copy_b(target + 4 * p * NR * k, source + 4 * p * NR)
    else:
        for p in range(n // NR):
            source, target = src.ctypes.data + 4 * (s0 + p * NR * sn), dst.ctypes.data + 4 * (d0 + p * NR * k)
            for kk in range(0, k // VL * VL, VL):
                turn_b(target + 4 * kk * NR, NR, source + 4 * kk, sn)
    pack_rest(dst, d0, src, s0, n, k, sn, sk, NR)


@part("void(i8, i8, i8, f4[::1], i8, i8, i8, i8, i8, f4[::1], i8)")
def edge_tile(kc, a, b, C, c0, ldc, m, n, accumulate, tmp, t0):  # type: ignore[no-untyped-def]
    """A tile that sticks out of C: computed into scratch, then the part inside is copied."""
    tile(kc, a, b, tmp.ctypes.data + 4 * t0, NR, 0)
    for i in range(m):
        row, sums = C[c0 + i * ldc : c0 + i * ldc + n], tmp[t0 + i * NR : t0 + i * NR + n]
        if accumulate != 0:
            for j in range(n):
                row[j] += sums[j]
        else:
            for j in range(n):
                row[j] = sums[j]


@part("void(i8, i8, i8, i8, i8, i8, i8, f4[::1], i8, i8, i8, f4[::1], i8)")
def panels(kc, a, a_step, M, b, b_step, N, C, c0, ldc, accumulate, tmp, t0):  # type: ignore[no-untyped-def]
    """``C[M,N] (+)= A B`` from packed panels at addresses ``a``, ``b`` that lie ``a_step``, ``b_step`` floats apart.

    A panel of B (32 KB with AVX-512) stays in L1 while the smaller ones of A (12 KB) stream by from L2.
    """
    c_base = C.ctypes.data
    for j in range((N + NR - 1) // NR):
        n = min(NR, N - j * NR)
        pb = b + 4 * j * b_step
        for p in range((M + MR - 1) // MR):
            m = min(MR, M - p * MR)
            pa, c = a + 4 * p * a_step, c0 + p * MR * ldc + j * NR
            if m == MR and n == NR:
                tile(kc, pa, pb, c_base + 4 * c, ldc, accumulate)
            else:
                edge_tile(kc, pa, pb, C, c, ldc, m, n, accumulate, tmp, t0)


@part("void(i8, f4[::1], i8, i8, i8, i8, i8, f4[::1], f4[::1])")
def epilogue(mode, C, ldc, r0, r1, n0, n1, bias, aux):  # type: ignore[no-untyped-def]
    """Finish a block of C while it is in cache: bias, GELU (keeping its input in ``aux``), or GELU's gradient."""
    n, b = n1 - n0, bias.ctypes.data + 4 * n0
    for r in range(r0, r1):
        at = 4 * (r * ldc + n0)
        c, pre = C.ctypes.data + at, aux.ctypes.data + at
        if mode == BIAS:
            add_row(n, c, c, b)
        elif mode == BIAS_GELU:
            bias_gelu_row(n, c, pre, b)
        else:
            gelu_grad_row(n, c, pre)


@part("void(f4[::1], i8, i8, i8, i8, i8, f4[::1], i8, i8, i8, f4[::1], b1, i8, f4[::1], f4[::1], f4[::1], i8)")
def columns_of_thread(C, N, M, n0, n1, k, B, b0, sbn, sbk, shared, acc, mode, bias, aux, work, w0):  # type: ignore[no-untyped-def]
    """A thread's columns n0..n1 of C: packs its own B, reads the shared A."""
    t0 = w0 + KC * NC
    for j0 in range(n0, n1, NC):
        n = min(NC, n1 - j0)
        for k0 in range(0, k, KC):
            kc = min(KC, k - k0)
            pack_b(work, w0, B, b0 + j0 * sbn + k0 * sbk, n, kc, sbn, sbk)
            a = shared.ctypes.data + 4 * k0 * MR
            add = 1 if (acc or k0 > 0) else 0
            panels(kc, a, MR * k, M, work.ctypes.data + 4 * w0, NR * kc, n, C, j0, N, add, work, t0)
        if mode != NONE:
            epilogue(mode, C, N, 0, M, j0, j0 + n, bias, aux)


@part("void(f4[::1], i8, i8, i8, i8, f4[::1], i8, i8, i8, f4[::1], b1, i8, f4[::1], f4[::1], f4[::1], i8)")
def rows_of_thread(C, N, m0, m1, k, A, a0, sam, sak, shared, acc, mode, bias, aux, work, w0):  # type: ignore[no-untyped-def]
    """A thread's rows m0..m1 of C: packs its own A, reads the shared B."""
    t0 = w0 + KC * MC
    for i0 in range(m0, m1, MC):
        m = min(MC, m1 - i0)
        for k0 in range(0, k, KC):
            kc = min(KC, k - k0)
            pack_a(work, w0, A, a0 + i0 * sam + k0 * sak, m, kc, sam, sak)
            b = shared.ctypes.data + 4 * k0 * NR
            add = 1 if (acc or k0 > 0) else 0
            panels(kc, work.ctypes.data + 4 * w0, MR * kc, m, b, NR * k, N, C, i0 * N, N, add, work, t0)
        if mode != NONE:
            epilogue(mode, C, N, i0, i0 + m, 0, N, bias, aux)


@part("b1(i8, i8, i8)")
def cut_by_columns(mp, np_, threads):  # type: ignore[no-untyped-def]
    """Whether to cut C's columns (rather than rows) among threads: the longer side, unless its panels divide
    among the threads more than a tenth worse than the shorter side's."""
    columns = ((np_ + threads - 1) // threads) * mp  # tiles of the busiest thread, cutting columns
    rows = ((mp + threads - 1) // threads) * np_
    if np_ * NR >= mp * MR:
        return 10 * columns <= 11 * rows
    return 11 * columns < 10 * rows


@part()
def pack_shared(p, by_columns, shared, a, b, k):  # type: ignore[no-untyped-def]
    """Panel p of the operand that all threads read: A, or B where rows are cut."""
    (A, sam, a0, sak, M), (B, sbn, b0, sbk, N) = a, b
    if by_columns:
        pack_a(shared, p * MR * k, A, p * MR * sam + a0, min(MR, M - p * MR), k, sam, sak)
    else:
        pack_b(shared, p * NR * k, B, p * NR * sbn + b0, min(NR, N - p * NR), k, sbn, sbk)


@part()
def part_of_thread(t, by_columns, each, C, a, b, k, shared, acc, mode, bias, aux, work, size):  # type: ignore[no-untyped-def]
    """Thread t's ``each`` columns of C, or rows; ``a`` and ``b`` as in :func:`gemm`."""
    (A, sam, a0, sak, M), (B, sbn, b0, sbk, N) = a, b
    if by_columns:
        n0, n1 = min(N, t * each), min(N, (t + 1) * each)
        columns_of_thread(C, N, M, n0, n1, k, B, b0, sbn, sbk, shared, acc, mode, bias, aux, work, t * size)
    else:
        m0, m1 = min(M, t * each), min(M, (t + 1) * each)
        rows_of_thread(C, N, m0, m1, k, A, a0, sam, sak, shared, acc, mode, bias, aux, work, t * size)


@njit(**KERNEL)
def gemm(C, A, ta, B, tb, M, N, K, accumulate, mode, bias, aux, shared, work, threads):  # type: ignore[no-untyped-def]
    """``C (M,N) (+)= op(A) (M,K) @ op(B) (K,N)`` on flat float32 buffers; ``ta``, ``tb``: A or B is stored transposed.

    ``mode`` is an epilogue: BIAS adds ``bias`` (N,); BIAS_GELU also applies GELU and keeps its input in ``aux`` (M,N);
    GELU_GRAD multiplies by GELU's derivative at ``aux``. ``shared`` and ``work`` (a part for each thread) are scratch,
    as large as ``product_shared`` and ``product_private`` in ``scratch.py`` say.
    """
    sam, sak = (1, M) if ta else (K, 1)
    sbn, sbk = (K, 1) if tb else (1, N)
    mp, np_ = (M + MR - 1) // MR, (N + NR - 1) // NR
    by_columns = cut_by_columns(mp, np_, threads)
    each = (np_ + threads - 1) // threads * NR if by_columns else (mp + threads - 1) // threads * MR
    size = work.shape[0] // threads
    for s0 in range(0, K, KS):
        k = min(KS, K - s0)
        last = NONE if s0 + k < K else mode
        acc = accumulate or s0 > 0
        a, b = (A, sam, s0 * sak, sak, M), (B, sbn, s0 * sbk, sbk, N)  # operand, strides, start, rows or columns
        fork(pack_shared, mp if by_columns else np_, (by_columns, shared, a, b, k))
        fork(part_of_thread, threads, (by_columns, each, C, a, b, k, shared, acc, last, bias, aux, work, size))
