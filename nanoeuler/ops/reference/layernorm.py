"""Layer norm: every row is centred, scaled to unit variance, then given a learned gain and bias.

Forward, for one row x of C channels::

    mean = 1/C sum_c x_c        var = 1/C sum_c (x_c - mean)^2        rstd = 1 / sqrt(var + eps)
    xhat = (x - mean) rstd      out = xhat * weight + bias

Backward. Gain and bias act on each channel alone, and all N rows share them::

    dweight = sum over rows of dout * xhat        dbias = sum over rows of dout        dxhat = dout * weight

For x, note that xhat depends on x_j in three ways: directly, through the mean and through rstd. With

    d mean / d x_j = 1/C        d var / d x_j = 2/C (x_j - mean)        d rstd / d x_j = -rstd^3 / C (x_j - mean)

(the variance's own dependence on the mean drops out, since ``sum (x_c - mean) = 0``), the derivative of xhat_i is

    d xhat_i / d x_j = rstd [i=j] - rstd / C - (x_i - mean) rstd^3 (x_j - mean) / C
                     = rstd ([i=j] - 1/C - xhat_i xhat_j / C)

and summing over i, ``dx_j = sum_i dxhat_i d xhat_i / d x_j``, gives::

    dx = rstd (dxhat - mean_c(dxhat) - xhat mean_c(dxhat * xhat))

In words: the gradient, minus its part along the all-ones vector and its part along xhat, the two directions in which
moving x changes nothing. (Exactly so when eps = 0; the formula itself is exact for any eps.)

Source: Ba, Kiros & Hinton 2016, "Layer Normalization".
"""

from __future__ import annotations

import numpy as np

EPS = 1e-5  # GPT-2's layer_norm_epsilon


def layernorm(
    out: np.ndarray, mean: np.ndarray, rstd: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> None:
    """``out = (x - mean) * rstd * weight + bias``: x, out (N,C); mean, rstd (N,) are kept for backward.

    >>> out, mean, rstd = np.empty((1, 2)), np.empty(1), np.empty(1)
    >>> layernorm(out, mean, rstd, np.array([[1.0, 5.0]]), np.ones(2), np.zeros(2))
    >>> out.round(4), mean, rstd.round(4)
    (array([[-1.,  1.]]), array([3.]), array([0.5]))
    """
    mean[...] = x.mean(axis=1)
    rstd[...] = 1.0 / np.sqrt(x.var(axis=1) + EPS)
    out[...] = _normalised(x, mean, rstd) * weight + bias


def add_layernorm(
    out: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    residual: np.ndarray,
    x: np.ndarray,
    delta: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
) -> None:
    """``residual = x + delta``, then ``out = layernorm(residual)``. All (N,C).

    Its backward is :func:`layernorm_backward` at ``residual``: a sum hands its gradient to both terms unchanged.
    """
    residual[...] = x + delta
    layernorm(out, mean, rstd, residual, weight, bias)


def layernorm_backward(
    dx: np.ndarray,
    dweight: np.ndarray,
    dbias: np.ndarray,
    dout: np.ndarray,
    x: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    weight: np.ndarray,
    dresidual: np.ndarray | None = None,
    accumulate: bool = False,
    *,
    dx_sum: np.ndarray | None = None,
) -> None:
    """Gradients of :func:`layernorm` (see the module); dx, dout, x, dresidual (N,C), dweight, dbias (C,).

    ``dresidual`` (may be ``dx``) is the gradient that reached x past the norm; it is added to dx. ``dx_sum`` (C,)
    receives the sum of dx over rows.
    """
    xhat = _normalised(x, mean, rstd)
    if not accumulate:
        dweight[...] = 0.0
        dbias[...] = 0.0
    dweight += (dout * xhat).sum(axis=0)
    dbias += dout.sum(axis=0)

    dxhat = dout * weight
    along_ones = dxhat.mean(axis=1, keepdims=True)
    along_xhat = (dxhat * xhat).mean(axis=1, keepdims=True)
    past = 0.0 if dresidual is None else dresidual
    dx[...] = past + rstd[:, None] * (dxhat - along_ones - xhat * along_xhat)
    if dx_sum is not None:
        dx_sum[...] = dx.sum(axis=0) + (dx_sum if accumulate else 0.0)


def _normalised(x: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> np.ndarray:
    return (x - mean[:, None]) * rstd[:, None]
