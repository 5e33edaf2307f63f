"""On a real GPU: every operation, the whole model, training steps, repeats and resumes.

In bfloat16 an error may be twice what rounding alone costs: at each operation's inputs and outputs for an operation
(:func:`nanoeuler.check.engine_check`), and at every operation's outputs for the whole model (:class:`Rounding`).
"""

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

import nanoeuler.model.gpt
from nanoeuler.check import engine_check, lively_parameters
from nanoeuler.check_cases import Case, relative_error, rounded_case, run_case
from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops import get_engine
from nanoeuler.ops.reference import ReferenceOps
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.step import EagerStep, new_stepper
from nanoeuler.training.trainer import train

sys.path.insert(0, str(Path(__file__).parents[1]))
from training_runs import TINY, make_data, same_end

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("device", ["gpu-fp32", "gpu"])
def test_every_operation_at_odd_shapes(device):
    wrong = [check for check in engine_check(device) if not check.ok]
    assert not wrong, "\n".join(f"{c.name}: {c.error:.2e} of {c.limit:.2e} in {c.worst}" for c in wrong)


# ---- GPT-2's real shapes ----------------------------------------------------------------------------------
C, H, V, T = 768, 12, 50257, 1024


def normal(rng, *shape, scale=1.0):
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def zeros(*shape):
    return np.full(shape, np.nan, np.float32)


def real_cases():
    rng = np.random.default_rng(0)
    N = 2048
    weight, bias = normal(rng, C), normal(rng, C)
    x, dout = normal(rng, N, C), normal(rng, N, C)
    yield Case(
        "layernorm",
        "",
        {"x": x, "weight": weight, "bias": bias},
        {"out": zeros(N, C), "mean": zeros(N), "rstd": zeros(N)},
    )
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + np.float32(1e-5))
    saved = {"dout": dout, "x": x, "mean": mean, "rstd": rstd, "weight": weight, "dresidual": normal(rng, N, C)}
    yield Case(
        "layernorm_backward", "", saved, {"dx": zeros(N, C), "dweight": zeros(C), "dbias": zeros(C), "dx_sum": zeros(C)}
    )
    for inner, outer in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)):
        for rows in (N, 1000):
            w, b = normal(rng, inner, outer, scale=inner**-0.5), normal(rng, outer)
            a, g = normal(rng, rows, inner), normal(rng, rows, outer)
            how = f"{rows} x {inner} x {outer}"
            yield Case("linear", how, {"x": a, "weight": w, "bias": b}, {"out": zeros(rows, outer)})
            grads = {
                "dx": zeros(rows, inner),
                "dweight": zeros(inner, outer),
                "dbias": zeros(outer),
                "dx_sum": zeros(inner),
            }
            yield Case("linear_backward", how, {"dout": g, "x": a, "weight": w}, grads)
    for B, length in ((2, T), (1, 1000)):
        qkv = normal(rng, B, length, 3 * C)
        options = {"n_head": H}
        outputs = {"out": zeros(B, length, C), "lse": zeros(B, H, length)}
        yield Case("attention", f"T={length}", {"qkv": qkv}, outputs, options)
        saved = run_case(ReferenceOps(), Case("attention", "", {"qkv": qkv}, outputs, options))
        inputs = {"dout": normal(rng, B, length, C), "qkv": qkv, **{k: v.astype(np.float32) for k, v in saved.items()}}
        yield Case(
            "attention_backward",
            f"T={length}",
            inputs,
            {"dqkv": zeros(B, length, 3 * C), "dqkv_sum": zeros(3 * C)},
            options,
        )
    rows = 2176  # a chunk, and the beginning of another
    targets = rng.integers(0, V, rows).astype(np.int32)
    inputs = {"x": normal(rng, rows, C), "wte": normal(rng, V, C, scale=0.05), "targets": targets}
    yield Case(
        "classifier",
        "",
        inputs,
        {"losses": zeros(rows), "dx": zeros(rows, C), "dwte": zeros(V, C)},
        {"scale": 1 / rows},
    )
    idx = rng.integers(0, V, (2, T)).astype(np.int32)
    idx[:, 500:700] = 11
    wte, wpe = normal(rng, V, C), normal(rng, T, C)
    yield Case("embedding", "", {"idx": idx, "wte": wte, "wpe": wpe}, {"out": zeros(2, T, C)})
    yield Case("embedding_backward", "", {"dout": normal(rng, 2, T, C), "idx": idx}, {"dwte": wte, "dwpe": zeros(T, C)})


def test_every_operation_at_real_shapes():
    ops, wrong, last = get_engine("gpu"), [], None
    for case in real_cases():
        got, want, least = run_case(ops, case), run_case(ReferenceOps(), case), rounded_case(case)
        for name in want:
            error, limit = relative_error(got[name], want[name]), max(1e-5, 2 * relative_error(least[name], want[name]))
            last = f"{case.op} {case.label} {name}: {error:.2e} of {limit:.2e}"
            if not error <= limit:
                wrong.append(last)
    assert last and not wrong, "\n".join(wrong)


