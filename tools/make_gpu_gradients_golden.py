"""Make the golden values that the GPU engine is tested against, with PyTorch and transformers.

    python tools/make_gpu_gradients_golden.py            # writes tests/golden/gpu_*.safetensors and .json; some minutes

Needs torch and transformers (made with torch 2.13.0 and transformers 5.24.0), which nanoeuler itself does not; no GPU.
For each model in ``tests/gpu/golden_start.py``: the losses, gradient norms and a sample of the first step's gradients
in float64; and how far PyTorch itself is from them in bfloat16 (autocast with bfloat16 weights), which is what ours may
at most be twice as far.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]
from golden_start import GOLDENS, Golden  # noqa: E402

from nanoeuler.model.parameters import Layout  # noqa: E402


def main() -> None:
    for name in sys.argv[1:] or GOLDENS:
        golden = GOLDENS[name]
        exact, rounded = run(golden, torch.float64), run(golden, torch.bfloat16)
        errors = {
            key: float(np.linalg.norm(rounded["gradients"][key] - want) / np.linalg.norm(want))
            for key, want in exact["gradients"].items()
        }
        record = {
            "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
            "fingerprint": golden.fingerprint(),
            "losses": exact["losses"],
            "norms": exact["norms"],
            "bf16": {"losses": rounded["losses"], "norms": rounded["norms"], "gradient_errors": errors},
        }
        folder = ROOT / "tests" / "golden"
        save_file({k: g.astype(np.float32) for k, g in exact["gradients"].items()}, folder / f"gpu_{name}.safetensors")
        (folder / f"gpu_{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(name, "losses", *(f"{loss:.4f}" for loss in exact["losses"]), "bf16", rounded["losses"][-1])
        print("  bf16 errors of the gradients", min(errors.values()), "to", max(errors.values()))


def new_model(golden: Golden) -> torch.nn.Module:
    c = golden.config
    config = transformers.GPT2Config(
        vocab_size=c.vocab_size, n_positions=c.block_size, n_embd=c.n_embd, n_layer=c.n_layer, n_head=c.n_head,
        activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = transformers.GPT2LMHeadModel(config).eval()
    views = Layout(c).views(golden.parameters())
    with torch.no_grad():
        for name, param in named(model).items():
            param.copy_(torch.from_numpy(views[name]))
    return model


def named(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name.removeprefix("transformer."): p for name, p in model.named_parameters()}


def run(golden: Golden, dtype: torch.dtype) -> dict:
    """The steps of ``golden`` in ``dtype``; float32 parameters in both cases, and rounded ones in the network."""
    model = new_model(golden)
    model = model.double() if dtype is torch.float64 else model
    matrices, vectors = ([p for p in model.parameters() if (p.ndim == 2) == two] for two in (True, False))
    groups = [dict(params=matrices, weight_decay=golden.weight_decay), dict(params=vectors, weight_decay=0.0)]
    betas = golden.beta1, golden.beta2
    optimizer = torch.optim.AdamW(groups, lr=golden.lr, betas=betas, eps=golden.eps)
    losses, norms, gradients = [], [], {}
    for step in range(1, golden.steps + 1):
        x, y = (torch.from_numpy(ids).long() for ids in golden.batch(step))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).to(torch.promote_types(dtype, torch.float32)), y.flatten()
        )
        loss.backward()
        if step == 1:
            gradients = golden.sample({name: p.grad.double().numpy() for name, p in named(model).items()})
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), golden.grad_clip).item())
        optimizer.step()
    return {"losses": losses, "norms": norms, "gradients": gradients}


if __name__ == "__main__":
    main()
