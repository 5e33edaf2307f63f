# mypy: disallow-untyped-defs=False
"""Gradients of weights on Hopper, ``dW = x^T dout``: one or two products in one kernel, cut so that all programs
finish together.

A gradient of a weight is a small matrix with a long sum: 768 x 3072 numbers are 72 tiles of 128 x 256, for 132
multiprocessors, and each is a sum over all N rows. Whole tiles would leave half of the chip idle, so some tiles must be
cut along the sum, and cut tiles cost: their parts are written, read again and added up (128 KB a part). So:

- *Two products at a time.* The gradients of two layers that are there at the same moment make twice as many tiles.
- *As few cut tiles as possible.* 144 tiles are one whole tile for each of 132 programs, and 12 tiles to cut. What is
  cut comes first: all programs share these 12 in equal parts (``block_of`` in ``matmul_kernels.py``: all walk along the
  sum together, so that what one has fetched the others find in L2) and write partial tiles. Then each takes its whole
  tile, 256 steps, which goes straight to memory. ``partial_sum_kernel`` adds up the parts, always in one order.
- *Roles*, as in ``matmul_hopper.py``: a warp that only starts TMA copies, and eight that multiply a tile together, 64
  rows each group of four. Both operands lie with their long side down; the tensor cores read them as they are (both
  "MN-major"), so nothing is transposed on the way.

*Counting.* A step of 64 rows brings 48 KB and does 2.1 million multiply-adds, 1024 cycles of the tensor cores: 47 bytes
a cycle out of L2, where tiles of 128 x 128 would need 64.

*Measured* on an H200, GPT-2 124M, 16384 rows: fc and fcproj together 224 us (cuBLAS one after the other 227), qkv and
proj 116 (141); 9 and 8 us of that are the sum of parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from nanoeuler.ops.gpu.kernels import matmul_kernels
from nanoeuler.ops.gpu.kernels.matmul_hopper import async_load, halves, place_of
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, Tiled, cdiv, launch

BM: gl.constexpr = gl.constexpr(128)
BN: gl.constexpr = gl.constexpr(256)
BK: gl.constexpr = gl.constexpr(64)
STAGES: gl.constexpr = gl.constexpr(4)
GROUP = 8  # rows of tiles that are worked off together, see ``place_of``


@gluon.jit
def piece_of(item, pieces, start, end, share, cut, steps, PROGRAMS: gl.constexpr):
    """This program's piece of work number ``item``: its tile, from which to which moment, and its way along the sum.

    The first ``pieces`` are parts of cut tiles, moments start ... end of all their steps laid end to end; then whole
    tiles. The way is for :func:`block_of`; a whole tile's is to take each block in turn.
    """
    tile = cut + gl.program_id(0) + (item - pieces) * PROGRAMS
    begin = 0
    until = steps
    middle, came, left, rank, is_first = 1, steps, 0, 0, 0
    if item < pieces:
        tile = start // steps + item
        first, last = tile * steps // share, ((tile + 1) * steps - 1) // share  # the tile's programs
        begin, until = max(tile * steps - start, 0), min((tile + 1) * steps, end) - start
        middle = last - first - 1
        came, left = tile * steps - first * share, (tile + 1) * steps - last * share
        if gl.program_id(0) == first:
            is_first = 1
            rank = middle
        else:
            rank = gl.program_id(0) - first - 1
    return tile, begin, until, (middle, came, left, rank, is_first)


@gluon.jit
def block_of(time, way):
    """As in ``matmul_kernels.py``: which block of the sum a program takes at ``time``."""
    middle, came, left, rank, is_first = way
    taken = middle * time + max(time - came, 0) + min(time, left)
    return taken + rank + is_first * min(max(left - time, 0), 1)


@gluon.jit
def load(A, B, a_ring, b_ring, full, empty, tile, tiles_m, tiles_n, begin, until, way, at, GROUP: gl.constexpr):
    """Copy a piece's blocks of both operands into the ring, beginning at the ring's step ``at``."""
    m, n = place_of(tile, tiles_m, tiles_n, GROUP)
    for time in range(begin, until):
        step = at + time - begin
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        ready = full.index(slot)
        mbarrier.expect(ready, (BM + BN) * BK * 2)
        k = block_of(time, way) * BK
        async_load(A, [k, m * BM], ready, a_ring.index(slot))
        async_load(B, [k, n * BN], ready, b_ring.index(slot))


@gluon.jit
def produce(
    A0, B0, A1, B1, a_ring, b_ring, full, empty, tiles_m0, tiles_n0, tiles_m1, tiles_n1, pieces, whole, start, end,
    share, cut, steps, GROUP: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled, piece after piece."""
    at = 0
    tiles0 = tiles_m0 * tiles_n0
    for item in range(pieces + whole):
        tile, begin, until, way = piece_of(item, pieces, start, end, share, cut, steps, PROGRAMS)
        if tile < tiles0:
            load(A0, B0, a_ring, b_ring, full, empty, tile, tiles_m0, tiles_n0, begin, until, way, at, GROUP)
        else:
            tile -= tiles0
            load(A1, B1, a_ring, b_ring, full, empty, tile, tiles_m1, tiles_n1, begin, until, way, at, GROUP)
        at += until - begin


