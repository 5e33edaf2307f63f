"""A token through the whole network in one call: decoding on a CPU.

With one row, a matrix product reads every weight to use it once, so a token costs what its weights and its cache cost
to read: for GPT-2 124M 498 MB in float32, 249 in bfloat16, 128 in 8 bits. All else must hide behind that. The threads
meet five times a layer, and no call from Python comes between:

1. layer norm, then q, k, v;   2. the cache and attention, by heads;   3. attention's projection and the residual sum;
4. layer norm, the MLP's first layer and GELU;   5. its second layer and the residual sum.

A thread owns a range of outputs. What needs a whole row (a norm, rounding it to 8 bits) every thread does for itself:
that takes less time than another meeting. Rows beside the first (a prompt, several texts, a draft to be verified) use
the weights that the first has brought into the processor's cache.

Every output adds in the order of the batched kernels (``gemm.py``: k by k, in blocks of KC), and norm, GELU and
attention are the very same functions. So float32 gives the same bits as the batched forward pass.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.cache import attend_pair, sum_rows, write_heads
from nanoeuler.ops.cpu.gemm import KC, epilogue
from nanoeuler.ops.cpu.layernorm import norm_row
from nanoeuler.ops.cpu.options import BIAS, BIAS_GELU, ORDERED
from nanoeuler.ops.cpu.packing import BF16, FLOAT32, GROUP_BYTES, INT8, unpack_output
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.rows import dot_rows
from nanoeuler.ops.cpu.simd import VL
from nanoeuler.ops.cpu.simd_rows import (
    BF16_ROWS,
    COLUMNS,
    GROUP,
    INT8_ROWS,
    PANEL,
    WIDE,
    columns_bf16,
    columns_bf16_1,
    columns_int8,
    columns_int8_1,
    nearest,
    stand_alone,
)

WEIGHTS = "Tuple((i8, f4[::1], u1[::1], i8[:, ::1]))"  # kind, floats, packed, offsets
CACHE = "Tuple((f4[::1], f4[::1], i4[::1], i4[::1]))"  # keys, values, slots, positions
SHARED = "UniTuple(f4[::1], 5)"  # residual, qkv, attention, hidden, spare
PRIVATE = "Tuple((f4[::1], i1[::1], f4[::1], i4[::1], f4[::1]))"  # rows; 8-bit rows, scales, offsets; scores

# Where things lie, in floats or in bytes of packed weights: a row of offsets for each layer, and one for the rest.
LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B = range(12)
LNF_W, LNF_B, WTE, WPE = range(4)


@part("void(f4[::1], i8, i8, i8, i1[::1], f4[::1], i4[::1])")
def round_rows(x, ldx, n, K, q, scales, offsets):  # type: ignore[no-untyped-def]
    """Rows of x (n, K) in 8 bits, each GROUP with its scale; ``offsets``: -128 times the sum of each group."""
    groups = (K + GROUP - 1) // GROUP
    for r in range(n):
        for g in range(groups):
            width = min(GROUP, K - g * GROUP)
            row, to = x[r * ldx + g * GROUP : r * ldx + g * GROUP + width], (r * groups + g) * GROUP
            largest = np.float32(0.0)
            for k in range(width):
                largest = max(largest, abs(row[k]))
            inverse = np.float32(127.0) / largest if largest > 0 else np.float32(0.0)
            total = np.int32(0)
            for k in range(width):
                value = np.int32(nearest(row[k] * inverse))
                q[to + k] = value
                total += value
            for k in range(width, GROUP):
                q[to + k] = 0
            scales[r * groups + g] = largest / np.float32(127.0)
            offsets[r * groups + g] = -128 * total


@part("i8(i8)")
def padded(n):  # type: ignore[no-untyped-def]
    """The stride of rows of n outputs: packed weights give whole panels."""
    return (n + PANEL - 1) // PANEL * PANEL


@part("void(i8, f4[::1], u1[::1], i8, f4[::1], i8, i8, i8, i8, f4[::1], i8, i1[::1], f4[::1], i4[::1], i8, i8)")
def product(kind, floats, packed, at, out, ldo, n, K, O, x, ldx, q, scales, offsets, c0, c1):  # type: ignore[no-untyped-def]  # noqa: E741
    """``out[r, c] = x[r] . W[:, c]`` for columns c0 (whose panel begins there) to c1, and n rows."""
    stand_alone()
    groups = (K + GROUP - 1) // GROUP
    if kind == FLOAT32:
        for k0 in range(0, K, KC):
            for c in range(c0, c1, WIDE * VL):
                kc, width = min(KC, K - k0), min(WIDE * VL, c1 - c)
                for r in range(n):
                    sum_rows(out, r * ldo + c, x, r * ldx + k0, floats, at + k0 * O + c, O, kc, width, k0 > 0)
        return
    w, o, xp = packed.ctypes.data + at, out.ctypes.data, x.ctypes.data
    qp, sp, op = q.ctypes.data, scales.ctypes.data, offsets.ctypes.data
    for c in range(c0, c1, PANEL):
        r = 0
        while r < n:
            here = o + 4 * (r * ldo + c)
            if kind == BF16:
                rows = BF16_ROWS if n - r >= BF16_ROWS else 1
                for k0 in range(0, K, KC):
                    wp, add = w + 2 * (c * K + k0 * PANEL), 1 if k0 > 0 else 0
                    if rows == BF16_ROWS:
                        columns_bf16(min(KC, K - k0), xp + 4 * (r * ldx + k0), 4 * ldx, wp, here, 4 * ldo, add)
                    else:
                        columns_bf16_1(min(KC, K - k0), xp + 4 * (r * ldx + k0), 4 * ldx, wp, here, 4 * ldo, add)
            else:
                rows = INT8_ROWS if n - r >= INT8_ROWS else 1
                wp, g = w + c // PANEL * groups * GROUP_BYTES, r * groups
                x8, ld8, s8, o8 = qp + g * GROUP, groups * GROUP, sp + 4 * g, op + 4 * g
                if rows == INT8_ROWS:
                    columns_int8(groups, x8, ld8, s8, o8, 4 * groups, wp, here, 4 * ldo)
                else:
                    columns_int8_1(groups, x8, ld8, s8, o8, 4 * groups, wp, here, 4 * ldo)
            r += rows


@part("UniTuple(i8, 2)(i8, i8, i8, i8)")
def share(kind, O, t, threads):  # type: ignore[no-untyped-def]  # noqa: E741
    """The columns of thread ``t``: whole panels."""
    unit = COLUMNS if kind == FLOAT32 else PANEL
    units = (O + unit - 1) // unit
    return min(O, t * units // threads * unit), min(O, (t + 1) * units // threads * unit)


@part(f"void({WEIGHTS}, i8, i8, f4[::1], i8, i8, {PRIVATE})")
def norm_rows(weights, layer, which, x, n, C, mine):  # type: ignore[no-untyped-def]
    """Layer norm ``which`` of rows x (n, C) into a thread's own memory, ready for a product."""
    kind, floats, _, offsets = weights
    rows, q, scales, sums, _ = mine
    w, b = offsets[layer, which], offsets[layer, which + 1]
    for r in range(n):
        norm_row(rows[r * C : (r + 1) * C], x[r * C : (r + 1) * C], floats[w : w + C], floats[b : b + C])
    if kind == INT8:
        round_rows(rows, C, n, C, q, scales, sums)


