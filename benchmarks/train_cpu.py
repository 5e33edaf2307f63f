"""A training step on the CPU, ours and PyTorch's, alternately in one run. The ratio comes first.

    python benchmarks/train_cpu.py            # both workloads, writes benchmarks/results/train_cpu-DATE.json
    python benchmarks/train_cpu.py char       # nanoGPT's README run for a CPU
    python benchmarks/train_cpu.py gpt2       # GPT-2 124M, B=4, T=64

Needs PyTorch (CPU) beside NanoEuler and, for ``torch.compile``, a C++ compiler. Each contestant has a process of its
own and sleeps while another runs. A round is one turn of each; the order changes from round to round.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

from machine import describe, result_path

HERE = Path(__file__).resolve().parent
CONTESTANTS = {
    # nanoGPT as it stands (AdamW is not fused on a CPU), and PyTorch at its best
    "char": ("ours", "torch eager", "torch compiled", "torch eager fused", "torch compiled fused"),
    "gpt2": ("ours", "torch eager fused", "torch compiled fused"),
}
ROUNDS, STEPS, WARMUP = 7, {"char": 60, "gpt2": 4}, {"char": 20, "gpt2": 2}


class Worker:
    def __init__(self, contestant: str, workload: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "train_cpu_worker.py"), contestant, workload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, steps: int) -> dict:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(workload: str) -> dict:
    contestants, workers = CONTESTANTS[workload], {}
    for name in contestants:
        workers[name] = Worker(name, workload)
        workers[name].run(WARMUP[workload])
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    peaks: dict[str, int] = {}
    for i in range(ROUNDS):
        for name in (*contestants[i % 3 :], *contestants[: i % 3]):
            answer = workers[name].run(STEPS[workload])
            rounds[name].append(1e3 * median(answer["seconds"]))
            peaks[name] = answer["peak_bytes"]
    for worker in workers.values():
        worker.close()
    ms = {name: median(values) for name, values in rounds.items()}
    ratios = {name: ms[name] / ms["ours"] for name in contestants if name != "ours"}
    return {
        "workload": workload,
        "ratios": ratios,
        "ms_per_step": ms,
        "ms_per_step_rounds": rounds,
        "peak_bytes": peaks,
    }


def main() -> None:
    workloads = sys.argv[1:] or ["char", "gpt2"]
    results = []
    for workload in workloads:
        r = measure(workload)
        results.append(r)
        print(f"{workload}: times as fast as each peer: " + ", ".join(f"{v:.2f} {k}" for k, v in r["ratios"].items()))
        for name in CONTESTANTS[workload]:
            spread = r["ms_per_step_rounds"][name]
            print(
                f"  {name:22s} {r['ms_per_step'][name]:8.1f} ms/step  (rounds {min(spread):.1f} to {max(spread):.1f})"
                f"  peak {r['peak_bytes'][name] / 1e6:6.0f} MB",
                flush=True,
            )
    out = result_path("train_cpu")
    record = {**describe(), "torch": version("torch"), "results": results}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("written", out.name)


if __name__ == "__main__":
    main()
