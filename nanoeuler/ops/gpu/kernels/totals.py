# mypy: disallow-untyped-defs=False
"""Small kernels around a step: the sum of its losses, whether to go on, parameters rounded to the network's dtype."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch


@triton.jit
def sum_losses_kernel(total, losses, scale, N, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    """total[0] (+)= scale * sum of losses (N,), by one program: N numbers are few, and the order stays the same."""
    lanes = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        lanes += tl.load(losses + at, mask=at < N, other=0.0)
    answer = tl.sum(lanes, 0) * scale
    if ACCUMULATE:
        answer += tl.load(total)
    tl.store(total, answer)


@triton.jit
def convert_kernel(out, x, n, BLOCK: tl.constexpr):
    """One block of ``out = x``, rounded to nearest."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def guard_kernel(results):
    """results: loss, norm, clipping factor, stopped. Once loss or norm is not finite the factor is -1: do nothing."""
    infinity = float("inf")
    right = (tl.abs(tl.load(results)) < infinity) & (tl.load(results + 1) < infinity)  # false for NaN
    stopped = tl.where(right, tl.load(results + 3), 1.0)
    tl.store(results + 3, stopped)
    tl.store(results + 2, tl.where(stopped == 0.0, tl.load(results + 2), -1.0))


def sum_losses(total: Array, losses: Array, scale: float, accumulate: bool, *, target: Target) -> list[Launch]:
    """total (1,) fp32 (+)= scale * the sum of losses (N,) fp32."""
    N = losses.shape[0]
    return [
        launch(
            sum_losses_kernel, (1,), 8, total=total, losses=losses, scale=scale, N=N, ACCUMULATE=accumulate, BLOCK=4096
        )
    ]  # fmt: skip


def guard(results: Array, *, target: Target) -> list[Launch]:
    """results (4,) fp32: loss, norm, clipping factor, stopped (0 or 1).

    Where loss or norm is not finite, or was not in an earlier step, the factor becomes -1, with which AdamW does
    nothing. A step is handed to the GPU before the last one's loss is known; so it cannot do harm.
    """
    return [launch(guard_kernel, (1,), 1, results=results)]


def convert(out: Array, x: Array, *, target: Target) -> list[Launch]:
    """``out = x`` for flat arrays of n elements, rounded to the dtype of ``out``."""
    n = out.shape[0]
    return [launch(convert_kernel, (cdiv(n, 2048),), 4, out=out, x=x, n=n, BLOCK=2048)]
