# mypy: disallow-untyped-defs=False
"""The matrix product for Hopper, with roles: one warp loads, two groups of four multiply in turns.

In ``matmul_kernels.py`` all warps march in step: load, multiply, and then, while the tile's epilogue runs, the tensor
cores wait. Here (in Gluon, Triton's lower level) the warps of a program have different jobs:

- The *producer*, one warp, does nothing but start TMA copies of tiles of A and B into a ring of STAGES buffers, up to
  STAGES steps ahead, across the borders of output tiles.
- Two *consumers*, four warps each, take turns: the tiles of the first and the second alternate in the ring. While one
  multiplies, the other has as much time for its epilogue: bias, GELU and its gradient, sums, loads and stores. As long
  as that is enough, the tensor cores never stop.

Buffers change hands by mbarriers in shared memory: ``full[s]`` counts the bytes that have arrived, ``empty[s]`` says
that the consumer is done. A barrier has a phase bit that flips each time it completes, so "wait for phase" tells the
ring's next round from the last one, but not from the one after: whoever waits must not be further behind or ahead. That
is why consumers take turns by a barrier of their own, ``turns``, and do not just wait for their tile's first buffer:
with a ring shorter than a tile, the second consumer would take the first one's data for its own.

What the epilogue reads (GELU's input, a residual) is copied into shared memory while the products run, and what it
writes is put into the same place and copied out from there, so all its memory traffic is wide and asynchronous.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.6's names of TMA copies, and what they were later renamed to.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

BM: gl.constexpr = gl.constexpr(128)
BN: gl.constexpr = gl.constexpr(128)
BK: gl.constexpr = gl.constexpr(64)
PART: gl.constexpr = gl.constexpr(32)  # columns of the epilogue at a time
SLOPE: gl.constexpr = gl.constexpr(0.7978845608028654)  # sqrt(2/pi)
LOG2_E: gl.constexpr = gl.constexpr(1.4426950408889634)
CUBIC: gl.constexpr = gl.constexpr(0.7978845608028654 * 0.044715)


@gluon.jit
def place_of(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile, in the order of ``matmul_kernels.place_of``."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    height = min(tiles_m - first, GROUP)
    return first + tile % in_group % height, tile % in_group // height


@gluon.jit
def tanh(x):
    """The hardware's tanh of fp32."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def halves(x):
    """A tile's left and right half."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def produce(
    A, B, a_ring, b_ring, full, empty, tiles_m, tiles_n, steps,
    A_T: gl.constexpr, B_T: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled: the first consumer's tile, the second's, the first's next one, and so on."""
    slot = 0
    phase = 1  # a fresh barrier counts as one whose odd phase has completed: the first round need not wait
    for pair in range(gl.program_id(0), gl.cdiv(tiles_m * tiles_n, 2), PROGRAMS):
        for tile in range(2 * pair, min(2 * pair + 2, tiles_m * tiles_n)):
            m, n = place_of(tile, tiles_m, tiles_n, GROUP)
            for step in range(steps):
                mbarrier.wait(empty.index(slot), phase)
                ready = full.index(slot)
                mbarrier.expect(ready, (BM + BN) * BK * 2)
                k = step * BK
                if A_T:
                    async_load(A, [k, m * BM], ready, a_ring.index(slot))
                else:
                    async_load(A, [m * BM, k], ready, a_ring.index(slot))
                if B_T:
                    async_load(B, [n * BN, k], ready, b_ring.index(slot))
                else:
                    async_load(B, [k, n * BN], ready, b_ring.index(slot))
                slot += 1
                if slot == STAGES:
                    slot = 0
                    phase ^= 1


