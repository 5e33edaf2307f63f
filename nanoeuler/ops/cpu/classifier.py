"""Softmax and cross-entropy over a chunk of logits, turned into their gradient in place.

The head's two or three matrix products run on chunks of rows, so the full (N, V) logits never exist (see
``engine.py``). A row of 50,257 logits is 200 KB: it stays in L2 between its three passes (maximum; exponentials and
their sum; scaling), so main memory sees it once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part
from nanoeuler.ops.cpu.simd import exp


@fast_part()
def cross_entropy_row(n, losses, logits, targets, V, scale, gradient):  # type: ignore[no-untyped-def]
    """Row n of :func:`softmax_cross_entropy`."""
    row = logits[n * V : (n + 1) * V]
    target = targets[n]
    if target < 0:
        losses[n] = np.float32(0.0)
        if gradient:
            row[:] = np.float32(0.0)
        return
    top = row[0]
    for j in range(V):
        top = max(top, row[j])
    correct = row[target]
    total = np.float32(0.0)
    for s in range(0, V, 1024):  # sums of 1024, then a sum of those: float32 rounding stays small
        piece = row[s : min(V, s + 1024)]
        part = np.float32(0.0)
        if gradient:
            for j in range(piece.shape[0]):
                e = exp(piece[j] - top)
                piece[j] = e
                part += e
        else:
            for j in range(piece.shape[0]):
                part += exp(piece[j] - top)
        total += part
    losses[n] = np.log(total) + top - correct
    if gradient:
        factor = scale / total
        for j in range(V):
            row[j] *= factor
        row[target] -= scale


@njit(**KERNEL)
def softmax_cross_entropy(losses, logits, targets, V, scale, gradient):  # type: ignore[no-untyped-def]
    """``losses[n] = logsumexp(logits[n]) - logits[n, target]``; with ``gradient`` also
    ``logits[n] = (softmax(logits[n]) - onehot(target)) * scale``. Rows with target -1: zero loss and gradient."""
    fork(cross_entropy_row, losses.shape[0], (losses, logits, targets, V, scale, gradient))
