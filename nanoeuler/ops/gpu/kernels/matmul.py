"""Plans for the matrix product: how to cut it for a given size and GPU, and which of the two schedules to use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nanoeuler.ops.gpu.kernels.matmul_hopper import hopper_matmul_kernel
from nanoeuler.ops.gpu.kernels.matmul_kernels import matmul_kernel, stream_kernel, stream_sum_kernel
from nanoeuler.ops.gpu.kernels.spec import DTYPES, Array, Launch, Target, Tiled, cdiv, launch

GROUP = 8  # rows of tiles that are worked off together, see ``place_of``


@dataclass(frozen=True)
class Tiles:
    """How a product is cut: tile sizes, parts of the epilogue, programs a multiprocessor, warps, stages, schedule."""

    bm: int = 128
    bn: int = 256
    bk: int = 64
    parts: int = 2
    per_multiprocessor: int = 1
    warps: int = 8
    stages: int = 3
    flatten: bool = True
    schedule: str = "tiles"  # or "stream", which cuts K as well, or "roles", the kernel for Hopper


ROLES = Tiles(128, 128, 64, warps=4, stages=5, schedule="roles")


def tiles_for(M: int, N: int, K: int, dtype: str, target: Target, plain: bool, gelu: int = 0) -> Tiles:
    """The cut for a product of this size on this GPU. ``plain``: no epilogue, so that K may be cut as well."""
    if dtype == "fp32":
        return Tiles(64, 64, 32, 1, 2, 4, 2, False)
    if target.sm == 80:
        cut = Tiles(128, 128, 64, 2, 1, 8, 3, False)
    elif target.sm not in (90, 100, 103):
        cut = Tiles(128, 128, 32, 2, 1, 8, 3, False)
    else:
        cut = Tiles()
    if plain and K >= 2048 and waves(M, N, cut, target) < 0.85:
        return replace(cut, per_multiprocessor=1, schedule="stream")
    if target.sm == 90 and (not plain or K <= 1024):
        return ROLES  # where the epilogue is a good part of the work
    if cut == Tiles() and not plain and K <= 1024 and gelu != 2:
        return Tiles(128, 128, 64, 2, 2, 4, 3)  # two programs a multiprocessor: one multiplies while the other stores
    return cut


def waves(M: int, N: int, cut: Tiles, target: Target) -> float:
    """Which part of the GPU is busy on average when whole tiles are dealt out.

    >>> round(waves(768, 2304, Tiles(), Target()), 2), round(waves(16384, 2304, Tiles(), Target()), 2)
    (0.41, 0.97)
    """
    tiles, at_once = cdiv(M, cut.bm) * cdiv(N, cut.bn), cut.per_multiprocessor * target.multiprocessors
    return tiles / (cdiv(tiles, at_once) * at_once)


def stream_shares(M: int, N: int, K: int, cut: Tiles, target: Target) -> tuple[int, int, int]:
    """Programs, steps of K a program, and how many tiles a program's steps can touch, for the stream schedule."""
    steps = cdiv(K, cut.bk)
    total = cdiv(M, cut.bm) * cdiv(N, cut.bn) * steps
    share = cdiv(total, target.multiprocessors)
    return cdiv(total, share), share, cdiv(share - 1, steps) + 1


def matmul_scratch(M: int, N: int, K: int, dtype: str, target: Target) -> int:
    """fp32 elements of scratch that :func:`matmul` needs at most for a product of this size."""
    cut = tiles_for(M, N, K, dtype, target, plain=True)
    if cut.schedule != "stream":
        return 0
    programs, _, segments = stream_shares(M, N, K, cut, target)
    return programs * segments * cut.bm * cut.bn


def sums_rows(M: int, cut: Tiles) -> int:
    """Rows of ``sums`` that :func:`matmul` writes for M rows of c."""
    return cdiv(M, cut.bm)


