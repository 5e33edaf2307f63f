"""The activations of one forward pass, planned once for (B, T) and reused in every step.

Everything backward needs is stored; what only lives for a moment shares scratch buffers. For inference
(``training=False``) all layers share one set, so memory does not grow with depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.table import Array, Ops


@dataclass(frozen=True)
class LayerActivations:
    """What one transformer block keeps for its backward pass; N = B*T rows."""

    ln1: Array  # (N, C) layer norm before attention
    mean1: Array  # (N,)
    rstd1: Array  # (N,)
    qkv: Array  # (B, T, 3C)
    lse: Array  # (B, n_head, T)
    att: Array  # (B, T, C) attention output before its projection
    mid: Array  # (N, C) residual stream after attention
    ln2: Array  # (N, C) layer norm before the MLP
    mean2: Array  # (N,)
    rstd2: Array  # (N,)
    pre: Array  # (N, 4C) MLP before GELU
    act: Array  # (N, 4C) MLP after GELU
    end: Array  # (N, C) residual stream after the MLP


def layer_shapes(config: GPTConfig, B: int, T: int) -> dict[str, tuple[int, ...]]:
    """Shape of each field of :class:`LayerActivations`."""
    N, C = B * T, config.n_embd
    return {
        "ln1": (N, C),
        "mean1": (N,),
        "rstd1": (N,),
        "qkv": (B, T, 3 * C),
        "lse": (B, config.n_head, T),
        "att": (B, T, C),
        "mid": (N, C),
        "ln2": (N, C),
        "mean2": (N,),
        "rstd2": (N,),
        "pre": (N, 4 * C),
        "act": (N, 4 * C),
        "end": (N, C),
    }


def shared_shapes(config: GPTConfig, B: int, T: int, training: bool) -> dict[str, tuple[int, ...]]:
    """Shape of each buffer that all layers share."""
    N, C = B * T, config.n_embd
    shapes: dict[str, tuple[int, ...]] = {
        "embedded": (B, T, C),  # residual stream at the bottom
        "delta": (N, C),  # what a branch adds to the residual stream
        "lnf": (N, C),
        "meanf": (N,),
        "rstdf": (N,),
        "losses": (N,),
    }
    if training:
        shapes |= {
            "dresidual": (N, C),  # gradient of the residual stream, updated on its way down
            "dbranch": (N, C),  # gradient at a branch's output (only written with dropout)
            "dln": (N, C),  # gradient at a layer norm's output
            "dqkv": (B, T, 3 * C),
            "dpre": (N, 4 * C),
        }
    return shapes


def arena_shapes(config: GPTConfig, B: int, T: int, training: bool) -> list[tuple[int, ...]]:
    """The shapes of all arrays as they lie in memory: the shared ones, then each layer's."""
    n_sets = config.n_layer if training else 1
    layer = list(layer_shapes(config, B, T).values())
    return [*shared_shapes(config, B, T, training).values(), *(layer * n_sets)]


def n_elements(config: GPTConfig, B: int, T: int, training: bool) -> int:
    """Number of activation elements that :class:`Activations` allocates: what ``nanoeuler plan`` counts."""
    return sum(_padded(math.prod(shape)) for shape in arena_shapes(config, B, T, training))


def _padded(size: int) -> int:
    """Elements an array takes in the arena: whole cache lines, and an odd number of them between neighbours.

    Sizes here are mostly multiples of a page; without the gap all arrays would begin at the same place within a page,
    and so compete for the same cache sets.
    """
    return -(-size // 16) * 16 + 16 * 21


class Activations:
    """The buffers of one forward (and, if ``training``, backward) pass at a fixed (B, T).

    All lie in one allocation, which the operating system can back with huge pages: at 4 KB a page, the address
    translations of a small model's activations alone would overflow the processor's table of them.
    """

    def __init__(self, ops: Ops, config: GPTConfig, B: int, T: int, training: bool) -> None:
        self.B, self.T, self.training = B, T, training
        arena = ops.empty((n_elements(config, B, T, training),))
        at = 0

        def carve(shape: tuple[int, ...]) -> Array:
            nonlocal at
            start, size = at, math.prod(shape)
            at += _padded(size)
            return arena[start : start + size].reshape(shape)

        shared = {name: carve(shape) for name, shape in shared_shapes(config, B, T, training).items()}
        self.embedded, self.delta, self.lnf = shared["embedded"], shared["delta"], shared["lnf"]
        self.meanf, self.rstdf, self.losses = shared["meanf"], shared["rstdf"], shared["losses"]
        if training:
            self.dresidual, self.dbranch, self.dln = shared["dresidual"], shared["dbranch"], shared["dln"]
            self.dqkv, self.dpre = shared["dqkv"], shared["dpre"]
        shapes = layer_shapes(config, B, T)
        n_sets = config.n_layer if training else 1
        sets = [LayerActivations(**{name: carve(shape) for name, shape in shapes.items()}) for _ in range(n_sets)]
        self.layers = sets if training else sets * config.n_layer
        self.idx = ops.empty((B, T), np.int32)
        self.targets = ops.empty((B * T,), np.int32)
