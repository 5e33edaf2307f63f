# mypy: disallow-untyped-defs=False
"""The matrix product ``C (+)= op(A) op(B)`` with everything that follows it, as one persistent kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.activation import gelu, gelu_and_gradient
from nanoeuler.ops.gpu.kernels.spec import DTYPES, Array, Launch, Target, cdiv, launch


@triton.jit
def load_tile(source, row, column, rows, columns, stride, TMA: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """An R x C tile at (row, column) of a rows x columns matrix, zero outside it; ``source``: descriptor or address."""
    if TMA:
        return source.load([row, column])
    else:
        r, c = row + tl.arange(0, R), column + tl.arange(0, C)
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        return tl.load(source + r.to(tl.int64)[:, None] * stride + c[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(target, tile, row, column, rows, columns, stride, TMA: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Store ``tile`` (R, C) at (row, column), cut off at the matrix's edges."""
    if TMA:
        target.store([row, column], tile)
    else:
        r, c = row + tl.arange(0, R), column + tl.arange(0, C)
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
def matmul_kernel(
    c, a, b, bias, residual, pre, act, M, N, K, a_stride, b_stride, c_stride,
    A_T: tl.constexpr, B_T: tl.constexpr, GELU: tl.constexpr, ACCUMULATE: tl.constexpr, SPLIT: tl.constexpr,
    TMA: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PARTS: tl.constexpr, PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """``v = op(A) op(B) + bias``, then by GELU: 0 ``c = v (+ residual) (+ c)``; 1 ``pre = v, c = gelu(v)``;
    2 ``c = v gelu'(pre), act = gelu(pre)``. A_T: A is stored (K, M). B_T: B is stored (N, K)."""
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    steps = tl.cdiv(tl.cdiv(K, BK), SPLIT)
    rows_c = M if SPLIT == 1 else SPLIT * tiles_m * BM
    BP: tl.constexpr = BN // PARTS
    EXACT: tl.constexpr = a.dtype.element_ty == tl.float32
    if A_T:
        A = matrix(a, K, M, a_stride, TMA, BK, BM)
    else:
        A = matrix(a, M, K, a_stride, TMA, BM, BK)
    if B_T:
        B = matrix(b, N, K, b_stride, TMA, BN, BK)
    else:
        B = matrix(b, K, N, b_stride, TMA, BK, BN)
    C = matrix(c, rows_c, N, c_stride, TMA, BM, BP)
    if residual is not None:
        RESIDUAL = matrix(residual, M, N, c_stride, TMA, BM, BP)
    if pre is not None:
        PRE = matrix(pre, M, N, c_stride, TMA, BM, BP)
    if act is not None:
        ACT = matrix(act, M, N, c_stride, TMA, BM, BP)
    done = tl.program_id(0) - PROGRAMS  # the tile of the epilogue, counted apart so that loads can run ahead of it
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n * SPLIT, PROGRAMS, flatten=FLATTEN):
        m, n = place_of(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        first = tile // (tiles_m * tiles_n) * steps
        acc = tl.zeros((BM, BN), tl.float32)
        for step in range(steps):
            k = (first + step) * BK
            if A_T:
                x = load_tile(A, k, m * BM, K, M, a_stride, TMA, BK, BM).T
            else:
                x = load_tile(A, m * BM, k, M, K, a_stride, TMA, BM, BK)
            if B_T:
                y = load_tile(B, n * BN, k, N, K, b_stride, TMA, BN, BK).T
            else:
                y = load_tile(B, k, n * BN, K, N, b_stride, TMA, BK, BN)
            acc = tl.dot(x, y, acc, input_precision="ieee")

        done += PROGRAMS
        m, n = place_of(done % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        row = m * BM + done // (tiles_m * tiles_n) * (tiles_m * BM)  # a split's partial sums lie below the last one's
        parts = (acc,) if PARTS == 1 else tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        for part in tl.static_range(PARTS):
            column = n * BN + part * BP
            v = parts[part]
            if bias is not None:
                columns = column + tl.arange(0, BP)
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
            if ACCUMULATE:
                v += load_tile(C, row, column, M, N, c_stride, TMA, BM, BP).to(tl.float32)
            store_tile(C, v.to(c.dtype.element_ty), row, column, rows_c, N, c_stride, TMA, BM, BP)


@triton.jit
def sum_splits_kernel(c, partial, n, stride, SPLIT: tl.constexpr, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    """c (n,) (+)= the sum of SPLIT partial results, ``stride`` elements apart."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(partial + at, mask=at < n, other=0.0)
    for s in tl.static_range(1, SPLIT):
        total += tl.load(partial + s * stride + at, mask=at < n, other=0.0)
    if ACCUMULATE:
        total += tl.load(c + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(c + at, total.to(c.dtype.element_ty), mask=at < n)


@dataclass(frozen=True)
class Tiles:
    """How a product is cut: tile sizes, splits of K, programs, warps, stages."""

    bm: int = 128
    bn: int = 256
    bk: int = 64
    split: int = 1
    parts: int = 2
    per_multiprocessor: int = 1
    warps: int = 8
    stages: int = 3
    flatten: bool = True


def tiles_for(M: int, N: int, K: int, dtype: str, target: Target, splittable: bool) -> Tiles:
    """The cut for a product of this size on this GPU."""
    if dtype == "fp32":
        return Tiles(64, 64, 32, 1, 1, 2, 4, 2, False)
    if target.sm == 80:
        return Tiles(128, 128, 64, 1, 1, 1, 8, 3, False)
    if target.sm not in (90, 100, 103):
        return Tiles(128, 128, 32, 1, 1, 1, 8, 3, False)
    tiles = cdiv(M, 128) * cdiv(N, 256)
    split = 1
    if splittable and tiles < target.multiprocessors and K >= 1024:
        split = min(range(1, 9), key=lambda s: cdiv(tiles * s, target.multiprocessors) / s + s * 0.01)
    return Tiles(split=split)


def split_scratch(M: int, N: int, tiles: Tiles) -> int:
    """fp32 elements for the partial results of a product whose K is split."""
    return tiles.split * cdiv(M, tiles.bm) * tiles.bm * N if tiles.split > 1 else 0


def matmul(
    c: Array, a: Array, b: Array, a_t: bool = False, b_t: bool = False, bias: Array | None = None,
    residual: Array | None = None, pre: Array | None = None, act: Array | None = None, gelu: int = 0,
    accumulate: bool = False, columns: int | None = None, inner: int | None = None, scratch: Array | None = None,
    tiles: Tiles | None = None, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``c (+)= op(a) op(b)``, with ``a_t``/``b_t`` for transposed operands, and the epilogues of :func:`matmul_kernel`.

    ``columns`` and ``inner`` cut N and K short where rows of c or a are padded. With ``scratch`` (fp32) K may be split.
    """
    M, K = (a.shape[1], a.shape[0]) if a_t else (a.shape[0], a.shape[1])
    K, N = inner or K, columns or c.shape[1]
    M = min(M, c.shape[0])
    plain = bias is None and residual is None and not gelu
    cut = tiles or tiles_for(M, N, K, a.dtype, target, plain and scratch is not None and c.shape[1] == N)
    if accumulate and cut.split == 1 and c.dtype == "fp32" != a.dtype:
        cut = replace(cut, stages=cut.stages - 1)  # the fp32 tile that is read and written takes the place of a stage
    tma = target.has_tma and all(_fits_tma(array) for array in (a, b, c))
    programs = min(cut.per_multiprocessor * target.multiprocessors, cdiv(M, cut.bm) * cdiv(N, cut.bn) * cut.split)
    main = launch(
        matmul_kernel, (programs,), cut.warps, cut.stages, c=c if cut.split == 1 else scratch, a=a, b=b, bias=bias,
        residual=residual, pre=pre, act=act, M=M, N=N, K=K,
        a_stride=a.shape[1], b_stride=b.shape[1], c_stride=c.shape[1], A_T=a_t, B_T=b_t, GELU=gelu,
        ACCUMULATE=accumulate and cut.split == 1, SPLIT=cut.split, TMA=tma, BM=cut.bm, BN=cut.bn, BK=cut.bk,
        GROUP=8, PARTS=cut.parts, PROGRAMS=programs, FLATTEN=cut.flatten,
    )  # fmt: skip
    if cut.split == 1:
        return [main]
    n = M * N
    total = launch(
        sum_splits_kernel, (cdiv(n, 1024),), 4, c=c, partial=scratch, n=n, stride=cdiv(M, cut.bm) * cut.bm * N,
        SPLIT=cut.split, ACCUMULATE=accumulate, BLOCK=1024,
    )  # fmt: skip
    return [main, total]


def _fits_tma(array: Array) -> bool:
    """The tensor memory accelerator wants rows, and the first element, on 16-byte boundaries."""
    return array.ptr % 16 == 0 and array.shape[-1] * DTYPES[array.dtype] % 16 == 0
