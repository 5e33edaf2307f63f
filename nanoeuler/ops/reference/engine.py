"""The engine: the functions of this folder as one column of the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from nanoeuler.ops.reference.attention import attention, attention_backward
from nanoeuler.ops.reference.cache import attention_cached, cache_shapes, copy_cache, embedding_at, write_cache
from nanoeuler.ops.reference.classifier import classifier, logits
from nanoeuler.ops.reference.dropout import dropout
from nanoeuler.ops.reference.embedding import embedding, embedding_backward
from nanoeuler.ops.reference.layernorm import add_layernorm, layernorm, layernorm_backward
from nanoeuler.ops.reference.linear import linear, linear_backward
from nanoeuler.ops.reference.optimizer import adamw, global_norm
from nanoeuler.ops.storage import STORAGE


class ReferenceOps:
    """The table of operations (:class:`nanoeuler.ops.table.Ops`) in float64 NumPy.

    >>> ops = ReferenceOps()
    >>> x, out = ops.empty((2,)), ops.empty((2,))
    >>> ops.upload(x, np.array([1, 2]))
    >>> ops.dropout(out, x, 0.0, seed=1)
    >>> ops.download(out)
    array([1., 2.])
    """

    name = "reference"
    storage = STORAGE["reference"]
    dtype: np.dtype = np.dtype(np.float64)
    exact: np.dtype = dtype

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        """An uninitialised array, float64 unless told otherwise."""
        return np.empty(shape, self.dtype if dtype is None else dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        """A zeroed array, float64 unless told otherwise."""
        return np.zeros(shape, self.dtype if dtype is None else dtype)

    def upload(self, dst: np.ndarray, src: np.ndarray) -> None:
        """Copy into ``dst``, converting to its dtype."""
        dst[...] = src

    def download(self, src: np.ndarray) -> np.ndarray:
        """A copy of ``src``."""
        return np.array(src)

    def convert(self, dst: np.ndarray, src: np.ndarray) -> None:
        """Copy, converting to the dtype of ``dst``."""
        dst[...] = src

    embedding = staticmethod(embedding)
    embedding_backward = staticmethod(embedding_backward)
    layernorm = staticmethod(layernorm)
    add_layernorm = staticmethod(add_layernorm)
    layernorm_backward = staticmethod(layernorm_backward)
    linear = staticmethod(linear)
    linear_backward = staticmethod(linear_backward)
    attention = staticmethod(attention)
    attention_backward = staticmethod(attention_backward)
    cache_shapes = staticmethod(cache_shapes)
    embedding_at = staticmethod(embedding_at)
    write_cache = staticmethod(write_cache)
    attention_cached = staticmethod(attention_cached)
    copy_cache = staticmethod(copy_cache)
    classifier = staticmethod(classifier)
    logits = staticmethod(logits)
    dropout = staticmethod(dropout)
    global_norm = staticmethod(global_norm)
    adamw = staticmethod(adamw)
