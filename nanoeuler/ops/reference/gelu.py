"""GELU: a smooth gate. An input passes in the measure in which a standard normal variable would lie below it.

The exact form is ``x Phi(x)`` with the normal distribution function Phi. GPT-2 uses its approximation by tanh::

    u(x) = sqrt(2/pi) (x + 0.044715 x^3)        gelu(x) = x/2 (1 + tanh u)

With ``tanh' = 1 - tanh^2`` and the product rule::

    gelu'(x) = 1/2 (1 + tanh u) + x/2 (1 - tanh^2 u) sqrt(2/pi) (1 + 3 * 0.044715 x^2)

Source: Hendrycks & Gimpel 2016, "Gaussian Error Linear Units (GELUs)".
"""

from __future__ import annotations

import math

import numpy as np

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU by tanh, elementwise.

    >>> gelu(np.array([-3.0, 0.0, 3.0])).round(4)
    array([-0.0036,  0.    ,  2.9964])
    """
    return 0.5 * x * (1.0 + np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3)))


def gelu_grad(x: np.ndarray) -> np.ndarray:
    """Derivative of :func:`gelu`, elementwise.

    >>> gelu_grad(np.array([-9.0, 0.0, 9.0]))
    array([0. , 0.5, 1. ])
    """
    tanh = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3))
    du = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x**2)
    return 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh**2) * du
