"""Many sequences at once on a GPU: one token of each is one CUDA graph, and graphs follow each other without the host.

Where each row stands (its token, position and slot) lies in device memory, so a recorded step serves any sequences; a
step for up to 2, 4, 8, .. rows is recorded when it is first needed. Steps that choose write the next token there
themselves, see ``kernels/sampling.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.ops.gpu.device_sampling import RING, Sampler, cuts
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels import batch_decode as bat
from nanoeuler.ops.gpu.kernels.batch_decode import Cut
from nanoeuler.ops.gpu.kernels.spec import Launch, cdiv, power_of_2
from nanoeuler.ops.gpu.runtime.graph import Graph
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from nanoeuler.ops.gpu.decode import GpuDecoder

TOKEN, POSITION, SLOT = range(3)  # rows of ``places``
AT_ONCE = 4  # steps of a graph that chooses
QUEUED = 3  # graphs under way
NOBODY = -1  # the slot of a row that is not in use


@dataclass(frozen=True)
class Cuts:
    """How the products of a step are cut."""

    qkv: Cut
    out: Cut
    fc: Cut
    back: Cut
    head: Cut
    tile: int = 64  # positions at a time in attention
    attention_warps: int = 2
    attention_stages: int = 3
    early: bool = True  # kernels begin while the one before them ends, where the GPU can


CUTS = Cuts(Cut(32, 256, 1, 4, 3), Cut(32, 128, 3), Cut(32, 256, 1, 4, 3), Cut(64, 128, 6), Cut(64, 128, 1, 4, 3))


@dataclass
class Rows:
    """Buffers for up to ``n`` rows, and the launches that make logits of the tokens in ``places``."""

    decoder: GpuDecoder
    n: int
    cuts: Cuts = CUTS
    alone: bool = False  # one row, by the kernel for one sequence

    def __post_init__(self) -> None:
        ops, c = self.decoder.ops, self.decoder.config
        C = c.n_embd
        self.rows = R = cdiv(self.n, bat.row_block(self.n)) * bat.row_block(self.n)
        self.places = ops.zeros((3, R), "i32")
        self.x, self.h = ops.zeros((R, C), "fp32"), ops.zeros((R, C))
        self.qkv, self.attended, self.hidden = ops.zeros((R, 3 * C)), ops.zeros((R, C)), ops.zeros((R, 4 * C))
        self.shares = ops.zeros((max(self.cuts.out.splits, self.cuts.back.splits), R, C), "fp32")
        self.stride = cdiv(c.vocab_size, 64) * 64
        self.logits = ops.zeros((R, self.stride), "fp32")
        self.splits = bat.attention_splits(self.n, c.n_head, ops.target)
        width = max(16, power_of_2(C // c.n_head)) + 2
        self.parts = ops.zeros((self.n, c.n_head, self.splits, width), "fp32")
        self.tickets = ops.zeros((self.n, c.n_head), "i32")
        self.sampler = Sampler(ops, R, c.vocab_size)
        self._step: Graph | None = None
        self._draws: dict[tuple[tuple[bool, bool], int], Graph] = {}
        self._homes = [
            ops.device.pinned((AT_ONCE, R), np.int32) for _ in range(QUEUED)
        ]  # of ids on their way, in turns

    def place(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> None:
        """Say what the next step reads: a token of each row; the other rows rest."""
        if self.alone:
            self.decoder.set_state(tokens[0], positions[0], NOBODY, slots[0])
            return
        host = np.full(self.places.shape, NOBODY, np.int32)
        host[:, : len(tokens)] = [tokens, positions, slots]
        self.decoder.ops.upload(self.places, host)

    def launches(self) -> list[Launch]:
        """From ``places`` to ``logits``."""
        d, n, cuts = self.decoder, self.n, self.cuts
        if self.alone:
            return d.token_launches(self.logits[0])
        p, target = d.model.p, d.ops.target
        token, position, slot = (self.places[i] for i in (TOKEN, POSITION, SLOT))
        early = cuts.early and target.sm >= 90 and d.ops.dtype == "bf16"
        calls: list[Launch] = []

        def norm(name: str, shares: int, added: str) -> None:
            arrays = (self.x, self.h, self.shares[:shares], p[added], p[f"{name}.weight"], p[f"{name}.bias"])
            calls.extend(bat.add_norm(*arrays, n, early, target=target))

        def product(out: DeviceArray, a: DeviceArray, layer: int, name: str, cut: Cut, gelu: bool = False) -> None:
            w = p[f"h.{layer}.{name}.weight"]
            bias = None if out.ndim == 3 else p[f"h.{layer}.{name}.bias"]  # shares get theirs when they are added up
            calls.extend(bat.row_product(out, a, w, bias, gelu, False, cut, early=early, target=target))

        first = "h.0.ln_1"
        calls += bat.embed_norm(
            self.x, self.h, p["wte.weight"], p["wpe.weight"], token, position, p[f"{first}.weight"], p[f"{first}.bias"],
            n, early, target=target,
        )  # fmt: skip
        for i in range(d.config.n_layer):
            product(self.qkv, self.h, i, "attn.c_attn", cuts.qkv)
            calls += bat.cached_attention(
                self.attended, self.qkv, d.cache, self.parts, self.tickets, position, slot, i, n, self.splits,
                cuts.tile, cuts.attention_warps, cuts.attention_stages, early, target=target,
            )  # fmt: skip
            product(self.shares[: cuts.out.splits], self.attended, i, "attn.c_proj", cuts.out)
            norm(f"h.{i}.ln_2", cuts.out.splits, f"h.{i}.attn.c_proj.bias")
            product(self.hidden, self.h, i, "mlp.c_fc", cuts.fc, gelu=True)
            product(self.shares[: cuts.back.splits], self.hidden, i, "mlp.c_proj", cuts.back)
            following = f"h.{i + 1}.ln_1" if i + 1 < d.config.n_layer else "ln_f"
            norm(following, cuts.back.splits, f"h.{i}.mlp.c_proj.bias")
        calls += bat.row_product(
            self.logits,
            self.h,
            p["wte.weight"],
            w_t=True,
            cut=cuts.head,
            columns=d.config.vocab_size,
            early=early,
            target=target,
        )
        return calls

    def step(self) -> np.ndarray:
        """Logits (n, V) of the tokens in ``places``."""
        ops = self.decoder.ops
        if self._step is None:
            self._step = record(self.decoder, self.launches())
        self._step.replay()
        return ops.download(self.logits[: self.n])[:, : self.decoder.config.vocab_size]

    def drawing(self, configs: Sequence[SamplingConfig], n_valid: int) -> Graph:
        """AT_ONCE steps that choose the next tokens and leave them in ``places``, for settings like ``configs``."""
        key = cuts(configs), n_valid
        if key not in self._draws:
            state = self.decoder.state
            token, position, epoch = self.places[TOKEN], self.places[POSITION], None
            if self.alone:
                token, position, epoch = state[0:1], state[1:2], state[2:3]
            choice = self.sampler.launches(token, position, self.logits, self.n, n_valid, configs, epoch)
            self._draws[key] = record(self.decoder, (self.launches() + choice) * AT_ONCE)
        return self._draws[key]

    def draw(self, slots: Sequence[int], drawing: Graph, limit: int) -> Iterator[np.ndarray]:
        """Ids (n,) that ``drawing`` chooses, turn after turn from ``places`` on; launches run ahead of the caller."""
        d, n = self.decoder, len(slots)
        waiting: deque[Coming] = deque()
        given = taken = 0
        while taken < limit:
            while given < limit and len(waiting) < QUEUED:
                drawing.replay()
                first, home = given % RING, self._homes[given // AT_ONCE % QUEUED]
                waiting.append(Coming(d.ops, self.sampler.drawn[first : first + AT_ONCE], home))
                given += AT_ONCE
                d.epoch += AT_ONCE * self.alone
            for ids in waiting.popleft().ids()[: limit - taken, :n].copy():
                if ids.min() < 0:
                    raise UserError(
                        "the model's logits are not finite: its weights are damaged, or training diverged; "
                        "use an earlier checkpoint"
                    )
                for slot in slots:
                    d.lengths[slot] += 1
                taken += 1
                yield ids


class Coming:
    """Ids on their way to the host."""

    def __init__(self, ops: GpuOps, drawn: DeviceArray, host: np.ndarray) -> None:
        self.device, self.host = ops.device, host
        self.done = self.device.event()
        self.device.cuda.cuMemcpyDtoHAsync(self.host.ctypes.data, drawn.ptr, drawn.nbytes, self.device.stream)
        self.device.cuda.cuEventRecord(self.done, self.device.stream)

    def ids(self) -> np.ndarray:
        """They are, when they are there."""
        self.device.cuda.cuEventSynchronize(self.done)
        self.device.cuda.cuEventDestroy(self.done)
        return self.host


def record(decoder: GpuDecoder, launches: list[Launch]) -> Graph:
    """The launches as a graph, compiled beforehand."""
    ops = decoder.ops

    def run() -> None:
        for launch in launches:
            ops.runtime.launch(launch)

    with ops.planning():
        run()
    return Graph(ops.device, run)