@part(f"void({WEIGHTS}, i8, i8, i8, i8, {SHARED}, {PRIVATE}, i8, i8)")
def linear(weights, layer, which, n, C, shared, mine, t, threads):  # type: ignore[no-untyped-def]
    """A thread's columns of one of a layer's four products, with the norm before it or the residual sum after it."""
    kind, floats, packed, offsets = weights
    residual, qkv, attention, hidden, spare = shared
    rows, q, scales, sums, _ = mine
    K, O, x, ldx, out, mode = C, C, rows, C, spare, np.int64(BIAS)  # noqa: E741 - outputs
    if which == QKV_W:
        norm_rows(weights, layer, np.int64(LN1_W), residual, n, C, mine)
        O, out = 3 * C, qkv  # noqa: E741
    elif which == FC_W:
        norm_rows(weights, layer, np.int64(LN2_W), residual, n, C, mine)
        O, out, mode = 4 * C, hidden, np.int64(BIAS_GELU)  # noqa: E741
    elif which == PROJ_W:
        x = attention
    else:
        K, x, ldx = 4 * C, hidden, padded(4 * C)
    adds = which in (PROJ_W, OUT_W)
    if kind == INT8 and adds:
        round_rows(x, ldx, n, K, q, scales, sums)
    c0, c1 = share(kind, O, t, threads)
    if c0 == c1:
        return
    at, b, ldo = offsets[layer, which], offsets[layer, which + 1], padded(O)
    product(kind, floats, packed, at, out, ldo, n, K, O, x, ldx, q, scales, sums, c0, c1)
    epilogue(mode, out, ldo, np.int64(0), n, c0, c1, floats[b : b + O], spare)
    if adds:
        for r in range(n):
            total, step = residual[r * C + c0 : r * C + c1], out[r * ldo + c0 : r * ldo + c1]
            for c in range(c1 - c0):
                total[c] += step[c]


