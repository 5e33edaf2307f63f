"""GPT-2 against PyTorch and transformers: logits, loss, every gradient and ten AdamW steps.

The golden values are float64 results of ``tools/make_gpt2_golden.py``, stored as float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nanoeuler.check import lively_parameters
from nanoeuler.check_cases import relative_error
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT

GOLDEN = Path(__file__).parent / "golden"
TENSORS = load_file(GOLDEN / "gpt2_small.safetensors")
RECORD = json.loads((GOLDEN / "gpt2_small.json").read_text(encoding="utf-8"))
X, Y = TENSORS["x"], TENSORS["y"]  # (steps, B, T)
LIMITS = {"reference": 1e-7, "cpu": 1e-5, "gpu-fp32": 1e-5}  # float32 storage alone rounds by up to 6e-8


@pytest.fixture(params=["reference", "cpu", pytest.param("gpu-fp32", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest) -> GPT:
    return GPT.from_pretrained(GOLDEN / "hf_gpt2", device=request.param)


def limit(model: GPT) -> float:
    return LIMITS[model.ops.name]


def test_logits(model: GPT) -> None:
    assert relative_error(model.logits(X[0]), TENSORS["logits"]) < limit(model)
    assert relative_error(model.logits(X[0], last_only=True), TENSORS["logits"][:, -1]) < limit(model)


def test_loss(model: GPT) -> None:
    assert model.loss(X[0], Y[0]) == pytest.approx(RECORD["losses"][0], rel=1e-12 if limit(model) == 1e-7 else 1e-6)
    losses = model.losses(X[0], Y[0])
    assert (losses[Y[0] == -1] == 0.0).all() and (losses[Y[0] != -1] > 0.0).all()


def test_every_gradient(model: GPT) -> None:
    model.loss_and_grad(X[0], Y[0])
    assert model.grads is not None
    gradients = model.layout.views(model.ops.download(model.grads))
    errors = {name: relative_error(g, TENSORS[f"grad.{name}"]) for name, g in gradients.items()}
    assert max(errors.values()) < limit(model), errors


def test_ten_steps_of_adamw(model: GPT) -> None:
    """Losses, gradient norms (some clipped, some not) and the parameters in the end."""
    ops, settings = model.ops, RECORD["adamw"]
    moments = model.moments()
    losses, norms = [], []
    for step, lr in enumerate(RECORD["learning_rates"], start=1):
        losses.append(model.loss_and_grad(X[step - 1], Y[step - 1]))
        norms.append(ops.global_norm(model.grads))
        clip = min(1.0, settings["max_norm"] / (norms[-1] + 1e-6))  # as torch.nn.utils.clip_grad_norm_ does
        betas = settings["beta1"], settings["beta2"]
        decay = settings["weight_decay"]
        model.update(moments, step, lr, *betas, settings["eps"], decay, clip)
    close = 1e-10 if ops.name == "reference" else 1e-5
    np.testing.assert_allclose(losses, RECORD["losses"], rtol=close)
    np.testing.assert_allclose(norms, RECORD["gradient_norms"], rtol=close)
    assert min(norms) < settings["max_norm"] < max(norms)

    errors = {}
    C = model.config.n_embd
    for name, param in model.state_dict().items():
        want = TENSORS[f"final.{name}"]
        if name.endswith("c_attn.bias"):
            # A bias on the keys has no gradient; what float32 leaves of it is rounding noise, which Adam scales up.
            param, want = (np.delete(a, np.s_[C : 2 * C]) for a in (param, want))
        errors[name] = relative_error(param, want)
    assert max(errors.values()) < limit(model), errors


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_engines_agree_on_a_whole_step(dropout: float) -> None:
    """With dropout, odd sizes, and gradients of two batches added up: cpu against reference."""
    config = GPTConfig(vocab_size=101, block_size=70, n_layer=2, n_head=3, n_embd=33, dropout=dropout)
    params = lively_parameters(config, seed=5).astype(np.float32)
    rng = np.random.default_rng(6)
    x, y = rng.integers(0, 101, (2, 2, 3, 67)).astype(np.int32)
    y[0, 1, :9] = -1
    results = {}
    for device in ("reference", "cpu"):
        model = GPT(config, device=device, params=params)
        losses = [
            model.loss_and_grad(x[0], y[0], seed=1, scale=0.5),
            model.loss_and_grad(x[1], y[1], seed=2, scale=0.5, accumulate=True),
        ]
        assert model.grads is not None
        results[device] = losses, model.layout.views(model.ops.download(model.grads))
    np.testing.assert_allclose(results["cpu"][0], results["reference"][0], rtol=1e-6)
    errors = {name: relative_error(g, results["reference"][1][name]) for name, g in results["cpu"][1].items()}
    assert max(errors.values()) < 1e-5, errors
