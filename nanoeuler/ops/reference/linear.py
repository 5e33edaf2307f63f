"""Linear: the same affine map for every row, and nearly all of GPT-2's arithmetic.

Forward, for N rows, I inputs and O outputs::

    out = x W + b        that is        out[n,o] = sum_i x[n,i] W[i,o] + b[o]

Backward. ``x[n,i]`` reaches the loss through all outputs of row n; ``W[i,o]`` through output o of all rows; ``b[o]``
likewise, with factor 1. Summing over those paths::

    dx[n,i] = sum_o dout[n,o] W[i,o]        dx = dout W^T
    dW[i,o] = sum_n x[n,i] dout[n,o]        dW = x^T dout
    db[o]   = sum_n dout[n,o]               db = column sums of dout

Each product has the one shape that fits, which is a good way to remember them. Backward costs twice the forward.

Between the two layers of the MLP stands GELU, and a pass over (N, 4C) that does nothing else is a waste, so both
sides of it live here: forward of the first layer applies it to its output, and backward of the second layer, which
has just made the gradient of the activation, multiplies by ``gelu'(pre_gelu)`` to give that of ``pre_gelu``.

Source: Rumelhart, Hinton & Williams 1986, "Learning representations by back-propagating errors".
"""

from __future__ import annotations

import numpy as np

from nanoeuler.ops.reference.gelu import gelu, gelu_grad


def linear(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, pre_gelu: np.ndarray | None = None
) -> None:
    """``out = x @ weight + bias``: x (N,I), weight (I,O), bias (O,) -> out (N,O).

    With ``pre_gelu`` (N,O), that sum goes there and ``out = gelu(pre_gelu)``.

    >>> out = np.empty((1, 2))
    >>> linear(out, np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([0.5, 0.5]))
    >>> out
    array([[3.5, 8.5]])
    """
    if pre_gelu is None:
        out[...] = x @ weight + bias
    else:
        pre_gelu[...] = x @ weight + bias
        out[...] = gelu(pre_gelu)


def linear_backward(
    dx: np.ndarray,
    dweight: np.ndarray,
    dbias: np.ndarray | None,
    dout: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    pre_gelu: np.ndarray | None = None,
    accumulate: bool = False,
    *,
    dx_sum: np.ndarray | None = None,
    x_again: bool = False,
) -> None:
    """Gradients of :func:`linear` (see the module); dx, x, pre_gelu (N,I), dout (N,O).

    With ``pre_gelu``, ``x`` was ``gelu(pre_gelu)`` and ``dx`` becomes the gradient of ``pre_gelu``. ``dbias`` None:
    not wanted. ``dx_sum`` (I,) receives the sum of dx over rows. ``x_again``: compute ``x`` anew from ``pre_gelu``.
    """
    if x_again and pre_gelu is not None:
        x[...] = gelu(pre_gelu)
    if not accumulate:
        dweight[...] = 0.0
    dweight += x.T @ dout
    if dbias is not None:
        dbias[...] = dout.sum(axis=0) + (dbias if accumulate else 0.0)
    dx[...] = dout @ weight.T
    if pre_gelu is not None:
        dx *= gelu_grad(pre_gelu)
    if dx_sum is not None:
        dx_sum[...] = dx.sum(axis=0) + (dx_sum if accumulate else 0.0)
