"""The whole model and the recorded step on the GPU engine, its kernels interpreted, against the reference engine."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import interpreted_engine

import nanoeuler.model.gpt
from nanoeuler.check import lively_parameters
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.step import EagerStep, new_stepper

CONFIG = GPTConfig(vocab_size=37, block_size=9, n_layer=2, n_head=2, n_embd=12, dropout=0.25)
B, T = 2, 7


@pytest.fixture
def interpreted(monkeypatch):
    """GPT(device="gpu-fp32") on interpreted kernels."""
    true = nanoeuler.model.gpt.get_engine
    choose = {"gpu-fp32": interpreted_engine}
    monkeypatch.setattr(nanoeuler.model.gpt, "get_engine", lambda name: choose.get(name, lambda: true(name))())


def models():
    params = lively_parameters(CONFIG, 5)
    return [GPT(CONFIG, device, params=params) for device in ("gpu-fp32", "reference")]


def tokens(seed=0):
    x, y = np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (2, B, T)).astype(np.int32)
    return x, y


def fetch(n, out):
    out[0][:], out[1][:] = tokens(n)


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_loss_gradients_and_logits_are_those_of_the_reference(interpreted):
    gpu, reference = models()
    x, y = tokens()
    y[0, 3] = -1
    losses = [m.loss_and_grad(x, y, seed=3, scale=0.5) for m in (gpu, reference)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for (name, g), r in zip(gpu.g.items(), reference.g.values()):
        assert relative(gpu.ops.download(g), r) < 2e-5, name
    for m in (gpu, reference):
        m.loss_and_grad(*tokens(1), seed=4, scale=0.5, accumulate=True)
    assert relative(gpu.ops.download(gpu.grads), reference.grads) < 2e-5
    assert relative(gpu.losses(x, y), reference.losses(x, y)) < 1e-5
    assert relative(gpu.logits(x[:, :3], last_only=True), reference.logits(x[:, :3], last_only=True)) < 1e-5


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_recomputing_changes_no_bit(interpreted, dropout):
    """Three layers, so that what one leaves in a shared buffer would show in another; two batches added up."""
    config = replace(CONFIG, n_layer=3, dropout=dropout)
    params = lively_parameters(config, 5)
    flat = {}
    for level in ("none", "light", "full"):
        gpu = GPT(config, "gpu-fp32", params=params, recompute=level)
        for n in (0, 1):
            gpu.loss_and_grad(*tokens(n), seed=n, scale=0.5, accumulate=n == 1)
        flat[level] = gpu.ops.download(gpu.grads)
    np.testing.assert_array_equal(flat["full"], flat["light"])
    assert relative(flat["none"], flat["light"]) < 1e-6


def test_recomputing_changes_no_bit_of_recorded_steps(interpreted):
    """There, operations wait for the next one: none may wait for longer than what it works on stays as it is."""
    params = lively_parameters(replace(CONFIG, n_layer=3), 5)
    ends = {}
    for level in ("light", "full"):
        config = TrainConfig(device="gpu-fp32", batch_size=B, grad_accum=2, recompute=level)
        gpu = GPT(replace(CONFIG, n_layer=3, dropout=0.0), "gpu-fp32", params=params, recompute=level)
        stepper = new_stepper(gpu, gpu.moments(), config, T, fetch)
        done = [*stepper.run(1, 1e-2), *stepper.run(2, 1e-2), *stepper.finish()]
        ends[level] = [d.loss for d in done], [d.norm for d in done], gpu.ops.download(gpu.master)
    assert ends["full"][:2] == ends["light"][:2]
    np.testing.assert_array_equal(ends["full"][2], ends["light"][2])


@pytest.mark.parametrize("grad_accum", [1, 3])
def test_recorded_steps_are_those_of_the_reference(interpreted, grad_accum):
    # The gradient of a key's bias is zero but for rounding, which AdamW would blow up to whole steps: so a large eps.
    config = TrainConfig(device="gpu-fp32", batch_size=B, grad_accum=grad_accum, grad_clip=1.0, eps=1e-3)
    gpu, reference = models()
    moments = [m.moments() for m in (gpu, reference)]
    recorded = new_stepper(gpu, moments[0], config, T, fetch)
    eager = EagerStep(reference, moments[1], config, T, fetch)
    told = []
    for step in (1, 2, 3):
        [expected] = eager.run(step, 1e-2 / step)
        before = len(told)
        told += recorded.run(step, 1e-2 / step)
        assert len(told) - before == (step > 1)  # one behind
        if step == 3:
            told += recorded.finish()
            assert recorded.finish() == []
            assert told[-1].norm == pytest.approx(expected.norm, rel=1e-4)
            assert told[-1].loss == pytest.approx(expected.loss, rel=1e-5)
    assert [d.step for d in told] == [1, 2, 3] and [d.lr for d in told] == [1e-2, 5e-3, 1e-2 / 3]
    assert relative(gpu.ops.download(gpu.master), reference.master) < 1e-5
    kept = gpu.activations(B, T, training=True)
    gpu.logits(tokens()[0][:1, :2])  # other activations come and go
    assert gpu.activations(B, T, training=True) is kept and gpu.activations(B, T, training=False) is kept


def test_a_step_that_is_no_number_changes_nothing_and_neither_do_later_ones(interpreted):
    config = TrainConfig(device="gpu-fp32", batch_size=B, grad_clip=1.0)
    gpu, _ = models()
    moments = gpu.moments()
    stepper = new_stepper(gpu, moments, config, T, fetch)
    stepper.run(1, 1e-2)
    stepper.finish()
    gain = gpu.p["ln_f.weight"]  # a view of the master parameters: in float32 there is no other copy
    good = gpu.ops.download(gain)
    gpu.ops.upload(gain, np.full_like(good, np.nan))
    bad = gpu.ops.download(gpu.master)
    [] = stepper.run(2, 1e-2)
    [second] = stepper.run(3, 1e-2)
    [third] = stepper.finish()
    assert not second.finite and not third.finite
    np.testing.assert_array_equal(gpu.ops.download(gpu.master), bad)
    assert np.isfinite(gpu.ops.download(moments[0])).all()
    gpu.ops.upload(gain, good)
    stepper.run(4, 1e-2)
    [fourth] = stepper.finish()
    assert fourth.finite
    bad[gpu.layout["ln_f.weight"].offset :][: good.size] = good
    np.testing.assert_array_equal(gpu.ops.download(gpu.master), bad)
