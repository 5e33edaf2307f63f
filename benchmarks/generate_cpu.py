"""Writing with GPT-2 124M on a CPU, one text: ours, PyTorch and llama.cpp, alternately in one run.

    python benchmarks/generate_cpu.py [ROUNDS]     # writes benchmarks/results/generate_cpu-DATE.json

Needs PyTorch (CPU) beside NanoEuler. For llama.cpp set LLAMA_BENCH to its `llama-bench` and LLAMA_MODELS to a folder
with gpt2-f32.gguf, gpt2-bf16.gguf and gpt2-q8_0.gguf (any weights of that shape); without, it is left out. 32 tokens of
prompt, then 64 of text. llama.cpp's figure leaves the choice of the token out, ours and PyTorch's include it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe, result_path

HERE = Path(__file__).resolve().parent
TOKENS = 64
BYTES = {"float32": 4.0, "bf16": 2.0, "int8": 1 + 2 / 64}  # a weight; llama.cpp's Q8_0 takes 1 + 2/32
MATRICES = 50257 * 768 + 12 * 12 * 768 * 768
LLAMA = {"float32": "gpt2-f32.gguf", "bf16": "gpt2-bf16.gguf", "int8": "gpt2-q8_0.gguf"}


class Worker:
    def __init__(self, contestant: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "generate_cpu_worker.py"), contestant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, weights: str, tokens: int) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{weights} {tokens}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def llama(weights: str) -> dict[str, Any]:
    """Tokens in a row and the prompt, as llama-bench measures them."""
    model = Path(os.environ["LLAMA_MODELS"]) / LLAMA[weights]
    command = [os.environ["LLAMA_BENCH"], "-m", model, "-t", "2", "-p", "32", "-n", str(TOKENS), "-r", "1"]
    done = subprocess.run([*command, "--repack", "0", "-o", "json"], capture_output=True, text=True, check=True)
    tests = {test["n_gen"]: test["avg_ts"] for test in json.loads(done.stdout)}
    return {"prefill": 32 / tests[0], "seconds": [1 / tests[TOKENS]]}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    workers = {name: Worker(name) for name in ("ours", "torch")}
    turns: list[tuple[str, str]] = [("ours", w) for w in BYTES] + [("torch", w) for w in ("float32", "bf16")]
    if "LLAMA_BENCH" in os.environ:
        turns += [("llama.cpp", w) for w in BYTES]
    for name, weights in turns:  # to warm up
        if name in workers:
            workers[name].run(weights, 4)
    speeds: dict[tuple[str, str], list[float]] = {turn: [] for turn in turns}
    prefills: dict[tuple[str, str], list[float]] = {turn: [] for turn in turns}
    bandwidth = []
    from nanoeuler.ops.cpu.bandwidth import read_bandwidth

    for i in range(rounds):
        bandwidth.append(read_bandwidth(threads=2))
        for name, weights in sorted(turns, key=lambda turn: turn[1], reverse=bool(i % 2)):
            answer = llama(weights) if name == "llama.cpp" else workers[name].run(weights, TOKENS)
            speeds[name, weights].append(len(answer["seconds"]) / sum(answer["seconds"]))
            prefills[name, weights].append(1e3 * answer["prefill"])
    best = max(bandwidth)
    print(f"reading memory with two threads: {best / 1e9:.1f} GB/s at best")
    results = []
    for weights, size in BYTES.items():
        peers = {name: median(speeds[name, w]) for name, w in turns if w == weights}
        fastest = max((name for name in peers if name != "ours"), key=peers.__getitem__, default=None)
        ratio = f", {peers['ours'] / peers[fastest]:.2f} times {fastest}" if fastest else ""
        share = peers["ours"] * MATRICES * size / best
        print(f"{weights}: ours {peers['ours']:.1f} tokens/s{ratio}; {share:.0%} of the bandwidth")
        for name in peers:
            runs, first = speeds[name, weights], median(prefills[name, weights])
            print(
                f"  {name:10s} {peers[name]:6.1f} tokens/s (rounds {min(runs):.1f} to {max(runs):.1f}), "
                f"prompt of 32: {first:.0f} ms"
            )
            row = {"name": name, "weights": weights, "tokens_per_second": peers[name], "rounds": runs}
            results.append({**row, "prefill_ms": first, "prefill_ms_rounds": prefills[name, weights]})
    record = {**describe(), "read_bandwidth": best, "tokens": TOKENS, "results": results}
    out = result_path("generate_cpu")
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("written", out.name)


if __name__ == "__main__":
    main()