@part(f"void(i8, f4[::1], f4[::1], {CACHE}, i8[::1], i8, f4[::1], i8, i8)")
def attend_heads(layer, qkv, out, cache, sizes, n, scores, t, threads):  # type: ignore[no-untyped-def]
    """A thread's heads: keys and values into the cache, then attention of all rows."""
    keys, values, slots, positions = cache
    C, H, context, each = sizes[0], sizes[1], sizes[2], keys.shape[0] // sizes[3]
    k, v = keys[layer * each : (layer + 1) * each], values[layer * each : (layer + 1) * each]
    h0, h1, ld = t * H // threads, (t + 1) * H // threads, padded(3 * C)
    write_heads(k, v, qkv, slots, positions, ld, C, H, context, h0, h1)
    for r in range(n):
        for h in range(h0, h1):
            attend_pair(out, qkv, ld, k, v, slots, positions, C, H, context, r * H + h, scores)


@part(f"void({WEIGHTS}, i8, f4[::1], f4[::1], i8, i8, i8, {PRIVATE}, i8, i8)")
def head(weights, L, out, x, n, C, V, mine, t, threads):  # type: ignore[no-untyped-def]
    """A thread's logits of n rows, into ``out`` (n, V) of stride ``padded(V)``."""
    kind, floats, packed, offsets = weights
    rows, q, scales, sums, _ = mine
    norm_rows(weights, L, np.int64(LNF_W), x, n, C, mine)
    if kind == FLOAT32:
        dot_rows(out, padded(V), rows, floats, offsets[L, WTE], n, C, t * V // threads, (t + 1) * V // threads)
    else:
        c0, c1 = share(kind, V, t, threads)
        product(kind, floats, packed, offsets[L, WTE], out, padded(V), n, C, V, rows, C, q, scales, sums, c0, c1)


@part(f"void({WEIGHTS}, i8[::1], i4[::1], i4[::1], f4[::1])")
def embed(weights, sizes, tokens, positions, x):  # type: ignore[no-untyped-def]
    """Token and position embedding: x (n, C)."""
    kind, floats, packed, offsets = weights
    C, L = sizes[0], sizes[3]
    for r in range(tokens.shape[0]):
        row, token, wpe = x[r * C : (r + 1) * C], np.int64(tokens[r]), offsets[L, WPE] + np.int64(positions[r]) * C
        if kind == FLOAT32:
            for c in range(C):  # row[:] = .. would compile a message about shapes for 3 s
                row[c] = floats[offsets[L, WTE] + token * C + c]
        else:
            unpack_output(row, kind, packed, offsets[L, WTE], C, token)
        for c in range(C):
            row[c] += floats[wpe + c]


@part(f"{PRIVATE}({PRIVATE}, i8[::1], i8)")
def own(private, sizes, t):  # type: ignore[no-untyped-def]
    """A thread's part of the private memory."""
    rows, q, scales, sums, scores = private
    n, g, s = sizes[5] * sizes[0], sizes[5] * sizes[6], sizes[2] + sizes[0]
    return (
        rows[t * n : (t + 1) * n],
        q[t * g * GROUP : (t + 1) * g * GROUP],
        scales[t * g : (t + 1) * g],
        sums[t * g : (t + 1) * g],
        scores[t * s : (t + 1) * s],
    )


@part(f"void(i8, i8, {WEIGHTS}, i8[::1], i8, {CACHE}, {SHARED}, {PRIVATE}, f4[::1], i8, i8)")
def step_of_thread(t, step, weights, sizes, n, cache, shared, private, out, n_logits, threads):  # type: ignore[no-untyped-def]
    """What thread ``t`` does between two meetings of all threads."""
    C, L, mine = sizes[0], sizes[3], own(private, sizes, t)
    layer, which = step // 5, step % 5
    if layer == L:
        head(weights, L, out, shared[0][(n - n_logits) * C :], n_logits, C, sizes[4], mine, t, threads)
    elif which == 1:
        attend_heads(layer, shared[1], shared[2], cache, sizes, n, mine[4], t, threads)
    else:
        place = QKV_W if which == 0 else PROJ_W if which == 2 else FC_W if which == 3 else OUT_W
        linear(weights, layer, np.int64(place), n, C, shared, mine, t, threads)


@njit(**ORDERED)
def decode(weights, sizes, tokens, cache, shared, private, out, n_logits, threads):  # type: ignore[no-untyped-def]
    """Read ``tokens`` (n,) into the cache; ``out (n_logits, V)``, of stride ``padded(V)``, receives the logits after
    the last ``n_logits``.

    ``weights``: (kind, floats, packed, offsets); ``cache``: (keys, values, slots, positions), flat and (n,);
    ``sizes``: (C, heads, context, layers, V, most rows, groups of 4C inputs). ``shared``: scratch (residual, qkv,
    attention, hidden, spare) for the most rows; ``private`` as :func:`own` cuts it.
    """
    embed(weights, sizes, tokens, cache[3], shared[0])
    n = np.int64(tokens.shape[0])
    for step in range(5 * sizes[3] + (1 if n_logits > 0 else 0)):
        fork(step_of_thread, threads, (step, weights, sizes, n, cache, shared, private, out, n_logits, threads))
