# mypy: disallow-untyped-defs=False
"""Small kernels around decoding: weights turned over, and keys and values put into the cache after a prompt.

Both only move bytes: tiles of 64 x 64 pass through a program's registers, where the compiler turns them over by way of
shared memory, so that reads and writes both touch memory in whole lines.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch


@triton.jit
def transpose_kernel(out, x, rows, columns, SIDE: tl.constexpr):
    """out (columns, rows) = x (rows, columns) turned over, one tile a program."""
    r = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    c = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(x + r.to(tl.int64)[:, None] * columns + c[None, :], mask=inside, other=0.0)
    tl.store(out + c.to(tl.int64)[:, None] * rows + r[None, :], tile.T, mask=inside.T)


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


def transpose(out: Array, x: Array, *, target: Target) -> list[Launch]:
    """out (columns, rows) = x (rows, columns) turned over."""
    rows, columns = x.shape
    return [
        launch(
            transpose_kernel, (cdiv(rows, 64), cdiv(columns, 64)), 4, out=out, x=x, rows=rows, columns=columns, SIDE=64
        )
    ]


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
