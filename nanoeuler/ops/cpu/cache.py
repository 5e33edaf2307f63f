"""The KV cache on a CPU: keys in blocks with one key in each vector lane, values row by row.

A block of keys is ``[head_dim][KEYS]``, so the scores of one query with KEYS keys are a product with outputs in the
lanes (``simd_rows.columns2``), without horizontal sums; the weighted sum of values is the same product, with channels
in the lanes. Both add one term after the other, as :mod:`nanoeuler.ops.cpu.attention` does: a query sees the same bits
here as there, and so a model writes the same text with and without a cache.

Bytes: keys and values up to the query's position once, 8 C each. Work is split over pairs of query and head.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import ORDERED
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.simd import VL, exp, widest_vectors
from nanoeuler.ops.cpu.simd_rows import COLUMNS, NV, PANEL, WIDE, columns, columns1, columns2, fma, wide_columns

KEYS = PANEL  # keys in a block


def cache_shapes(n_slots: int, n_head: int, context: int, head_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the keys and of the values of one layer."""
    blocks = -(-context // KEYS)
    return (n_slots, n_head, blocks, head_dim, KEYS), (n_slots, n_head, blocks * KEYS, head_dim)


def copy_cache(keys: np.ndarray, values: np.ndarray, src: int, dst: int, length: int) -> None:
    """The first ``length`` positions of sequence ``src`` become those of ``dst``."""
    blocks = -(-length // KEYS)
    keys[dst, :, :blocks] = keys[src, :, :blocks]
    values[dst, :, :length] = values[src, :, :length]


@part("void(f4[::1], i8, f4[::1], i8, f4[::1], i8, i8, i8, i8, b1)")
def sum_rows(out, o0, x, x0, w, w0, ldw, n, width, add):  # type: ignore[no-untyped-def]
    """``out[o0 + c] (+)= sum over k < n of x[x0 + k] * w[w0 + k*ldw + c]`` for c < width, in the order of k."""
    more = 1 if add else 0
    o, xp, wp = out.ctypes.data + 4 * o0, x.ctypes.data + 4 * x0, w.ctypes.data + 4 * w0
    c = np.int64(0)
    while c + WIDE * VL <= width:
        wide_columns(n, xp, wp + 4 * c, 4 * ldw, o + 4 * c, more)
        c += WIDE * VL
    while c + NV * VL <= width:
        columns(n, xp, wp + 4 * c, 4 * ldw, o + 4 * c, more)
        c += COLUMNS
    while c + VL <= width:
        columns1(n, xp, wp + 4 * c, 4 * ldw, o + 4 * c, more)
        c += VL
    for j in range(c, width):
        total = np.float32(0.0)
        for k in range(n):
            total = fma(x[x0 + k], w[w0 + k * ldw + j], total)
        out[o0 + j] = out[o0 + j] + total if add else total


@part("void(f4[::1], i8, f4[::1], i8, f4[::1], i8, f4[::1], i8, i8, i8, f4[::1])")
def attend_row(out, o0, q, q0, keys, k0, values, v0, n, D, work):  # type: ignore[no-untyped-def]
    """``out[o0:+D]``: one query's mean of the first ``n`` values. ``work``: D + n floats, n rounded up to KEYS."""
    widest_vectors()
    scale = np.float32(1.0 / np.sqrt(D))
    for d in range(D):
        work[d] = q[q0 + d] * scale
    base, s = work.ctypes.data, work[D:]
    for block in range((n + KEYS - 1) // KEYS):
        columns2(D, base, keys.ctypes.data + 4 * (k0 + block * D * KEYS), 4 * KEYS, base + 4 * (D + block * KEYS), 0)
    top = s[0]
    for j in range(n):
        top = s[j] if s[j] > top else top
    for j in range(n):
        s[j] = exp(s[j] - top)
    total = np.float32(0.0)
    for j in range(n):
        total += s[j]
    sum_rows(out, o0, s, 0, values, v0, D, n, D, False)
    share = np.float32(1.0) / total
    for d in range(D):
        out[o0 + d] *= share


@part("void(f4[::1], f4[::1], f4[::1], i4[::1], i4[::1], i8, i8, i8, i8, i8, i8)")
def write_heads(keys, values, qkv, slots, positions, ld, C, H, context, h0, h1):  # type: ignore[no-untyped-def]
    """Keys and values of heads h0..h1 of all rows of ``qkv`` (N, stride ``ld``) into one layer's cache.

    ``context`` is the cache's, a multiple of KEYS.
    """
    D = C // H
    for r in range(slots.shape[0]):
        slot, position = np.int64(slots[r]), np.int64(positions[r])
        for h in range(h0, h1):
            v_at = ((slot * H + h) * context + position) * D
            k_at = ((slot * H + h) * context + position // KEYS * KEYS) * D + position % KEYS
            at = r * ld + C + h * D
            for d in range(D):
                keys[k_at + d * KEYS] = qkv[at + d]
            for d in range(D):
                values[v_at + d] = qkv[at + C + d]


@part("void(f4[::1], f4[::1], i8, f4[::1], f4[::1], i4[::1], i4[::1], i8, i8, i8, i8, f4[::1])")
def attend_pair(out, qkv, ld, keys, values, slots, positions, C, H, context, pair, work):  # type: ignore[no-untyped-def]
    """One query's (row ``pair // H``) attention with one head, into ``out`` (N, C)."""
    D, r, h = C // H, pair // H, pair % H
    at = (np.int64(slots[r]) * H + h) * context * D
    attend_row(out, r * C + h * D, qkv, r * ld + h * D, keys, at, values, at, np.int64(positions[r]) + 1, D, work)


@part()
def write_of_thread(t, keys, values, qkv, slots, positions, C, H, context, threads):  # type: ignore[no-untyped-def]
    """Thread t's heads of :func:`write_cache`."""
    h0, h1 = t * H // threads, (t + 1) * H // threads
    write_heads(keys, values, qkv, slots, positions, 3 * C, C, H, context, h0, h1)


@njit(**ORDERED)
def write_cache(keys, values, qkv, slots, positions, C, H, context, threads):  # type: ignore[no-untyped-def]
    """Flat buffers; qkv (N, 3C)."""
    fork(write_of_thread, threads, (keys, values, qkv, slots, positions, C, H, context, threads))


@part()
def attend_of_thread(t, out, qkv, keys, values, slots, positions, C, H, context, work, threads):  # type: ignore[no-untyped-def]
    """Thread t's pairs of query and head of :func:`attention_cached`."""
    pairs, size = slots.shape[0] * H, work.shape[0] // threads
    mine = work[t * size : (t + 1) * size]
    for pair in range(t * pairs // threads, (t + 1) * pairs // threads):
        attend_pair(out, qkv, 3 * C, keys, values, slots, positions, C, H, context, pair, mine)


@njit(**ORDERED)
def attention_cached(out, qkv, keys, values, slots, positions, C, H, context, work, threads):  # type: ignore[no-untyped-def]
    """Flat buffers; out (N, C), qkv (N, 3C)."""
    fork(attend_of_thread, threads, (out, qkv, keys, values, slots, positions, C, H, context, work, threads))
