"""Make the losses of ten training steps of GPT-2 124M in PyTorch, which the GPU engine is tested against.

    python tools/make_gpu_golden.py         # adds to tests/golden/gpt2_ten_steps.json what it lacks; some minutes

Needs torch (made with 2.13.0, on a CPU), which nanoeuler itself does not. The weights are nanoeuler's own fresh ones
and the text is the excerpt of tiny Shakespeare beside the result, so only losses and norms are stored, of three runs:

- ``fp32``;
- ``bf16``: weights, activations and their gradients stored in bfloat16, with float32 masters for AdamW. So does our GPU
  engine, and the distance of these losses from float32 is the measure for its own;
- ``autocast``: bfloat16 products only; the residual stream and its gradient stay in float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from torch_gpt import RoundedCopy, TorchGPT, load_parameters, optimizer  # noqa: E402

from nanoeuler.model.config import GPTConfig  # noqa: E402
from nanoeuler.model.parameters import Layout, init_parameters  # noqa: E402
from nanoeuler.tokenizer import Tokenizer  # noqa: E402

CONFIG = GPTConfig()
SEED, B, T, STEPS = 1337, 2, 256, 10
SETTINGS = dict(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0)
LEARNING_RATES = [6e-4 * min(1.0, (step + 1) / 4) for step in range(STEPS)]


def run(tokens: torch.Tensor, kind: str) -> dict[str, list[float]]:
    """Losses and gradient norms (before clipping) of ten steps."""
    sizes = (CONFIG.vocab_size, CONFIG.block_size, CONFIG.n_layer, CONFIG.n_head, CONFIG.n_embd)
    master = TorchGPT(*sizes)
    load_parameters(master, Layout(CONFIG).views(init_parameters(CONFIG, SEED)))
    rounded = RoundedCopy(master) if kind == "bf16" else None
    opt = optimizer(master, 0.0, (SETTINGS["beta1"], SETTINGS["beta2"]), SETTINGS["weight_decay"])
    losses, norms = [], []
    for step, lr in enumerate(LEARNING_RATES):
        for group in opt.param_groups:
            group["lr"] = lr
        at = step * B * T
        x, y = tokens[at : at + B * T].view(B, T), tokens[at + 1 : at + B * T + 1].view(B, T)
        if rounded:
            loss = rounded.loss_and_grad(x, y)
        else:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
                loss = master(x, y)
            loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(master.parameters(), SETTINGS["grad_clip"]).item())
        opt.step()
        losses.append(loss.item())
    return {"losses": losses, "gradient_norms": norms}


def main() -> None:
    text = (GOLDEN / "shakespeare_20k.txt").read_bytes().decode("utf-8")
    tokens = torch.tensor(Tokenizer.gpt2().encode(text))
    assert len(tokens) > STEPS * B * T, len(tokens)
    path = GOLDEN / "gpt2_ten_steps.json"
    made = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    record = {"made_with": {"torch": torch.__version__}, "config": CONFIG.to_dict(), "seed": SEED}
    record |= {"batch_size": B, "seq_len": T, "settings": SETTINGS, "learning_rates": LEARNING_RATES}
    for kind in ("fp32", "bf16", "autocast"):
        record[kind] = made.get(kind) or run(tokens, kind)
        path.write_text(json.dumps({**made, **record}, indent=1) + "\n", encoding="utf-8")
        print(f"{kind:10s}", *(f"{value:.5f}" for value in record[kind]["losses"]))


if __name__ == "__main__":
    main()
