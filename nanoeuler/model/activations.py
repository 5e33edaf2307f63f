"""The activations of one forward pass, planned once for (B, T) and reused in every step.

Everything backward needs is stored; what only lives for a moment shares scratch buffers. For inference
(``training=False``) all layers share one set, so memory does not grow with depth.

A stored number keeps its place from forward to backward. Some are cheap to compute again: a layer norm from the
residual stream, GELU from its input. And a whole block can be run again from the residual stream that it began with.
What :data:`RECOMPUTE` names is not kept: all layers share one buffer for it, and backward fills that buffer again just
before it needs it.

Source of the idea: Chen, Xu, Zhang & Guestrin 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.storage import Storage
from nanoeuler.ops.table import Array, Ops

RECOMPUTE = {
    "none": frozenset[str](),
    "light": frozenset({"ln1", "ln2", "act"}),
    "full": frozenset(
        {"ln1", "mean1", "rstd1", "qkv", "lse", "att", "mid", "ln2", "mean2", "rstd2", "pre", "act"},
    ),
}
"""What backward computes again, by how much that is. Of the 16 numbers a block keeps for each token and channel:

- ``none``: nothing.
- ``light``: both layer norms and GELU, which cost little: 10 of the 16 numbers are left.
- ``full``: all of the block but its end, where the next one begins: 1 is left, for two thirds of a forward pass more.
"""
IDLE = ("delta", "dresidual", "dpre", "act", "ln1", "ln2", "qkv", "att", "mid", "pre")
"""What no one reads while the classifier runs, between forward and backward, as far as all layers share it."""
EXACT = frozenset({"mean1", "rstd1", "lse", "mean2", "rstd2", "meanf", "rstdf", "losses"})
"""Statistics: one number a row, so precision costs little; stored in the engine's ``exact`` dtype."""


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
            "dln": (N, C),  # gradient at a layer norm's output
            "dpre": (N, 4 * C),
        }
    if training and config.dropout:
        shapes["dbranch"] = (N, C)  # gradient at a branch's output
    return shapes


def planned_shapes(
    config: GPTConfig, B: int, T: int, training: bool, recompute: frozenset[str]
) -> tuple[dict[str, tuple[int, ...]], list[dict[str, tuple[int, ...]]]]:
    """Name and shape of the arrays that all layers share, and of each layer's own, as they lie in memory."""
    shared, own = shared_shapes(config, B, T, training), layer_shapes(config, B, T)
    if training:
        shared |= {name: own.pop(name) for name in list(own) if name in recompute}
        shared |= {name: shared.pop(name) for name in IDLE if name in shared}  # side by side, at the end
    return shared, [own] * (config.n_layer if training else 1)


def recompute_level(name: str, storage: Storage) -> str:
    """``name``, a key of :data:`RECOMPUTE`, or the engine's own choice for "auto". UserError if it is neither.

    >>> from nanoeuler.ops.storage import STORAGE
    >>> recompute_level("auto", STORAGE["gpu"])
    'light'
    """
    level = storage.recompute if name == "auto" else name
    if level not in RECOMPUTE:
        raise UserError(f"recompute must be auto or one of {', '.join(RECOMPUTE)}, not {level!r}")
    return level


def n_bytes(
    config: GPTConfig, B: int, T: int, training: bool, storage: Storage, recompute: frozenset[str] = frozenset()
) -> int:
    """Bytes that :class:`Activations` allocates for all but the token ids: what ``nanoeuler plan`` counts."""
    shared, layers = planned_shapes(config, B, T, training, recompute)
    arrays = [*shared.items(), *(item for layer in layers for item in layer.items())]
    idle, spare = spare_bytes(config, B, T, training, storage, recompute)
    return sum(_place(name, shape, storage) for name, shape in arrays) + spare - idle


def spare_bytes(
    config: GPTConfig, B: int, T: int, training: bool, storage: Storage, recompute: frozenset[str]
) -> tuple[int, int]:
    """(bytes of the arrays that are idle while the classifier runs, bytes to give to them together).

    The classifier keeps its logits there. More of them at a time means fewer passes over the gradient of wte, so they
    may take twice as much as lies idle anyway, up to what ``storage`` says.
    """
    least, most = storage.logits
    if not (training and most):
        return 0, 0
    shared, _ = planned_shapes(config, B, T, training, recompute)
    idle = sum(_place(name, shared[name], storage) for name in IDLE if name in shared)
    all_logits = B * T * (config.vocab_size + 63) * storage.dtype_bytes
    return idle, max(idle, storage.padded(min(max(2 * idle, least), all_logits, most)))


def _place(name: str, shape: tuple[int, ...], storage: Storage) -> int:
    """Bytes that an activation takes in the allocation."""
    return storage.padded(math.prod(shape) * _item(name, storage)[1])


def _item(name: str, storage: Storage) -> tuple[str, int]:
    """(dtype, bytes an element) of the activation called ``name``."""
    return (storage.exact, storage.exact_bytes) if name in EXACT else (storage.dtype, storage.dtype_bytes)


class Activations:
    """The buffers of one forward (and, if ``training``, backward) pass at a fixed (B, T).

    All lie in one allocation, which the operating system can back with huge pages: at 4 KB a page, the address
    translations of a small model's activations alone would overflow the processor's table of them.

    ``recompute``: the fields of a layer that all layers share, and that backward computes again.
    """

    def __init__(
        self,
        ops: Ops,
        config: GPTConfig,
        B: int,
        T: int,
        training: bool,
        recompute: frozenset[str] = frozenset(),
    ) -> None:
        self.B, self.T, self.training = B, T, training
        storage = ops.storage
        self.recompute = recompute if training else frozenset()
        memory = ops.empty((n_bytes(config, B, T, training, storage, self.recompute),), np.uint8)
        at = 0

        def carve(shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
            nonlocal at
            arrays = {}
            for name, shape in shapes.items():
                dtype, item_bytes = _item(name, storage)
                size = math.prod(shape) * item_bytes
                arrays[name] = memory[at : at + size].view(dtype).reshape(shape)
                at += _place(name, shape, storage)
            return arrays

        shapes, layers = planned_shapes(config, B, T, training, self.recompute)
        shared = carve(shapes)
        idle, spare = spare_bytes(config, B, T, training, storage, self.recompute)
        self.spare = memory[at - idle : at - idle + spare] if spare else None  # for the classifier's logits
        at += spare - idle
        self.embedded, self.delta, self.lnf = shared["embedded"], shared["delta"], shared["lnf"]
        self.meanf, self.rstdf, self.losses = shared["meanf"], shared["rstdf"], shared["losses"]
        if training:
            self.dresidual, self.dln, self.dpre = shared["dresidual"], shared["dln"], shared["dpre"]
            self.dbranch = shared.get("dbranch")
            # attention's backward begins when the MLP's has ended, so its gradient can lie in the same place
            self.dqkv = self.dpre.reshape(-1)[: 3 * B * T * config.n_embd].reshape(B, T, 3 * config.n_embd)
        again = {name: shared[name] for name in self.recompute}
        sets = [LayerActivations(**carve(shapes), **again) for shapes in layers]
        self.layers = sets if training else sets * config.n_layer
        self.idx = ops.empty((B, T), np.int32)
        self.targets = ops.empty((B * T,), np.int32)
