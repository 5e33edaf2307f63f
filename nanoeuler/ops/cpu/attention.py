"""Causal attention without a (T, T) matrix, forward and backward, with queries in the vector lanes.

The idea of flash attention (Dao et al. 2022) for a CPU: scores exist only as a strip, all keys times the NR queries of
one block, which stays in L2 (T x 32 floats: 128 KB at T = 1024) and is gone before the next. A GPU's shared memory is
too small for a strip and needs the online softmax; L2 is not, so the softmax here is the plain three steps. Backward
recomputes the strip from q, k and the saved log-sum-exp.

The strip is held *transposed*, ``S^T[key][query]``, and that makes everything fall into place:

- maximum, exponential and sum of the softmax run down the keys, with one query in each lane: no horizontal sums;
- its layout is exactly that of a packed B panel (``simd.tile``), so ``O^T = V^T P^T`` and ``dQ^T = K^T dS^T`` read it
  as it is;
- everything on the other side (K, V, K^T, V^T, and the strip itself for dK and dV) is read as it lies, by rows or by
  columns (``simd.tile_of_rows``, ``tile_of_columns``): packing it would cost more than half of what the products do.

Work is split over (batch, head) pairs; a thread's pairs lie together, so it mostly meets rows that it has just written
itself. A head's rows are short pieces (128 bytes at D = 32) far apart, which no hardware prefetcher follows; so while
it works on a pair, a thread asks for the rows of the next. Operations: 4 T^2 D/2 forward and 10 T^2 D/2 backward for
each pair; bytes: q, k, v and out once each. Bound by arithmetic: the products, then the exponentials.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.dropout import hash32
from nanoeuler.ops.cpu.gemm import pack_b
from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part, part
from nanoeuler.ops.cpu.simd import MR, NR, VL, copy_floats, prefetch, tile_of_columns, tile_of_rows, turn_square
from nanoeuler.ops.cpu.strips import grad_strip, mask_strip, softmax_strip

MASKED = -1e30


@part("Tuple((f4[::1], i8))(f4[::1], i8, i8)")
def take(work, at, size):  # type: ignore[no-untyped-def]
    """The next ``size`` floats of scratch, and the next cache line after them."""
    return work[at : at + size], at + (size + 15) // 16 * 16


@part("Tuple((i8, i8))(f4[::1], i8, i8, i8, i8, f4[::1])")
def operand(src, s0, stride, T, D, scratch):  # type: ignore[no-untyped-def]
    """(address, row stride) of T rows of D floats, to be read MR rows or columns at a time.

    A sequence or a head shorter than that is copied into ``scratch``, with room around it.
    """
    if T >= MR and D >= MR:
        return np.int64(src.ctypes.data + 4 * s0), stride
    width = D + MR
    scratch[:] = np.float32(0.0)
    for t in range(T):
        copy_floats(scratch.ctypes.data + 4 * t * width, src.ctypes.data + 4 * (s0 + t * stride), D)
    return np.int64(scratch.ctypes.data), width


@part("void(f4[::1], i8, i8, i8, i8, f4[::1])")
def rows_times_panel(C, a, stride, rows, k, b):  # type: ignore[no-untyped-def]
    """``C[rows, NR] = A[rows, k] B[k, NR]``: A by rows, one packed B panel. The last MR rows overlap those before."""
    for p in range((rows + MR - 1) // MR):
        i = max(0, min(p * MR, rows - MR))
        tile_of_rows(k, a + 4 * i * stride, stride, b.ctypes.data, C.ctypes.data + 4 * i * NR, NR, 0)


@part("void(f4[::1], i8, i8, i8, i8, f4[::1])")
def columns_times_panel(C, a, stride, rows, k, b):  # type: ignore[no-untyped-def]
    """The same with A by columns: ``A[i, k] = a[k*stride + i]``."""
    for p in range((rows + MR - 1) // MR):
        i = max(0, min(p * MR, rows - MR))
        tile_of_columns(k, a + 4 * i, stride, b.ctypes.data, C.ctypes.data + 4 * i * NR, NR, 0)


@part("void(f4[::1], f4[::1], i8, i8, f4[::1], i8)")
def add_outer(C, strip, rows, n, b, width):  # type: ignore[no-untyped-def]
    """``C[rows, width] += strip[rows, n queries] B[n queries, width]``: B packed, width a multiple of NR."""
    for j in range(width // NR):
        for p in range((rows + MR - 1) // MR):
            c = C.ctypes.data + 4 * (p * MR * width + j * NR)
            tile_of_rows(n, strip.ctypes.data + 4 * p * MR * NR, NR, b.ctypes.data + 4 * j * NR * n, c, width, 1)


@part("void(f4[::1], i8, i8, i8, i8)")
def fetch_rows(src, s0, stride, n, D):  # type: ignore[no-untyped-def]
    """Ask for n rows of D floats that will be needed soon; none if they lie beyond the end of ``src``."""
    if s0 + (n - 1) * stride + D > src.shape[0]:
        return
    for t in range(n):
        for d in range(0, D, 16):
            prefetch(src.ctypes.data + 4 * (s0 + t * stride + d))


@part("void(f4[::1], i8, i8, f4[::1], i8, i8)")
def write_rows(dst, d0, stride, lanes, n, D):  # type: ignore[no-untyped-def]
    """``dst[d0 + i*stride + d] = lanes[d*NR + i]`` for i < n, d < D: a query's vector goes back into a row."""
    turned = D // VL * VL if n == NR else 0
    for d in range(0, turned, VL):
        for i in range(0, NR, VL):
            turn_square(dst.ctypes.data + 4 * (d0 + i * stride + d), stride, lanes.ctypes.data + 4 * (d * NR + i), NR)
    for i in range(n):
        for d in range(turned, D):
            dst[d0 + i * stride + d] = lanes[d * NR + i]


