# mypy: disallow-untyped-defs=False
"""Layer norm, alone or with the residual addition before it, and its backward pass.

The maths is derived in ``ops/reference/layernorm.py``. On a GPU the question is only how often memory is touched: a row
of C channels needs about ten operations an element, the chip can do hundreds in the time it takes to load one. So:

- *One pass.* A program holds whole rows in registers (C is at most a few thousand), computes mean and variance from
  them, and writes the result. Reading x and delta and writing residual and out is 4 N C elements: nothing less is
  possible. Two-pass formulas cost nothing extra when the row is in registers, so the variance is the sum of squares
  about the mean, without the cancellation of ``E[x^2] - E[x]^2``.
- *Wide, coalesced loads.* Neighbouring threads read neighbouring 16-byte pieces (8 bf16) of a row.
- *Sums stay in a warp where they can*: partial sums are exchanged by register shuffles, across warps by shared memory.

Backward needs sums in both directions: along each row (two numbers, as in forward) and down all rows (gain and bias).
The grid is therefore *persistent*: about as many programs as fit on the GPU at once, each walking over many rows with
its share of the gain's and bias's gradient in registers; what they have at the end is summed by ``sum_partials``.

*Measured* on an H200, 16384 rows of 768 in bf16 (``benchmarks/results/kernels-gpt2-16x1024-2026-12-01.json``; copies in
that run: 4.16 TB/s): forward 16.0 us for 50 MB, 75 % of a copy; with the addition 26.6 us for 101 MB, 91 %; backward
with all three sums 30.3 us for 101 MB, 80 %. PyTorch: 36, 55 and 124. What made backward fast is that its loop loads
four rows ahead (STAGES): each row is a chain of load, two sums across, store, and without that it took 43 us.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.reductions import sum_partials
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch, power_of_2

EPS = 1e-5  # GPT-2's layer_norm_epsilon


@triton.jit
def layernorm_kernel(
    out, mean, rstd, residual, x, delta, weight, bias, N, C, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """ROWS rows of ``residual = x + delta``, ``out = layernorm(residual)``; COLUMNS >= C is a power of two."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < N)[:, None] & (columns < C)[None, :]
    at = rows.to(tl.int64)[:, None] * C + columns[None, :]
    h = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if delta is not None:
        h += tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        rounded = h.to(residual.dtype.element_ty)
        tl.store(residual + at, rounded, mask=inside)
        h = rounded.to(tl.float32)  # normalise what is stored, since backward will read that
    m = tl.sum(h, 1) / C
    centred = tl.where(inside, h - m[:, None], 0.0)
    r = tl.rsqrt(tl.sum(centred * centred, 1) / C + eps)
    gain = tl.load(weight + columns, mask=columns < C, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    y = centred * r[:, None] * gain[None, :] + shift[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)
    tl.store(mean + rows, m, mask=rows < N)
    tl.store(rstd + rows, r, mask=rows < N)


@triton.jit
def layernorm_backward_kernel(
    dx, partial, dout, x, mean, rstd, weight, dresidual, N, C,
    SUMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dx of every PROGRAMS-th block of ROWS rows, and this program's sums for dweight, dbias (SUMS 3: and of dx)."""
    program = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    gain = tl.load(weight + columns, mask=columns < C, other=0.0).to(tl.float32)
    dweight = tl.zeros((ROWS, COLUMNS), tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    stride = tl.num_programs(0) * ROWS
    for first in tl.range(program * ROWS, N, stride, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < N)[:, None] & (columns < C)[None, :]
        at = rows.to(tl.int64)[:, None] * C + columns[None, :]
        g = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
        h = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        m = tl.load(mean + rows, mask=rows < N, other=0.0)
        r = tl.load(rstd + rows, mask=rows < N, other=0.0)
        xhat = tl.where(inside, (h - m[:, None]) * r[:, None], 0.0)
        dxhat = g * gain[None, :]
        along_ones = tl.sum(dxhat, 1) / C
        along_xhat = tl.sum(dxhat * xhat, 1) / C
        d = r[:, None] * (dxhat - along_ones[:, None] - xhat * along_xhat[:, None])
        if dresidual is not None:
            d += tl.load(dresidual + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=inside)
        dweight += g * xhat
        dbias += g
        if SUMS == 3:
            total += tl.where(inside, d, 0.0)
    place = partial + program * SUMS * C + columns
    tl.store(place, tl.sum(dweight, 0), mask=columns < C)
    tl.store(place + C, tl.sum(dbias, 0), mask=columns < C)
    if SUMS == 3:
        tl.store(place + 2 * C, tl.sum(total, 0), mask=columns < C)


def layernorm(
    out: Array, mean: Array, rstd: Array, x: Array, weight: Array, bias: Array,
    delta: Array | None = None, residual: Array | None = None, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``out = layernorm(x)``, or with ``delta`` ``residual = x + delta; out = layernorm(residual)``. All (N, C)."""
    N, C = x.shape
    columns = power_of_2(C)
    rows = max(1, 2048 // columns)
    return [
        launch(
            layernorm_kernel, (cdiv(N, rows),), 4, out=out, mean=mean, rstd=rstd, residual=residual, x=x, delta=delta,
            weight=weight, bias=bias, N=N, C=C, eps=EPS, ROWS=rows, COLUMNS=columns,
        )
    ]  # fmt: skip


def layernorm_backward_scratch(C: int, target: Target) -> int:
    """fp32 elements of scratch that :func:`layernorm_backward` needs."""
    return 3 * 4 * target.multiprocessors * C


def layernorm_backward(
    dx: Array, dweight: Array, dbias: Array, dout: Array, x: Array, mean: Array, rstd: Array, weight: Array,
    scratch: Array, dresidual: Array | None = None, dx_sum: Array | None = None, accumulate: bool = False,
    *, target: Target,
) -> list[Launch]:  # fmt: skip
    """dx, dweight and dbias of layer norm; with ``dresidual`` (may be ``dx``) that is added to dx.

    ``dx_sum`` (C,) (+)= the sum of dx over rows: the gradient of the bias of the linear layer whose output's gradient
    dx is. It costs next to nothing here, where dx is in registers.
    """
    N, C = x.shape
    columns, programs = power_of_2(C), 4 * target.multiprocessors
    outs = [dweight, dbias] if dx_sum is None else [dweight, dbias, dx_sum]
    main = launch(
        layernorm_backward_kernel, (programs,), min(8, max(1, columns // 512)), dx=dx, partial=scratch, dout=dout, x=x,
        mean=mean, rstd=rstd, weight=weight, dresidual=dresidual, N=N, C=C, SUMS=len(outs), ROWS=1, COLUMNS=columns,
        STAGES=4,
    )  # fmt: skip
    return [main, sum_partials(outs, scratch, programs, accumulate)]
