"""The classifier: logits by the tied embedding, softmax, cross-entropy, and the gradients in the same breath.

Forward, for one row x (C,) with target y::

    z = wte x                                    (V,) logits: the head shares its weights with the embedding
    loss = -log softmax(z)[y] = logsumexp(z) - z[y]

Backward, for the loss times ``scale`` (the mean over M targets is ``scale = 1/M``). Since
``d logsumexp(z) / d z_v = softmax(z)_v``::

    dz = scale (softmax(z) - onehot(y))          what the model believed minus what came
    dx = dz wte        dwte = dz^T x             z is a linear map of x

The last line sums over rows. As the gradient at ``z`` needs nothing that comes later, it is made together with the
loss, and the logits, by far the largest array of a small model, need not be stored. A target of -1 says "do not score
this place": its loss is 0 and its row of dz is 0.

Source: Press & Wolf 2017, "Using the Output Embedding to Improve Language Models"; Bridle 1990, "Probabilistic
Interpretation of Feedforward Classification Network Outputs" (softmax with cross-entropy).
"""

from __future__ import annotations

import numpy as np


def classifier(
    losses: np.ndarray,
    x: np.ndarray,
    wte: np.ndarray,
    targets: np.ndarray,
    dx: np.ndarray | None = None,
    dwte: np.ndarray | None = None,
    scale: float = 1.0,
    accumulate: bool = False,
    spare: np.ndarray | None = None,
) -> None:
    """x (N,C), wte (V,C), targets (N,) int32 -> losses (N,) in nats; on request dx (N,C) and dwte (V,C) as well.

    >>> losses, dx = np.empty(2), np.empty((2, 1))
    >>> classifier(losses, np.array([[0.0], [0.0]]), np.array([[1.0], [3.0]]), np.array([1, -1]), dx)
    >>> np.exp(losses), dx.ravel()  # an even bet between two; nothing where the target is ignored
    (array([2., 1.]), array([-1.,  0.]))
    """
    losses[...], dz = cross_entropy(x @ wte.T, targets, scale)
    if dx is not None:
        dx[...] = dz @ wte
    if dwte is not None:
        if not accumulate:
            dwte[...] = 0.0
        dwte += dz.T @ x


def cross_entropy(z: np.ndarray, targets: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Losses (N,) of logits z (N,V), and dz (N,V), the gradient of ``scale * sum(losses)``.

    >>> cross_entropy(np.zeros((1, 2)), np.array([0]), 1.0)[1]
    array([[-0.5,  0.5]])
    """
    largest = z.max(axis=1, keepdims=True)
    lse = largest + np.log(np.exp(z - largest).sum(axis=1, keepdims=True))  # (N, 1)
    scored = targets != -1
    rows, answers = np.flatnonzero(scored), targets[scored]
    losses = np.zeros(len(z))
    losses[rows] = lse[rows, 0] - z[rows, answers]

    dz = np.where(scored[:, None], np.exp(z - lse), 0.0)
    dz[rows, answers] -= 1.0
    return losses, dz * scale


def logits(out: np.ndarray, x: np.ndarray, wte: np.ndarray) -> None:
    """``out = x @ wte.T``: x (N,C), wte (V,C) -> out (N,V).

    >>> out = np.empty((1, 2))
    >>> logits(out, np.array([[2.0]]), np.array([[1.0], [3.0]]))
    >>> out
    array([[2., 6.]])
    """
    out[...] = x @ wte.T
