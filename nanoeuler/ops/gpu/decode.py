"""Writing token by token on a GPU: a KV cache in its memory, and the loop from token to token without the host.

A sequence has a *slot* of the cache ``(slots, layers, 2, heads, context, head_dim)``: keys and values in bfloat16, a
head's positions one after the other, as attention reads them. :meth:`GpuDecoder.prefill` runs a whole prompt through
the engine's own network and keeps its keys and values; :meth:`GpuDecoder.step` and :meth:`GpuDecoder.draw` run the
kernel of ``kernels/decode.py`` for one sequence, and ``batch_decode.py`` for several.

The kernel keeps its own books in device memory (``state``: token, position, epoch), so the host can hand over launch
after launch without knowing what was chosen; ids come back through page-locked memory, some tokens late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.model.activations import Activations
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.model.parameters import Layout
from nanoeuler.ops.gpu.batch_decode import Coming, Rows
from nanoeuler.ops.gpu.decode_weights import int8_weights, own_weights, read_bytes
from nanoeuler.ops.gpu.device_sampling import can_choose
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels import decode as dec
from nanoeuler.ops.gpu.kernels import decode_prepare as prep
from nanoeuler.ops.gpu.kernels.matmul import matmul
from nanoeuler.ops.gpu.kernels.spec import Launch, power_of_2
from nanoeuler.ops.gpu.prompt import ShortPrompt, is_short
from nanoeuler.ops.gpu.runtime.graph import Graph
from nanoeuler.ops.gpu.runtime.memory import ITEM_BYTES, DeviceArray

SHORTEST = 32  # tokens of the smallest prefill graph
AT_ONCE = 8  # tokens a launch
QUEUED = 3  # launches under way
NEVER = -1  # no id ends the loop


def can_decode(config: GPTConfig) -> bool:
    """Whether the kernels can take heads of this model's size."""
    return dec.fits(config.n_embd, config.n_head)


