"""The peer in decoding: GPT-2 in PyTorch with a preallocated KV cache, one token at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_gpt import TorchGPT

from nanoeuler.model.config import GPTConfig


class DecodeGPT(nn.Module):
    """Logits (1, 1, V) of the token after ``idx`` (1, 1) at position ``pos`` (1,)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        c = config
        self.gpt = TorchGPT(c.vocab_size, c.block_size, c.n_layer, c.n_head, c.n_embd)
        shape = (c.n_layer, 2, 1, c.n_head, c.block_size, c.n_embd // c.n_head)
        self.register_buffer("cache", torch.zeros(shape))
        self.register_buffer("places", torch.arange(c.block_size))

    def forward(self, idx: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        gpt = self.gpt
        mask = (self.places <= pos)[None, None, None]
        x = gpt.wte(idx) + gpt.wpe(pos)
        for i, block in enumerate(gpt.blocks):
            split = block.c_attn(block.ln_1(x)).chunk(3, -1)
            q, k, v = (y.view(1, 1, block.n_head, -1).transpose(1, 2) for y in split)
            keys, values = self.cache[i, 0], self.cache[i, 1]
            keys.index_copy_(2, pos, k)
            values.index_copy_(2, pos, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = x + block.attn_proj(y.transpose(1, 2).reshape(1, 1, -1))
            x = x + block.mlp_proj(block.gelu(block.c_fc(block.ln_2(x))))
        return gpt.lm_head(gpt.ln_f(x))
