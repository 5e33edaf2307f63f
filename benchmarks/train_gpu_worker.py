"""One contestant of ``train_gpu.py`` in a process of its own: what it allocates, or breaks, is no matter to the others.

    python train_gpu_worker.py CONTESTANT PRESET B T

Answers each line on standard input with a line of JSON: ``prepare`` builds the model and runs the first steps, a number
runs so many steps and times them on the GPU, ``profile`` (ours only) times the kernels of one step. While it waits for
a line, the GPU is the others'.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import json
from typing import Any

import numpy as np

from nanoeuler.model.config import GPTConfig
from nanoeuler.model.parameters import Layout


class Ours:
    """NanoEuler's recorded step."""

    def __init__(self, config: GPTConfig, B: int, T: int) -> None:
        from nanoeuler.model.gpt import GPT
        from nanoeuler.ops.gpu.engine import open_runtime
        from nanoeuler.training.config import TrainConfig
        from nanoeuler.training.step import new_stepper

        rng = np.random.default_rng(0)
        batches = rng.integers(0, config.vocab_size, (8, 2, B, T), dtype=np.int32)

        def fetch(n: int, out: tuple[np.ndarray, np.ndarray]) -> None:
            out[0][...], out[1][...] = batches[n % 8]

        self.runtime = open_runtime()
        self.model = GPT(config, device="gpu", params=quick_parameters(config))
        settings = TrainConfig(device="gpu", batch_size=B, weight_decay=0.1, grad_clip=1.0, beta2=0.95)
        self.stepper = new_stepper(self.model, self.model.moments(), settings, T, fetch)
        self.step, self.losses = 0, []
        self.turn(1)

    def turn(self, steps: int) -> float:
        """Milliseconds a step."""

        def run() -> None:
            for _ in range(steps):
                self.step += 1
                self.losses += [d.loss for d in self.stepper.run(self.step, 6e-4)]

        total = self.runtime.device.milliseconds(run)
        self.losses += [d.loss for d in self.stepper.finish()]
        return total / steps

    def about(self) -> dict[str, Any]:
        return {"peak_bytes": self.runtime.memory.peak, "gpu": self.runtime.device.name}

    def profile(self) -> list[dict[str, Any]]:
        from nanoeuler.ops.gpu.runtime.profile import by_kernel

        return [k._asdict() for k in by_kernel(self.stepper.profile())]


def quick_parameters(config: GPTConfig) -> np.ndarray:
    """Fresh parameters without the half minute that drawing a billion normal numbers takes: a few million, repeated."""
    some = np.random.default_rng(0).standard_normal(1 << 22, np.float32) * np.float32(config.init_std)
    layout = Layout(config)
    flat = np.resize(some, layout.n_params)
    for name, view in layout.views(flat).items():
        if view.ndim == 1:
            view[...] = 1.0 if name.endswith("weight") else 0.0
    return flat


class Torch:
    """GPT-2 in PyTorch at its best known here: autocast to bfloat16, flash attention, a vocabulary padded to a multiple
    of 64, fused AdamW. ``how``: eager; compile, as one graph; or blocks, each compiled by itself (with one text for
    all, so that a deep model compiles as fast as a shallow one) and embedding and head likewise."""

    def __init__(self, config: GPTConfig, B: int, T: int, how: str) -> None:
        import torch
        from torch_gpt import TorchGPT, optimizer

        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        padded = -(-config.vocab_size // 64) * 64
        with torch.device("cuda"):
            model = TorchGPT(padded, config.block_size, config.n_layer, config.n_head, config.n_embd)
            x, y = torch.randint(0, config.vocab_size, (2, B, T))
        opt = optimizer(model, 6e-4, (0.9, 0.95), 0.1)
        forward = torch.compile(model) if how == "compile" else model
        if how == "blocks":
            model.head, model.embed = torch.compile(model.head), torch.compile(model.embed)
            for block in model.blocks:
                block.compile()

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = forward(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            self.loss = loss.detach()

        self.run_step = step
        self.turn(3)
        torch.cuda.reset_peak_memory_stats()
        self.turn(1)
        self.peak = torch.cuda.max_memory_allocated()

    def turn(self, steps: int) -> float:
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            self.run_step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / steps

    @property
    def losses(self) -> list[float]:
        return [float(self.loss)]

    def about(self) -> dict[str, Any]:
        graphs = self.torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
        return {"peak_bytes": self.peak, "gpu": self.torch.cuda.get_device_name(), "compiled_graphs": graphs}


def main() -> None:
    name, preset, B, T = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
    config = GPTConfig.preset(preset, block_size=max(T, 1024))
    contestant: Any = None
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        if line.strip() == "prepare":
            begun = time.perf_counter()
            contestant = Ours(config, B, T) if name == "ours" else Torch(config, B, T, name.removeprefix("torch "))
            answer = {"ready_s": time.perf_counter() - begun, **contestant.about()}
        elif line.strip() == "profile":
            answer = {"kernels": contestant.profile()}
        else:
            answer = {"ms": contestant.turn(int(line)), "losses": contestant.losses}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
