"""AdamW: every parameter moves by about ``lr``, in the direction in which its gradient has lately agreed with itself.

Two running means are kept for each parameter, of its gradient and of its square::

    m <- beta1 m + (1 - beta1) g        v <- beta2 v + (1 - beta2) g^2

Both start at zero and are therefore too small at first. For a constant gradient, unrolling gives
``m = (1 - beta1^step) g`` after ``step`` steps, so dividing by that factor removes the bias::

    mhat = m / (1 - beta1^step)        vhat = v / (1 - beta2^step)
    param <- param - lr (mhat / (sqrt(vhat) + eps) + decay * param)

The step mhat / sqrt(vhat) does not change when the gradient is multiplied by a constant. That is why decay is added
beside it and not to the gradient (the W of AdamW): inside, it would be divided away just where gradients are large.
Decay pulls matrices toward zero but not gains and biases, for which zero is no natural place to rest.

Clipping: if the Euclidean norm of all gradients together exceeds a limit, all are scaled down to it, so a single bad
batch cannot throw the parameters far while the direction stays. The caller computes :func:`global_norm` and passes the
factor as ``grad_scale``.

Source: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization"; Loshchilov & Hutter 2019, "Decoupled Weight
Decay Regularization"; Pascanu, Mikolov & Bengio 2013, "On the difficulty of training recurrent neural networks"
(clipping).
"""

from __future__ import annotations

import numpy as np


def global_norm(grad: np.ndarray) -> float:
    """Euclidean norm of a buffer of any float dtype, summed in float64.

    >>> global_norm(np.array([3.0, 4.0], np.float32))
    5.0
    """
    return float(np.sqrt(np.sum(grad.astype(np.float64) ** 2)))


def adamw(
    param: np.ndarray,
    grad: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    n_decay: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_scale: float,
    rounded: np.ndarray | None = None,
) -> None:
    """One step, in place, over flat buffers of any float dtype; computed in float64 and rounded once on writing.

    The first ``n_decay`` elements decay, the rest do not; ``step`` starts at 1. ``rounded``, where given, receives
    the new parameters in its own dtype.

    >>> param, grad, m, v = np.array([1.0, 1.0]), np.array([7.0, -7.0]), np.zeros(2), np.zeros(2)
    >>> adamw(param, grad, m, v, 1, 1, 0.1, 0.9, 0.95, 0.0, 0.5, 1.0)
    >>> param  # the first step is lr, whatever the gradient's size; the first element decays besides
    array([0.85, 1.1 ])
    """
    g = grad.astype(np.float64) * grad_scale
    new_m = beta1 * m.astype(np.float64) + (1.0 - beta1) * g
    new_v = beta2 * v.astype(np.float64) + (1.0 - beta2) * g**2
    mhat = new_m / (1.0 - beta1**step)
    vhat = new_v / (1.0 - beta2**step)
    decay = np.where(np.arange(param.size) < n_decay, weight_decay, 0.0)
    param[...] = param - lr * (mhat / (np.sqrt(vhat) + eps) + decay * param)
    m[...], v[...] = new_m, new_v
    if rounded is not None:
        rounded[...] = param
