# mypy: disallow-untyped-defs=False
"""The fused classifier: logits, cross-entropy and their gradient, in chunks of rows.

The logits of GPT-2 124M at B=16, T=1024 are 16384 x 50257 numbers: 1.6 GB in bf16, three times that with their
gradient in fp32, more than all activations of the model together. But row n of the gradient needs row n of the logits
and nothing else. So a few thousand rows are made at a time, turned into their gradient *in place*, multiplied into dx
and dwte, and forgotten:

    z = x wte^T             one product; rows padded to whole cache lines, columns from V on never used
    losses, z <- dz         ``cross_entropy_kernel``: read z twice, write it once. On Hopper the product has left the
                            largest number and the sum of exponentials of each 128 of a row: read z once
    dx = dz wte             K is the vocabulary: long sums, few tiles
    dwte += dz^T x          summed over chunks in memory, in fp32

*Precision.* z is rounded to bf16 once, the log-sum-exp and the loss are fp32, dz is rounded to bf16 for the products,
as the formula's own rounding would have it. The vocabulary need not be padded: the tensor memory accelerator reads
zeros beyond an edge and writes nothing there.

*Counting* (GPT-2 124M, 16384 rows, three chunks): three products of 1.26 TFLOP, 5 ms at 750 TFLOP/s. The logits are
1.65 GB; they are written once, read and replaced, and read twice more: 8.2 GB, 2 ms, of which the products hide all but
the 3.3 GB of the cross-entropy: 0.8 ms at 4.2 TB/s.

*Measured* on an H200, chunks of 5504 rows: logits 682 us (623 TFLOP/s), dx 594 (715), dwte, added, 643 (660); PyTorch's
cuBLAS with a padded vocabulary 729, 582 and, not added, 608. The cross-entropy that reads twice: 388 us. In
long runs, with the product finding maxima and sums, 391 became 292 us (3.8 TB/s, 89 % of a copy), three of them in a
step 1.25 ms became 0.87, and the product took 0.1 ms more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.matmul import ROLES, makes_stats, matmul
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch, power_of_2

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def cross_entropy_kernel(losses, logits, targets, scale, V, stride, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    """One row of logits (V of ``stride`` columns) -> its loss; with GRADIENT the row becomes dloss/dlogits * scale[0].

    A row does not fit into registers, so it is read twice; the second time it comes out of L2. Each block is loaded
    while the one before it is worked on, since every block ends with a maximum that all warps wait for. Loads are cut
    off at ``stride``, a multiple of 64, not at V: a mask that may fall anywhere would make every load 2 bytes wide.

    The answer is left out of the sum at first: what the *others* have of the probability is its gradient, and its loss
    where it is small. As one minus the answer's probability, both would drown in rounding once a model is sure.
    """
    row = tl.program_id(0)
    z_row = logits + row.to(tl.int64) * stride
    target = tl.load(targets + row)
    scored = target >= 0
    right = tl.load(z_row + target, mask=scored, other=0.0).to(tl.float32)  # before any thread overwrites it
    right = tl.where(scored, right * LOG2_E, float("-inf"))
    lanes = tl.arange(0, BLOCK)
    most = -1e30  # less than any logit, but not so that exp2(most - most) is no number
    total = tl.zeros((BLOCK,), tl.float32)
    ahead = tl.load(z_row + lanes, mask=lanes < stride, other=0.0)
    for first in range(0, V, BLOCK):
        columns = first + lanes
        z = ahead.to(tl.float32) * LOG2_E
        ahead = tl.load(z_row + columns + BLOCK, mask=columns + BLOCK < stride, other=0.0)
        if first + BLOCK > V:
            z = tl.where(columns < V, z, float("-inf"))
        if (first <= target) & (target < first + BLOCK):
            z = tl.where(columns == target, float("-inf"), z)
        new = tl.maximum(most, tl.max(z, 0))
        total = total * tl.exp2(most - new) + tl.exp2(z - new)
        most = new
    if GRADIENT:
        ahead = tl.load(z_row + lanes, mask=lanes < stride, other=0.0)
    top = tl.maximum(most, right)
    rest = tl.sum(total, 0) * tl.exp2(most - top)
    lse = top + tl.log2(rest + tl.exp2(right - top))  # in log2 units
    others = rest * tl.exp2(top - lse)  # their share of the probability
    loss = tl.where(others < 1e-3, others + 0.5 * others * others, (lse - right) * LN_2)  # -log(1 - others)
    tl.store(losses + row, tl.where(scored, loss, 0.0))
    if GRADIENT:
        weight = tl.where(scored, tl.load(scale), 0.0)
        for first in range(0, V, BLOCK):
            columns = first + lanes
            dz = tl.exp2(ahead.to(tl.float32) * LOG2_E - lse) * weight
            ahead = tl.load(z_row + columns + BLOCK, mask=columns + BLOCK < stride, other=0.0)
            if first + BLOCK > V:
                dz = tl.where(columns < V, dz, 0.0)
            tl.store(z_row + columns, dz.to(logits.dtype.element_ty), mask=columns < stride)
        tl.debug_barrier()  # the whole row is written: now the one place where the answer stands
        tl.store(z_row + target, (-others * weight).to(logits.dtype.element_ty), mask=scored)


@triton.jit
def cross_entropy_stats_kernel(
    losses, logits, targets, scale, stats, V, stride, tiles,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The same where the product that made the logits left the largest and the sum of exponentials of each WIDTH
    logits in ``stats`` (rows, 2, tiles): the row itself need be read only once.

    But for the tile where the answer stands: that is summed again without it.
    """
    row = tl.program_id(0)
    z_row = logits + row.to(tl.int64) * stride
    target = tl.load(targets + row)
    scored = target >= 0
    right = tl.load(z_row + target, mask=scored, other=0.0).to(tl.float32)
    right = tl.where(scored, right * LOG2_E, float("-inf"))
    home = tl.where(scored, target // WIDTH, -1)
    tile, lanes = tl.arange(0, TILES), home * WIDTH + tl.arange(0, WIDTH)
    counts = (tile < tiles) & (tile != home)
    tops = tl.load(stats + row.to(tl.int64) * 2 * tiles + tile, mask=counts, other=-1e30)  # in log2 units
    sums = tl.load(stats + (row.to(tl.int64) * 2 + 1) * tiles + tile, mask=counts, other=0.0)
    near = tl.load(z_row + lanes, mask=(lanes >= 0) & (lanes < V) & (lanes != target), other=float("-inf"))
    near = near.to(tl.float32) * LOG2_E
    top = tl.maximum(tl.maximum(tl.max(tops, 0), tl.max(near, 0)), right)
    rest = tl.sum(sums * tl.exp2(tops - top), 0) + tl.sum(tl.exp2(near - top), 0)
    lse = top + tl.log2(rest + tl.exp2(right - top))  # in log2 units
    others = rest * tl.exp2(top - lse)
    loss = tl.where(others < 1e-3, others + 0.5 * others * others, (lse - right) * LN_2)
    tl.store(losses + row, tl.where(scored, loss, 0.0))
    if GRADIENT:
        weight = tl.where(scored, tl.load(scale), 0.0)
        for first in range(0, V, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            z = tl.load(z_row + columns, mask=columns < stride, other=0.0)
            dz = tl.exp2(z.to(tl.float32) * LOG2_E - lse) * weight
            dz = tl.where(columns == target, -others * weight, dz)
            if first + BLOCK > V:
                dz = tl.where(columns < V, dz, 0.0)
            tl.store(z_row + columns, dz.to(logits.dtype.element_ty), mask=columns < stride)


def logits_stride(V: int) -> int:
    """Columns of a row of logits in memory: V, rounded up to whole cache lines of 128 bytes."""
    return cdiv(V, 64) * 64


def stats_scratch(rows: int, V: int, dtype: str, target: Target) -> int:
    """fp32 elements for what the product that makes ``rows`` rows of logits says about its tiles."""
    return 2 * rows * cdiv(V, ROLES.bn) if target.sm == 90 and dtype == "bf16" else 0


def chunk_rows(N: int, C: int, most: int, target: Target) -> int:
    """Rows of a chunk, at most ``most``: few chunks, and dx = dz wte then fills the GPU in whole waves of tiles."""
    return min(N, most)


def classifier(
    losses: Array, x: Array, wte: Array, targets: Array, logits: Array, scratch: Array,
    dx: Array | None = None, dwte: Array | None = None, scale: Array | None = None, accumulate: bool = False,
    *, target: Target,
) -> list[Launch]:  # fmt: skip
    """Losses (N,) fp32 of x (N,C) against ``targets`` (N,), and the gradients of ``scale[0] * sum(losses)``.

    wte (V,C). logits (R, logits_stride(V)) is scratch for one chunk of R rows. With ``dx`` (N,C) and ``dwte`` (V,C)
    gradients are made; ``scale`` (1,) fp32 lies on the device.
    """
    N, (V, _) = x.shape[0], wte.shape
    launches: list[Launch] = []
    for first in range(0, N, logits.shape[0]):
        rows = slice(first, min(N, first + logits.shape[0]))
        z = logits[0 : rows.stop - rows.start]
        stats = scratch if makes_stats(z, x, wte, target) else None
        launches += matmul(z, x[rows], wte, b_t=True, columns=V, scratch=scratch, stats=stats, target=target)
        launches.append(cross_entropy(losses[rows], z, targets[rows], V, scale if dx is not None else None, stats))
        if dx is not None and dwte is not None:
            launches += matmul(dx[rows], z, wte, inner=V, scratch=scratch, target=target)
            add = accumulate or first > 0
            launches += matmul(dwte, z, x[rows], a_t=True, accumulate=add, scratch=scratch, target=target)
    return launches


def cross_entropy(
    losses: Array, logits: Array, targets: Array, V: int, scale: Array | None, stats: Array | None = None
) -> Launch:
    """Losses (R,) of ``logits`` (R, stride); with ``scale`` they become the gradient of scale[0] * sum(losses).

    ``stats``: what the product that made the logits found out about each of their tiles, see ``hopper_matmul_kernel``.
    """
    rows, stride = logits.shape
    if stats is not None:
        tiles = cdiv(V, ROLES.bn)
        return launch(
            cross_entropy_stats_kernel, (rows,), 8, losses=losses, logits=logits, targets=targets, scale=scale,
            stats=stats, V=V, stride=stride, tiles=tiles, GRADIENT=scale is not None, BLOCK=4096, WIDTH=ROLES.bn,
            TILES=power_of_2(tiles),
        )  # fmt: skip
    return launch(
        cross_entropy_kernel, (rows,), 8, losses=losses, logits=logits, targets=targets, scale=scale, V=V,
        stride=stride, GRADIENT=scale is not None, BLOCK=4096,
    )  # fmt: skip
