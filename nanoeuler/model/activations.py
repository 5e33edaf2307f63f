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


def n_elements(config: GPTConfig, B: int, T: int, training: bool) -> int:
    """Number of activation elements that :class:`Activations` allocates: what ``nanoeuler plan`` counts."""
    layer = sum(math.prod(s) for s in layer_shapes(config, B, T).values())
    shared = sum(math.prod(s) for s in shared_shapes(config, B, T, training).values())
    return layer * (config.n_layer if training else 1) + shared


class Activations:
    """The buffers of one forward (and, if ``training``, backward) pass at a fixed (B, T)."""

    def __init__(self, ops: Ops, config: GPTConfig, B: int, T: int, training: bool) -> None:
        self.B, self.T, self.training = B, T, training
        shared = shared_shapes(config, B, T, training)
        self.embedded = ops.empty(shared["embedded"])
        self.delta = ops.empty(shared["delta"])
        self.lnf, self.meanf, self.rstdf = (ops.empty(shared[k]) for k in ("lnf", "meanf", "rstdf"))
        self.losses = ops.empty(shared["losses"])
        if training:
            self.dresidual, self.dbranch, self.dln = (ops.empty(shared[k]) for k in ("dresidual", "dbranch", "dln"))
            self.dqkv, self.dpre = ops.empty(shared["dqkv"]), ops.empty(shared["dpre"])
        shapes = layer_shapes(config, B, T)
        n_sets = config.n_layer if training else 1
        sets = [LayerActivations(**{k: ops.empty(s) for k, s in shapes.items()}) for _ in range(n_sets)]
        self.layers = sets if training else sets * config.n_layer
        self.idx = ops.empty((B, T), np.int32)
        self.targets = ops.empty((B * T,), np.int32)
