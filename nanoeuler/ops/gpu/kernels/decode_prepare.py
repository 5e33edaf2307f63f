# mypy: disallow-untyped-defs=False
"""Small kernels around decoding: weights put in the order of the stream, and keys and values into the cache.

They only move bytes. Weights are packed once, when a decoder is made; nothing here is on the way of a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.decode_ring import scales_at, vectors_at
from nanoeuler.ops.gpu.kernels.decode_shape import Records
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch


@triton.jit
def pack_kernel(
    stream, w, scales, gain, shift, bias, rows, K, row_stride, k_stride, scale_row_stride, scale_k_stride, offset,
    PART: tl.constexpr, R: tl.constexpr, COUNT: tl.constexpr, KP: tl.constexpr, SIZE: tl.constexpr,
    BITS: tl.constexpr, SCALES_AT: tl.constexpr, VECTORS_AT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of one product, BLOCK a program, into their records: see ``decode_ring.py``.

    A program of the decoding kernel has COUNT records of R rows, SIZE bytes each, from ``offset`` on in its PART bytes
    of the stream. Beside each row stand two float32. Where the product's input is a layer norm (of ``gain`` and
    ``shift``): the sums of W gain and, with the bias, of W shift; else 0 and the bias.
    """
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = r < rows
    at = (r // (R * COUNT)).to(tl.int64) * PART + offset + r // R % COUNT * SIZE
    item: tl.constexpr = BITS // 8
    to = stream.to(w.dtype, bitcast=True) + (at // item + r % R * 32)
    gains = tl.zeros([BLOCK], tl.float32)
    shifts = tl.zeros([BLOCK], tl.float32)
    for chunk in range(KP // 32):
        k = chunk * 32 + tl.arange(0, 32)
        known = inside[:, None] & (k < K)[None, :]
        tile = tl.load(w + r.to(tl.int64)[:, None] * row_stride + k[None, :] * k_stride, mask=known, other=0)
        value = tile.to(tl.float32)
        if scales is not None:
            group = chunk // 2
            some = inside & (r * 0 + group * 64 < K)
            scale = tl.load(scales + r * scale_row_stride + group * scale_k_stride, mask=some, other=0.0)
            value *= scale.to(tl.float32)[:, None]
            tile = tile ^ -128  # from 0 on, in a byte
            put = stream.to(scales.dtype, bitcast=True) + ((at + SCALES_AT) // 2 + group * R + r % R)
            tl.store(put, scale, mask=inside)
        tl.store(to[:, None] + chunk * R * 32 + tl.arange(0, 32)[None, :], tile, mask=inside[:, None])
        if gain is not None:
            gains += tl.sum(value * tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)[None, :], 1)
            shifts += tl.sum(value * tl.load(shift + k, mask=k < K, other=0.0).to(tl.float32)[None, :], 1)
    if bias is not None:
        shifts += tl.load(bias + r, mask=inside, other=0.0).to(tl.float32)
    pair = stream.to(tl.pointer_type(tl.float32), bitcast=True) + ((at + VECTORS_AT) // 4 + r % R * 2)
    tl.store(pair, gains, mask=inside)
    tl.store(pair + 1, shifts, mask=inside)


@triton.jit
def keep_kernel(
    cache, qkv, place, T, S, stride, C: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    LAYERS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Keys and values of one layer's ``qkv`` (S, 3C) into ``cache`` (slots, LAYERS, 2, H, T, D), ROWS positions a
    program.

    ``place``: the slot, in device memory. ``qkv`` is the first layer's; the others' follow ``stride`` elements apart.
    """
    layer, head = tl.program_id(1), tl.program_id(2)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (t < S)[:, None] & (d < D)[None, :]
    slot = tl.load(place).to(tl.int64)
    to = cache + ((slot * LAYERS + layer) * 2 * H + head) * T * D + t[:, None] * D + d[None, :]
    source = qkv + layer.to(tl.int64) * stride + t[:, None] * (3 * C) + head * D + d[None, :]
    for which in tl.static_range(2):  # keys, values
        tile = tl.load(source + (1 + which) * C, mask=inside, other=0.0)
        tl.store(to + which * H * T * D, tile.to(cache.dtype.element_ty), mask=inside)


@triton.jit
def row_kernel(out, x, place, C, BLOCK: tl.constexpr):
    """out (C,) = row ``place[0]`` of x (N, C)."""
    c = tl.arange(0, BLOCK)
    row = tl.load(place).to(tl.int64)
    tl.store(out + c, tl.load(x + row * C + c, mask=c < C, other=0.0), mask=c < C)


@dataclass(frozen=True)
class Product:
    """What is packed: ``w`` (inner, rows), or (rows, inner) where ``turned``; int8 with ``scales`` (groups, rows), or
    (rows, groups). ``gain``, ``shift``: the layer norm before it."""

    w: Array
    turned: bool = False
    scales: Array | None = None
    gain: Array | None = None
    shift: Array | None = None
    bias: Array | None = None


def pack(stream: Array, product: Product, records: Records, offset: int, part: int, *, target: Target) -> list[Launch]:
    """A product into its place in the stream: ``offset`` in each program's ``part`` bytes."""
    rows, inner = product.w.shape if product.turned else product.w.shape[::-1]
    groups = cdiv(inner, 64)
    size = (records.rows, records.inputs, records.bits)
    return [
        launch(
            pack_kernel, (cdiv(rows, 64),), 4, stream=stream, w=product.w, scales=product.scales, gain=product.gain,
            shift=product.shift, bias=product.bias, rows=rows, K=inner,
            row_stride=inner if product.turned else 1, k_stride=1 if product.turned else rows,
            scale_row_stride=groups if product.turned else 1, scale_k_stride=1 if product.turned else rows,
            offset=offset, PART=part, R=records.rows, COUNT=records.count, KP=records.inputs, SIZE=records.size,
            BITS=records.bits, SCALES_AT=int(scales_at(*size)), VECTORS_AT=int(vectors_at(*size)), BLOCK=64,
        )
    ]  # fmt: skip


def keep(cache: Array, qkv: Array, place: Array, *, target: Target) -> list[Launch]:
    """All layers' keys and values of ``qkv`` (layers, S, 3C) into slot ``place[0]`` of the cache."""
    _, layers, _, H, T, D = cache.shape
    S, C = qkv.shape[1], H * D
    rows = 32
    return [
        launch(
            keep_kernel, (cdiv(S, rows), layers, H), 4, cache=cache, qkv=qkv, place=place, T=T, S=S, stride=S * 3 *
            C, C=C,
            H=H, D=D, BD=1 << max(0, D - 1).bit_length(), LAYERS=layers, ROWS=rows,
        )
    ]  # fmt: skip


def row(out: Array, x: Array, place: Array, *, target: Target) -> list[Launch]:
    """out (1, C) = row ``place[0]`` of x (N, C)."""
    C = x.shape[1]
    return [launch(row_kernel, (1,), 4, out=out, x=x, place=place, C=C, BLOCK=1 << max(0, C - 1).bit_length())]