@gluon.jit
def multiply(
    a_ring, b_ring, full, empty, at, steps, turn, turn_of_other, turn_phase,
    A_T: gl.constexpr, B_T: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The tile whose first step is the ring's step ``at``, in fp32, once it is this consumer's turn."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    acc = gl.zeros([BM, BN], gl.float32, layout)
    mbarrier.wait(turn, turn_phase)
    for step in range(steps):
        slot = (at + step) % STAGES
        mbarrier.wait(full.index(slot), (at + step) // STAGES & 1)
        a = a_ring.index(slot).permute((1, 0)) if A_T else a_ring.index(slot)
        b = b_ring.index(slot).permute((1, 0)) if B_T else b_ring.index(slot)
        acc = warpgroup_mma(a, b, acc, use_acc=step > 0, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))  # the step before this one is done with its buffer
        mbarrier.arrive(empty.index((at + step - 1) % STAGES), pred=step > 0)
    mbarrier.arrive(turn_of_other)  # its products may follow right behind
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index((at + steps - 1) % STAGES))
    return acc


@gluon.jit
def consume(
    WHO: gl.constexpr, C, EXTRA, ACT, bias, sums, stats, a_ring, b_ring, staging, full, empty, arrived, turns,
    M, N, tiles_m, tiles_n, steps,
    HAS_EXTRA: gl.constexpr, HAS_ACT: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_SUMS: gl.constexpr,
    HAS_STATS: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, GELU: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Every other tile of this program, and its epilogue: see ``matmul_kernel`` for what that can be."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    lanes = gl.arange(0, PART, layout=gl.SliceLayout(0, layout))
    LOADS: gl.constexpr = HAS_EXTRA and GELU != 1
    at = WHO * steps  # the ring's step at which this consumer's next tile begins
    for tile in range(2 * gl.program_id(0) + WHO, tiles_m * tiles_n, 2 * PROGRAMS):
        m, n = place_of(tile, tiles_m, tiles_n, GROUP)
        row = m * BM
        if LOADS:  # what the epilogue will read sets out now, once the last tile has been copied out
            tma.store_wait(0)
            mbarrier.expect(arrived, BM * BN * 2)
            for part in gl.static_range(4):
                async_load(EXTRA, [row, n * BN + part * PART], arrived, staging.index(part))
        count = at // steps // 2  # tiles this consumer has done
        acc = multiply(
            a_ring, b_ring, full, empty, at, steps, turns.index(WHO), turns.index(1 - WHO), (count + 1 - WHO) & 1,
            A_T, B_T, STAGES,
        )  # fmt: skip
        most = gl.full([BM], -1e30, gl.float32, gl.SliceLayout(1, layout))
        total = gl.zeros([BM], gl.float32, gl.SliceLayout(1, layout))
        left, right = halves(acc)
        parts = halves(left) + halves(right)
        if LOADS:
            mbarrier.wait(arrived, count & 1)
        for part in gl.static_range(4):
            column = n * BN + part * PART
            v = gl.convert_layout(parts[part], layout)
            if HAS_BIAS:
                shift = gl.load(bias + column + lanes, mask=column + lanes < N, other=0.0).to(gl.float32)
                v += gl.expand_dims(shift, 0)
            if LOADS:
                x = staging.index(part).load(layout).to(gl.float32)
                if GELU == 2:
                    square = x * x
                    t = tanh(x * (SLOPE + CUBIC * square))
                    weight = 0.5 + 0.5 * t
                    y = x * weight
                    slope = SLOPE + 3.0 * CUBIC * square
                    v *= weight + y * (slope - slope * t)
                    if HAS_ACT:
                        tma.store_wait(3)
                        put(ACT, [row, column], staging.index(4 + part % 2), y)
                else:
                    v += x
            if GELU == 1:
                tma.store_wait(3)
                put(EXTRA, [row, column], staging.index(2 * (part % 2)), v)
                v *= 0.5 + 0.5 * tanh(v * (SLOPE + CUBIC * v * v))
            if HAS_SUMS:
                gl.store(sums + m * N + column + lanes, gl.sum(v, 0), mask=column + lanes < N)
            if HAS_STATS:
                z = v
                if column + PART > N:
                    z = gl.where(gl.expand_dims(column + lanes < N, 0), v, -1e30)
                most, total = add_exponentials(most, total, z)
            if not LOADS:
                tma.store_wait(3)  # four buffers in turn: this one's last copy out was four copies ago
            put(C, [row, column], staging.index(2 * (part % 2) + 1 if GELU == 1 else part), v)
        if HAS_STATS:
            rows = row + gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
            place = stats + rows.to(gl.int64) * (2 * tiles_n) + n
            gl.store(place, most, mask=rows < M)
            gl.store(place + tiles_n, total, mask=rows < M)
        at += 2 * steps
    tma.store_wait(0)


@gluon.jit
def add_exponentials(most, total, z):
    """The largest number of each row so far, and the sum of exp2(number - largest), both in log2 units, with z's."""
    new = gl.maximum(most, gl.max(z, 1) * LOG2_E)
    powers = gl.exp2(z * LOG2_E - gl.expand_dims(new, 1))
    return new, total * gl.exp2(most - new) + gl.sum(powers, 1)


@gluon.jit
def put(target, place, buffer, v):
    """Copy ``v`` to a place in memory by way of ``buffer``, without waiting for it."""
    buffer.store(v.to(target.dtype))
    fence_async_shared()
    async_store(target, place, buffer)


@gluon.jit
def hopper_matmul_kernel(
    c, a, b, bias, extra, act, sums, stats, M, N, K,
    A_T: gl.constexpr, B_T: gl.constexpr, GELU: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):  # fmt: skip
    """``matmul_kernel`` for bf16 on sm_90: ``extra`` is pre where GELU is 1 or 2, else the residual. Matrices come as
    descriptors (``Tiled``). ``stats`` (M, 2, columns of tiles) receives
    the largest number of each row of a tile, in log2 units, and the sum of exp2(number - largest)."""
    kind: gl.constexpr = a.dtype
    EXTRA = c if extra is None else extra  # where there is none, none is used
    ACT = c if act is None else act
    BUFFERS: gl.constexpr = 4 if act is None else 6
    a_ring = gl.allocate_shared_memory(kind, [STAGES, a.block_shape[0], a.block_shape[1]], a.layout)
    b_ring = gl.allocate_shared_memory(kind, [STAGES, b.block_shape[0], b.block_shape[1]], b.layout)
    staging0 = gl.allocate_shared_memory(kind, [BUFFERS, BM, PART], c.layout)
    staging1 = gl.allocate_shared_memory(kind, [BUFFERS, BM, PART], c.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    arrived = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    for s in gl.static_range(2):
        mbarrier.init(arrived.index(s), count=1)
        mbarrier.init(turns.index(s), count=1)
    fence_async_shared()

    bias_or_none = c if bias is None else bias
    sums_or_none = c if sums is None else sums
    stats_or_none = c if stats is None else stats
    tiles_m, tiles_n, steps = gl.cdiv(M, BM), gl.cdiv(N, BN), gl.cdiv(K, BK)
    gl.warp_specialize(
        [
            (consume, (0, c, EXTRA, ACT, bias_or_none, sums_or_none, stats_or_none, a_ring, b_ring, staging0, full,
                       empty, arrived.index(0), turns, M, N, tiles_m, tiles_n, steps, extra is not None,
                       act is not None, bias is not None, sums is not None, stats is not None, A_T, B_T, GELU,
                       STAGES, GROUP, PROGRAMS)),
            (consume, (1, c, EXTRA, ACT, bias_or_none, sums_or_none, stats_or_none, a_ring, b_ring, staging1, full,
                       empty, arrived.index(1), turns, M, N, tiles_m, tiles_n, steps, extra is not None,
                       act is not None, bias is not None, sums is not None, stats is not None, A_T, B_T, GELU,
                       STAGES, GROUP, PROGRAMS)),
            (produce, (a, b, a_ring, b_ring, full, empty, tiles_m, tiles_n, steps,
                       A_T, B_T, STAGES, GROUP, PROGRAMS)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
