"""Reading a short prompt: the engine's own kernels are made for thousands of rows, and leave most of the GPU idle here.

A product's tiles of 128 x 256 are 9 for 128 rows and 2304 columns, each with all of K to go through: so a prompt of 32
tokens took as long as one of 1024, 1.0 ms (GPT-2 124M on an H200). The products of ``kernels/batch_decode.py`` cut
columns finer, and K as well: 0.34 ms for 32 tokens, 0.43 for 128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.ops.gpu.kernels import attention as att
from nanoeuler.ops.gpu.kernels import batch_decode as bat
from nanoeuler.ops.gpu.kernels import decode_prepare as prep
from nanoeuler.ops.gpu.kernels.batch_decode import Cut
from nanoeuler.ops.gpu.kernels.spec import Launch, cdiv

if TYPE_CHECKING:
    from nanoeuler.ops.gpu.decode import GpuDecoder

LONGEST = 128  # tokens
WIDE, OUT, BACK, HEAD = Cut(32, 128, 1, 4, 3), Cut(32, 128, 3, 4, 3), Cut(32, 128, 6, 4, 3), Cut(64, 128, 1, 4, 3)


def is_short(size: int) -> bool:
    """Whether :class:`ShortPrompt` reads prompts padded to ``size`` tokens."""
    return size <= LONGEST and size % bat.row_block(size) == 0


class ShortPrompt:
    """A prompt of up to ``size`` tokens as one graph. Shorter ones are padded at the end, which no earlier position
    sees; only the last token's logits are computed."""

    def __init__(self, decoder: GpuDecoder, size: int) -> None:
        from nanoeuler.ops.gpu.batch_decode import record

        self.decoder, self.size = decoder, size
        ops, c = decoder.ops, decoder.config
        C = c.n_embd
        self.idx, self.positions = ops.zeros((size,), "i32"), ops.empty((size,), "i32")
        ops.upload(self.positions, np.arange(size, dtype=np.int32))
        self.place = ops.zeros((2,), "i32")  # slot, last row
        self.x, self.h = ops.empty((size, C), "fp32"), ops.empty((size, C))
        self.qkv, self.attended, self.hidden = (
            ops.empty((c.n_layer, size, 3 * C)),
            ops.empty((size, C)),
            ops.empty((size, 4 * C)),
        )
        self.shares = ops.empty((max(OUT.splits, BACK.splits), size, C), "fp32")
        self.lse = ops.empty((1, c.n_head, size), "fp32")
        self.row, self.out = ops.zeros((16, C)), ops.empty((16, cdiv(c.vocab_size, 64) * 64), "fp32")
        self.graph = record(decoder, self.launches())

    def launches(self) -> list[Launch]:
        """From ``idx`` and ``place`` to the cache and the first row of ``out``."""
        d, size, c = self.decoder, self.size, self.decoder.config
        p, target = d.model.p, d.ops.target

        def norm(name: str, splits: int, added: str) -> list[Launch]:
            arrays = (self.x, self.h, self.shares[:splits], p[added], p[f"{name}.weight"], p[f"{name}.bias"])
            return bat.add_norm(*arrays, size, target=target)

        first = (p["h.0.ln_1.weight"], p["h.0.ln_1.bias"])
        tables = (p["wte.weight"], p["wpe.weight"])
        calls = bat.embed_norm(self.x, self.h, *tables, self.idx, self.positions, *first, size, target=target)
        for i in range(c.n_layer):
            b, qkv = f"h.{i}", self.qkv[i]
            bias = p[f"{b}.attn.c_attn.bias"]
            calls += bat.row_product(qkv, self.h, p[f"{b}.attn.c_attn.weight"], bias, cut=WIDE, target=target)
            shape = (1, size, c.n_embd)
            calls += att.attention(
                self.attended.reshape(shape), self.lse, qkv.reshape(1, size, -1), c.n_head, 0.0, None, target=target
            )
            shares = self.shares[: OUT.splits]
            calls += bat.row_product(shares, self.attended, p[f"{b}.attn.c_proj.weight"], cut=OUT, target=target)
            calls += norm(f"{b}.ln_2", OUT.splits, f"{b}.attn.c_proj.bias")
            bias = p[f"{b}.mlp.c_fc.bias"]
            calls += bat.row_product(
                self.hidden, self.h, p[f"{b}.mlp.c_fc.weight"], bias, True, cut=WIDE, target=target
            )
            shares = self.shares[: BACK.splits]
            calls += bat.row_product(shares, self.hidden, p[f"{b}.mlp.c_proj.weight"], cut=BACK, target=target)
            following = f"h.{i + 1}.ln_1" if i + 1 < c.n_layer else "ln_f"
            calls += norm(following, BACK.splits, f"{b}.mlp.c_proj.bias")
        calls += prep.keep(d.cache, self.qkv, self.place[0:1], target=target)
        calls += prep.row(self.row[0:1], self.h, self.place[1:2], target=target)
        columns = c.vocab_size
        return calls + bat.row_product(
            self.out, self.row, p["wte.weight"], None, False, True, HEAD, columns, target=target
        )

    def run(self, slot: int, ids: np.ndarray) -> None:
        """Read ``ids`` into the slot; logits into the decoder's."""
        ops = self.decoder.ops
        padded = np.zeros(self.size, np.int32)
        padded[: len(ids)] = ids
        ops.upload(self.idx, padded)
        ops.memory.put(self.place[0:1], slot)
        ops.memory.put(self.place[1:2], len(ids) - 1)
        self.graph.replay()
        ops.memory.copy(self.decoder.logits[slot], self.out[0, : self.decoder.config.vocab_size])
