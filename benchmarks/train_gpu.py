"""A training step on one GPU, ours and PyTorch's, alternately in one run. The ratio comes first.

    python benchmarks/train_gpu.py                              # GPT-2 124M, B=16, T=1024; torch.compile and eager
    python benchmarks/train_gpu.py --preset gpt2-medium --batch-size 8 --peers compile
    python benchmarks/train_gpu.py --peers none --profile       # only ours, with the time of each kernel

Forward, backward, clipping to 1 and AdamW in bfloat16 with float32 master weights, on random tokens. A round is one
turn of each contestant; a turn is some steps, timed on the GPU from the first to the last. Peak memory is what each
allocated (ours: the engine's own count; PyTorch's: ``max_memory_allocated``), without what CUDA itself takes.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from statistics import median

import numpy as np
from machine import describe, result_path

from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.engine import open_runtime
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.step import new_stepper

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312}  # dense bf16, by the maker's data sheets


class Ours:
    """NanoEuler's recorded step."""

    def __init__(self, config: GPTConfig, B: int, T: int) -> None:
        rng = np.random.default_rng(0)
        batches = rng.integers(0, config.vocab_size, (8, 2, B, T), dtype=np.int32)

        def fetch(n: int, out: tuple[np.ndarray, np.ndarray]) -> None:
            out[0][...], out[1][...] = batches[n % 8]

        begun = time.perf_counter()
        self.model = GPT(config, device="gpu")
        settings = TrainConfig(device="gpu", batch_size=B, weight_decay=0.1, grad_clip=1.0, beta2=0.95)
        self.stepper = new_stepper(self.model, self.model.moments(), settings, T, fetch)
        self.step, self.losses = 0, []
        self.turn(1)
        self.ready_s = time.perf_counter() - begun

    def turn(self, steps: int) -> float:
        """Milliseconds a step."""
        runtime = open_runtime()

        def run() -> None:
            for _ in range(steps):
                self.step += 1
                self.losses += [d.loss for d in self.stepper.run(self.step, 6e-4)]

        total = runtime.device.milliseconds(run)
        self.losses += [d.loss for d in self.stepper.finish()]
        return total / steps

    def peak_bytes(self) -> int:
        return open_runtime().memory.peak


class Torch:
    """GPT-2 in PyTorch at its best known here: autocast to bfloat16, flash attention, a vocabulary padded to a multiple
    of 64, fused AdamW; compiled or not."""

    def __init__(self, config: GPTConfig, B: int, T: int, compiled: bool) -> None:
        import torch
        from torch_gpt import TorchGPT, optimizer

        begun, self.torch, self.before = time.perf_counter(), torch, torch.cuda.memory_allocated()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        padded = -(-config.vocab_size // 64) * 64
        model = TorchGPT(padded, config.block_size, config.n_layer, config.n_head, config.n_embd).cuda()
        opt = optimizer(model, 6e-4, (0.9, 0.95), 0.1)
        forward = torch.compile(model) if compiled else model
        x, y = torch.randint(0, config.vocab_size, (2, B, T), device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = forward(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)

        self.run_step = step
        self.turn(3)
        self.ready_s = time.perf_counter() - begun
        torch.cuda.reset_peak_memory_stats()
        self.turn(1)
        self._peak = torch.cuda.max_memory_allocated() - self.before

    def turn(self, steps: int) -> float:
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            self.run_step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / steps

    def peak_bytes(self) -> int:
        return self._peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--peers", default="compile,eager", help="compile, eager, both or none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    parser.add_argument("--profile", action="store_true", help="also print the time of each of our kernels")
    args = parser.parse_args()
    B, T = args.batch_size, args.seq_len
    config = GPTConfig.preset(args.preset, block_size=max(T, 1024))
    contestants: dict[str, Ours | Torch] = {"ours": Ours(config, B, T)}
    for peer in args.peers.split(","):
        if peer != "none":
            contestants[f"torch {peer}"] = Torch(config, B, T, peer == "compile")
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for i in range(args.rounds):
        for name in (*names[i % len(names) :], *names[: i % len(names)]):
            rounds[name].append(contestants[name].turn(args.steps))
    report(config, args, contestants, rounds)


def report(config: GPTConfig, args: argparse.Namespace, contestants: dict, rounds: dict[str, list[float]]) -> None:
    B, T, device = args.batch_size, args.seq_len, open_runtime().device
    ms = {name: median(values) for name, values in rounds.items()}
    per_token = 6 * config.n_params + 6 * config.n_layer * config.n_embd * T
    peak = next((tflops for gpu, tflops in PEAK_TFLOPS.items() if gpu in device.name), None)
    print(f"{args.preset} B={B} T={T} on {device.name}")
    for name in contestants:
        if name != "ours":
            print(f"times as fast as {name}: {ms[name] / ms['ours']:.2f}")
    results = {}
    for name, contestant in contestants.items():
        mfu = per_token * B * T / (ms[name] * 1e-3) / (peak * 1e12) if peak else None
        results[name] = {
            "ms_per_step": ms[name],
            "ms_per_step_rounds": rounds[name],
            "tokens_per_s": B * T / ms[name] * 1e3,
            "mfu": mfu,
            "peak_bytes": contestant.peak_bytes(),
            "seconds_until_ready": contestant.ready_s,
        }
        print(
            f"  {name:14s} {ms[name]:7.2f} ms/step (rounds {min(rounds[name]):.2f} to {max(rounds[name]):.2f})"
            f"  {B * T / ms[name] * 1e3:9,.0f} tokens/s  MFU {mfu or float('nan'):.3f}"
            f"  peak {contestant.peak_bytes() / 1e9:.2f} GB  ready after {contestant.ready_s:.1f} s"
        )
    ours = contestants["ours"]
    losses = ours.losses[:3] + ours.losses[-1:]
    print("  losses of ours: " + ", ".join(f"{loss:.4f}" for loss in losses))
    kernels = []
    if args.profile:
        kernels = [k._asdict() for k in ours.stepper.profile()]
        total = sum(k["milliseconds"] for k in kernels)
        print(f"  {'kernel':28s} launches      ms   share   (sum {total:.2f} ms)")
        for k in kernels:
            print(f"  {k['name']:28s} {k['launches']:8d} {k['milliseconds']:7.3f}  {k['milliseconds'] / total:6.1%}")
    record = {**describe(), "gpu": device.name, "triton": version("triton")}
    if len(contestants) > 1:
        record["torch"] = version("torch")
    record |= {"config": config.to_dict(), "batch_size": B, "seq_len": T, "flops_per_token": per_token}
    record |= {"bf16_peak_tflops": peak, "results": results, "kernels": kernels}
    out = result_path(f"train_gpu-{args.preset}-{B}x{T}")
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("written", out.name)


if __name__ == "__main__":
    main()
