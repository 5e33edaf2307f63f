"""Embedding: each token id picks a row of one table, its position a row of another.

Forward::

    out[b,t] = wte[idx[b,t]] + wpe[t]

Picking a row is a product with a one-hot matrix, ``out = E wte`` with ``E[n,v] = [idx[n] = v]``. So backward is
``dwte = E^T dout``: a row receives the sum of the gradients at all the places that picked it, and a row that was
never picked receives nothing. A position is shared by all sequences of the batch, so ``dwpe`` sums over the batch::

    dwte[v] = sum over (b,t) with idx[b,t] = v of dout[b,t]
    dwpe[t] = sum over b of dout[b,t]

Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training" (learned positions);
Press & Wolf 2017, "Using the Output Embedding to Improve Language Models" (the tied head, why ``dwte`` adds up).
"""

from __future__ import annotations

import numpy as np


def embedding(out: np.ndarray, idx: np.ndarray, wte: np.ndarray, wpe: np.ndarray) -> None:
    """``out[b,t] = wte[idx[b,t]] + wpe[t]``: idx (B,T) int32, wte (V,C), wpe (>=T,C) -> out (B,T,C).

    >>> out = np.empty((1, 2, 1))
    >>> embedding(out, np.array([[2, 0]]), np.array([[1.0], [2.0], [3.0]]), np.array([[10.0], [20.0]]))
    >>> out.ravel()
    array([13., 21.])
    """
    T = idx.shape[1]
    out[...] = wte[idx] + wpe[:T]


def embedding_backward(
    dwte: np.ndarray, dwpe: np.ndarray, dout: np.ndarray, idx: np.ndarray, accumulate: bool = False
) -> None:
    """Add each row of dout (B,T,C) to the row of dwte (V,C) it came from; sum over the batch into dwpe.

    >>> dwte, dwpe = np.zeros((3, 1)), np.full((2, 1), np.nan)
    >>> embedding_backward(dwte, dwpe, np.array([[[1.0], [2.0]]]), np.array([[2, 2]]))
    >>> dwte.ravel(), dwpe.ravel()
    (array([0., 0., 3.]), array([1., 2.]))
    """
    T = idx.shape[1]
    np.add.at(dwte, idx, dout)  # unlike dwte[idx] += dout, counts an id that occurs twice twice
    if not accumulate:
        dwpe[...] = 0.0
    dwpe[:T] += dout.sum(axis=0)
