"""GELU in its tanh form, one number at a time, to be inlined into other kernels' loops.

``gelu(x) = x/2 (1 + tanh(u))`` with ``u = sqrt(2/pi) (x + 0.044715 x^3)`` (Hendrycks & Gimpel 2016). Since
``(1 + tanh(u))/2 = sigmoid(2u)``, this is ``x s`` with ``s = 1/(1 + e^{-2u})``: one exponential and one division.
Its derivative is ``s + x s (1-s) 2 du/dx``, ``du/dx = sqrt(2/pi) (1 + 3*0.044715 x^2)``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import PART
from nanoeuler.ops.cpu.simd import exp

_ONE = np.float32(1.0)
_TWO_ROOT = np.float32(1.5957691216057308)  # 2 sqrt(2/pi)
_CUBIC = np.float32(0.044715)
_CUBIC3 = np.float32(3 * 0.044715)


@njit("f4(f4)", **PART)
def gelu(x):  # type: ignore[no-untyped-def]
    """float32 GELU."""
    return x / (_ONE + exp(-_TWO_ROOT * (x + _CUBIC * x * x * x)))


@njit("f4(f4)", **PART)
def gelu_grad(x):  # type: ignore[no-untyped-def]
    """float32 derivative of GELU."""
    s = _ONE / (_ONE + exp(-_TWO_ROOT * (x + _CUBIC * x * x * x)))
    return s + x * s * (_ONE - s) * _TWO_ROOT * (_ONE + _CUBIC3 * x * x)
