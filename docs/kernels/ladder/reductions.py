"""Sums and maxima along rows and down columns, step by step: cross-entropy, layer norm, the gradient of a bias.

See ``docs/kernels/softmax.md``. The last rung of each ladder is the engine's kernel, except where it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ladder.common import Get, Ladder, New, Rung, copy, ends
from nanoeuler.ops.gpu.kernels.classifier import cross_entropy_kernel
from nanoeuler.ops.gpu.kernels.layernorm import EPS, layernorm
from nanoeuler.ops.gpu.kernels.reductions import column_sums, column_sums_scratch
from nanoeuler.ops.gpu.kernels.spec import Launch, Target, cdiv, launch, power_of_2
from nanoeuler.ops.reference.classifier import cross_entropy as reference_cross_entropy


# ---- cross-entropy: a softmax of rows too long for registers -----------------------------------------------------
@triton.jit
def three_pass_kernel(losses, dz, logits, targets, scale, V, stride, edge, BLOCK: tl.constexpr):
    """One row: its largest logit; then the sum of exp; then the gradient. Each pass reads the row from the start.

    ``edge``: where loads are cut off. At V, any column may be the first that must not be read, so the compiler has to
    load number by number; at a multiple of 8, whole pieces of 16 bytes are either inside or outside.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    lowest = float("-inf")
    most = tl.full((BLOCK,), lowest, tl.float32)
    for first in range(0, V, BLOCK):
        columns = first + lanes
        z = tl.load(logits + row * stride + columns, mask=columns < edge, other=lowest).to(tl.float32)
        most = tl.maximum(most, tl.where(columns < V, z, lowest))
    top = tl.max(most, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        columns = first + lanes
        z = tl.load(logits + row * stride + columns, mask=columns < edge, other=lowest).to(tl.float32)
        total += tl.exp(tl.where(columns < V, z, lowest) - top)
    lse = top + tl.log(tl.sum(total, 0))
    target = tl.load(targets + row)
    tl.store(losses + row, lse - tl.load(logits + row * stride + target).to(tl.float32))
    tl.debug_barrier()  # dz may be the logits themselves: nobody writes before that one has been read
    weight = tl.load(scale)
    for first in range(0, V, BLOCK):
        columns = first + lanes
        z = tl.load(logits + row * stride + columns, mask=columns < edge, other=lowest).to(tl.float32)
        d = (tl.exp(z - lse) - tl.where(columns == target, 1.0, 0.0)) * weight
        tl.store(
            dz + row * stride + columns, tl.where(columns < V, d, 0.0).to(dz.dtype.element_ty), mask=columns < edge
        )


@triton.jit
def two_pass_kernel(losses, dz, logits, targets, scale, V, stride, edge, BLOCK: tl.constexpr):
    """One row: maximum and sum in one reading (*online*: what has been summed is scaled down when the maximum grows),
    then the gradient. Every lane keeps a maximum and a sum of its own, so lanes meet only at the end of the row."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    lowest = float("-inf")
    most = tl.full((BLOCK,), -1e30, tl.float32)  # not -inf: exp(-inf - -inf) is no number
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        columns = first + lanes
        z = tl.load(logits + row * stride + columns, mask=columns < edge, other=lowest).to(tl.float32)
        z = tl.where(columns < V, z, lowest)
        new = tl.maximum(most, z)
        total = total * tl.exp(most - new) + tl.exp(z - new)
        most = new
    top = tl.max(most, 0)
    lse = top + tl.log(tl.sum(total * tl.exp(most - top), 0))
    target = tl.load(targets + row)
    tl.store(losses + row, lse - tl.load(logits + row * stride + target).to(tl.float32))
    tl.debug_barrier()
    weight = tl.load(scale)
    for first in range(0, V, BLOCK):
        columns = first + lanes
        z = tl.load(logits + row * stride + columns, mask=columns < edge, other=lowest).to(tl.float32)
        d = (tl.exp(z - lse) - tl.where(columns == target, 1.0, 0.0)) * weight
        tl.store(
            dz + row * stride + columns, tl.where(columns < V, d, 0.0).to(dz.dtype.element_ty), mask=columns < edge
        )


@triton.jit
def in_registers_kernel(losses, dz, logits, targets, scale, V, stride, edge, WIDTH: tl.constexpr):
    """One row, read once: all of it lies in the program's registers, in the logits' own type, WIDTH >= V of them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    at = row * stride + columns
    z = tl.load(logits + at, mask=columns < edge, other=float("-inf"))
    z = tl.where(columns < V, z, float("-inf"))
    top = tl.max(z, 0).to(tl.float32)
    lse = top + tl.log(tl.sum(tl.exp(z.to(tl.float32) - top), 0))
    target = tl.load(targets + row)
    tl.store(losses + row, lse - tl.load(logits + row * stride + target).to(tl.float32))
    tl.debug_barrier()
    d = (tl.exp(z.to(tl.float32) - lse) - tl.where(columns == target, 1.0, 0.0)) * tl.load(scale)
    tl.store(dz + at, tl.where(columns < V, d, 0.0).to(dz.dtype.element_ty), mask=columns < edge)


def softmax_rows(
    kernel: Any, losses: Any, dz: Any, logits: Any, targets: Any, scale: Any, V: int, edge: int, warps: int = 8
) -> Launch:
    rows, stride = logits.shape
    size = {"WIDTH": power_of_2(V)} if kernel is in_registers_kernel else {"BLOCK": 4096}
    return launch(
        kernel, (rows,), warps, losses=losses, dz=dz, logits=logits, targets=targets, scale=scale, V=V, stride=stride,
        edge=edge, **size,
    )  # fmt: skip


def cross_entropies(new: New, target: Target, R: int, V: int) -> Ladder:
    """R rows of V logits -> losses, and the logits become their gradient in place."""
    stride = cdiv(V, 64) * 64
    wide, narrow = new(R, stride, scale=2.0), new(R, V, scale=2.0)
    z, tight = new(R, stride), new(R, V)
    losses, targets, scale = new(R, dtype="fp32"), new(R, dtype="i32", below=V), new(1, dtype="fp32", value=0.25)
    rest = losses, z, z, targets, scale, V, stride
    engine = launch(
        cross_entropy_kernel, (R,), 8, losses=losses, logits=z, targets=targets, scale=scale, V=V, stride=stride,
        GRADIENT=True, BLOCK=4096,
    )  # fmt: skip
    steps = {
        "three passes, rows of an odd length": (
            softmax_rows(three_pass_kernel, losses, tight, tight, targets, scale, V, V), 4,
        ),
        "three passes, rows padded to whole lines": (softmax_rows(three_pass_kernel, *rest), 4),
        "two passes: maximum and sum together": (softmax_rows(two_pass_kernel, *rest), 3),
        "one pass, the row in registers": (softmax_rows(in_registers_kernel, *rest, 32), 2),
        "two passes as the engine does them": (engine, 3),
    }  # fmt: skip
    rungs = []
    for i, (title, (call, passes)) in enumerate(steps.items()):
        out, source = (tight, narrow) if i == 0 else (z, wide)
        outputs, inputs = {"losses": losses, "dz": out}, {"z": source}
        rungs.append(Rung(title, [call], 2.0 * passes * R * V, 0.0, [copy(out, source)], outputs, inputs))

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for rows in ends(R):
            answers = get(targets[rows]).astype(int)
            want, gradient = reference_cross_entropy(get(rung.inputs["z"][rows])[:, :V], answers, float(get(scale)[0]))
            yield "losses", get(rung.outputs["losses"][rows]), want
            yield "dz", get(rung.outputs["dz"][rows])[:, :V], gradient

    return Ladder("cross-entropy", rungs, check)


# ---- layer norm: rows that fit -----------------------------------------------------------------------------------
@triton.jit
def add_kernel(out, x, delta, n, BLOCK: tl.constexpr):
    """``out = x + delta``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n).to(tl.float32) + tl.load(delta + at, mask=at < n).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def mean_kernel(mean, x, C, BLOCK: tl.constexpr):
    """The mean of one row."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    h = tl.load(x + row * C + columns, mask=columns < C, other=0.0).to(tl.float32)
    tl.store(mean + row, tl.sum(h, 0) / C)


@triton.jit
def rstd_kernel(rstd, mean, x, C, eps, BLOCK: tl.constexpr):
    """One over the standard deviation of one row."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    h = tl.load(x + row * C + columns, mask=columns < C, other=0.0).to(tl.float32)
    centred = tl.where(columns < C, h - tl.load(mean + row), 0.0)
    tl.store(rstd + row, tl.rsqrt(tl.sum(centred * centred, 0) / C + eps))


@triton.jit
def normalise_kernel(out, x, mean, rstd, weight, bias, C, BLOCK: tl.constexpr):
    """``out = (x - mean) * rstd * weight + bias`` for one row."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    h = tl.load(x + row * C + columns, mask=columns < C, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=columns < C, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    y = (h - tl.load(mean + row)) * tl.load(rstd + row) * gain + shift
    tl.store(out + row * C + columns, y.to(out.dtype.element_ty), mask=columns < C)


def layer_norms(new: New, target: Target, N: int, C: int) -> Ladder:
    """``residual = x + delta; out = layernorm(residual)``."""
    x, delta, weight, bias = new(N, C), new(N, C), new(C), new(C)
    residual, out, mean, rstd = new(N, C), new(N, C), new(N, dtype="fp32"), new(N, dtype="fp32")
    apart = [
        launch(add_kernel, (cdiv(N * C, 2048),), 4, out=residual, x=x, delta=delta, n=N * C, BLOCK=2048),
        launch(mean_kernel, (N,), 4, mean=mean, x=residual, C=C, BLOCK=power_of_2(C)),
        launch(rstd_kernel, (N,), 4, rstd=rstd, mean=mean, x=residual, C=C, eps=EPS, BLOCK=power_of_2(C)),
        launch(
            normalise_kernel, (N,), 4, out=out, x=residual, mean=mean, rstd=rstd, weight=weight, bias=bias, C=C,
            BLOCK=power_of_2(C),
        ),
    ]  # fmt: skip
    outputs = {"residual": residual, "out": out}
    rungs = [
        Rung("a kernel an operation: add, mean, deviation, normalise", apart, 14.0 * N * C, outputs=outputs),
        Rung(
            "all at once, the row in registers",
            layernorm(out, mean, rstd, x, weight, bias, delta, residual, target=target), 8.0 * N * C, outputs=outputs,
        ),
    ]  # fmt: skip

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for rows in ends(N):
            total = get(x[rows]) + get(delta[rows])
            centred = total - total.mean(1, keepdims=True)
            want = centred / np.sqrt(total.var(1, keepdims=True) + EPS) * get(weight) + get(bias)
            yield "residual", get(rung.outputs["residual"][rows]), total
            yield "out", get(rung.outputs["out"][rows]), want

    return Ladder("layer norm", rungs, check)


# ---- sums down columns ------------------------------------------------------------------------------------------
@triton.jit
def one_column_kernel(out, x, N, C, BLOCK: tl.constexpr):
    """One column a program, BLOCK rows at a time: neighbouring threads read numbers that lie a whole row apart."""
    column = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        total += tl.load(x + rows * C + column, mask=rows < N, other=0.0).to(tl.float32)
    tl.store(out + column, tl.sum(total, 0))


@triton.jit
def column_block_kernel(out, x, N, C, rows_each, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ATOMIC: tl.constexpr):
    """COLUMNS columns a program, over ``rows_each`` rows: neighbouring threads read what lies side by side.

    ATOMIC: many programs share the columns and add to ``out`` in memory, in the order in which they happen to finish.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(1) * rows_each
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(begin, min(N, begin + rows_each), ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < N)[:, None] & (columns < C)[None, :]
        total += tl.load(x + rows[:, None] * C + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    answer = tl.sum(total, 0)
    if ATOMIC:
        tl.atomic_add(out + columns, answer, mask=columns < C, sem="relaxed")
    else:
        tl.store(out + columns, answer, mask=columns < C)


def bias_gradients(new: New, target: Target, N: int, C: int) -> Ladder:
    """out (C,) = the sum of the rows of x (N, C)."""
    from ladder.matmul import zero

    x, out = new(N, C), new(C, dtype="fp32")
    scratch = new(column_sums_scratch(N, C, target), dtype="fp32")

    def blocks(rows_each: int, atomic: bool) -> Launch:
        return launch(
            column_block_kernel, (cdiv(C, 256), cdiv(N, rows_each)), 4, out=out, x=x, N=N, C=C, rows_each=rows_each,
            ROWS=16, COLUMNS=256, ATOMIC=atomic,
        )  # fmt: skip

    steps = {
        "a program a column": [launch(one_column_kernel, (C,), 4, out=out, x=x, N=N, C=C, BLOCK=1024)],
        "a program 256 columns": [blocks(N, False)],
        "rows shared out, sums added by atomics": [zero(out), blocks(cdiv(cdiv(N, 64), 16) * 16, True)],
        "rows shared out, partial sums, a second kernel": column_sums(out, x, scratch, False, target=target),
    }
    rungs = [Rung(title, launches, 2.0 * N * C, outputs={"out": out}) for title, launches in steps.items()]

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        yield "out", get(rung.outputs["out"]), get(x).sum(0)

    return Ladder("column sums", rungs, check)
