"""Dropout: while training, each element is set to zero with probability p and scaled by 1/(1-p) otherwise.

Forward::

    out = x * keep / (1 - p)

so that the expectation of ``out`` is x and nothing need change after training. The map is linear and diagonal, hence
its own transpose: backward is the same operation with the same mask, ``dx = dout * keep / (1 - p)``. The mask is a
function of the seed and the element's index alone (``table.keep_mask``), so it is never stored.

Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting".
"""

from __future__ import annotations

import numpy as np

from nanoeuler.ops.table import keep_mask


def dropout(out: np.ndarray, x: np.ndarray, p: float, seed: int) -> None:
    """``out = x * keep / (1-p)`` for any shape; ``out`` may be ``x``.

    >>> x = np.ones(10)
    >>> dropout(x, x, 0.5, seed=3)
    >>> sorted(set(x.tolist()))
    [0.0, 2.0]
    """
    out[...] = x * keep_mask(x.size, p, seed).reshape(x.shape) / (1.0 - p)
