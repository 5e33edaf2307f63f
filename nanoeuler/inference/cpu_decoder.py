"""The CPU's decoder: weights in float32 in place, or packed in two bytes or one, and one call of a kernel a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.decoder import Slots, step_bytes
from nanoeuler.inference.quantize import GROUP, Int8Weights, is_quantized, quantize
from nanoeuler.model.cache import CacheRows, KVCache
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.cpu.decode import decode
from nanoeuler.ops.cpu.engine import CpuOps
from nanoeuler.ops.cpu.packing import BF16, FLOAT32, INT8, pack_bf16, pack_int8, packed_bytes
from nanoeuler.ops.cpu.simd_rows import PANEL

MOST_ROWS = 32  # rows in one call of the kernel
KINDS = {"float32": FLOAT32, "bf16": BF16, "int8": INT8}
WEIGHT_BYTES = {FLOAT32: 4.0, BF16: 2.0, INT8: 1.0 + 2.0 / GROUP}
OF_A_LAYER = [
    f"{name}.{part}"
    for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    for part in ("weight", "bias")
]
THE_REST = ["ln_f.weight", "ln_f.bias", "wte.weight", "wpe.weight"]


class CpuWeights:
    """A model's weights as :func:`nanoeuler.ops.cpu.decode.decode` reads them; several decoders may share them."""

    def __init__(self, source: GPT | Int8Weights, kind: str | None = None) -> None:
        self.model = source if isinstance(source, GPT) else None
        self.config, self.kind = source.config, KINDS[kind or ("float32" if self.model else "int8")]
        if self.model is None and self.kind != INT8:
            raise UserError(f"weights in 8 bits cannot be read as {kind}: leave weights out, or load the model itself")
        self.ops: Any = source.ops if isinstance(source, GPT) else CpuOps()
        L = self.config.n_layer
        self.offsets = np.zeros((L + 1, 12), np.int64)
        self._places = {f"h.{i}.{name}": (i, j) for i in range(L) for j, name in enumerate(OF_A_LAYER)}
        self._places |= {name: (L, j) for j, name in enumerate(THE_REST)}
        if self.kind == FLOAT32:
            assert isinstance(source, GPT)
            self.floats, self.packed = source.params, np.zeros(64, np.uint8)
            for spec in source.layout:
                self.offsets[self._places[spec.name]] = spec.offset
        elif self.kind == INT8:
            small = source if isinstance(source, Int8Weights) else quantize(self.config, source.state_dict())
            self._pack(small.q, small.rest, small.scale)
        else:
            assert isinstance(source, GPT)
            state = source.layout.views(source.params)
            matrices = {name: w for name, w in state.items() if is_quantized(name)}
            self._pack(matrices, {name: w for name, w in state.items() if name not in matrices}, {})

    def _pack(
        self, matrices: dict[str, np.ndarray], rest: dict[str, np.ndarray], scales: dict[str, np.ndarray]
    ) -> None:
        def size(w: np.ndarray, name: str) -> int:
            K, O = w.shape[::-1] if name == "wte.weight" else w.shape  # noqa: E741
            return packed_bytes(self.kind, K, O)

        self.packed = self.ops.empty((sum(size(w, name) for name, w in matrices.items()),), np.uint8)
        self.floats = self.ops.empty((sum(w.size for w in rest.values()),))
        at = 0
        for name, w in matrices.items():
            head, (K, O) = name == "wte.weight", w.shape  # noqa: E741
            if head:
                K, O = O, K  # noqa: E741
            strides = (1, K) if head else (O, 1)
            n = size(w, name)
            dst, flat = self.packed[at : at + n], np.ascontiguousarray(w).reshape(-1)
            if self.kind == BF16:
                pack_bf16(dst.view(np.uint16), flat.view(np.uint32), K, O, *strides)
            else:
                scale = np.ascontiguousarray(scales[name], np.uint16)
                groups = (1, scale.shape[1]) if head else (O, 1)
                pack_int8(dst, flat, scale.reshape(-1), K, O, *strides, *groups)
            self.offsets[self._places[name]] = at
            at += n
        at = 0
        for name, w in rest.items():
            self.floats[at : at + w.size] = w.reshape(-1)
            self.offsets[self._places[name]] = at
            at += w.size


