"""Decoders: a model that reads tokens into slots and tells what comes next. The generator knows nothing else of it.

A slot holds one text's tokens. A decoder with a cache reads each token once; :class:`UncachedDecoder` reads the whole
text again for every token, is right by the definition of the model, and what the others are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.quantize import Int8Weights
from nanoeuler.model.cache import CacheRows, KVCache
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.table import CachedOps

WEIGHTS = ("float32", "bf16", "int8")


class Decoder(Protocol):
    """``n_slots`` texts side by side, each of at most ``context`` tokens; ``lengths``: how many each holds.

    Logits are float32 or float64, on the host, a row for each token asked about.
    """

    n_slots: int
    context: int
    lengths: list[int]

    def prefill(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        """Forget what the slot held, read ``tokens`` (1 to ``context``); logits (V,) after the last."""

    def extend(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        """Read more into the slot; logits (n, V) after each."""

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Read one token into each of these slots; logits (n, V)."""

    def copy(self, src: int, dst: int) -> None:
        """Let slot ``dst`` hold what slot ``src`` holds."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the first ``length`` tokens."""

    def bytes_per_step(self, length: int) -> int:
        """The least that one more token of one text must read, after ``length`` tokens: weights and cache."""

    # A decoder may also choose tokens itself, so that none waits for Python:
    # def draw(slots, first, configs, samples, positions, n_valid, limit, stop_id) -> Iterator[np.ndarray] | None
    # as inference/on_device.py calls it.


class Slots:
    """What all decoders of this file share: counting tokens."""

    def __init__(self, n_slots: int, context: int) -> None:
        self.n_slots, self.context = n_slots, context
        self.lengths = [0] * n_slots

    def _advance(self, slot: int, n: int) -> range:
        """The positions of ``n`` more tokens."""
        begin = self.lengths[slot]
        if begin + n > self.context:
            raise UserError(f"{begin + n} tokens do not fit into a context of {self.context}")
        self.lengths[slot] = begin + n
        return range(begin, begin + n)

    def truncate(self, slot: int, length: int) -> None:
        assert 0 <= length <= self.lengths[slot]
        self.lengths[slot] = length


