"""The KV cache: keys and values of every layer, for several sequences side by side, allocated once.

It takes ``2 n_layer n_embd`` numbers a token: for GPT-2 124M in float32 74 KB, 75 MB for a full context of 1024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.table import Array, CachedOps


class KVCache:
    """Room for ``n_slots`` sequences of up to ``context`` tokens."""

    def __init__(self, ops: CachedOps, config: GPTConfig, n_slots: int, context: int) -> None:
        self.n_slots, self.context = n_slots, context
        shapes = ops.cache_shapes(n_slots, config.n_head, context, config.head_dim)
        sizes = [math.prod(shape) for shape in shapes]
        self.all_keys, self.all_values = (ops.empty((config.n_layer * size,)) for size in sizes)

        def layers(flat: Array, size: int, shape: tuple[int, ...]) -> list[Array]:
            return [flat[i * size : (i + 1) * size].reshape(shape) for i in range(config.n_layer)]

        self.keys = layers(self.all_keys, sizes[0], shapes[0])
        self.values = layers(self.all_values, sizes[1], shapes[1])


@dataclass(frozen=True)
class CacheRows:
    """Where rows of tokens belong in a cache: row n is sequence ``slots[n]`` 's token at ``positions[n]``.

    ``whole``: the rows are all that their sequences hold, from position 0 on: attention need not look into the cache.
    """

    ops: CachedOps
    cache: KVCache
    slots: Array  # (N,) int32
    positions: Array  # (N,) int32
    whole: bool

    @classmethod
    def make(cls, ops: Any, cache: KVCache, slots: np.ndarray, positions: np.ndarray, whole: bool) -> CacheRows:
        """With both arrays on the engine's device."""

        def on_device(host: np.ndarray) -> Array:
            array = ops.empty((len(host),), np.int32)
            ops.upload(array, np.asarray(host, np.int32))
            return array

        return cls(ops, cache, on_device(slots), on_device(positions), whole)

    def embed(self, out: Array, idx: Array, wte: Array, wpe: Array) -> None:
        """``out`` (N, C): each token's and its position's embedding."""
        self.ops.embedding_at(out, idx, self.positions, wte, wpe)

    def write(self, layer: int, qkv: Array, n_head: int) -> None:
        """Keep the keys and values in ``qkv`` (N, 3C)."""
        self.ops.write_cache(*self._held(layer), qkv, self.slots, self.positions, n_head)

    def attend(self, layer: int, out: Array, qkv: Array, n_head: int) -> None:
        """``out`` (N, C): attention of the queries in ``qkv`` (N, 3C) to all that was kept up to their positions."""
        self.ops.attention_cached(out, qkv, *self._held(layer), self.slots, self.positions, n_head)

    def _held(self, layer: int) -> tuple[Array, Array]:
        return self.cache.keys[layer], self.cache.values[layer]