# ---- the whole model --------------------------------------------------------------------------------------
WRITTEN = {
    "embedding": ["out"],
    "layernorm": ["out"],
    "add_layernorm": ["out", "residual"],
    "layernorm_backward": ["dx"],
    "linear": ["out", "pre_gelu"],
    "linear_backward": ["dx"],
    "attention": ["out"],
    "attention_backward": ["dqkv"],
    "classifier": ["dx"],
    "dropout": ["out"],
}
"""What operations write in bfloat16 on the GPU."""


class Rounding(ReferenceOps):
    """The reference, with what the GPU engine stores in bfloat16 rounded to it."""

    def __init__(self):
        for name, outputs in WRITTEN.items():
            setattr(self, name, rounding(getattr(ReferenceOps, name), outputs))


def rounding(operation, outputs):
    signature = inspect.signature(operation)

    def rounded(*args, **kwargs):
        operation(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        for name in outputs:
            if arguments.get(name) is not None:
                arguments[name][...] = from_bfloat16(to_bfloat16(arguments[name]))

    return rounded


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradients_of_the_whole_model(monkeypatch, dropout):
    config = GPTConfig(vocab_size=301, block_size=128, n_layer=4, n_head=4, n_embd=128, dropout=dropout)
    params = lively_parameters(config, 5)
    x, y = np.random.default_rng(1).integers(0, config.vocab_size, (2, 3, 100)).astype(np.int32)
    true = nanoeuler.model.gpt.get_engine
    monkeypatch.setattr(
        nanoeuler.model.gpt, "get_engine", lambda name: Rounding() if name == "rounding" else true(name)
    )
    losses, gradients = {}, {}
    for device in ("gpu", "gpu-fp32", "rounding", "reference"):
        start = from_bfloat16(to_bfloat16(params)) if device == "rounding" else params
        model = GPT(config, device, params=start)
        losses[device] = model.loss_and_grad(x, y, seed=7)
        gradients[device] = model.layout.views(model.ops.download(model.grads))
    assert losses["gpu-fp32"] == pytest.approx(losses["reference"], rel=1e-5)
    assert losses["gpu"] == pytest.approx(losses["reference"], rel=5e-3)
    wrong = []
    for name, want in gradients["reference"].items():
        errors = {device: relative_error(gradients[device][name], want) for device in gradients}
        if errors["gpu-fp32"] > 1e-4 or errors["gpu"] > 2 * errors["rounding"]:
            wrong.append(f"{name}: {errors}")
    assert not wrong, "\n".join(wrong)


def test_ten_recorded_steps():
    """Against the reference in float32; in bfloat16 the losses stay near, and two runs agree bit for bit."""
    config = GPTConfig(vocab_size=301, block_size=64, n_layer=2, n_head=4, n_embd=128)
    params = lively_parameters(config, 3) * 0.5
    rng = np.random.default_rng(2)
    batches = rng.integers(0, 301, (20, 2, 4, 64)).astype(np.int32)

    def fetch(n, out):
        out[0][:], out[1][:] = batches[n]

    def run(device, grad_accum=2):
        c = TrainConfig(device=device, batch_size=4, grad_accum=grad_accum, eps=1e-4)
        model = GPT(config, device, params=params)
        stepper = (new_stepper if device != "reference" else EagerStep)(model, model.moments(), c, 64, fetch)
        done = [d for step in range(1, 11) for d in stepper.run(step, 1e-3)] + stepper.finish()
        return np.array([(d.loss, d.norm) for d in done]), model.ops.download(model.master)

    want, exact, half, again = run("reference"), run("gpu-fp32"), run("gpu"), run("gpu")
    np.testing.assert_allclose(exact[0], want[0], rtol=2e-5)
    assert relative_error(exact[1], want[1]) < 1e-4
    np.testing.assert_allclose(half[0], want[0], rtol=2e-2)
    np.testing.assert_array_equal(half[0], again[0])
    np.testing.assert_array_equal(half[1], again[1])


def test_a_run_that_stops_and_goes_on_is_the_same_run(tmp_path):
    settings = {**TINY, "device": "gpu", "data": make_data(tmp_path), "n_embd": 32, "block_size": 16, "dropout": 0.1}
    train(**settings, out=tmp_path / "whole")

    def stop(event):
        if type(event).__name__ == "Step" and event.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(**settings, out=tmp_path / "part", on_event=stop)
    train(resume=tmp_path / "part")
    assert same_end(tmp_path / "whole", tmp_path / "part")
    result = train(resume=tmp_path / "whole", device="reference", steps=14)
    assert result.step == 14  # what the GPU saved goes on elsewhere
