"""On a real GPU: losses and gradients of the whole model, against the other engines and against PyTorch.

A gradient in bfloat16 may be twice as far off as the same network is when every operation is exact and only what the
GPU engine stores in bfloat16 is rounded (:class:`Rounding`), or as PyTorch's own bfloat16 is.
"""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from golden_start import GOLDENS
from safetensors.numpy import load_file

import nanoeuler.model.gpt
from nanoeuler.check import lively_parameters
from nanoeuler.check_cases import relative_error
from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.model.activations import RECOMPUTE
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.reference import ReferenceOps
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.step import new_stepper

pytestmark = pytest.mark.gpu
GOLDEN = Path(__file__).parents[1] / "golden"

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
        def round_to_bfloat16(array):
            array[...] = from_bfloat16(to_bfloat16(array))

        for name, outputs in WRITTEN.items():
            setattr(self, name, rounding(getattr(ReferenceOps, name), outputs, round_to_bfloat16))


class RoundingOnGpu(GpuOps):
    """The same in float32 on the GPU, for sizes at which the reference would take minutes."""

    def __init__(self):
        super().__init__("gpu-fp32")

        def round_to_bfloat16(array):
            flat = array.reshape(-1)
            narrow = self.empty(flat.shape, "bf16")
            self.convert(narrow, flat)
            self.convert(flat, narrow)

        for name, outputs in WRITTEN.items():
            setattr(self, name, rounding(getattr(self, name), outputs, round_to_bfloat16))


def rounding(operation, outputs, round_to_bfloat16):
    signature = inspect.signature(operation)

    def rounded(*args, **kwargs):
        operation(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        for name in outputs:
            if arguments.get(name) is not None:
                round_to_bfloat16(arguments[name])

    return rounded


@pytest.fixture(autouse=True)
def rounding_engines(monkeypatch):
    """GPT(device="rounding") and "rounding on gpu"."""
    true, more = nanoeuler.model.gpt.get_engine, {"rounding": Rounding, "rounding on gpu": RoundingOnGpu}
    monkeypatch.setattr(nanoeuler.model.gpt, "get_engine", lambda name: more.get(name, lambda: true(name))())


def loss_and_gradients(config, device, params, x, y, **options):
    if device.startswith("rounding"):
        params, options = from_bfloat16(to_bfloat16(params)), {"recompute": "none"}
    model = GPT(config, device, params=params, **options)
    loss = model.loss_and_grad(x, y, seed=7)
    return loss, model.layout.views(model.ops.download(model.grads))


def wrong_gradients(got, want, limits):
    """A line for each gradient whose relative error is above its limit."""
    errors = {name: relative_error(got[name], g) for name, g in want.items()}
    return [f"{name}: {error:.2e} of {limits[name]:.2e}" for name, error in errors.items() if not error <= limits[name]]


SMALL = GPTConfig(vocab_size=301, block_size=128, n_layer=4, n_head=4, n_embd=128)
ODD = GPTConfig(vocab_size=65, block_size=1000, n_layer=2, n_head=3, n_embd=192)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("config", "B", "T"), [(SMALL, 3, 100), (ODD, 1, 1000)], ids=["small", "odd"])
def test_gradients_against_the_other_engines(config, B, T, dropout):
    config = GPTConfig(**{**config.to_dict(), "dropout": dropout})
    params = lively_parameters(config, 5).astype(np.float32)
    x, y = np.random.default_rng(1).integers(0, config.vocab_size, (2, B, T)).astype(np.int32)
    y[0, ::7] = -1
    loss, want = loss_and_gradients(config, "reference", params, x, y)
    _, rounded = loss_and_gradients(config, "rounding", params, x, y)
    limits = {"gpu": {name: 2 * relative_error(g, want[name]) for name, g in rounded.items()}}
    limits["gpu-fp32"] = limits["cpu"] = dict.fromkeys(want, 1e-4)
    for device in limits:
        if device == "cpu":
            pytest.importorskip("numba", reason="the CPU engine is not installed here")
        got_loss, got = loss_and_gradients(config, device, params, x, y)
        assert got_loss == pytest.approx(loss, rel=5e-3 if device == "gpu" else 1e-5)
        assert not (wrong := wrong_gradients(got, want, limits[device])), f"{device}\n" + "\n".join(wrong)


