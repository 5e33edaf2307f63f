"""The matrix product c = a b, (M, K) by (K, N), step by step; and the weight gradient a^T b, whose K is long.

See ``docs/kernels/matmul.md``. The last rungs are the engine's kernels themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ladder.common import Get, Ladder, New, Rung, ends
from nanoeuler.ops.gpu.kernels.activation import gelu
from nanoeuler.ops.gpu.kernels.matmul import ROLES, Tiles, matmul, matmul_scratch
from nanoeuler.ops.gpu.kernels.matmul_kernels import place_of
from nanoeuler.ops.gpu.kernels.spec import Launch, Target, cdiv, launch
from nanoeuler.ops.reference.gelu import gelu as reference_gelu


@triton.jit
def one_element_kernel(c, a, b, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    """One thread, one element of c: it walks along a row of a and down a column of b, a multiply-add a step.

    The program has BM x BN threads. For each k every thread loads its own two numbers, though its neighbours load the
    same ones: the caches answer, and answering is all they do.
    """
    m = (tl.program_id(1) * BM + tl.arange(0, BM))[:, None]
    n = (tl.program_id(0) * BN + tl.arange(0, BN))[None, :]
    inside = (m < M) & (n < N)
    a_at, b_at = a + m * K + n * 0, b + m * 0 + n  # (BM, BN) addresses each: one a thread
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(K):
        x = tl.load(a_at + k, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(b_at + k * N, mask=inside, other=0.0).to(tl.float32)
        acc += x * y
    tl.store(c + m * N + n, acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def tile_kernel(
    c, a, b, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, CORES: tl.constexpr
):
    """One program, one BM x BN tile of c: strips of a and b come BK wide; each number loaded is used BM or BN times.

    CORES: multiply on the tensor cores, in the type of a and b; otherwise number by number in fp32. GROUP: rows of
    tiles that are worked off together. Whether loads run ahead is not said here but by ``num_stages`` of the launch.
    """
    m, n = place_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = m * BM + tl.arange(0, BM)
    columns = n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * K + k[None, :], mask=(rows < M)[:, None] & (k < K)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + columns[None, :], mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0)
        if not CORES:
            x, y = x.to(tl.float32), y.to(tl.float32)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def gelu_kernel(out, pre, x, bias, n, N, EXACT: tl.constexpr, BLOCK: tl.constexpr):
    """``pre = x + bias, out = gelu(pre)`` as a pass of its own over a matrix with N columns."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) + tl.load(bias + at % N, mask=at < n).to(tl.float32)
    tl.store(pre + at, v.to(pre.dtype.element_ty), mask=at < n)
    tl.store(out + at, gelu(v, EXACT).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def split_kernel(c, a, b, M, N, K, share, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ATOMIC: tl.constexpr):
    """A tile of a^T b, a (K, M) and b (K, N), summed over ``share`` rows: one of several parts of that tile.

    ATOMIC: added to c (M, N) in memory, in whatever order programs finish; otherwise part p of c (parts, M, N).
    """
    tiles_n = tl.cdiv(N, BN)
    rows = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    part = tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(part * share, min(K, (part + 1) * share), BK):
        k = first + tl.arange(0, BK)
        x = tl.load(a + k[:, None] * M + rows[None, :], mask=(k < K)[:, None] & (rows < M)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + columns[None, :], mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0)
        acc = tl.dot(x.T, y, acc, input_precision="ieee")
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    at = rows[:, None] * N + columns[None, :]
    if ATOMIC:
        tl.atomic_add(c + at, acc, mask=inside, sem="relaxed")
    else:
        tl.store(c + part * M * N + at, acc, mask=inside)


@triton.jit
def sum_parts_kernel(c, partial, parts, n, BLOCK: tl.constexpr):
    """One block of c (n,) = the sum of ``partial`` (parts, n), first part first."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        total += tl.load(partial + part * n + at, mask=at < n, other=0.0)
    tl.store(c + at, total, mask=at < n)


@triton.jit
def zero_kernel(x, n, BLOCK: tl.constexpr):
    """x = 0."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.zeros((BLOCK,), x.dtype.element_ty), mask=at < n)


def zero(x: Any) -> Launch:
    n = math.prod(x.shape)
    return launch(zero_kernel, (cdiv(n, 2048),), 4, x=x, n=n, BLOCK=2048)


def tile(c: Any, a: Any, b: Any, cut: tuple[int, int, int], warps: int, stages: int, group: int, cores: bool) -> Launch:
    (M, K), N = a.shape, b.shape[1]
    bm, bn, bk = cut
    return launch(
        tile_kernel, (cdiv(M, bm) * cdiv(N, bn),), warps, stages, c=c, a=a, b=b, M=M, N=N, K=K, BM=bm, BN=bn, BK=bk,
        GROUP=group, CORES=cores,
    )  # fmt: skip


def forward(new: New, target: Target, M: int, N: int, K: int) -> Ladder:
    """The product of a layer's forward pass."""
    a, b, c = new(M, K), new(K, N, scale=K**-0.5), new(M, N)
    one = launch(
        one_element_kernel, (cdiv(N, 32), cdiv(M, 8)), 8, c=c, a=a, b=b, M=M, N=N, K=K, BM=8, BN=32
    )  # fmt: skip
    steps = {
        "one thread, one element": [one],
        "tiles of 64 x 64 through shared memory, fp32 units": [tile(c, a, b, (64, 64, 32), 4, 1, 1, False)],
        "tensor cores, tiles of 128 x 128": [tile(c, a, b, (128, 128, 64), 8, 1, 1, True)],
        "loads three steps ahead": [tile(c, a, b, (128, 128, 64), 8, 4, 1, True)],
        "tiles in groups of 8 rows": [tile(c, a, b, (128, 128, 64), 8, 4, 8, True)],
        "tiles of 128 x 256": [tile(c, a, b, (128, 256, 64), 8, 3, 8, True)],
        "TMA, persistent programs": matmul(c, a, b, tiles=Tiles(flatten=False), target=target),
        ".. loops over tiles and K made one": matmul(c, a, b, tiles=Tiles(), target=target),
        "warps with roles": matmul(c, a, b, tiles=ROLES, target=target),
    }
    bytes_, operations = 2.0 * (M * K + K * N + M * N), 2.0 * M * N * K
    rungs = [Rung(title, launches, bytes_, operations, outputs={"c": c}) for title, launches in steps.items()]

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for rows in ends(M):
            yield "c", get(rung.outputs["c"][rows]), get(a[rows]) @ get(b)

    return Ladder("matmul", rungs, check)


def order(new: New, target: Target, M: int, N: int, K: int) -> Ladder:
    """A product too large for the L2, with its tiles taken row by row and in groups of rows."""
    a, b, c = new(M, K), new(K, N, scale=K**-0.5), new(M, N)
    rungs = []
    for group in (1, 2, 4, 8, 16, 64):
        call = tile(c, a, b, (128, 128, 64), 8, 4, group, True)
        title = f"groups of {group} rows of tiles" if group > 1 else "row by row of tiles"
        rungs.append(Rung(title, [call], 2.0 * (M * K + K * N + M * N), 2.0 * M * N * K, outputs={"c": c}))

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for rows in ends(M):
            yield "c", get(rung.outputs["c"][rows]), get(a[rows]) @ get(b)

    return Ladder("order of tiles", rungs, check)


def epilogue(new: New, target: Target, M: int, N: int, K: int) -> Ladder:
    """The same product followed by bias and GELU, whose input is kept for backward."""
    a, b, bias, c, pre, out = new(M, K), new(K, N, scale=K**-0.5), new(N), new(M, N), new(M, N), new(M, N)
    n = M * N
    apart = launch(
        gelu_kernel, (cdiv(n, 2048),), 4, out=out, pre=pre, x=c, bias=bias, n=n, N=N, EXACT=a.dtype == "fp32",
        BLOCK=2048,
    )  # fmt: skip
    fused = {"bias": bias, "pre": pre, "gelu": 1, "target": target}
    steps = {
        "product, then a pass for bias and GELU": [*matmul(c, a, b, tiles=Tiles(), target=target), apart],
        "in the product's epilogue": matmul(out, a, b, tiles=Tiles(), **fused),
        "in the epilogue, warps with roles": matmul(out, a, b, tiles=ROLES, **fused),
    }
    outputs = {"out": out, "pre": pre}
    rungs = [
        Rung(title, launches, 2.0 * (M * K + K * N + (4 if i == 0 else 2) * n), 2.0 * n * K, outputs=outputs)
        for i, (title, launches) in enumerate(steps.items())
    ]

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for rows in ends(M):
            want = get(a[rows]) @ get(b) + get(bias)
            yield "pre", get(rung.outputs["pre"][rows]), want
            yield "out", get(rung.outputs["out"][rows]), reference_gelu(want)

    return Ladder("epilogue", rungs, check)


def weight_gradient(new: New, target: Target, M: int, N: int, K: int, parts: int = 7) -> Ladder:
    """a^T b: few tiles, long sums."""
    a, b, c = new(K, M), new(K, N), new(M, N, dtype="fp32")
    partial = new(parts, M, N, dtype="fp32")
    scratch = new(max(1, matmul_scratch(M, N, K, a.dtype, target)), dtype="fp32")
    bm, bn, bk = (128, 256, 64) if a.dtype == "bf16" else (32, 32, 32)
    share = cdiv(cdiv(K, parts), bk) * bk
    common = {"a": a, "b": b, "M": M, "N": N, "K": K, "BM": bm, "BN": bn, "BK": bk}

    def split(c: Any, parts: int, share: int, atomic: bool) -> Launch:
        grid = cdiv(M, bm) * cdiv(N, bn), parts
        return launch(split_kernel, grid, 8, 3, c=c, share=share, ATOMIC=atomic, **common)

    total = launch(sum_parts_kernel, (cdiv(M * N, 1024),), 4, c=c, partial=partial, parts=parts, n=M * N, BLOCK=1024)
    steps = {
        "a program a tile, all of K": [split(c, 1, K, False)],
        f"K in {parts} parts, added by atomics": [zero(c), split(c, parts, share, True)],
        f"K in {parts} parts, partial tiles summed in order": [split(partial, parts, share, False), total],
        "equal shares of all steps (stream-K)": matmul(c, a, b, a_t=True, scratch=scratch, target=target),
    }
    bytes_, operations = 2.0 * K * (M + N) + 4.0 * M * N, 2.0 * M * N * K
    rungs = [Rung(title, launches, bytes_, operations, outputs={"c": c}) for title, launches in steps.items()]

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        left, right = get(a), get(b)
        for rows in ends(M, 4):
            yield "c", get(rung.outputs["c"][rows]), left[:, rows].T @ right

    return Ladder("weight gradient", rungs, check)