@part("void(f4[::1], i8, i8, u4, i8, u4, u4, f4)")
def drop_strip(P, q0, keys, base, T, start, threshold, scale):  # type: ignore[no-untyped-def]
    """Apply dropout's mask to a strip; element (query, key) of the pair has index ``base + query*T + key``."""
    for k in range(keys):
        for i in range(NR):
            index = np.uint32(base + np.uint32(q0 + i) * np.uint32(T) + np.uint32(k))
            keep = hash32(index ^ start) >= threshold
            P[k * NR + i] = P[k * NR + i] * scale if keep else np.float32(0.0)


@part()
def attend(out, lse, qkv, b, h, T, C, D, start, threshold, keep_scale, work):  # type: ignore[no-untyped-def]
    """Forward of one (batch, head) pair; ``lse`` (T,) is that pair's."""
    k_copy, at = take(work, 0, (T + MR) * (D + MR))
    v_copy, at = take(work, at, (T + MR) * (D + MR))
    qp, at = take(work, at, D * NR)
    S, at = take(work, at, (T + MR) * NR)
    ot, at = take(work, at, (D + MR) * NR)
    top, at = take(work, at, NR)
    total, at = take(work, at, NR)
    row = 3 * C
    q_at = b * T * row + h * D
    base = np.uint32((b * (C // D) + h) * T * T)
    keys_at, k_row = operand(qkv, q_at + C, row, T, D, k_copy)
    values_at, v_row = operand(qkv, q_at + 2 * C, row, T, D, v_copy)
    scale = np.float32(1.0 / np.sqrt(D))
    for q0 in range(0, T, NR):
        n = min(NR, T - q0)
        keys = q0 + n
        for third in range(3):  # of the next pair: most often the next head
            fetch_rows(qkv, q_at + q0 * row + third * C + D, row, n, D)
        pack_b(qp, 0, qkv, q_at + q0 * row, n, D, row, 1)  # Q^T (D, queries)
        for i in range(D * NR):
            qp[i] *= scale
        rows_times_panel(S, keys_at, k_row, T if T < MR else max(MR, keys), D, qp)
        mask_strip(S.ctypes.data, q0, keys, np.float32(MASKED))
        softmax_strip(S.ctypes.data, keys, top.ctypes.data, total.ctypes.data)
        if threshold > 0:
            drop_strip(S, q0, keys, base, T, start, threshold, keep_scale)
        columns_times_panel(ot, values_at, v_row, D, keys, S)
        for i in range(n):
            lse[q0 + i] = top[i] + np.log(total[i])
        for i in range(NR):
            total[i] = np.float32(1.0) / total[i]
        for d in range(D):
            lanes = ot[d * NR : (d + 1) * NR]
            for i in range(NR):
                lanes[i] *= total[i]
        write_rows(out, (b * T + q0) * C + h * D, C, ot, n, D)


@fast_part()
def attend_backward(dqkv, dout, out, lse, qkv, b, h, T, C, D, start, threshold, keep_scale, work):  # type: ignore[no-untyped-def]
    """Backward of one pair. With P = exp(S - lse) and delta = sum_d dO O (Dao et al. 2022, appendix B):

    ``dV = P^T dO``; ``dP = dO V^T``; ``dS = P (dP - delta) / sqrt(D)``; ``dQ = dS K``; ``dK = dS^T Q``.
    """
    Dn = (D + NR - 1) // NR * NR
    k_copy, at = take(work, 0, (T + MR) * (D + MR))
    v_copy, at = take(work, at, (T + MR) * (D + MR))
    S, at = take(work, at, (T + MR) * NR)
    dS, at = take(work, at, (T + MR) * NR)
    dk, at = take(work, at, (T + MR) * Dn)
    dv, at = take(work, at, (T + MR) * Dn)
    qp, at = take(work, at, D * NR)
    dop, at = take(work, at, D * NR)
    q, at = take(work, at, NR * Dn)
    do, at = take(work, at, NR * Dn)
    dq, at = take(work, at, (D + MR) * NR)
    delta, at = take(work, at, NR)
    lanes_lse, at = take(work, at, NR)
    row = 3 * C
    q_at = b * T * row + h * D
    base = np.uint32((b * (C // D) + h) * T * T)
    keys_at, k_row = operand(qkv, q_at + C, row, T, D, k_copy)
    values_at, v_row = operand(qkv, q_at + 2 * C, row, T, D, v_copy)
    dk[:] = np.float32(0.0)
    dv[:] = np.float32(0.0)
    scale = np.float32(1.0 / np.sqrt(D))
    for q0 in range(0, T, NR):
        n = min(NR, T - q0)
        keys = q0 + n
        o_at = (b * T + q0) * C + h * D
        for third in range(3):  # of the next pair: most often the next head
            fetch_rows(qkv, q_at + q0 * row + third * C + D, row, n, D)
        fetch_rows(dout, o_at + D, C, n, D)
        fetch_rows(out, o_at + D, C, n, D)
        pack_b(qp, 0, qkv, q_at + q0 * row, n, D, row, 1)  # Q^T (D, queries)
        pack_b(dop, 0, dout, o_at, n, D, C, 1)  # dO^T (D, queries)
        pack_b(dq, 0, out, o_at, n, D, C, 1)  # O^T (D, queries), where dQ^T will be later
        for i in range(NR):
            delta[i] = np.float32(0.0)
            lanes_lse[i] = lse[q0 + i] if i < n else np.float32(0.0)
        for d in range(D):
            o, g = dq[d * NR : (d + 1) * NR], dop[d * NR : (d + 1) * NR]
            for i in range(NR):
                delta[i] += o[i] * g[i]
        pack_b(q, 0, qkv, q_at + q0 * row, D, n, 1, row)  # Q (queries, D)
        pack_b(do, 0, dout, o_at, D, n, 1, C)  # dO (queries, D)
        for i in range(D * NR):
            qp[i] *= scale
        rows = T if T < MR else max(MR, keys)
        rows_times_panel(S, keys_at, k_row, rows, D, qp)
        rows_times_panel(dS, values_at, v_row, rows, D, dop)
        if threshold > 0:
            drop_strip(dS, q0, keys, base, T, start, threshold, keep_scale)
        grad_strip(S.ctypes.data, dS.ctypes.data, keys, lanes_lse.ctypes.data, delta.ctypes.data, scale)
        mask_strip(S.ctypes.data, q0, keys, np.float32(0.0))
        mask_strip(dS.ctypes.data, q0, keys, np.float32(0.0))
        if threshold > 0:
            drop_strip(S, q0, keys, base, T, start, threshold, keep_scale)
        columns_times_panel(dq, keys_at, k_row, D, keys, dS)
        for i in range(keys * NR, (keys + MR - 1) // MR * MR * NR):  # the last tile's rows beyond the keys
            S[i] = dS[i] = np.float32(0.0)
        add_outer(dv, S, keys, n, do, Dn)
        add_outer(dk, dS, keys, n, q, Dn)
        write_rows(dqkv, q_at + q0 * row, row, dq, n, D)
    for t in range(T):
        place = dqkv.ctypes.data + 4 * (q_at + t * row)
        copy_floats(place + 4 * C, dk.ctypes.data + 4 * t * Dn, D)
        copy_floats(place + 8 * C, dv.ctypes.data + 4 * t * Dn, D)


@part()
def attend_pairs(t, out, lse, qkv, B, T, C, H, start, threshold, keep_scale, work, threads):  # type: ignore[no-untyped-def]
    """Thread t's pairs of :func:`attention`."""
    size = work.shape[0] // threads
    mine = work[t * size : (t + 1) * size]
    for pair in range(t * B * H // threads, (t + 1) * B * H // threads):
        b, h, lse_of_pair = pair // H, pair % H, lse[pair * T : (pair + 1) * T]
        attend(out, lse_of_pair, qkv, b, h, T, C, C // H, start, threshold, keep_scale, mine)


@njit(**KERNEL)
def attention(out, lse, qkv, B, T, C, H, start, threshold, keep_scale, work, threads):  # type: ignore[no-untyped-def]
    """Flat buffers: qkv (B*T*3C), out (B*T*C), lse (B*H*T); ``threshold`` 0 means no dropout."""
    sizes, mask = (B, T, C, H), (start, threshold, keep_scale)
    fork(attend_pairs, threads, (out, lse, qkv, *sizes, *mask, work, threads))


@fast_part()
def attend_pairs_backward(t, dqkv, dout, out, lse, qkv, B, T, C, H, start, threshold, keep_scale, work, threads):  # type: ignore[no-untyped-def]
    """Thread t's pairs of :func:`attention_backward`."""
    size = work.shape[0] // threads
    mine = work[t * size : (t + 1) * size]
    for pair in range(t * B * H // threads, (t + 1) * B * H // threads):
        b, h, lse_of_pair = pair // H, pair % H, lse[pair * T : (pair + 1) * T]
        attend_backward(dqkv, dout, out, lse_of_pair, qkv, b, h, T, C, C // H, start, threshold, keep_scale, mine)


@njit(**KERNEL)
def attention_backward(dqkv, dout, out, lse, qkv, B, T, C, H, start, threshold, keep_scale, work, threads):  # type: ignore[no-untyped-def]
    """Flat buffers as in :func:`attention`."""
    sizes, mask = (B, T, C, H), (start, threshold, keep_scale)
    fork(attend_pairs_backward, threads, (dqkv, dout, out, lse, qkv, *sizes, *mask, work, threads))