def test_gradients_of_gpt2_at_its_real_size():
    """124M parameters, 16 x 1024 tokens, in bfloat16 and in float32."""
    golden = GOLDENS["gpt2"]
    x, y = np.random.default_rng(3).integers(0, golden.config.vocab_size, (2, 16, 1024)).astype(np.int32)
    params = golden.parameters()
    loss, want = loss_and_gradients(golden.config, "gpu-fp32", params, x, y)
    _, rounded = loss_and_gradients(golden.config, "rounding on gpu", params, x, y)
    limits = {name: 2 * relative_error(g, want[name]) for name, g in rounded.items()}
    del rounded
    got_loss, got = loss_and_gradients(golden.config, "gpu", params, x, y)
    assert got_loss == pytest.approx(loss, rel=1e-3)
    assert not (wrong := wrong_gradients(got, want, limits)), "\n".join(wrong)


@pytest.mark.parametrize("device", ["gpu-fp32", "gpu"])
@pytest.mark.parametrize("name", GOLDENS)
def test_losses_and_gradients_are_those_of_pytorch(name, device):
    golden, record, want = GOLDENS[name], *stored(name)
    model = GPT(golden.config, device, params=golden.parameters())
    loss = model.loss_and_grad(*golden.batch(1))
    got = golden.sample(model.layout.views(model.ops.download(model.grads)))
    limits = dict.fromkeys(want, 1e-4)
    if device == "gpu":
        limits = {name: 2 * error for name, error in record["bf16"]["gradient_errors"].items()}
    assert loss == pytest.approx(record["losses"][0], rel=1e-5 if device == "gpu-fp32" else 1e-3)
    assert not (wrong := wrong_gradients(got, want, limits)), "\n".join(wrong)


@pytest.mark.parametrize("device", ["gpu-fp32", "gpu"])
def test_ten_steps_are_those_of_pytorch(device):
    """Recorded steps on the odd model. In bfloat16 the losses may leave PyTorch's exact ones twice as far as its own
    bfloat16 does."""
    golden, (record, _) = GOLDENS["odd"], stored("odd")
    settings = {name: getattr(golden, name) for name in ("beta1", "beta2", "eps", "weight_decay", "grad_clip")}
    config = TrainConfig(device=device, batch_size=golden.B, **settings)
    model = GPT(golden.config, device, params=golden.parameters())

    def fetch(n, out):
        out[0][...], out[1][...] = golden.batch(n + 1)

    stepper = new_stepper(model, model.moments(), config, golden.T, fetch)
    done = [d for step in range(1, golden.steps + 1) for d in stepper.run(step, golden.lr)] + stepper.finish()
    losses, norms = np.array([(d.loss, d.norm) for d in done]).T
    want = np.array(record["losses"])
    if device == "gpu-fp32":
        np.testing.assert_allclose(losses, want, rtol=1e-5)
        np.testing.assert_allclose(norms, record["norms"], rtol=1e-3)
    else:
        off, torch_off = (np.abs(each - want) / want for each in (losses, np.array(record["bf16"]["losses"])))
        assert off.max() <= 2 * torch_off.max(), (off, torch_off)


def stored(name):
    """What PyTorch said: the record, and the sample of its gradients."""
    record = json.loads((GOLDEN / f"gpu_{name}.json").read_text(encoding="utf-8"))
    assert record["fingerprint"] == GOLDENS[name].fingerprint(), (
        "another start: run tools/make_gpu_gradients_golden.py again"
    )
    return record, load_file(GOLDEN / f"gpu_{name}.safetensors")


@pytest.mark.parametrize("device", ["gpu-fp32", "gpu"])
def test_recomputing_changes_next_to_nothing(device):
    """``full`` and ``light`` are the same bits. ``none`` has GELU from forward, where its input was not yet rounded."""
    config = GPTConfig(**{**ODD.to_dict(), "dropout": 0.1})
    params = lively_parameters(config, 5).astype(np.float32)
    x, y = np.random.default_rng(1).integers(0, config.vocab_size, (2, 2, 1000)).astype(np.int32)
    flat = {}
    for level in RECOMPUTE:
        model = GPT(config, device, params=params, recompute=level)
        model.loss_and_grad(x, y, seed=7)
        flat[level] = model.ops.download(model.grads)
    np.testing.assert_array_equal(flat["full"], flat["light"])
    assert relative_error(flat["none"], flat["light"]) < (1e-3 if device == "gpu" else 1e-7)