class GpuDecoder:
    """Decodes with a model on a GPU. ``n_slots`` sequences of at most ``context`` tokens.

    ``source``: a GPT on a GPU, or an ``Int8Weights`` (``inference/quantize.py``). ``weights``: None for the source's
    own,
    or "int8". ``shape``: fields of ``kernels/decode.py``'s :class:`Shape`, for trials. ``lengths[slot]``: tokens
    whose keys and values the slot holds.
    """

    def __init__(
        self, source: Any, n_slots: int = 1, context: int | None = None, weights: str | None = None, **shape: int
    ) -> None:
        self.model, quantized = _sources(source, weights)
        assert isinstance(self.model.ops, GpuOps)
        self.ops, self.config = self.model.ops, self.model.config
        self.int8 = quantized is not None
        c = self.config
        self.n_slots, self.context = n_slots, min(context or c.block_size, c.block_size)
        self.lengths = [0] * n_slots
        programs = min(self.ops.target.multiprocessors, 256)
        self.shape = dec.Shape(
            c.n_layer, c.n_embd, c.n_head, c.vocab_size, self.context,
            **{"programs": programs, "bits": 8 if self.int8 else 8 * ITEM_BYTES[self.ops.dtype], **shape},
        )  # fmt: skip
        if quantized is None:
            self.weights = own_weights(self.model, self.shape)
        else:
            self.weights = int8_weights(self.ops, c, quantized, self.shape)
        D = c.n_embd // c.n_head
        self.cache = self.ops.zeros((n_slots, c.n_layer, 2, c.n_head, self.context, D))
        self.logits = self.ops.empty((n_slots, c.vocab_size), "fp32")
        self.state = self.ops.zeros((dec.STATE,), "i32")
        self.drawn = self.ops.zeros((self.context,), "i32")
        self.exchange = self.ops.zeros((2 * self.shape.exchange_words,), "i32")
        self.epoch = 0
        self._prefills: dict[int, _Prefill | ShortPrompt] = {}
        self._rows: dict[int, Rows] = {}
        self._homes = [self.ops.device.pinned((AT_ONCE,), np.int32) for _ in range(QUEUED + 1)]  # of ids, in turns

    # ---- reading ------------------------------------------------------------------------------------------
    def prefill(self, slot: int, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Forget what the slot held, read ``tokens`` (1 to ``context``); logits (V,) after the last."""
        ids = np.asarray(tokens, np.int32)
        self._check(ids, len(ids))
        self._prefill(len(ids)).run(slot, ids)
        self.lengths[slot] = len(ids)
        return self.ops.download(self.logits[slot])

    def prefill_graph(self, n: int) -> Graph:
        """What runs on the GPU for a prompt of ``n`` tokens."""
        return self._prefill(n).graph

    def _prefill(self, n: int) -> _Prefill | ShortPrompt:
        size = min(max(SHORTEST, 1 << (n - 1).bit_length()), self.context)
        if size not in self._prefills:
            self._prefills[size] = (ShortPrompt if is_short(size) else _Prefill)(self, size)
        return self._prefills[size]

    def extend(self, slot: int, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Read more into the slot; logits (n, V) after each."""
        return np.stack([self.step([slot], [int(token)])[0] for token in tokens])

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Read one token into each of these slots; logits (n, V)."""
        self._check(np.asarray(tokens), max(self.lengths[slot] for slot in slots) + 1)
        if len(slots) > 1:
            rows = self.rows(len(slots))
            rows.place(tokens, [self.lengths[slot] for slot in slots], slots)
            logits = rows.step()[: len(slots)]
        else:
            self.set_state(tokens[0], self.lengths[slots[0]], NEVER, slots[0])
            self.launch(slots[0], 1, choose=False)
            logits = self.ops.download(self.logits[slots[0]])[None]
        for slot in slots:
            self.lengths[slot] += 1
        return logits

    def rows(self, n: int) -> Rows:
        """What computes a step of ``n`` sequences, or of a few more."""
        size = power_of_2(n)
        if size not in self._rows:
            self._rows[size] = Rows(self, size, alone=n == 1)
        return self._rows[size]

    def copy(self, src: int, dst: int) -> None:
        """Let slot ``dst`` hold what slot ``src`` holds."""
        self.ops.memory.copy(self.cache[dst], self.cache[src])
        self.lengths[dst] = self.lengths[src]

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        assert 0 <= length <= self.lengths[slot]
        self.lengths[slot] = length

    def bytes_per_step(self, length: int) -> int:
        """The least that one more token must read: weights, and the keys and values of ``length`` tokens."""
        return read_bytes(self.config, self.int8) + 4 * self.config.n_layer * self.config.n_embd * length

    # ---- choosing on the device -----------------------------------------------------------------------------
    def draw(
        self,
        slots: Sequence[int],
        first: Sequence[int],
        configs: Sequence[SamplingConfig],
        samples: Sequence[int],
        positions: Sequence[int],
        n_valid: int,
        limit: int,
        stop_id: int | None = None,
    ) -> Iterator[np.ndarray] | None:
        """Ids (n,) chosen on the GPU, one turn after the other, at most ``limit``; None for what the host must choose.

        ``samples``, ``positions``: the keys of ``sampling.uniform`` for each slot's first id. ``stop_id`` ends a
        single greedy sequence; others end when the caller stops asking.
        """
        if not can_choose(configs):
            return None
        if len(slots) == 1 and configs[0].temperature == 0:
            stop = NEVER if stop_id is None else stop_id
            return (np.array([id], np.int32) for id in self.greedy(slots[0], first[0], limit, n_valid, stop))
        lengths = [self.lengths[slot] for slot in slots]
        rows = self.rows(len(slots))
        rows.place(first, lengths, slots)
        rows.sampler.set(configs, samples, positions)
        return rows.draw(slots, rows.drawing(configs, n_valid), min(limit, self.context - max(lengths)))

    def greedy(self, slot: int, first: int, limit: int, n_valid: int, stop: int = NEVER) -> Iterator[int]:
        """Read ``first`` into the slot and yield the most probable next id, then read that, up to ``limit`` times.

        Ends after ``stop``. Launches are queued ahead of what the caller has taken; ``lengths`` counts what it took.
        """
        begin = self.lengths[slot]
        limit = min(limit, self.context - begin)
        self.set_state(first, begin, stop, slot)
        waiting: deque[Coming] = deque()
        given = launches = 0
        while True:
            while given < limit and len(waiting) < QUEUED:
                n = min(AT_ONCE, limit - given)
                self.launch(slot, n, choose=True, n_valid=n_valid)
                home = self._homes[launches % len(self._homes)][:n]
                waiting.append(Coming(self.ops, self.drawn[begin + given : begin + given + n], home))
                given, launches = given + n, launches + 1
            if not waiting:
                return
            for id in waiting.popleft().ids():
                self.lengths[slot] += 1
                yield int(id)
                if id == stop:
                    return

    # ---- launches -------------------------------------------------------------------------------------------
    def _check(self, ids: np.ndarray, length: int) -> None:
        if ids.size == 0 or length > self.context:
            raise UserError(f"{length} tokens do not fit into a context of {self.context}: shorten the input")
        V = self.config.vocab_size
        if int(ids.min()) < 0 or int(ids.max()) >= V:
            bad = int(ids.max()) if int(ids.max()) >= V else int(ids.min())
            raise UserError(f"token id {bad} is outside the model's vocabulary of {V}: is this the right tokenizer?")

    def set_state(self, token: int, pos: int, stop: int, slot: int) -> None:
        """Where the next launch begins: it reads ``token`` into ``slot`` as position ``pos``."""
        for i, value in enumerate((token, pos, self.epoch, stop, slot)):
            self.ops.memory.put(self.state[i : i + 1], value)

    def launch(self, slot: int, tokens: int, choose: bool, n_valid: int | None = None) -> None:
        """One run of the kernel, for up to ``tokens`` tokens from the state on; logits of the last are in
        ``logits[slot]``."""
        for launch in self.token_launches(self.logits[slot], tokens, choose, n_valid):
            self.ops.runtime.launch(launch)
        self.epoch += tokens

    def token_launches(
        self, logits: DeviceArray, tokens: int = 1, choose: bool = False, n_valid: int | None = None
    ) -> list[Launch]:
        """What :meth:`launch` runs: from the state on, logits (V,) of the last token."""
        arrays = (self.state, self.drawn, logits, self.cache, self.exchange)
        valid = n_valid or self.config.vocab_size
        return dec.decode(self.shape, self.weights, *arrays, tokens, choose, valid, target=self.ops.target)


class _Prefill:
    """A prompt of up to ``size`` tokens through the whole network, as one graph. Shorter ones are padded at the end,
    which no earlier position sees; only the last token's logits are computed."""

    def __init__(self, decoder: GpuDecoder, size: int) -> None:
        self.decoder, self.size = decoder, size
        ops, model, c = decoder.ops, decoder.model, decoder.config
        self.acts = Activations(ops, c, 1, size, training=False)
        self.qkv = ops.empty((c.n_layer, size, 3 * c.n_embd))  # of each layer: they go into the cache together
        self.acts.layers = [replace(a, qkv=self.qkv[i : i + 1]) for i, a in enumerate(self.acts.layers)]
        self.place = ops.zeros((2,), "i32")  # slot, last row
        self.row = ops.empty((1, c.n_embd))
        self.out = ops.empty((1, c.vocab_size), "fp32")

        def record() -> None:
            model.forward(self.acts)
            launches = prep.keep(decoder.cache, self.qkv, self.place[0:1], target=ops.target)
            launches += prep.row(self.row, self.acts.lnf, self.place[1:2], target=ops.target)
            launches += matmul(self.out, self.row, model.p["wte.weight"], b_t=True, target=ops.target)
            for launch in launches:
                ops.runtime.launch(launch)

        with ops.planning():
            record()
        ops.keep_scratch()
        self.graph = Graph(ops.device, record)

    def run(self, slot: int, ids: np.ndarray) -> None:
        ops = self.decoder.ops
        padded = np.zeros((1, self.size), np.int32)
        padded[0, : len(ids)] = ids
        ops.upload(self.acts.idx, padded)
        ops.memory.put(self.place[0:1], slot)
        ops.memory.put(self.place[1:2], len(ids) - 1)
        self.graph.replay()
        ops.memory.copy(self.decoder.logits[slot], self.out.reshape(-1))


def _sources(source: Any, weights: str | None) -> tuple[GPT, Any]:
    """(the model that reads prompts, int8 weights or None)."""
    if isinstance(source, GPT):
        if weights != "int8":
            return source, None
        from nanoeuler.inference.quantize import quantize

        source = quantize(source.config, source.state_dict())
    layout = Layout(source.config)
    flat = np.empty(layout.n_params, np.float32)
    views = layout.views(flat)
    for name, values in source.state():
        views[name][...] = values
    return GPT(source.config, device="gpu", params=flat), source
