"""Training steps of GPT-2 on one GPU over batch sizes and sequence lengths: milliseconds, memory, what does not fit.

    python benchmarks/sweep_gpu.py                      # 124M: B=1..64 at T=1024, T=256..8192 at 16384 tokens a step
    python benchmarks/sweep_gpu.py --recompute full --out NAME

Each point is a fresh model on random tokens: some steps to warm up, then the median of single turns of several steps,
timed on the GPU. Memory is the engine's own count; the plan's figure stands beside it. A point that the plan says
cannot fit is tried all the same, and must end in one line that names the batch that would.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from importlib.metadata import version
from statistics import median

import numpy as np
from machine import describe, result_path

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.engine import open_runtime
from nanoeuler.ops.gpu.timing import peak_flops
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.plan import plan
from nanoeuler.training.step import new_stepper

BATCHES = [(B, 1024) for B in (1, 2, 4, 8, 16, 32, 64)]
LENGTHS = [(16384 // T, T) for T in (256, 512, 2048, 4096, 8192)]
TOO_LARGE = [(4096, 1024)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--recompute", default="auto")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", default="sweep_gpu")
    args = parser.parse_args()
    runtime, points = open_runtime(), []
    start = (0.02 * np.random.default_rng(0).standard_normal(200_000_000, np.float32)).astype(np.float32)
    print("    B     T   ms/step   tokens/s     MFU   peak GB   planned  largest B")
    for B, T in [*BATCHES, *LENGTHS, *TOO_LARGE]:
        config = GPTConfig.preset(args.preset, block_size=max(T, 1024))
        point = measure(config, B, T, args, start[: config.n_params])
        points.append(point)
        print(line(point), flush=True)
        gc.collect()
    record = {**describe(), "gpu": runtime.device.name, "triton": version("triton"), "preset": args.preset}
    out = result_path(args.out)
    out.write_text(
        json.dumps({**record, "recompute": args.recompute, "points": points}, indent=1) + "\n", encoding="utf-8"
    )
    print("written", out.name)


def measure(config: GPTConfig, B: int, T: int, args: argparse.Namespace, start: np.ndarray) -> dict:
    """One point: a dict with ``ms``, or with the ``error`` that it ended in."""
    runtime = open_runtime()
    table = plan(config, B, T, "gpu", recompute=args.recompute)
    program = next(row.bytes for row in table.rows if row.name == "program")
    point = {"B": B, "T": T, "planned_bytes": table.total - program, "fits": table.fits}
    point["largest_batch"] = table.largest_batch
    runtime.memory.peak = runtime.memory.live
    rng = np.random.default_rng(B * T)

    def fetch(n: int, out: tuple[np.ndarray, np.ndarray]) -> None:
        for ids in out:
            ids[...] = rng.integers(0, config.vocab_size, ids.shape, dtype=np.int32)

    try:
        begun = time.perf_counter()
        model = GPT(config, "gpu", params=start, recompute=args.recompute)
        settings = TrainConfig(device="gpu", batch_size=B, recompute=args.recompute)
        stepper = new_stepper(model, model.moments(), settings, T, fetch)
        stepper.run(1, 1e-4)
        [first] = stepper.finish()
        point |= {"seconds_until_ready": time.perf_counter() - begun, "first_loss": first.loss}
        steps = max(1, min(10, 1_000_000 // (B * T * 10)))
        numbers = iter(range(2, 10**6))

        def turn() -> None:
            for _ in range(steps):
                stepper.run(next(numbers), 1e-4)

        ms = [runtime.device.milliseconds(turn) / steps for _ in range(args.turns)]
        last = stepper.finish()[-1]
        assert first.finite and last.finite, (first, last)
    except UserError as error:
        return point | {"error": str(error)}
    per_token = 6 * config.n_params + 6 * config.n_layer * config.n_embd * T
    peak = peak_flops(runtime.device.name)
    point |= {"ms": median(ms), "ms_turns": ms, "tokens_per_s": B * T / median(ms) * 1e3, "last_loss": last.loss}
    point |= {"mfu": per_token * B * T / median(ms) / 1e-3 / peak if peak else None, "peak_bytes": runtime.memory.peak}
    return point


def line(p: dict) -> str:
    head = f"{p['B']:5} {p['T']:5}  "
    tail = f"{p['planned_bytes'] / 1e9:8.2f}  {p['largest_batch']:9}"
    if "error" in p:
        return head + "refused  " + tail + "  " + p["error"]
    return (
        f"{head}{p['ms']:8.2f}  {p['tokens_per_s']:9,.0f}  {p['mfu'] or float('nan'):6.1%}  "
        f"{p['peak_bytes'] / 1e9:8.2f}  {tail}"
    )


if __name__ == "__main__":
    main()
