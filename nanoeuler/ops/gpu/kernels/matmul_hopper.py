# mypy: disallow-untyped-defs=False
"""The matrix product for Hopper, with roles: one warp loads, two groups of four multiply, each at its own pace.

In ``matmul_kernels.py`` all warps march in step: load, multiply, and then, while the tile's epilogue runs, the tensor
cores wait. Here (in Gluon, Triton's lower level) the warps of a program have different jobs:

- The *producer*, one warp, does nothing but start TMA copies of the tiles of A and B into a ring of STAGES buffers, up
  to STAGES steps ahead, across the borders of output tiles.
- Two *consumers*, four warps each, own the upper and the lower 64 rows of each 128 x 256 tile. Each waits for a full
  buffer, multiplies, and hands the buffer back when both have. When one has reached the end of a tile and computes its
  bias, GELU and stores, the other still has the tensor cores to itself; being a few steps apart is all it takes for
  epilogues to hide behind products.

Buffers change hands by mbarriers in shared memory: ``full[s]`` counts the bytes that have arrived, ``empty[s]`` the
consumers that are done. A barrier has a phase bit that flips each time it completes, so "wait for phase" tells the
ring's next round from the last.
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

BM: gl.constexpr = gl.constexpr(128)
BN: gl.constexpr = gl.constexpr(256)
BK: gl.constexpr = gl.constexpr(64)
HALF: gl.constexpr = gl.constexpr(64)  # rows of a consumer
PART: gl.constexpr = gl.constexpr(64)  # columns of the epilogue at a time
SLOPE: gl.constexpr = gl.constexpr(0.7978845608028654)  # sqrt(2/pi)
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
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def quarters(x):
    """A tile's four quarters, left to right."""
    R: gl.constexpr = x.shape[0]
    C: gl.constexpr = x.shape[1]
    left, right = x.reshape([R, 2, C // 2]).permute(0, 2, 1).split()
    a, b = left.reshape([R, 2, C // 4]).permute(0, 2, 1).split()
    c, d = right.reshape([R, 2, C // 4]).permute(0, 2, 1).split()
    return a, b, c, d


@gluon.jit
def produce(
    A, B, a_upper, a_lower, b_ring, full, empty, tiles_m, tiles_n, steps,
    A_T: gl.constexpr, B_T: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Keep the ring of tiles filled."""
    slot = 0
    phase = 1  # a fresh barrier counts as one whose odd phase has completed: the first round need not wait
    for tile in range(gl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        m, n = place_of(tile, tiles_m, tiles_n, GROUP)
        for step in range(steps):
            mbarrier.wait(empty.index(slot), phase)
            ready = full.index(slot)
            mbarrier.expect(ready, (BM + BN) * BK * 2)
            k = step * BK
            if A_T:
                tma.async_copy_global_to_shared(A, [k, m * BM], ready, a_upper.index(slot))
                tma.async_copy_global_to_shared(A, [k, m * BM + HALF], ready, a_lower.index(slot))
            else:
                tma.async_copy_global_to_shared(A, [m * BM, k], ready, a_upper.index(slot))
                tma.async_copy_global_to_shared(A, [m * BM + HALF, k], ready, a_lower.index(slot))
            if B_T:
                tma.async_copy_global_to_shared(B, [n * BN, k], ready, b_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(B, [k, n * BN], ready, b_ring.index(slot))
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1


@gluon.jit
def consume(
    WHO: gl.constexpr, C, EXTRA, ACT, bias, sums, a_ring, b_ring, staging, full, empty, arrived,
    N, tiles_m, tiles_n, steps,
    HAS_EXTRA: gl.constexpr, HAS_ACT: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_SUMS: gl.constexpr,
    A_T: gl.constexpr, B_T: gl.constexpr, GELU: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Multiply the rows of consumer WHO, tile after tile, and finish them: see ``matmul_kernel`` for the epilogues."""
    whole: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    quarter: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    lanes = gl.arange(0, PART, layout=gl.SliceLayout(0, quarter))
    LOADS: gl.constexpr = HAS_EXTRA and GELU != 1
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        m, n = place_of(tile, tiles_m, tiles_n, GROUP)
        row = m * BM + WHO * HALF
        if LOADS:  # what the epilogue will read sets out now
            tma.store_wait(0)
            for part in gl.static_range(2):
                mbarrier.expect(arrived.index(part), HALF * PART * 2)
                tma.async_copy_global_to_shared(
                    EXTRA, [row, n * BN + part * PART], arrived.index(part), staging.index(part)
                )
        acc = gl.zeros([HALF, BN], gl.float32, whole)
        before = 0
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            a = a_ring.index(slot).permute((1, 0)) if A_T else a_ring.index(slot)
            b = b_ring.index(slot).permute((1, 0)) if B_T else b_ring.index(slot)
            acc = warpgroup_mma(a, b, acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))  # the step before this one is done
            mbarrier.arrive(empty.index(before), pred=step > 0)
            before = slot
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(before))

        parts = quarters(acc)
        for part in gl.static_range(4):
            column = n * BN + part * PART
            v = gl.convert_layout(parts[part], quarter)
            if HAS_BIAS:
                shift = gl.load(bias + column + lanes, mask=column + lanes < N, other=0.0).to(gl.float32)
                v += gl.expand_dims(shift, 0)
            if LOADS:
                mbarrier.wait(arrived.index(part % 2), part // 2)
                x = staging.index(part % 2).load(quarter).to(gl.float32)
                if GELU == 2:
                    square = x * x
                    t = tanh(x * (SLOPE + CUBIC * square))
                    half = 0.5 * x
                    v *= 0.5 + 0.5 * t + half * (1.0 - t * t) * (SLOPE + 3.0 * CUBIC * square)
                    if HAS_ACT:
                        tma.store_wait(1)
                        spare = staging.index(2 + part % 2)
                        spare.store((half + half * t).to(ACT.dtype))
                        fence_async_shared()
                        tma.async_copy_shared_to_global(ACT, [row, column], spare)
                else:
                    v += x
            if GELU == 1:
                tma.store_wait(1)
                staging.index(0).store(v.to(C.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(EXTRA, [row, column], staging.index(0))
                half = 0.5 * v
                v = half + half * tanh(v * (SLOPE + CUBIC * v * v))
            if HAS_SUMS:
                total = gl.sum(v, 0)
                gl.store(sums + (m * 2 + WHO) * N + column + lanes, total, mask=column + lanes < N)
            if not LOADS:
                tma.store_wait(1)
            buffer = staging.index(1 if GELU == 1 else part % 2)
            buffer.store(v.to(C.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(C, [row, column], buffer)
            if LOADS and (part == 1 or part == 2):  # the buffer of the part before is free again: fetch the one after
                tma.store_wait(2 if HAS_ACT else 1)
                mbarrier.expect(arrived.index((part + 1) % 2), HALF * PART * 2)
                tma.async_copy_global_to_shared(
                    EXTRA, [row, column + PART], arrived.index((part + 1) % 2), staging.index((part + 1) % 2)
                )
    tma.store_wait(0)


@gluon.jit
def hopper_matmul_kernel(
    c, a, b, bias, extra, act, sums, M, N, K, a_stride, b_stride, c_stride,
    A_T: gl.constexpr, B_T: gl.constexpr, GELU: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):  # fmt: skip
    """``matmul_kernel`` for bf16 on sm_90: ``extra`` is pre where GELU is 1 or 2, else the residual."""
    kind: gl.constexpr = a.dtype.element_ty
    a_shape: gl.constexpr = [BK, HALF] if A_T else [HALF, BK]
    b_shape: gl.constexpr = [BN, BK] if B_T else [BK, BN]
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(a_shape, kind)
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(b_shape, kind)
    c_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, PART], kind)
    if A_T:
        A = tma.make_tensor_descriptor(a, [K, M], [a_stride, 1], a_shape, a_layout)
    else:
        A = tma.make_tensor_descriptor(a, [M, K], [a_stride, 1], a_shape, a_layout)
    if B_T:
        B = tma.make_tensor_descriptor(b, [N, K], [b_stride, 1], b_shape, b_layout)
    else:
        B = tma.make_tensor_descriptor(b, [K, N], [b_stride, 1], b_shape, b_layout)
    C = tma.make_tensor_descriptor(c, [M, N], [c_stride, 1], [HALF, PART], c_layout)
    EXTRA, ACT = C, C  # where there is none, none is used
    if extra is not None:
        EXTRA = tma.make_tensor_descriptor(extra, [M, N], [c_stride, 1], [HALF, PART], c_layout)
    if act is not None:
        ACT = tma.make_tensor_descriptor(act, [M, N], [c_stride, 1], [HALF, PART], c_layout)
    BUFFERS: gl.constexpr = 2 if act is None else 4
    a_upper = gl.allocate_shared_memory(kind, [STAGES, a_shape[0], a_shape[1]], a_layout)
    a_lower = gl.allocate_shared_memory(kind, [STAGES, a_shape[0], a_shape[1]], a_layout)
    b_ring = gl.allocate_shared_memory(kind, [STAGES, b_shape[0], b_shape[1]], b_layout)
    upper = gl.allocate_shared_memory(kind, [BUFFERS, HALF, PART], c_layout)
    lower = gl.allocate_shared_memory(kind, [BUFFERS, HALF, PART], c_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    upper_in = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    lower_in = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=2)
    for s in gl.static_range(2):
        mbarrier.init(upper_in.index(s), count=1)
        mbarrier.init(lower_in.index(s), count=1)
    fence_async_shared()

    bias_or_c = bias if bias is not None else c
    sums_or_c = sums if sums is not None else c
    tiles_m, tiles_n, steps = gl.cdiv(M, BM), gl.cdiv(N, BN), gl.cdiv(K, BK)
    gl.warp_specialize(
        [
            (consume, (0, C, EXTRA, ACT, bias_or_c, sums_or_c, a_upper, b_ring, upper, full, empty, upper_in,
                       N, tiles_m, tiles_n, steps, extra is not None, act is not None, bias is not None,
                       sums is not None, A_T, B_T, GELU, STAGES, GROUP, PROGRAMS)),
            (consume, (1, C, EXTRA, ACT, bias_or_c, sums_or_c, a_lower, b_ring, lower, full, empty, lower_in,
                       N, tiles_m, tiles_n, steps, extra is not None, act is not None, bias is not None,
                       sums is not None, A_T, B_T, GELU, STAGES, GROUP, PROGRAMS)),
            (produce, (A, B, a_upper, a_lower, b_ring, full, empty, tiles_m, tiles_n, steps,
                       A_T, B_T, STAGES, GROUP, PROGRAMS)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
