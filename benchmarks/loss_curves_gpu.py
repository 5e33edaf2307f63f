"""Do our losses follow PyTorch's? GPT-2 124M on tiny Shakespeare from one start, and how far runs differ anyway.

    python benchmarks/loss_curves_gpu.py tinyshakespeare.txt      # needs a GPU and PyTorch; writes results/*.json
    python benchmarks/loss_curves_gpu.py tinyshakespeare.txt --lr 6e-4 --warmup 20

``loss_picture.py`` draws the result. All runs have the same weights, the same batches and the same learning rates;
PyTorch's are in bfloat16 (autocast). Two runs that differ in nothing but rounding drift apart, since training amplifies
small differences. How far shows a run with the sequences of each batch in another order: mathematically the same
batch. So there are several of ours and of PyTorch's, two of PyTorch's with all activations in bfloat16 ("rounded"), as
ours are, and one of PyTorch's in float32 (products in TF32).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machine import describe, result_path

from nanoeuler.model.config import GPTConfig
from nanoeuler.model.parameters import Layout, init_parameters
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.schedule import learning_rate

CONFIG = GPTConfig()
DEVICE = "cuda"  # PyTorch's
B, T, STEPS = 8, 1024, 200
TRAIN = TrainConfig(device="gpu", batch_size=B, steps=STEPS, lr=2e-4, warmup=40, weight_decay=0.1, grad_clip=1.0)
RUNS = {  # name: (who, order of the sequences)
    "ours": ("ours", 0),
    "ours, other order": ("ours", 1),
    "ours, third order": ("ours", 2),
    "PyTorch": ("autocast", 0),
    "PyTorch, other order": ("autocast", 1),
    "PyTorch, third order": ("autocast", 2),
    "PyTorch rounded": ("rounded", 0),
    "PyTorch rounded, other order": ("rounded", 1),
    "PyTorch float32": ("fp32", 0),
}


def tokens_of(path: Path) -> np.ndarray:
    """A text's GPT-2 tokens; from a ``.npy`` file as they are."""
    if path.suffix == ".npy":
        return np.load(path)
    from nanoeuler.tokenizer import Tokenizer

    return np.array(Tokenizer.gpt2().encode(path.read_text(encoding="utf-8")), np.uint16)


def batches_of(tokens: np.ndarray) -> np.ndarray:
    """(STEPS, B, T + 1): windows that begin anywhere."""
    first = np.random.default_rng(1).integers(0, len(tokens) - T, (STEPS, B, 1))
    return tokens[first + np.arange(T + 1)].astype(np.int32)


def run_ours(params: np.ndarray, batches: np.ndarray, train: TrainConfig) -> list[float]:
    from nanoeuler.model.gpt import GPT
    from nanoeuler.training.step import new_stepper

    def fetch(n: int, out: tuple[np.ndarray, np.ndarray]) -> None:
        out[0][...], out[1][...] = batches[n, :, :-1], batches[n, :, 1:]

    model = GPT(CONFIG, device="gpu", params=params)
    stepper = new_stepper(model, model.moments(), train, T, fetch)
    done = [d for step in range(STEPS) for d in stepper.run(step + 1, learning_rate(train, step))]
    return [d.loss for d in done + stepper.finish()]


def run_torch(params: np.ndarray, batches: np.ndarray, train: TrainConfig, kind: str) -> list[float]:
    """``kind``: autocast, rounded (bfloat16 throughout) or fp32 (with TF32 products)."""
    import torch
    from torch_gpt import RoundedCopy, TorchGPT, load_parameters, optimizer

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with torch.device(DEVICE):
        model = TorchGPT(CONFIG.vocab_size, CONFIG.block_size, CONFIG.n_layer, CONFIG.n_head, CONFIG.n_embd)
    load_parameters(model, Layout(CONFIG).views(params))
    rounded = RoundedCopy(model) if kind == "rounded" else None
    opt = optimizer(model, train.lr, (train.beta1, train.beta2), train.weight_decay)
    tokens, losses = torch.from_numpy(batches).to(DEVICE).long(), []
    for step in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = learning_rate(train, step)
        x, y = tokens[step, :, :-1], tokens[step, :, 1:].contiguous()
        if rounded:
            loss = rounded.loss_and_grad(x, y)
        else:
            with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=kind == "autocast"):
                loss = model(x, y)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def distances(losses: dict[str, list[float]]) -> dict[str, float]:
    """Mean difference of two runs' losses, whatever its sign, over the second half of the steps."""
    half = {name: np.array(values)[STEPS // 2 :] for name, values in losses.items()}
    return {f"{a} | {b}": float(np.abs(half[a] - half[b]).mean()) for a, b in combinations(half, 2)}


def measure(text: Path, train: TrainConfig) -> None:
    import torch

    params, batches = init_parameters(CONFIG, train.seed), batches_of(tokens_of(text))
    rng = np.random.default_rng(2)
    orders = [np.arange(B), *(rng.permutation(B) for _ in range(2))]
    run: dict[str, Callable[[np.ndarray], list[float]]] = {
        "ours": lambda rows: run_ours(params, rows, train),
        **{
            kind: lambda rows, kind=kind: run_torch(params, rows, train, kind)
            for kind in ("autocast", "rounded", "fp32")
        },
    }
    losses: dict[str, list[float]] = {}
    for name, (who, order) in RUNS.items():
        losses[name] = [round(loss, 6) for loss in run[who](np.ascontiguousarray(batches[:, orders[order]]))]
        print(f"{name:22s} first {losses[name][0]:.4f}  last 20 {np.mean(losses[name][-20:]):.4f}", flush=True)
    apart = distances(losses)
    for name, value in apart.items():
        print(f"  {name:48s} {value:.5f}")
    record: dict[str, Any] = {**describe(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    record |= {"triton": version("triton"), "config": CONFIG.to_dict(), "batch_size": B, "seq_len": T, "steps": STEPS}
    record |= {"lr": train.lr, "warmup": train.warmup, "mean_difference_second_half": apart}
    out = result_path(f"loss_curves_gpu-lr{train.lr:g}")
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    curves = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in losses.items())
    out.write_text("{\n" + ",\n".join(lines) + ',\n "losses": {\n' + curves + "\n }\n}\n", encoding="utf-8")
    print("written", out.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text, or its tokens (.npy)")
    parser.add_argument("--lr", type=float, default=TRAIN.lr)
    parser.add_argument("--warmup", type=int, default=TRAIN.warmup)
    args = parser.parse_args()
    measure(args.text, replace(TRAIN, lr=args.lr, warmup=args.warmup))


if __name__ == "__main__":
    main()
