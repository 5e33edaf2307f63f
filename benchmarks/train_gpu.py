"""A training step on one GPU, ours and PyTorch's, alternately in one run. The ratio comes first.

    python benchmarks/train_gpu.py                              # GPT-2 124M, B=16, T=1024; torch.compile and eager
    python benchmarks/train_gpu.py --preset gpt2-xl --batch-size 8 --peers blocks --steps 6
    python benchmarks/train_gpu.py --peers none --profile       # only ours, with the time of each kernel

Forward, backward, clipping to 1 and AdamW in bfloat16 with float32 master weights, on random tokens. Each contestant
has a process of its own (``train_gpu_worker.py``). A round is one turn of each; a turn is some steps, timed on the GPU
from the first to the last. Peak memory is what each allocated (ours: the engine's own count; PyTorch's:
``max_memory_allocated``), without what CUDA itself takes. The peer ``blocks`` is ``torch.compile`` block by block.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe, result_path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.gpu.timing import peak_flops


class Worker:
    """A contestant's process. What takes it longer than ``timeout`` seconds, or ends it, ends its part of the run."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        script = Path(__file__).resolve().parent / "train_gpu_worker.py"
        what = [name, args.preset, str(args.batch_size), str(args.seq_len)]
        self.name, self.timeout, self.failed = name, args.timeout, ""
        self.process = subprocess.Popen(
            [sys.executable, str(script), *what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries print, too
                self.answers.put(line)
        self.answers.put(None)

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """The answer to the last line told; None if there is none, and then ``failed`` says why."""
        try:
            line = self.answers.get(timeout=self.timeout)
        except queue.Empty:
            self.failed = f"no answer in {self.timeout} s"
            self.process.kill()
            return None
        if line is None:
            self.failed = f"ended with code {self.process.wait()}"
            return None
        return json.loads(line)

    def ask(self, line: str) -> dict[str, Any] | None:
        self.tell(line)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--peers", default="compile,eager", help="some of compile, blocks and eager; or none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    parser.add_argument("--profile", action="store_true", help="also print the time of each of our kernels")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer of a contestant")
    args = parser.parse_args()
    names = ["ours", *(f"torch {peer}" for peer in args.peers.split(",") if peer != "none")]
    workers = {name: Worker(name, args) for name in names}
    for worker in workers.values():  # side by side: much of it is compiling, on the host
        worker.tell("prepare")
    facts = {name: worker.answer() for name, worker in workers.items()}
    rounds: dict[str, list[float]] = {name: [] for name in names}
    losses: list[float] = []
    for i in range(args.rounds):
        for name in (*names[i % len(names) :], *names[: i % len(names)]):
            if not workers[name].failed and (answer := workers[name].ask(str(args.steps))):
                rounds[name].append(answer["ms"])
                losses = answer["losses"] if name == "ours" else losses
    profile = workers["ours"].ask("profile") if args.profile and not workers["ours"].failed else None
    for worker in workers.values():
        worker.close()
    for name, worker in workers.items():
        if worker.failed:
            print(f"{name}: {worker.failed}")
    done = {name: facts[name] for name in names if facts[name] and rounds[name]}
    if "ours" not in done:
        sys.exit("no result")
    report(args, done, rounds, losses, profile["kernels"] if profile else [])


def report(
    args: argparse.Namespace, facts: dict[str, Any], rounds: dict[str, list[float]], losses: list[float], kernels: list
) -> None:
    config, B, T = GPTConfig.preset(args.preset, block_size=max(args.seq_len, 1024)), args.batch_size, args.seq_len
    ms, gpu = {name: median(rounds[name]) for name in facts}, facts["ours"]["gpu"]
    per_token = 6 * config.n_params + 6 * config.n_layer * config.n_embd * T
    peak = peak_flops(gpu)
    print(f"{args.preset} B={B} T={T} on {gpu}")
    results = {}
    for name, fact in facts.items():
        mfu = per_token * B * T / (ms[name] * 1e-3) / peak if peak else None
        results[name] = {
            "ms_per_step": ms[name],
            "ms_per_step_rounds": rounds[name],
            "tokens_per_s": B * T / ms[name] * 1e3,
            "mfu": mfu,
            "peak_bytes": fact["peak_bytes"],
            "seconds_until_ready": fact["ready_s"],
        }
        if "compiled_graphs" in fact:
            results[name]["compiled_graphs"] = fact["compiled_graphs"]
        if name != "ours":
            print(f"times as fast as {name}: {ms[name] / ms['ours']:.2f}")
    for name, r in results.items():
        print(
            f"  {name:14s} {ms[name]:7.2f} ms/step (rounds {min(rounds[name]):.2f} to {max(rounds[name]):.2f})"
            f"  {r['tokens_per_s']:9,.0f} tokens/s  MFU {r['mfu'] or float('nan'):.3f}"
            f"  peak {r['peak_bytes'] / 1e9:.2f} GB  ready after {r['seconds_until_ready']:.1f} s"
        )
    print("  losses of ours: " + ", ".join(f"{loss:.4f}" for loss in losses[:3] + losses[-1:]))
    if kernels:
        total = sum(k["milliseconds"] for k in kernels)
        print(f"  {'kernel':44s} launches      ms   share   (sum {total:.2f} ms)")
        for k in kernels:
            print(f"  {k['name']:44s} {k['launches']:8d} {k['milliseconds']:7.3f}  {k['milliseconds'] / total:6.1%}")
    record = {**describe(), "gpu": gpu, "triton": version("triton")}
    if len(facts) > 1:
        record["torch"] = version("torch")
    record |= {"config": config.to_dict(), "batch_size": B, "seq_len": T, "flops_per_token": per_token}
    record |= {"bf16_peak_tflops": peak and peak / 1e12, "results": results, "kernels": kernels}
    out = result_path(f"train_gpu-{args.preset}-{B}x{T}")
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("written", out.name)


if __name__ == "__main__":
    main()
