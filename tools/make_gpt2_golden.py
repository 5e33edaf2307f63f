"""Make the golden values that our GPT-2 is tested against, with PyTorch and transformers.

    python tools/make_gpt2_golden.py            # writes tests/golden/gpt2_small.* and tests/golden/hf_gpt2/
    python tools/make_gpt2_golden.py --check    # the other way: transformers reads what nanoeuler saves

Needs torch and transformers (made with torch 2.13.0 and transformers 5.24.0), which nanoeuler itself does not.
Everything is computed in float64 from float32 parameters, and stored as float32 where float32 is enough to judge.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
FOLDER = GOLDEN / "hf_gpt2"
CONFIG = dict(vocab_size=131, n_positions=40, n_embd=36, n_layer=2, n_head=3)
B, T, STEPS = 2, 29, 10
LEARNING_RATES = [0.002 * min(1.0, (step + 1) / 3) * (1.0 - step / 20) for step in range(STEPS)]
ADAMW = dict(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, max_norm=3.5)  # the norms below lie on both sides of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="have transformers load a folder that nanoeuler saved")
    if parser.parse_args().check:
        check_our_folder()
        return
    model = lively_model()
    model.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink()
    tensors, record = golden_values(model.double())
    save_file(tensors, GOLDEN / "gpt2_small.safetensors")
    (GOLDEN / "gpt2_small.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("losses:", *(f"{loss:.4f}" for loss in record["losses"]))
    print("gradient norms:", *(f"{norm:.3f}" for norm in record["gradient_norms"]))


def lively_model() -> torch.nn.Module:
    """A GPT-2 whose every part matters: weights far from initialisation's near-zero, gains and biases set."""
    config = transformers.GPT2Config(
        **CONFIG, activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.GPT2LMHeadModel(config).eval()
    rng = np.random.default_rng(20240607)
    with torch.no_grad():
        for name, param in model.named_parameters():
            values = rng.standard_normal(tuple(param.shape)) * (0.25 if param.ndim == 2 else 0.2)
            if param.ndim == 1 and name.endswith("weight"):
                values += 1.0
            param.copy_(torch.from_numpy(values))
    return model


def golden_values(model: torch.nn.Module) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Logits, loss and gradients of the first batch, then ten AdamW steps, each on a batch of its own."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, CONFIG["vocab_size"], (STEPS, B, T)).astype(np.int32)
    y = rng.integers(0, CONFIG["vocab_size"], (STEPS, B, T)).astype(np.int32)
    y[:, :, ::7] = -1  # not scored
    tensors: dict[str, np.ndarray] = {"x": x, "y": y}
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [dict(params=matrices, weight_decay=ADAMW["weight_decay"]), dict(params=vectors, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    losses, norms = [], []
    for step, lr in enumerate(LEARNING_RATES):
        logits = model(torch.from_numpy(x[step]).long()).logits
        targets = torch.from_numpy(y[step]).long().flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            tensors["logits"] = logits.detach().numpy().astype(np.float32)
            tensors |= {f"grad.{name}": p.grad.numpy().astype(np.float32) for name, p in our_names(model)}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["max_norm"]).item())
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    tensors |= {f"final.{name}": p.detach().numpy().astype(np.float32) for name, p in our_names(model)}
    record = {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "adamw": ADAMW,
        "learning_rates": LEARNING_RATES,
        "losses": losses,
        "gradient_norms": norms,
    }
    return tensors, record


def our_names(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name.removeprefix("transformer."), p) for name, p in model.named_parameters()]


def check_our_folder() -> None:
    """Save the golden model with nanoeuler, load that folder with transformers, and compare the logits."""
    sys.path.insert(0, str(GOLDEN.parent.parent))
    from nanoeuler.formats.huggingface import load_gpt2, save_gpt2

    golden = load_file(GOLDEN / "gpt2_small.safetensors")
    x = torch.from_numpy(golden["x"][0]).long()
    for dtype, limit in (("float32", 1e-4), ("float16", 0.1), ("bfloat16", 0.5)):
        with tempfile.TemporaryDirectory() as folder:
            save_gpt2(Path(folder), *load_gpt2(FOLDER), dtype=dtype)
            model, info = transformers.GPT2LMHeadModel.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float32
            )
            with torch.no_grad():
                logits = model.eval()(x).logits.numpy()
        complaints = {key: value for key, value in info.items() if value} or "none"
        largest = float(np.abs(logits - golden["logits"]).max())
        print(f"{dtype}: largest difference of the logits {largest:.2e} (limit {limit}), complaints: {complaints}")
        if complaints != "none" or not largest < limit:
            sys.exit(1)


if __name__ == "__main__":
    main()
