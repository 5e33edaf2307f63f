# mypy: disallow-untyped-defs=False
"""GELU in its tanh form and its derivative, as parts of the matrix product's epilogue.

With ``u = sqrt(2/pi) (x + 0.044715 x^3)``::

    gelu(x)  = x w                        w  = (1 + tanh u) / 2
    gelu'(x) = w + gelu(x) (1 - tanh u) u'        u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)

(the derivative of w is (1 - tanh(u)^2) u' / 2 = w (1 - tanh u) u'). Both together are nine operations and the tanh.

The tanh is the hardware's own instruction (``tanh.approx.f32``, sm_75 and later): one operation of the special function
unit where exp and a division would take two and more. Its relative error is about 2^-11, an eighth of a bf16's spacing;
in float32 (EXACT) it is made from exp. Why this belongs into the product, measured: docs/kernels/matmul.md.

Source: Hendrycks & Gimpel 2016, "Gaussian Error Linear Units (GELUs)".
"""

from __future__ import annotations

import triton
import triton.language as tl

SLOPE: tl.constexpr = tl.constexpr(0.7978845608028654)  # sqrt(2/pi)
CUBIC: tl.constexpr = tl.constexpr(0.7978845608028654 * 0.044715)


@triton.jit
def tanh(x, EXACT: tl.constexpr):
    """tanh of fp32."""
    if EXACT:
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def gelu(x, EXACT: tl.constexpr):
    """gelu(x) of fp32."""
    return x * (0.5 + 0.5 * tanh(x * (SLOPE + CUBIC * x * x), EXACT))


@triton.jit
def gelu_and_gradient(x, EXACT: tl.constexpr):
    """gelu(x) and gelu'(x) of fp32, which share the tanh."""
    square = x * x
    t = tanh(x * (SLOPE + CUBIC * square), EXACT)
    weight = 0.5 + 0.5 * t
    y = x * weight
    slope = SLOPE + 3.0 * CUBIC * square
    return y, weight + y * (slope - slope * t)