def matmul(
    c: Array, a: Array, b: Array, a_t: bool = False, b_t: bool = False, bias: Array | None = None,
    residual: Array | None = None, pre: Array | None = None, act: Array | None = None, gelu: int = 0,
    sums: Array | None = None, accumulate: bool = False, columns: int | None = None, inner: int | None = None,
    scratch: Array | None = None, stats: Array | None = None, tiles: Tiles | None = None, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``c (+)= op(a) op(b)``, with ``a_t``/``b_t`` for transposed operands and the epilogues of ``matmul_kernel``.

    ``columns`` and ``inner`` cut N and K short where rows of c or a are padded. With ``scratch`` (fp32) K may be cut.
    ``stats`` (M, 2, columns of tiles) fp32, only where :func:`makes_stats` says so: see ``hopper_matmul_kernel``.
    """
    M, K = (a.shape[1], a.shape[0]) if a_t else (a.shape[0], a.shape[1])
    K, N = inner or K, columns or c.shape[1]
    M = min(M, c.shape[0])
    plain = bias is None and residual is None and sums is None and stats is None and not gelu
    cut = tiles or tiles_for(M, N, K, a.dtype, target, plain, gelu)
    if cut.schedule == "stream" and scratch is None:
        cut = replace(cut, schedule="tiles")
    tma = target.has_tma and all(fits_tma(array) for array in (a, b, c))
    inputs = {
        "a": a,
        "b": b,
        "M": M,
        "N": N,
        "K": K,
        "a_stride": a.shape[1],
        "b_stride": b.shape[1],
        "c_stride": c.shape[1],
    }
    inputs |= {"A_T": a_t, "B_T": b_t, "GROUP": GROUP}
    outputs = {"c": c, "bias": bias, "act": act, "sums": sums, "GELU": gelu}
    if cut.schedule == "stream" and plain:
        return _stream(cut, inputs, c, scratch, accumulate, tma, target)
    count = cdiv(M, cut.bm) * cdiv(N, cut.bn)
    if cut.schedule == "roles" and not (tma and a.dtype == "bf16" == c.dtype and not accumulate):
        cut = Tiles()  # as many rows a tile, which is what ``sums_rows`` counts on
    assert stats is None or cut.schedule == "roles"
    if cut.schedule == "roles":
        extra = pre if gelu else residual
        part = (cut.bm, 32)  # of what the epilogue reads and writes
        tiled = {
            "a": Tiled(a, K, M, a.shape[1], (cut.bk, cut.bm)) if a_t else Tiled(a, M, K, a.shape[1], (cut.bm, cut.bk)),
            "b": Tiled(b, N, K, b.shape[1], (cut.bn, cut.bk)) if b_t else Tiled(b, K, N, b.shape[1], (cut.bk, cut.bn)),
            **{
                name: None if array is None else Tiled(array, M, N, c.shape[1], part)
                for name, array in (("c", c), ("extra", extra), ("act", act))
            },
        }
        stages = cut.stages - 1 if act is not None else cut.stages
        programs = min(target.multiprocessors, cdiv(count, 2))
        return [
            launch(
                hopper_matmul_kernel, (programs,), 4, 1, bias=bias, sums=sums, stats=stats, M=M, N=N, K=K, A_T=a_t,
                B_T=b_t, GELU=gelu, STAGES=stages, GROUP=GROUP, PROGRAMS=programs, **tiled,
            )
        ]  # fmt: skip
    programs = min(cut.per_multiprocessor * target.multiprocessors, count)
    return [
        launch(
            matmul_kernel, (programs,), cut.warps, cut.stages, residual=residual, pre=pre, ACCUMULATE=accumulate,
            PARTS=cut.parts, PROGRAMS=programs, FLATTEN=cut.flatten, TMA=tma, BM=cut.bm, BN=cut.bn, BK=cut.bk,
            **inputs, **outputs,
        )
    ]  # fmt: skip


def makes_stats(c: Array, a: Array, b: Array, target: Target) -> bool:
    """Whether :func:`matmul` can tell the largest number of each row, and the sum of the row's exponentials."""
    return target.sm == 90 and all(array.dtype == "bf16" and fits_tma(array) for array in (a, b, c))


def _stream(
    cut: Tiles, inputs: dict[str, Any], c: Array, scratch: Array | None, accumulate: bool, tma: bool, target: Target
) -> list[Launch]:
    """A product in equal shares of all tiles' steps, and the sum of the partial tiles that result."""
    M, N, K = inputs["M"], inputs["N"], inputs["K"]
    programs, share, segments = stream_shares(M, N, K, cut, target)
    shape = {"M": M, "N": N, "K": K, "share": share, "SEGMENTS": segments, "partial": scratch, "GROUP": GROUP}
    shape |= {"BM": cut.bm, "BN": cut.bn, "BK": cut.bk}
    operands = {name: inputs[name] for name in ("a", "b", "a_stride", "b_stride", "A_T", "B_T")}
    main = launch(stream_kernel, (programs,), cut.warps, cut.stages, TMA=tma, PARTS=cut.parts, **shape, **operands)
    tiles = cdiv(M, cut.bm) * cdiv(N, cut.bn)
    total = launch(
        stream_sum_kernel, (tiles, cut.bm // 8), 4, c=c, c_stride=inputs["c_stride"], ACCUMULATE=accumulate, ROWS=8,
        STAGES=3, **shape,
    )  # fmt: skip
    return [main, total]


def fits_tma(array: Array) -> bool:
    """Whether the tensor memory accelerator can read it: rows, and the first element, on 16-byte boundaries."""
    return array.ptr % 16 == 0 and array.shape[-1] * DTYPES[array.dtype] % 16 == 0
