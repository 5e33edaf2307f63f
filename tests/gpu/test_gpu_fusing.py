"""Operations that wait for the next one compute what they would have computed at once."""

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

N, C, OUT = 10, 12, 20


@pytest.fixture
def ops():
    return interpreted_engine()


@pytest.fixture
def on_gpu(ops):
    rng = np.random.default_rng(0)

    def make(*shape):
        array = ops.empty(shape)
        values = rng.standard_normal(shape).astype(np.float32)
        ops.upload(array, values)
        return array, values

    return make


def close(ops, got, want):
    assert np.linalg.norm(ops.download(got) - want) < 1e-5 * np.linalg.norm(want)


def test_a_layer_is_added_to_the_residual_stream_by_its_product(ops, on_gpu):
    (x, x_), (w, w_), (b, b_), (past, past_), (gain, gain_), (shift, shift_) = (
        on_gpu(*shape) for shape in ((N, C), (C, C), (C,), (N, C), (C,), (C,))
    )  # fmt: skip
    delta, delta_ = on_gpu(N, C)
    out, residual, mean, rstd = ops.empty((N, C)), ops.empty((N, C)), ops.empty((N,)), ops.empty((N,))
    with ops.fusing():
        ops.linear(delta, x, w, b)
        ops.add_layernorm(out, mean, rstd, residual, past, delta, gain, shift)
    assert ops.runtime.launch.names == ["matmul_kernel", "layernorm_kernel"]
    want = past_ + x_ @ w_ + b_
    close(ops, residual, want)
    normal = (want - want.mean(1, keepdims=True)) / np.sqrt(want.var(1, keepdims=True) + 1e-5)
    close(ops, out, normal * gain_ + shift_)
    assert np.array_equal(ops.download(delta), delta_)  # nobody needed it


def test_a_layer_that_something_else_follows_is_computed_before_it(ops, on_gpu):
    (x, x_), (w, w_), (b, b_), (other, other_) = (on_gpu(*shape) for shape in ((N, C), (C, C), (C,), (N, C)))
    out, again, residual, mean, rstd = (ops.empty(shape) for shape in ((N, C), (N, C), (N, C), (N,), (N,)))
    with ops.fusing():
        ops.linear(out, x, w, b)
        ops.convert(x.reshape(-1), other.reshape(-1))  # overwrites the layer's input
        ops.linear(again, x, w, b)
        ops.add_layernorm(out, mean, rstd, residual, other, out, b, b)  # adds the first layer's result
    close(ops, residual, other_ + x_ @ w_ + b_)
    close(ops, again, other_ @ w_ + b_)


def test_gradients_of_weights_wait_until_their_operands_change(ops, on_gpu):
    (x, x_), (w, _), (g, g_), (y, y_), (v, _), (h, _) = (
        on_gpu(*shape) for shape in ((N, C), (C, OUT), (N, OUT), (N, C), (C, C), (N, C))
    )  # fmt: skip
    (gain, _), (mean, _), (rstd, _) = on_gpu(C), on_gpu(N), on_gpu(N)
    dx, dw, dv, db = ops.empty((N, C)), ops.empty((C, OUT)), ops.empty((C, C)), ops.empty((C,))
    names = ops.runtime.launch.names
    with ops.fusing():
        ops.linear_backward(dx, dw, None, g, x, w)
        first = len(names)
        ops.layernorm(h, mean, rstd, y, gain, gain)  # not what the gradient is made from: overtakes it
        assert names[first:] == ["layernorm_kernel"]
        ops.layernorm(x, mean, rstd, y, gain, gain)
        assert names[first + 1] != "layernorm_kernel" and names[-1] == "layernorm_kernel"
        ops.linear_backward(dx, dv, None, h, y, v)
        ops.linear_backward(dx, dv, None, h, y, v, accumulate=True)  # the same place again
    close(ops, dw, x_.T @ g_)
    close(ops, dv, 2 * y_.T @ ops.download(h))
    with ops.fusing():
        ops.linear_backward(dx, dv, db, h, y, v)
    close(ops, dv, y_.T @ ops.download(h))  # at the latest at the end


def test_recorded_steps_without_dropout_are_those_of_the_reference(monkeypatch):
    config = GPTConfig(vocab_size=37, block_size=9, n_layer=2, n_head=2, n_embd=12)
    true, params, B, T = nanoeuler.model.gpt.get_engine, lively_parameters(config, 5), 2, 7
    choose = {"gpu-fp32": interpreted_engine}
    monkeypatch.setattr(nanoeuler.model.gpt, "get_engine", lambda name: choose.get(name, lambda: true(name))())

    def fetch(n, out):
        out[0][:], out[1][:] = np.random.default_rng(n).integers(0, config.vocab_size, (2, B, T)).astype(np.int32)

    done = []
    for device in ("gpu-fp32", "reference"):
        model = GPT(config, device, params=params)
        settings = TrainConfig(device=device, batch_size=B, grad_clip=1.0)
        stepper = new_stepper(model, model.moments(), settings, T, fetch)
        assert isinstance(stepper, EagerStep) == (device == "reference")
        steps = [d for n in (1, 2, 3) for d in stepper.run(n, 1e-2)] + stepper.finish()
        done.append([(d.loss, d.norm) for d in steps])
    assert np.array(done[0]) == pytest.approx(np.array(done[1]), rel=1e-4)
