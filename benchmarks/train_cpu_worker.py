"""One contestant of ``train_cpu.py`` in a process of its own, so that thread pools do not meet.

Reads the number of steps to run from standard input, a line each; answers with a JSON line: the seconds of each step
and the peak memory of the process so far. Between the lines it sleeps, so the others have the machine.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_CHAR = dict(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128)
_GPT2 = dict(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)
WORKLOADS = {
    "char": dict(B=12, T=64, lr=1e-3, betas=(0.9, 0.99), model=_CHAR),  # nanoGPT's README run for a CPU
    "gpt2": dict(B=4, T=64, lr=6e-4, betas=(0.9, 0.95), model=_GPT2),
}
WEIGHT_DECAY, CLIP = 0.1, 1.0


def batches(workload: str) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A source of fresh random batches: the same for every contestant."""
    w = WORKLOADS[workload]
    rng = np.random.default_rng(1)
    data = rng.integers(0, w["model"]["vocab_size"], 1_000_000).astype(np.uint16)

    def next_batch() -> tuple[np.ndarray, np.ndarray]:
        at = rng.integers(0, len(data) - w["T"] - 1, w["B"])
        rows = np.stack([data[i : i + w["T"] + 1] for i in at]).astype(np.int32)
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])

    return next_batch


def ours(workload: str) -> Callable[[], float]:
    from nanoeuler.model.config import GPTConfig
    from nanoeuler.model.gpt import GPT

    w, batch = WORKLOADS[workload], batches(workload)
    model = GPT(GPTConfig(**w["model"]))
    m, v, state = model.ops.zeros(model.params.shape), model.ops.zeros(model.params.shape), {"step": 0}

    def step() -> float:
        state["step"] += 1
        loss = model.loss_and_grad(*batch())
        norm = model.ops.global_norm(model.grads)
        scale = min(1.0, CLIP / (norm + 1e-6))
        hyper = (state["step"], w["lr"], *w["betas"], 1e-8, WEIGHT_DECAY, scale)
        model.ops.adamw(model.params, model.grads, m, v, model.layout.n_decay, *hyper)
        return loss

    return step


def torch_peer(workload: str, compiled: bool, fused: bool) -> Callable[[], float]:
    import torch
    from torch_gpt import TorchGPT, optimizer

    w, batch = WORKLOADS[workload], batches(workload)
    nanogpt = dict(bias=False, approximate="none") if workload == "char" else {}
    model = TorchGPT(**w["model"], **nanogpt)
    opt = optimizer(model, w["lr"], w["betas"], WEIGHT_DECAY, fused=fused or None)
    forward = torch.compile(model) if compiled else model

    def step() -> float:
        x, y = (torch.from_numpy(a).long() for a in batch())
        loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main() -> None:
    contestant, workload = sys.argv[1:3]
    step = (
        ours(workload)
        if contestant == "ours"
        else torch_peer(workload, compiled="compiled" in contestant, fused="fused" in contestant)
    )
    for line in sys.stdin:
        seconds, loss = [], float("nan")
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step()
            seconds.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
        print(json.dumps({"seconds": seconds, "peak_bytes": peak, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
