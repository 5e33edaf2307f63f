# mypy: disallow-untyped-defs=False
"""The matrix product ``C (+)= op(A) op(B)`` with everything that follows it, as persistent kernels.

*Counting.* A tile of BM x BN needs (BM + BN) elements of A and B for each of its K steps and does 2 BM BN operations
with them: 128 x 256 does 85 operations a byte that comes into shared memory. At the 740 TFLOP/s that an H200 reaches
so, L2 must deliver 8.7 TB/s; with tiles of 128 x 128 it would be 11.6, and the product is slower. The tile's fp32
result fills half of all registers. That is why one program of eight warps has a multiprocessor to itself, and why
there is no room to work on a second tile while the first one's epilogue runs.

*The loop.* Tiles of A and B, BK wide, are copied by the tensor memory accelerator (TMA: one instruction a tile, no
registers, no address arithmetic) into a ring of ``num_stages`` buffers in shared memory, some steps ahead of the
tensor cores that read them there. On GPUs without TMA the same loop loads by addresses. Triton turns ``tl.dot`` in a
loop into that pipeline by itself.

*Persistent.* There is one program for each multiprocessor and a program takes tile after tile. With ``flatten`` the
loops over tiles and over K become one, so that the first loads of the next tile are under way while this one's
epilogue runs. The order of tiles (``place_of``) keeps those that run at the same time close together in both
directions: what one has loaded, the others find in L2.

*The epilogue* has the sum in registers in fp32: bias, GELU, GELU's gradient, a residual or earlier gradients are
applied to it before it is rounded, once, and stored. Each would otherwise be a pass over memory of its own.

*The gradient of a weight*, x^T dout, is a small matrix with a long K: 768 x 2304 are 54 tiles, for 132
multiprocessors. ``stream_kernel`` cuts K as well."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.activation import gelu, gelu_and_gradient


@triton.jit
def load_tile(source, row, column, rows, columns, stride, TMA: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """An R x C tile at (row, column) of a rows x columns matrix, zero outside it; ``source``: descriptor or address."""
    if TMA:
        return source.load([row, column])
    else:
        r, c = tl.arange(0, R) + row, tl.arange(0, C) + column
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        return tl.load(source + r.to(tl.int64)[:, None] * stride + c[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(target, tile, row, column, rows, columns, stride, TMA: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Store ``tile`` (R, C) at (row, column), cut off at the matrix's edges."""
    if TMA:
        target.store([row, column], tile)
    else:
        r, c = tl.arange(0, R) + row, tl.arange(0, C) + column
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        tl.store(target + r.to(tl.int64)[:, None] * stride + c[None, :], tile, mask=inside)


