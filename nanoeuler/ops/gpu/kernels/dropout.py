# mypy: disallow-untyped-defs=False
"""Dropout: a mask that is a pure function of (seed, index), so it is never stored and backward makes it again.

The function is the one of ``ops/table.py`` (:func:`~nanoeuler.ops.table.keep_mask`), bit for bit: a 32-bit mixing
function of the index and of the mixed seed. It costs two multiplications and seven shifts and xors an element, less
than the memory traffic around it: 4 bytes an element in bf16, read and written once. (In attention the mask is made in
registers and costs no bytes at all.)

A training step is recorded once and replayed, so what changes from step to step must lie in device memory: ``seed`` is
an array of one i32. ``site``, the place in the network, is added to it.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch


@triton.jit
def hash32(x):
    """The mixing function "lowbias32" (Chris Wellons, 2018), elementwise on uint32."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def start_of(seed, site):
    """The mixed seed of one place in the network; ``seed`` points to an i32."""
    return hash32(tl.load(seed).to(tl.uint32, bitcast=True) + site.to(tl.uint32))


@triton.jit
def keep(index, start, threshold):
    """Which elements stay: ``index`` is uint32, ``threshold = floor(p * 2^32)``."""
    return hash32(index ^ start) >= threshold.to(tl.uint32)


@triton.jit
def dropout_kernel(out, x, seed, site, threshold, scale, n, BLOCK: tl.constexpr):
    """``out = x * keep * scale`` for one block of a flat array of n elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = keep(at.to(tl.uint32), start_of(seed, site), threshold)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) * scale
    tl.store(out + at, tl.where(kept, value, 0.0).to(out.dtype.element_ty), mask=at < n)


def threshold_of(p: float) -> int:
    """``floor(p * 2^32)`` as the signed 64-bit number that kernels take.

    >>> threshold_of(0.5)
    2147483648
    """
    return min(int(p * 2**32), 2**32 - 1)


def dropout(out: Array, x: Array, p: float, seed: Array, site: int = 0, *, target: Target) -> list[Launch]:
    """``out = x * keep / (1 - p)`` (may work in place); ``seed`` (1,) i32 on the device, ``site`` is added to it."""
    n = math.prod(x.shape)
    return [
        launch(
            dropout_kernel, (cdiv(n, 2048),), 4, out=out, x=x, seed=seed, site=site, threshold=threshold_of(p),
            scale=1.0 / (1.0 - p), n=n, BLOCK=2048,
        )
    ]  # fmt: skip
