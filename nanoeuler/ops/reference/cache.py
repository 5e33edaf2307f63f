"""Attention over a KV cache: what a causal model need not compute twice.

Position i of a causal model sees positions 0 to i only, so whatever a layer computes there never changes when the text
grows. The next token's query meets the keys and values of all tokens before it: kept, they need not be computed again.
A step then costs one row through every matrix in place of the whole text, and this one sum over the cache::

    S[j] = q . k_j / sqrt(D)  for j <= position,        out = sum_j softmax(S)[j] v_j

It is row ``position`` of :func:`nanoeuler.ops.reference.attention.attention`.

Source: Vaswani et al. 2017, "Attention Is All You Need" (the masked decoder); Shazeer 2019, "Fast Transformer Decoding"
(what such a step reads).
"""

from __future__ import annotations

import math

import numpy as np


def cache_shapes(n_slots: int, n_head: int, context: int, head_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Keys and values of one layer: (n_slots, n_head, context, head_dim) each."""
    shape = (n_slots, n_head, context, head_dim)
    return shape, shape


def embedding_at(out: np.ndarray, idx: np.ndarray, positions: np.ndarray, wte: np.ndarray, wpe: np.ndarray) -> None:
    """``out[n] = wte[idx[n]] + wpe[positions[n]]``: out (N,C)."""
    out[...] = wte[idx] + wpe[positions]


def write_cache(
    keys: np.ndarray, values: np.ndarray, qkv: np.ndarray, slots: np.ndarray, positions: np.ndarray, n_head: int
) -> None:
    """qkv (N,3C) -> keys, values (n_slots, n_head, context, D), at ``slots[n]``, ``positions[n]``."""
    _, k, v = qkv.reshape(len(qkv), 3, n_head, -1).swapaxes(0, 1)  # (N, n_head, D) each
    keys[slots, :, positions] = k
    values[slots, :, positions] = v


def attention_cached(
    out: np.ndarray,
    qkv: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    slots: np.ndarray,
    positions: np.ndarray,
    n_head: int,
) -> None:
    """Queries of qkv (N,3C) over the cache -> out (N,C).

    >>> keys, values = np.zeros((1, 1, 4, 1)), np.array([1.0, 3.0, 9.0, 0.0]).reshape(1, 1, 4, 1)
    >>> out = np.empty((1, 1))
    >>> attention_cached(out, np.zeros((1, 3)), keys, values, np.array([0]), np.array([1]), n_head=1)
    >>> out  # equal keys: the mean of what lies at positions 0 and 1
    array([[2.]])
    """
    q = qkv.reshape(len(qkv), 3, n_head, -1)[:, 0]  # (N, n_head, D)
    for n, (slot, position) in enumerate(zip(slots, positions)):
        k, v = keys[slot, :, : position + 1], values[slot, :, : position + 1]  # (n_head, position + 1, D)
        S = np.einsum("hd,hjd->hj", q[n], k) / math.sqrt(q.shape[-1])
        P = np.exp(S - S.max(axis=-1, keepdims=True))
        out[n] = np.einsum("hj,hjd->hd", P / P.sum(axis=-1, keepdims=True), v).reshape(-1)


def copy_cache(keys: np.ndarray, values: np.ndarray, src: int, dst: int, length: int) -> None:
    """The first ``length`` positions of sequence ``src`` become those of ``dst``."""
    keys[dst, :, :length] = keys[src, :, :length]
    values[dst, :, :length] = values[src, :, :length]
