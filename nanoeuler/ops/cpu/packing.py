"""Weights in two bytes or one, laid out so that decoding reads them straight ahead.

A matrix of K inputs and O outputs is cut into panels of PANEL outputs. A panel of bfloat16 holds, input by input, its
PANEL numbers, number i and number i + VL side by side, as :func:`simd_rows._halves` takes them apart again. A panel of
8-bit weights holds, for each GROUP of inputs, PANEL scales (bfloat16, in the same order) and then, for every 4 inputs,
the 4 bytes ``weight + 128`` of each output. Inputs and outputs that pad a panel are zero.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import ORDERED
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import part
from nanoeuler.ops.cpu.simd import VL
from nanoeuler.ops.cpu.simd_rows import GROUP, PANEL

FLOAT32, BF16, INT8 = 0, 1, 2  # kinds of weights
GROUP_BYTES = (GROUP + 2) * PANEL


def packed_bytes(kind: int, K: int, O: int) -> int:  # noqa: E741 - outputs
    """Bytes of a packed matrix, a multiple of a cache line."""
    panels = -(-O // PANEL)
    each = 2 * K * PANEL if kind == BF16 else -(-K // GROUP) * GROUP_BYTES
    return -(-panels * each // 64) * 64


@part("i8(i8)")
def place(i):  # type: ignore[no-untyped-def]
    """Where output ``i`` of a panel lies among its PANEL bfloat16 numbers."""
    return 2 * i if i < VL else 2 * (i - VL) + 1


@part()
def bf16_panel(p, dst, bits, K, O, sk, so):  # type: ignore[no-untyped-def]  # noqa: E741
    """Panel p of :func:`pack_bf16`."""
    for k in range(K):
        to = (p * K + k) * PANEL
        for i in range(PANEL):
            o = p * PANEL + i
            x = bits[k * sk + o * so] if o < O else np.uint32(0)
            dst[to + place(i)] = np.uint16((x + np.uint32(0x7FFF) + ((x >> np.uint32(16)) & np.uint32(1))) >> 16)


@njit("void(u2[::1], u4[::1], i8, i8, i8, i8)", **ORDERED)
def pack_bf16(dst, bits, K, O, sk, so):  # type: ignore[no-untyped-def]  # noqa: E741
    """``dst`` = the float32 numbers with ``bits`` at ``k*sk + o*so``, rounded to nearest even, packed."""
    fork(bf16_panel, (O + PANEL - 1) // PANEL, (dst, bits, K, O, sk, so))


@part()
def int8_panel(p, dst, q, scale, K, O, sk, so, sg, ss):  # type: ignore[no-untyped-def]  # noqa: E741
    """Panel p of :func:`pack_int8`."""
    scales, groups = dst.view(np.uint16), (K + GROUP - 1) // GROUP
    for g in range(groups):
        to = (p * groups + g) * GROUP_BYTES
        for i in range(PANEL):
            o = p * PANEL + i
            scales[to // 2 + place(i)] = scale[g * sg + o * ss] if o < O else np.uint16(0)
        to += 2 * PANEL
        for k in range(GROUP):
            at = g * GROUP + k
            for i in range(PANEL):
                o = p * PANEL + i
                value = np.int64(q[at * sk + o * so]) if o < O and at < K else np.int64(0)
                dst[to + k // 4 * 4 * PANEL + 4 * i + k % 4] = np.uint8(value + 128)


@njit("void(u1[::1], i1[::1], u2[::1], i8, i8, i8, i8, i8, i8)", **ORDERED)
def pack_int8(dst, q, scale, K, O, sk, so, sg, ss):  # type: ignore[no-untyped-def]  # noqa: E741
    """``dst`` = the weights ``q`` at ``k*sk + o*so`` with the scales (bfloat16) at ``group*sg + o*ss``, packed."""
    fork(int8_panel, (O + PANEL - 1) // PANEL, (dst, q, scale, K, O, sk, so, sg, ss))


@part("void(f4[::1], i8, u1[::1], i8, i8, i8)")
def unpack_output(out, kind, packed, at, K, o):  # type: ignore[no-untyped-def]
    """``out[:K]`` = the weights of output ``o``: for the tied head a token's embedding."""
    p, i = o // PANEL, o % PANEL
    half, bits = packed.view(np.uint16), np.zeros(1, np.uint32)
    number = bits.view(np.float32)
    groups = (K + GROUP - 1) // GROUP
    for k in range(K):
        if kind == BF16:
            bits[0] = np.uint32(half[at // 2 + (p * K + k) * PANEL + place(i)]) << np.uint32(16)
            out[k] = number[0]
        else:
            g, j = at + (p * groups + k // GROUP) * GROUP_BYTES, k % GROUP
            bits[0] = np.uint32(half[g // 2 + place(i)]) << np.uint32(16)
            byte = packed[g + 2 * PANEL + j // 4 * 4 * PANEL + 4 * i + j % 4]
            out[k] = np.float32(np.int64(byte) - 128) * number[0]
