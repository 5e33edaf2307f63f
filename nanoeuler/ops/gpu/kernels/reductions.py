# mypy: disallow-untyped-defs=False
"""Sums over rows: bias gradients, and the second half of every sum that many programs share.

A sum over all N rows of a matrix cannot be one program's work (it would be slow) and must not be a race of additions to
one place (floating-point addition is not associative, so the order would change the bits from run to run). So it takes
two kernels. In the first, program p adds up its own rows, always in the same order, and writes row p of a small fp32
matrix of *partial sums*. In the second, each program owns a few columns and adds up the partial rows, top to bottom.

Both read memory row-wise, 16 bytes a thread, and do next to nothing else: bytes over bandwidth is their time. The first
kernel reads 2 N C bytes. The partials are little beside that: for 16384 x 3072 numbers on an H200, 69 rows, 0.85 MB of
101 MB.

*Measured* there, both kernels: 31.6 us, 75 % of a copy; a first version, before tiles of 16 x 256 unrolled twice, took
40.4. Where the rows are in registers anyway (layer norm's and attention's backward, a product's epilogue) only the
second kernel is left: 4.4 us for 1056 rows of 3 x 768. Atomic additions would save it, and were slower besides:
docs/kernels/softmax.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch


@triton.jit
def column_sums_kernel(
    partial, x, N, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, UNROLL: tl.constexpr
):
    """Row p of ``partial`` (P, C) = the sum of rows p*STEPS*ROWS ... of x (N, C), for one block of columns."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in tl.range(STEPS, loop_unroll_factor=UNROLL):
        rows = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (rows < N)[:, None] & (columns < C)[None, :]
        total += tl.load(x + rows.to(tl.int64)[:, None] * C + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(partial + tl.program_id(0) * C + columns, tl.sum(total, 0), mask=columns < C)


@triton.jit
def sum_partials_kernel(
    first, second, third, partial, P, C, width, ACCUMULATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The sum of the rows of ``partial`` (P, width) into up to three outputs, C columns each, side by side."""
    which = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for top in range(0, P, ROWS):
        rows = top + tl.arange(0, ROWS)
        inside = (rows < P)[:, None] & (columns < C)[None, :]
        total += tl.load(partial + rows[:, None] * width + which * C + columns[None, :], mask=inside, other=0.0)
    answer = tl.sum(total, 0)
    put(first, columns, answer, columns < tl.where(which == 0, C, 0), ACCUMULATE)
    if second is not None:
        put(second, columns, answer, columns < tl.where(which == 1, C, 0), ACCUMULATE)
    if third is not None:
        put(third, columns, answer, columns < tl.where(which == 2, C, 0), ACCUMULATE)


@triton.jit
def put(out, columns, answer, mask, ACCUMULATE: tl.constexpr):
    """out[columns] (+)= answer where mask."""
    if ACCUMULATE:
        answer += tl.load(out + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + columns, answer.to(out.dtype.element_ty), mask=mask)


def sum_partials(outs: list[Array], partial: Array, P: int, accumulate: bool) -> Launch:
    """Each of one to three ``outs`` (C,) (+)= its columns of ``partial`` (P, len(outs) * C) summed over rows."""
    C = outs[0].shape[0]
    first, second, third = (*outs, None, None)[:3]
    rows = 64 if P <= 512 else 128
    return launch(
        sum_partials_kernel, (cdiv(C, 16), len(outs)), 8, first=first, second=second, third=third, partial=partial,
        P=P, C=C, width=len(outs) * C, ACCUMULATE=accumulate, ROWS=rows, COLUMNS=16,
    )  # fmt: skip


def column_sums_scratch(N: int, C: int, target: Target) -> int:
    """fp32 elements of scratch that :func:`column_sums` needs."""
    return _programs(N, C, target)[0] * C


def column_sums(out: Array, x: Array, scratch: Array, accumulate: bool, *, target: Target) -> list[Launch]:
    """out (C,) (+)= sum over rows of x (N, C): the gradient of a bias."""
    N, C = x.shape
    programs, steps = _programs(N, C, target)
    first = launch(
        column_sums_kernel, (programs, cdiv(C, COLUMNS)), 4, partial=scratch, x=x, N=N, C=C,
        ROWS=ROWS, COLUMNS=COLUMNS, STEPS=steps, UNROLL=2,
    )  # fmt: skip
    return [first, sum_partials([out], scratch, programs, accumulate)]


ROWS, COLUMNS = 16, 256  # a tile: 32 threads x 16 bytes across, 4 warps x 4 rows down


def _programs(N: int, C: int, target: Target) -> tuple[int, int]:
    """How many programs share the rows and how many tiles each adds up: enough to fill the GPU about six times."""
    tiles, across = cdiv(N, ROWS), cdiv(C, COLUMNS)
    steps = max(1, min(16, tiles * across // (6 * target.multiprocessors)))
    return cdiv(tiles, steps), steps
