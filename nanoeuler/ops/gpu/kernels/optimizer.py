# mypy: disallow-untyped-defs=False
"""AdamW over the flat parameter buffer, and the gradient's norm before it.

The maths is in ``ops/reference/optimizer.py``. On the GPU a step is one pass: for each parameter it reads the gradient
(4 bytes), the fp32 master weight and both moments (12), and writes master, moments and the bf16 copy that the network
computes with (14): 30 bytes for about fifteen operations, so the only way to be fast is to touch every byte once, in
16-byte pieces. Measured on an H200, 124 million parameters: 886 us, 99 % of a copy's rate; the norm before it reads 0.5
GB in 120 us, 98 %. Operation by operation it is 54 bytes and 1.74 times as long: docs/kernels/memory.md.

Why master weights: a bf16 number has 8 significant bits, and a step changes a weight by about one part in a thousand,
half of bf16's spacing. Most steps would round to nothing. The fp32 master keeps them; bf16 is only its shadow.

What changes from step to step (learning rate, bias corrections, clipping factor) is read from device memory, so that
the launch can be part of a recorded graph.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch, power_of_2


@triton.jit
def square_sums_kernel(partial, x, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """partial[p] = the sum of squares of every PROGRAMS-th block of x."""
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(program.to(tl.int64) * BLOCK, n, PROGRAMS * BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
        total += value * value
    tl.store(partial + program, tl.sum(total, 0))


@triton.jit
def norm_kernel(norm, partial, limit, n, BLOCK: tl.constexpr):
    """norm[0] = sqrt of the sum of the n partial sums; norm[1] = the factor that brings it down to limit[0]."""
    at = tl.arange(0, BLOCK)
    length = tl.sqrt(tl.sum(tl.load(partial + at, mask=at < n, other=0.0), 0))
    most = tl.load(limit)
    tl.store(norm, length)
    tl.store(norm + 1, tl.where(most > 0.0, tl.minimum(1.0, most / (length + 1e-6)), 1.0))  # as in PyTorch


@triton.jit
def adamw_kernel(
    param, master, grad, m, v, hyper, norm, n, n_decay, beta1, beta2, eps, weight_decay,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One block. ``hyper``: lr, 1 - beta1^step, 1 - beta2^step; ``norm[1]``: the clipping factor, or -1: stop."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.where(tl.load(norm + 1) >= 0.0, n, 0)
    lr, correction1, correction2 = tl.load(hyper), tl.load(hyper + 1), tl.load(hyper + 2)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * tl.load(norm + 1)
    w = tl.load(master + at, mask=inside, other=0.0)
    mean = tl.load(m + at, mask=inside, other=0.0) * beta1 + g * (1.0 - beta1)
    square = tl.load(v + at, mask=inside, other=0.0) * beta2 + g * g * (1.0 - beta2)
    decay = tl.where(at < n_decay, weight_decay, 0.0)
    w -= lr * ((mean / correction1) / (tl.sqrt(square / correction2) + eps) + decay * w)
    tl.store(m + at, mean, mask=inside)
    tl.store(v + at, square, mask=inside)
    tl.store(master + at, w, mask=inside)
    if param is not None:
        tl.store(param + at, w.to(param.dtype.element_ty), mask=inside)


def global_norm_scratch(target: Target) -> int:
    """fp32 elements of scratch that :func:`global_norm` needs."""
    return 8 * target.multiprocessors


def global_norm(norm: Array, grad: Array, limit: Array, scratch: Array, *, target: Target) -> list[Launch]:
    """norm (2,) fp32: the Euclidean norm of grad (n,), and the factor ``min(1, limit / norm)``.

    limit (1,) fp32 on the device; 0 stands for no limit.
    """
    n, programs = grad.shape[0], 8 * target.multiprocessors
    return [
        launch(square_sums_kernel, (programs,), 8, partial=scratch, x=grad, n=n, PROGRAMS=programs, BLOCK=4096),
        launch(norm_kernel, (1,), 4, norm=norm, partial=scratch, limit=limit, n=programs, BLOCK=power_of_2(programs)),
    ]


def adamw(
    param: Array | None, master: Array, grad: Array, m: Array, v: Array, hyper: Array, norm: Array, n_decay: int,
    beta1: float, beta2: float, eps: float, weight_decay: float, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """One AdamW step over flat buffers of n elements, in place.

    master, m, v fp32; grad bf16 or fp32; param (bf16) receives the rounded master, or None where the network computes
    with the master itself. hyper (3,) fp32 on the device: learning rate, ``1 - beta1^step``, ``1 - beta2^step``.
    norm (2,) as :func:`global_norm` leaves it: the gradient is multiplied by norm[1]; where that is negative or NaN,
    nothing changes.
    """
    n = master.shape[0]
    return [
        launch(
            adamw_kernel, (cdiv(n, 512),), 4, param=param, master=master, grad=grad, m=m, v=v, hyper=hyper, norm=norm,
            n=n, n_decay=n_decay, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, BLOCK=512,
        )
    ]  # fmt: skip
