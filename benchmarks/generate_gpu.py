"""A token on one GPU, ours and PyTorch's, alternately in one run; and the time of a prompt.

    python benchmarks/generate_gpu.py                # GPT-2 124M, bfloat16, torch.compile in a CUDA graph beside it
    python benchmarks/generate_gpu.py --peers none   # only ours
    python benchmarks/generate_gpu.py --batch 64     # and many texts at once

Batch 1, greedy, random weights: ours eight tokens a launch, PyTorch one graph of the compiled model a token.
``PyTorch's`` cache is preallocated and its attention masked to the positions there are. Before what is timed the GPU
gets as much again to do, as when a text is written: then the time holds no waiting for the host.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from statistics import median
from typing import Any

import numpy as np
from batch_gpu import many
from machine import describe, result_path

from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.decode import AT_ONCE, NEVER, GpuDecoder
from nanoeuler.ops.gpu.runtime.driver import open_device

POSITIONS = (64, 1000)
PROMPTS = (32, 128, 512, 1024)


class Ours:
    """NanoEuler's decoder."""

    def __init__(self, config: GPTConfig, weights: str | None) -> None:
        self.decoder = GpuDecoder(GPT(config, device="gpu"), weights=weights)
        self.ids = np.random.default_rng(0).integers(0, config.vocab_size, 1024).astype(np.int32)

    def token_us(self, position: int) -> float:
        """Microseconds a token, over eight from ``position`` on."""
        d = self.decoder
        d.set_state(11, position - AT_ONCE, NEVER, 0)
        d.launch(0, AT_ONCE, choose=True)
        return 1e3 * d.ops.device.milliseconds(lambda: d.launch(0, AT_ONCE, choose=True)) / AT_ONCE

    def prefill_us(self, n: int) -> float:
        """Microseconds of a prompt of ``n`` tokens on the GPU."""
        self.decoder.prefill(0, self.ids[:n])
        graph = self.decoder.prefill_graph(n)
        return 1e3 * self.decoder.ops.device.milliseconds(graph.replay)


class Torch:
    """GPT-2 in PyTorch, compiled, in a CUDA graph."""

    def __init__(self, config: GPTConfig, positions: tuple[int, ...]) -> None:
        import torch
        from torch_decode import DecodeGPT

        self.torch, self.graphs = torch, {}
        model = DecodeGPT(config).cuda().bfloat16().eval()
        run = torch.compile(model, fullgraph=True)
        idx = torch.randint(0, config.vocab_size, (1, 1), device="cuda")
        with torch.no_grad():
            for position in positions:
                pos = torch.tensor([position], device="cuda")
                for _ in range(3):
                    run(idx, pos)
                torch.cuda.synchronize()
                self.graphs[position] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[position]):
                    run(idx, pos)

    def token_us(self, position: int) -> float:
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(8):
            self.graphs[position].replay()
        begin.record()
        for _ in range(8):
            self.graphs[position].replay()
        end.record()
        torch.cuda.synchronize()
        return 1e3 * begin.elapsed_time(end) / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--peers", choices=("compile", "none"), default="compile")
    parser.add_argument("--weights", default="bf16", help="bf16, int8, or both: bf16,int8")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--batch", type=int, default=0, help="measure this many texts at once, too")
    args = parser.parse_args()
    config = GPTConfig.preset(args.preset)
    kinds = args.weights.split(",")
    contestants: dict[str, Any] = {f"ours {k}": Ours(config, None if k == "bf16" else k) for k in kinds}
    if args.peers == "compile":
        contestants["torch.compile in a CUDA graph"] = Torch(config, POSITIONS)
    times: dict[str, dict[int, list[float]]] = {name: {p: [] for p in POSITIONS} for name in contestants}
    for position in POSITIONS:
        for turn in range(args.rounds + 10):  # ten to warm up
            for name, contestant in contestants.items():
                us = contestant.token_us(position)
                if turn >= 10:
                    times[name][position].append(us)
    results: dict[str, Any] = {}
    for name in contestants:
        results[name] = {f"us_a_token_at_{p}": median(times[name][p]) for p in POSITIONS}
        print(name, ", ".join(f"position {p}: {median(times[name][p]):.1f} us" for p in POSITIONS))
    ours = contestants[f"ours {kinds[0]}"]
    results["prefill"] = {str(n): median(ours.prefill_us(n) for _ in range(20)) for n in PROMPTS}
    print("prefill", ", ".join(f"{n} tokens: {us:.0f} us" for n, us in results["prefill"].items()))
    if args.batch:
        del contestants, ours.decoder
        results["batch"] = many(GpuDecoder(GPT(config, device="gpu"), args.batch), args.batch)
    record = {**describe(), "gpu": open_device().name, "triton": version("triton")}
    if args.peers == "compile":
        record["torch"] = version("torch")
    record |= {"config": config.to_dict(), "results": results}
    out = result_path(f"generate_gpu-{args.preset}")
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("written", out.name)


if __name__ == "__main__":
    main()