class TableDecoder(Slots):
    """With a KV cache, in calls to the table of operations: on any engine that has its cached attention.

    >>> from nanoeuler.model.config import GPTConfig
    >>> model = GPT(GPTConfig(10, block_size=8, n_layer=1, n_head=1, n_embd=4), device="reference")
    >>> decoder = TableDecoder(model, n_slots=1, context=8)
    >>> logits = decoder.prefill(0, [1, 2]), decoder.step([0], [3])[0]
    >>> np.allclose(logits, model.logits(np.array([[1, 2, 3]]))[0, 1:])
    True
    """

    def __init__(self, model: GPT, n_slots: int, context: int) -> None:
        super().__init__(n_slots, context)
        self.model = model
        self.ops = cast(CachedOps, model.ops)
        self.cache = KVCache(self.ops, model.config, n_slots, context)

    def prefill(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        self.lengths[slot] = 0
        return self._read([slot] * len(tokens), self._advance(slot, len(tokens)), [list(tokens)], True, True)[0]

    def extend(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        positions = self._advance(slot, len(tokens))
        return self._read([slot] * len(tokens), positions, [[token] for token in tokens], False, True)

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        positions = [self._advance(slot, 1)[0] for slot in slots]
        return self._read(slots, positions, [[token] for token in tokens], False, True)

    def _read(
        self, slots: Sequence[int], positions: Sequence[int], tokens: list[list[int]], whole: bool, last_only: bool
    ) -> np.ndarray:
        places = (np.array(slots, np.int32), np.array(positions, np.int32))
        rows = CacheRows.make(self.ops, self.cache, *places, whole)
        return self.model.logits_cached(np.array(tokens, np.int32), rows, last_only)

    def copy(self, src: int, dst: int) -> None:
        for keys, values in zip(self.cache.keys, self.cache.values):
            self.ops.copy_cache(keys, values, src, dst, self.lengths[src])
        self.lengths[dst] = self.lengths[src]

    def bytes_per_step(self, length: int) -> int:
        return step_bytes(self.model.config, length, weight=self.model.ops.storage.dtype_bytes)


class UncachedDecoder(Slots):
    """Without a cache: every token costs a pass over the whole text."""

    def __init__(self, model: GPT, n_slots: int, context: int) -> None:
        super().__init__(n_slots, context)
        self.model = model
        self._tokens: list[list[int]] = [[] for _ in range(n_slots)]

    def prefill(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        self.lengths[slot] = 0
        return self.extend(slot, tokens)[-1]

    def extend(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        begin = self._advance(slot, len(tokens)).start
        self._tokens[slot][begin:] = tokens
        return self.model.logits(np.array([self._tokens[slot]], np.int32))[0, begin:]

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        rows = []
        for slot, token in zip(slots, tokens):
            begin = self._advance(slot, 1).start
            self._tokens[slot][begin:] = [token]
            rows.append(self.model.logits(np.array([self._tokens[slot]], np.int32), last_only=True)[0])
        return np.stack(rows)

    def copy(self, src: int, dst: int) -> None:
        self._tokens[dst] = self._tokens[src][: self.lengths[src]]
        self.lengths[dst] = self.lengths[src]

    def bytes_per_step(self, length: int) -> int:
        return step_bytes(self.model.config, 0, weight=self.model.ops.storage.dtype_bytes)


def step_bytes(config: Any, length: int, weight: float, number: float | None = None) -> int:
    """Bytes of weights (``weight`` each; biases and norms do not count) and of ``length`` tokens' keys and values."""
    C = config.n_embd
    weights = (config.vocab_size * C + config.n_layer * 12 * C * C) * weight
    return int(weights + 2 * config.n_layer * C * length * (weight if number is None else number))


class Source(Protocol):
    """Weights to decode with: a GPT, Int8Weights, or what :func:`prepare` made of one."""

    config: GPTConfig


def prepare(source: Source, weights: str | None = None, device: str = "cpu") -> Source:
    """Lay the weights out as decoders want them, once for all: ``weights`` one of WEIGHTS, None for the device's own.

    ``device`` matters for Int8Weights, which lie on none. Raises UserError if the device cannot decode with these.
    """
    check_weights(weights)
    device = source.ops.name if isinstance(source, GPT) else device
    if device == "cpu" and isinstance(source, GPT | Int8Weights):
        from nanoeuler.inference.cpu_decoder import CpuWeights

        return CpuWeights(source, weights)
    own = {"gpu": (None, "bf16", "int8")}.get(device, (None,))
    if weights not in own and isinstance(source, GPT | Int8Weights):
        raise UserError(f"the device {device} cannot write with weights {weights}: leave that out, or use the cpu")
    return source


def open_decoder(
    source: Source, n_slots: int, context: int, weights: str | None = None, device: str = "cpu"
) -> Decoder:
    """The fastest decoder there is for these weights; see :func:`prepare` for ``weights`` and ``device``.

    On a GPU that is ``ops/gpu/decode.py``'s, for all models whose heads its kernels can take.
    """
    context, source = min(context, source.config.block_size), prepare(source, weights, device)
    on_gpu = source.ops.name == "gpu" if isinstance(source, GPT) else device == "gpu"
    if on_gpu:
        from nanoeuler.ops.gpu.decode import GpuDecoder, can_decode

        if isinstance(source, GPT) and not can_decode(source.config):
            return UncachedDecoder(source, n_slots, context)
        if n_slots == 1:  # the kernel for one text is compiled for its context: for one only
            context = source.config.block_size
        return GpuDecoder(source, n_slots, context, "int8" if weights == "int8" else None)
    if not isinstance(source, GPT):
        from nanoeuler.inference.cpu_decoder import CpuDecoder, CpuWeights

        assert isinstance(source, CpuWeights)
        return CpuDecoder(source, n_slots, context)
    if hasattr(source.ops, "attention_cached"):
        return TableDecoder(source, n_slots, context)
    return UncachedDecoder(source, n_slots, context)


def check_weights(weights: str | None) -> None:
    """UserError unless ``weights`` is None or one of WEIGHTS."""
    if weights is not None and weights not in WEIGHTS:
        raise UserError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r}")
