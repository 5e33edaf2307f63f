"""Causal self-attention: each position takes a weighted mean of the values of the positions up to its own.

Forward, for one head with queries, keys and values q, k, v (T, D), D = head_dim::

    S[i,j] = q_i . k_j / sqrt(D)    for j <= i,   -inf for j > i (the future cannot be seen)
    lse[i] = log sum_j exp S[i,j]
    P[i,j] = exp(S[i,j] - lse[i])                 softmax: every row sums to 1
    A[i,j] = P[i,j] keep[i,j] / (1 - p)           dropout with probability p; A = P without
    out    = A v

The largest score of a row is taken out before exp, so no score is too large. Only ``lse`` is kept, T numbers in place
of T^2: from it, P comes back by one exp.

Backward, from ``dout`` (T, D). ``out = A v`` is a product, and dropout scales each element::

    dv = A^T dout        dA = dout v^T        dP = dA * keep / (1 - p)

Softmax, row by row: ``d P[j] / d S[l] = P[j] ([j=l] - P[l])``, so

    dS[i,l] = sum_j dP[i,j] P[i,j] ([j=l] - P[i,l]) = P[i,l] (dP[i,l] - rowdot[i]),   rowdot[i] = sum_j P[i,j] dP[i,j]

Moving keep / (1 - p) from dP to P turns that row sum into one over the head's D channels, with no T x T matrix in it::

    rowdot[i] = sum_j A[i,j] dA[i,j] = sum_j A[i,j] (dout_i . v_j) = dout_i . out_i

which lets the fast engines go through S block by block. Where j > i, P = 0 and so dS = 0. Last, S is a product::

    dq = dS k / sqrt(D)        dk = dS^T q / sqrt(D)

This file holds the whole T x T matrix, since here clarity counts; the other engines never do.

Source: Vaswani et al. 2017, "Attention Is All You Need"; Dao et al. 2022, "FlashAttention: Fast and Memory-Efficient
Exact Attention with IO-Awareness" (the log-sum-exp, and ``rowdot`` by ``dout_i . out_i``).
"""

from __future__ import annotations

import math

import numpy as np

from nanoeuler.ops.table import keep_mask


def attention(
    out: np.ndarray, lse: np.ndarray, qkv: np.ndarray, n_head: int, dropout: float = 0.0, seed: int = 0
) -> None:
    """qkv (B,T,3C) packed q|k|v, each n_head x head_dim -> out (B,T,C), lse (B,n_head,T).

    Element (b,h,i,j) of the weights has index ``((b*n_head + h)*T + i)*T + j`` in the dropout mask.

    >>> qkv = np.array([[[0.0, 0.0, 1.0], [0.0, 9.0, 3.0]]])  # one head of one channel: q, k, v of two tokens
    >>> out, lse = np.empty((1, 2, 1)), np.empty((1, 1, 2))
    >>> attention(out, lse, qkv, n_head=1)
    >>> out.ravel(), np.exp(lse).ravel()  # zero queries: the plain mean of what can be seen
    (array([1., 2.]), array([1., 2.]))
    """
    q, k, v = split_heads(qkv, n_head)  # (B, n_head, T, D) each
    scores = _scores(q, k)  # (B, n_head, T, T)
    largest = scores.max(axis=-1)
    lse[...] = largest + np.log(np.exp(scores - largest[..., None]).sum(axis=-1))
    weights = np.exp(scores - lse[..., None]) * _kept(scores.shape, dropout, seed)
    out[...] = _merge_heads(weights @ v)


def attention_backward(
    dqkv: np.ndarray,
    dout: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    qkv: np.ndarray,
    n_head: int,
    dropout: float = 0.0,
    seed: int = 0,
    accumulate: bool = False,
    *,
    dqkv_sum: np.ndarray | None = None,
) -> None:
    """``dqkv`` (B,T,3C) from ``dout`` (B,T,C), with ``out`` (B,T,C) and ``lse`` (B,n_head,T) as :func:`attention` left
    them, and the same dropout and seed. ``dqkv_sum`` (3C,) receives the sum of dqkv over rows."""
    C = out.shape[-1]
    q, k, v = split_heads(qkv, n_head)  # (B, n_head, T, D) each
    dout_h, out_h = (a.reshape(*a.shape[:2], n_head, -1).swapaxes(1, 2) for a in (dout, out))
    P = np.exp(_scores(q, k) - lse[..., None])  # (B, n_head, T, T)
    kept = _kept(P.shape, dropout, seed)

    dv = (P * kept).swapaxes(-1, -2) @ dout_h
    dP = (dout_h @ v.swapaxes(-1, -2)) * kept
    rowdot = (dout_h * out_h).sum(axis=-1, keepdims=True)  # (B, n_head, T, 1)
    dS = P * (dP - rowdot) / math.sqrt(q.shape[-1])
    dq, dk = dS @ k, dS.swapaxes(-1, -2) @ q
    for part, gradient in enumerate((dq, dk, dv)):
        dqkv[..., part * C : (part + 1) * C] = _merge_heads(gradient)
    if dqkv_sum is not None:
        dqkv_sum[...] = dqkv.sum(axis=(0, 1)) + (dqkv_sum if accumulate else 0.0)


def split_heads(qkv: np.ndarray, n_head: int) -> np.ndarray:
    """(B,T,3C) -> views of q, k and v, (3,B,n_head,T,head_dim).

    >>> q, k, v = split_heads(np.arange(12.0).reshape(1, 1, 12), n_head=2)
    >>> k[0, :, 0]  # both heads of the one token
    array([[4., 5.],
           [6., 7.]])
    """
    B, T, _ = qkv.shape
    return qkv.reshape(B, T, 3, n_head, -1).transpose(2, 0, 3, 1, 4)


def _merge_heads(x: np.ndarray) -> np.ndarray:
    """(B,n_head,T,D) -> (B,T,C)"""
    B, n_head, T, D = x.shape
    return x.swapaxes(1, 2).reshape(B, T, n_head * D)


def _scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """(B,n_head,T,D) twice -> scaled scores (B,n_head,T,T), -inf where the key lies in the query's future."""
    T, D = q.shape[-2:]
    future = np.triu(np.ones((T, T), bool), k=1)
    return np.where(future, -np.inf, q @ k.swapaxes(-1, -2) / math.sqrt(D))


def _kept(shape: tuple[int, ...], p: float, seed: int) -> np.ndarray | float:
    """What dropout multiplies the weights by: 0 or 1/(1-p), and 1 throughout for p = 0."""
    if p == 0.0:
        return 1.0
    return keep_mask(math.prod(shape), p, seed).reshape(shape) / (1.0 - p)