@triton.jit
def matrix(pointer, rows, columns, stride, TMA: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """What tiles of a matrix are loaded and stored by: a TMA descriptor, or just its address."""
    if TMA:
        return tl.make_tensor_descriptor(pointer, shape=[rows, columns], strides=[stride, 1], block_shape=[R, C])
    else:
        return pointer


@triton.jit
def place_of(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile, in an order that walks down GROUP rows of tiles before it goes right: neighbours in
    time then share rows of A and columns of B, and find them in L2."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    height = min(tiles_m - first, GROUP)
    return first + tile % in_group % height, tile % in_group // height


@triton.jit
def halves(x, R: tl.constexpr, C: tl.constexpr):
    """The left and the right half of an R x C tile."""
    return tl.split(tl.permute(tl.reshape(x, (R, 2, C // 2)), (0, 2, 1)))


@triton.jit
def product(
    A, B, row, column, begin, end, K0, M, N, K, a_stride, b_stride, A_T: tl.constexpr, B_T: tl.constexpr,
    TMA: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The tile of op(A) op(B) at (row, column), summed over blocks of BK from ``begin`` to ``end``, in fp32.

    ``K0``: which block of K each step takes, see :func:`block_of`; None: the steps themselves.
    """
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(begin, end):
        k = step * BK if K0 is None else block_of(step, K0) * BK
        if A_T:
            x = load_tile(A, k, row, K, M, a_stride, TMA, BK, BM).T
        else:
            x = load_tile(A, row, k, M, K, a_stride, TMA, BM, BK)
        if B_T:
            y = load_tile(B, column, k, N, K, b_stride, TMA, BN, BK).T
        else:
            y = load_tile(B, k, column, K, N, b_stride, TMA, BK, BN)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    return acc


@triton.jit
def matmul_kernel(
    c, a, b, bias, residual, pre, act, sums, M, N, K, a_stride, b_stride, c_stride,
    A_T: tl.constexpr, B_T: tl.constexpr, GELU: tl.constexpr, ACCUMULATE: tl.constexpr, TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
    PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """``v = op(A) op(B) + bias``, then by GELU: 0 ``c = v (+ residual) (+ c)``; 1 ``pre = v, c = gelu(v)``;
    2 ``c = v gelu'(pre), act = gelu(pre)``. Row m of ``sums`` (M/BM, N): the sums of c over the rows of tiles m.
    A_T: A is stored (K, M). B_T: B is stored (N, K)."""
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    BP: tl.constexpr = BN // PARTS
    EXACT: tl.constexpr = a.dtype.element_ty == tl.float32
    A, B = operands(a, b, M, N, K, a_stride, b_stride, A_T, B_T, TMA, BM, BN, BK)
    C = matrix(c, M, N, c_stride, TMA, BM, BP)
    if residual is not None:
        RESIDUAL = matrix(residual, M, N, c_stride, TMA, BM, BP)
    if pre is not None:
        PRE = matrix(pre, M, N, c_stride, TMA, BM, BP)
    if act is not None:
        ACT = matrix(act, M, N, c_stride, TMA, BM, BP)
    done = tl.program_id(0) - PROGRAMS  # the tile of the epilogue, counted apart so that loads can run ahead of it
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=FLATTEN):
        m, n = place_of(tile, tiles_m, tiles_n, GROUP)
        acc = product(
            A, B, m * BM, n * BN, 0, tl.cdiv(K, BK), None, M, N, K, a_stride, b_stride, A_T, B_T, TMA, BM, BN, BK
        )
        done += PROGRAMS
        m, n = place_of(done, tiles_m, tiles_n, GROUP)
        row = m * BM
        if PARTS == 1:
            parts = (acc,)
        elif PARTS == 2:
            parts = halves(acc, BM, BN)
        else:
            left, right = halves(acc, BM, BN)
            parts = halves(left, BM, BN // 2) + halves(right, BM, BN // 2)
        for part in tl.static_range(PARTS):
            column = n * BN + part * BP
            columns = column + tl.arange(0, BP)
            v = parts[part]
            if bias is not None:
                v += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
            if GELU == 1:
                store_tile(PRE, v.to(pre.dtype.element_ty), row, column, M, N, c_stride, TMA, BM, BP)
                v = gelu(v, EXACT)
            if GELU == 2:
                x = load_tile(PRE, row, column, M, N, c_stride, TMA, BM, BP).to(tl.float32)
                y, slope = gelu_and_gradient(x, EXACT)
                v *= slope
                if act is not None:
                    store_tile(ACT, y.to(act.dtype.element_ty), row, column, M, N, c_stride, TMA, BM, BP)
            if residual is not None:
                v += load_tile(RESIDUAL, row, column, M, N, c_stride, TMA, BM, BP).to(tl.float32)
            if sums is not None:
                tl.store(sums + m * N + columns, tl.sum(v, 0), mask=columns < N)
            if ACCUMULATE and TMA and c.dtype.element_ty == tl.float32:
                C.atomic_add([row, column], v)  # memory adds, nobody waits; one program a tile, so no race
            else:
                if ACCUMULATE:
                    v += load_tile(C, row, column, M, N, c_stride, TMA, BM, BP).to(tl.float32)
                store_tile(C, v.to(c.dtype.element_ty), row, column, M, N, c_stride, TMA, BM, BP)


@triton.jit
def operands(
    a, b, M, N, K, a_stride, b_stride, A_T: tl.constexpr, B_T: tl.constexpr, TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Both operands, as what their tiles are loaded by."""
    if A_T:
        A = matrix(a, K, M, a_stride, TMA, BK, BM)
    else:
        A = matrix(a, M, K, a_stride, TMA, BM, BK)
    if B_T:
        B = matrix(b, N, K, b_stride, TMA, BN, BK)
    else:
        B = matrix(b, K, N, b_stride, TMA, BK, BN)
    return A, B


@triton.jit
def block_of(time, way):
    """Which block of K a program takes at ``time``, on a tile that others work on as well.

    Of a tile's programs all but the first and the last are there from beginning to end; the first comes at time
    ``came`` (from the tile before), the last leaves at time ``left`` (for the next one). At each moment those who are
    there take the next blocks, one each. So all programs of all tiles move along K together, and what one has fetched
    the others find in L2.
    """
    middle, came, left, rank, is_first = way
    taken = middle * time + max(time - came, 0) + min(time, left)
    return taken + rank + is_first * (time < left).to(tl.int32)


@triton.jit
def stream_kernel(
    partial, a, b, M, N, K, a_stride, b_stride, share, A_T: tl.constexpr, B_T: tl.constexpr, TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
):  # fmt: skip
    """``share`` steps of the product's work, which may begin and end within a tile, as up to SEGMENTS partial tiles.

    Lay all tiles' steps along K end to end and cut that line into equal pieces, one a program: all finish together,
    however few tiles there are. (Osama et al. 2023, "Stream-K".) A program's piece says how long it works on which
    tile; which blocks of K it takes there, see :func:`block_of`.
    """
    tiles_m, tiles_n, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    A, B = operands(a, b, M, N, K, a_stride, b_stride, A_T, B_T, TMA, BM, BN, BK)
    BP: tl.constexpr = BN // PARTS
    rows = tl.num_programs(0) * SEGMENTS * BM
    P = matrix(partial, rows, BN, BN, TMA, BM, BP)
    program = tl.program_id(0)
    start = program * share
    end = min(start + share, tiles_m * tiles_n * steps)
    for segment in range(tl.cdiv(end, steps) - start // steps):
        tile = start // steps + segment
        m, n = place_of(tile, tiles_m, tiles_n, GROUP)
        first, last = tile * steps // share, ((tile + 1) * steps - 1) // share  # the tile's programs
        middle = last - first - 1
        is_first = (program == first).to(tl.int32)
        rank = is_first * middle + (1 - is_first) * (program - first - 1)
        way = (middle, tile * steps - first * share, (tile + 1) * steps - last * share, rank, is_first)
        begin, until = max(tile * steps - start, 0), min((tile + 1) * steps, end) - start
        acc = product(A, B, m * BM, n * BN, begin, until, way, M, N, K, a_stride, b_stride, A_T, B_T, TMA, BM, BN, BK)
        row = (program * SEGMENTS + segment) * BM
        parts = (acc,) if PARTS == 1 else halves(acc, BM, BN)
        for part in tl.static_range(PARTS):
            store_tile(P, parts[part], row, part * BP, rows, BN, BN, TMA, BM, BP)


@triton.jit
def stream_sum_kernel(
    c, partial, M, N, K, c_stride, share, ACCUMULATE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, SEGMENTS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one tile of c (+)= the sum of the partial tiles that :func:`stream_kernel` left, in their order."""
    tile, steps = tl.program_id(0), tl.cdiv(K, BK)
    m, n = place_of(tile, tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    r, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BN)
    total = tl.zeros((ROWS, BN), tl.float32)
    first, last = tile * steps // share, ((tile + 1) * steps - 1) // share
    for program in tl.range(first, last + 1, num_stages=STAGES):
        segment = tile - program * share // steps
        rows = (program * SEGMENTS + segment) * BM + r
        total += tl.load(partial + rows[:, None] * BN + columns[None, :])
    rows, columns = m * BM + r, n * BN + columns
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    at = c + rows.to(tl.int64)[:, None] * c_stride + columns[None, :]
    if ACCUMULATE:
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, total.to(c.dtype.element_ty), mask=inside)
