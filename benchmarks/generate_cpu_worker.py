"""One contestant of ``generate_cpu.py``: reads "WEIGHTS TOKENS" lines, writes that many tokens, answers in JSON.

    python generate_cpu_worker.py ours|torch

GPT-2 124M with random weights; 32 tokens of prompt; the most probable token each time, chosen on the host.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

PROMPT = list(range(100, 132))


def ours() -> Callable[[str, int], tuple[float, list[float]]]:
    from nanoeuler.inference.decoder import open_decoder
    from nanoeuler.model.config import GPTConfig
    from nanoeuler.model.gpt import GPT

    model, decoders = GPT(GPTConfig()), {}

    def write(weights: str, n: int) -> tuple[float, list[float]]:
        if weights not in decoders:
            decoders[weights] = open_decoder(model, 1, 256, weights)
        decoder, seconds, begun = decoders[weights], [], time.perf_counter()
        token = int(decoder.prefill(0, PROMPT).argmax())
        first = time.perf_counter() - begun
        for _ in range(n):
            begun = time.perf_counter()
            token = int(decoder.step([0], [token])[0].argmax())
            seconds.append(time.perf_counter() - begun)
        return first, seconds

    return write


def torch_peer() -> Callable[[str, int], tuple[float, list[float]]]:
    import torch
    import torch.nn.functional as F
    from torch_gpt import TorchGPT

    torch.set_grad_enabled(False)
    models: dict[str, TorchGPT] = {}

    def forward(model: TorchGPT, idx: torch.Tensor, cache: torch.Tensor, at: int) -> int:
        """As its users write it: preallocated keys and values, the past as a view of them."""
        T = idx.shape[1]
        x = model.wte(idx) + model.wpe.weight[at : at + T]
        for block, kv in zip(model.blocks, cache):
            q, k, v = (
                y.view(1, T, block.n_head, -1).transpose(1, 2) for y in block.c_attn(block.ln_1(x)).split(x.shape[2], 2)
            )
            kv[0, :, :, at : at + T], kv[1, :, :, at : at + T] = k, v
            y = F.scaled_dot_product_attention(q, kv[0, :, :, : at + T], kv[1, :, :, : at + T], is_causal=T > 1)
            x = x + block.attn_proj(y.transpose(1, 2).reshape(1, T, -1))
            x = x + block.mlp_proj(block.gelu(block.c_fc(block.ln_2(x))))
        return int(model.lm_head(model.ln_f(x[:, -1])).argmax())

    def write(weights: str, n: int) -> tuple[float, list[float]]:
        dtype = {"float32": torch.float32, "bf16": torch.bfloat16}[weights]
        if weights not in models:
            models[weights] = TorchGPT(50257, 1024, 12, 12, 768).to(dtype).eval()
        model, cache = models[weights], torch.zeros(12, 2, 1, 12, 256, 64, dtype=dtype)
        begun, seconds = time.perf_counter(), []
        token = forward(model, torch.tensor([PROMPT]), cache, 0)
        first = time.perf_counter() - begun
        for i in range(n):
            begun = time.perf_counter()
            token = forward(model, torch.tensor([[token]]), cache, len(PROMPT) + i)
            seconds.append(time.perf_counter() - begun)
        return first, seconds

    return write


def main() -> None:
    write = ours() if sys.argv[1] == "ours" else torch_peer()
    for line in sys.stdin:
        weights, n = line.split()
        first, seconds = write(weights, int(n))
        print(json.dumps({"prefill": first, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