@gluon.jit
def consume(
    partial, c0, c1, M0, N0, M1, N1, a_ring, b_ring, full, empty, tiles_m0, tiles_n0, tiles_m1, tiles_n1, pieces,
    whole, start, end, share, cut, steps, ACCUMULATE: gl.constexpr, SEGMENTS: gl.constexpr, GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Multiply, piece after piece; a part of a cut tile goes into ``partial``, a whole tile where it belongs."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 256, 16])
    quarter: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 16])
    rows = gl.arange(0, BM, layout=gl.SliceLayout(1, quarter))
    columns = gl.arange(0, BN // 4, layout=gl.SliceLayout(0, quarter))
    tiles0 = tiles_m0 * tiles_n0
    at = 0
    for item in range(pieces + whole):
        tile, begin, until, _ = piece_of(item, pieces, start, end, share, cut, steps, PROGRAMS)
        acc = gl.zeros([BM, BN], gl.float32, layout)
        count = until - begin
        for step in range(count):
            slot = (at + step) % STAGES
            mbarrier.wait(full.index(slot), (at + step) // STAGES & 1)
            acc = warpgroup_mma(
                a_ring.index(slot).permute((1, 0)), b_ring.index(slot), acc, use_acc=step > 0, is_async=True
            )
            acc = warpgroup_mma_wait(1, deps=(acc,))  # the step before this one is done with its buffer
            mbarrier.arrive(empty.index((at + step - 1) % STAGES), pred=step > 0)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((at + count - 1) % STAGES))
        at += count
        first, second = halves(acc)
        parts = halves(first) + halves(second)
        if item < pieces:
            place = partial + (gl.program_id(0) * SEGMENTS + item) * (BM * BN)
            for part in gl.static_range(4):
                offset = gl.expand_dims(rows * BN, 1) + gl.expand_dims(columns + part * (BN // 4), 0)
                gl.store(place + offset, gl.convert_layout(parts[part], quarter))
        elif tile < tiles0:
            m, n = place_of(tile, tiles_m0, tiles_n0, GROUP)
            put(c0, parts, m * BM + rows, n * BN + columns, M0, N0, ACCUMULATE, quarter)
        else:
            m, n = place_of(tile - tiles0, tiles_m1, tiles_n1, GROUP)
            put(c1, parts, m * BM + rows, n * BN + columns, M1, N1, ACCUMULATE, quarter)


@gluon.jit
def put(c, parts, rows, columns, M, N, ACCUMULATE: gl.constexpr, layout: gl.constexpr):
    """c (+)= the tile, cut off at the matrix's edges."""
    for part in gl.static_range(4):
        across = columns + part * (BN // 4)
        inside = gl.expand_dims(rows < M, 1) & gl.expand_dims(across < N, 0)
        at = c + gl.expand_dims(rows * N, 1) + gl.expand_dims(across, 0)
        v = gl.convert_layout(parts[part], layout)
        if ACCUMULATE:
            v += gl.load(at, mask=inside, other=0.0)
        gl.store(at, v.to(c.dtype.element_ty), mask=inside)


@gluon.jit
def weight_gradient_kernel(
    c0, a0, b0, c1, a1, b1, partial, M0, N0, M1, N1, K, share, cut, whole,
    ACCUMULATE: gl.constexpr, SEGMENTS: gl.constexpr, GROUP: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """``c0 (+)= a0^T b0`` (M0, N0) and ``c1 (+)= a1^T b1`` (M1, N1), both over K rows; c1 may have no rows.

    Operands come as descriptors (``Tiled``). Of all tiles the first ``cut`` are shared by all programs, ``share`` steps
    each, as partial tiles; of the others each program takes ``whole``.
    """
    kind: gl.constexpr = a0.dtype
    A1 = a0 if a1 is None else a1
    B1 = b0 if b1 is None else b1
    other = c0 if c1 is None else c1
    a_ring = gl.allocate_shared_memory(kind, [STAGES, BK, BM], a0.layout)
    b_ring = gl.allocate_shared_memory(kind, [STAGES, BK, BN], b0.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    fence_async_shared()

    tiles_m0, tiles_n0, tiles_m1, tiles_n1 = gl.cdiv(M0, BM), gl.cdiv(N0, BN), gl.cdiv(M1, BM), gl.cdiv(N1, BN)
    steps = gl.cdiv(K, BK)
    start = min(gl.program_id(0) * share, cut * steps)
    end = min(start + share, cut * steps)
    pieces = 0
    if end > start:
        pieces = gl.cdiv(end, steps) - start // steps
    gl.warp_specialize(
        [
            (consume, (partial, c0, other, M0, N0, M1, N1, a_ring, b_ring, full, empty, tiles_m0, tiles_n0, tiles_m1,
                       tiles_n1, pieces, whole, start, end, share, cut, steps, ACCUMULATE, SEGMENTS, GROUP, PROGRAMS)),
            (produce, (a0, b0, A1, B1, a_ring, b_ring, full, empty, tiles_m0, tiles_n0, tiles_m1, tiles_n1, pieces,
                       whole, start, end, share, cut, steps, GROUP, PROGRAMS)),
        ],
        [1],
        [40],
    )  # fmt: skip


@triton.jit
def partial_sum_kernel(
    c0, c1, partial, M0, N0, M1, N1, K, share, ACCUMULATE: tl.constexpr, SEGMENTS: tl.constexpr, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one cut tile of c0 or c1 (+)= the sum of its parts, in their order."""
    tile, steps = tl.program_id(0), tl.cdiv(K, BK)
    first, last = tile * steps // share, ((tile + 1) * steps - 1) // share
    r, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BN)
    total = tl.zeros((ROWS, BN), tl.float32)
    for program in tl.range(first, last + 1):
        segment = tile - program * share // steps
        rows = (program * SEGMENTS + segment) * BM + r
        total += tl.load(partial + rows[:, None] * BN + columns[None, :])
    tiles0 = tl.cdiv(M0, BM) * tl.cdiv(N0, BN)
    if tile < tiles0:
        m, n = matmul_kernels.place_of(tile, tl.cdiv(M0, BM), tl.cdiv(N0, BN), GROUP)
        add_rows(c0, total, m * BM + r, n * BN + columns, M0, N0, ACCUMULATE)
    elif c1 is not None:
        m, n = matmul_kernels.place_of(tile - tiles0, tl.cdiv(M1, BM), tl.cdiv(N1, BN), GROUP)
        add_rows(c1, total, m * BM + r, n * BN + columns, M1, N1, ACCUMULATE)


@triton.jit
def add_rows(c, total, rows, columns, M, N, ACCUMULATE: tl.constexpr):
    """c (+)= some rows of a tile, cut off at the matrix's edges."""
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    at = c + rows[:, None] * N + columns[None, :]
    if ACCUMULATE:
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, total.to(c.dtype.element_ty), mask=inside)


def cut_tiles(shapes: list[tuple[int, int]], K: int, target: Target) -> tuple[int, int, int, int]:
    """(tiles to cut, whole tiles a program, steps of cut tiles a program, partial tiles a program at most).

    >>> cut_tiles([(3072, 768), (768, 3072)], 16384, Target())
    (12, 1, 24, 2)
    """
    tiles = sum(cdiv(m, 128) * cdiv(n, 256) for m, n in shapes)
    whole, cut = divmod(tiles, target.multiprocessors)
    steps = cdiv(K, 64)
    share = max(1, cdiv(cut * steps, target.multiprocessors))
    return cut, whole, share, cdiv(share - 1, steps) + 1


def weight_gradients_scratch(target: Target) -> int:
    """fp32 elements of scratch that :func:`weight_gradients` needs: a share is less than a tile, so it touches two."""
    return 2 * target.multiprocessors * 128 * 256


def weight_gradients(
    products: Sequence[tuple[Array, Array, Array]], scratch: Array, accumulate: bool, *, target: Target
) -> list[Launch]:
    """``c (+)= a^T b`` for one or two (c (M, N) fp32, a (K, M) bf16, b (K, N) bf16), all with the same K. For sm_90."""
    c0, a0, b0 = products[0]
    c1, a1, b1 = products[1] if len(products) == 2 else (None, None, None)
    K, M0 = a0.shape
    N0, M1, N1 = b0.shape[1], a1.shape[1] if a1 else 0, b1.shape[1] if b1 else 0
    cut, whole, share, segments = cut_tiles([(a.shape[1], b.shape[1]) for _, a, b in products], K, target)
    shared = {"c0": c0, "c1": c1, "partial": scratch, "M0": M0, "N0": N0, "M1": M1, "N1": N1, "K": K, "share": share}
    shared |= {"ACCUMULATE": accumulate, "SEGMENTS": segments, "GROUP": GROUP}
    programs = target.multiprocessors
    tiled = {
        name: None if array is None else Tiled(array, K, array.shape[1], array.shape[1], (64, width))
        for name, array, width in (("a0", a0, 128), ("b0", b0, 256), ("a1", a1, 128), ("b1", b1, 256))
    }
    main = launch(
        weight_gradient_kernel, (programs,), 8, 1, **tiled, cut=cut, whole=whole,
        PROGRAMS=programs, **shared,
    )  # fmt: skip
    if not cut:
        return [main]
    return [main, launch(partial_sum_kernel, (cut, 16), 4, 1, BM=128, BN=256, BK=64, ROWS=8, **shared)]