class CpuDecoder(Slots):
    """See :class:`nanoeuler.inference.decoder.Decoder`.

    A prompt in float32 goes through the batched kernels of training, which compute the same bits faster; with packed
    weights it goes through the same kernel as single tokens, MOST_ROWS at a time.
    """

    def __init__(self, weights: CpuWeights, n_slots: int, context: int) -> None:
        super().__init__(n_slots, context)
        self.weights, self.model = weights, weights.model
        self.ops, self.config = weights.ops, weights.config
        self.cache = KVCache(self.ops, self.config, n_slots, context)
        self._batched = weights.kind == FLOAT32
        self._scratch = _Scratch(self.ops, self.config, self.cache.values[0].shape[2])

    def prefill(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        self.lengths[slot] = 0
        positions = self._advance(slot, len(tokens))
        if not self._batched or len(tokens) == 1:
            return self._read([slot] * len(tokens), positions, tokens, 1)[0]
        assert self.model is not None
        places = (np.full(len(tokens), slot, np.int32), np.array(positions, np.int32))
        rows = CacheRows.make(self.ops, self.cache, *places, whole=True)
        return self.model.logits_cached(np.array([tokens], np.int32), rows, last_only=True)[0]

    def extend(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        return self._read([slot] * len(tokens), self._advance(slot, len(tokens)), tokens, len(tokens))

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return self._read(slots, [self._advance(slot, 1)[0] for slot in slots], tokens, len(tokens))

    def copy(self, src: int, dst: int) -> None:
        for keys, values in zip(self.cache.keys, self.cache.values):
            self.ops.copy_cache(keys, values, src, dst, self.lengths[src])
        self.lengths[dst] = self.lengths[src]

    def bytes_per_step(self, length: int) -> int:
        return step_bytes(self.config, length, WEIGHT_BYTES[self.weights.kind], 4)

    def _read(self, slots: Sequence[int], positions: Sequence[int], tokens: Sequence[int], n_logits: int) -> np.ndarray:
        """Logits (n_logits, V) after the last rows."""
        V, n, w = self.config.vocab_size, len(tokens), self.weights
        check_ids(tokens, V)
        places = np.array([tokens, slots, positions], np.int32)
        logits = np.empty((n_logits, -(-V // PANEL) * PANEL), np.float32)
        for at in range(0, n, MOST_ROWS):
            end = min(n, at + MOST_ROWS)
            ids, in_slots, at_positions = places[:, at:end]
            wanted = max(0, end - max(at, n - n_logits))
            done = max(0, at - (n - n_logits))
            decode(
                (w.kind, w.floats, w.packed, w.offsets), self._scratch.sizes, ids,
                (self.cache.all_keys, self.cache.all_values, in_slots, at_positions),
                self._scratch.shared, self._scratch.private, logits[done : done + wanted].reshape(-1), wanted,
                self.ops.threads,
            )  # fmt: skip
        return logits[:, :V]


class _Scratch:
    """Memory for the kernel's intermediate rows."""

    def __init__(self, ops: Any, config: GPTConfig, context: int) -> None:
        C, groups = config.n_embd, -(-4 * config.n_embd // GROUP)
        sizes = [C, config.n_head, context, config.n_layer, config.vocab_size, MOST_ROWS, groups]
        self.sizes = np.array(sizes, np.int64)

        def rows(n: int) -> np.ndarray:
            return ops.empty((MOST_ROWS * -(-n // PANEL) * PANEL,))

        self.shared = (rows(C), rows(3 * C), rows(C), rows(4 * C), rows(4 * C))
        n, t = ops.threads * MOST_ROWS, ops.threads
        self.private = (
            ops.empty((n * C,)),
            ops.empty((n * groups * GROUP,), np.int8),
            ops.empty((n * groups,)),
            ops.empty((n * groups,), np.int32),
            ops.empty((t * (context + C),)),
        )


def check_ids(tokens: Sequence[int], n_vocab: int) -> None:
    """UserError for an id outside the vocabulary, which a kernel would read memory for that is not its own."""
    if min(tokens) < 0 or max(tokens) >= n_vocab:
        bad = next(id for id in tokens if not 0 <= id < n_vocab)
        raise UserError(f"token id {bad} is outside the model's vocabulary of {n_vocab}: is this the right tokenizer?")
