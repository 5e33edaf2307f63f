"""What backward computes again instead of keeping it changes no bit of a gradient."""

import numpy as np
import pytest
from training_runs import TINY, history, make_data

from nanoeuler.check import lively_parameters
from nanoeuler.errors import UserError
from nanoeuler.model.activations import RECOMPUTE, n_bytes
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.training.run import train


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_gradients_are_the_same_bits(device, dropout):
    config = GPTConfig(vocab_size=101, block_size=70, n_layer=3, n_head=3, n_embd=33, dropout=dropout)
    params = lively_parameters(config, seed=5).astype(np.float32)
    x, y = np.random.default_rng(6).integers(0, 101, (2, 2, 67)).astype(np.int32)
    results = {}
    for level in RECOMPUTE:
        model = GPT(config, device=device, params=params, recompute=level)
        a = model.activations(2, 67, training=True)
        for name in ("ln1", "act", "qkv", "end"):
            shared = getattr(a.layers[0], name) is getattr(a.layers[1], name)
            assert shared == (name in RECOMPUTE[level]), (level, name)
        losses = [model.loss_and_grad(x, y, seed=s, accumulate=s == 2) for s in (1, 2)]
        results[level] = losses, model.ops.download(model.grads)
    for level in ("light", "full"):
        assert results[level][0] == results["none"][0]
        np.testing.assert_array_equal(results[level][1], results["none"][1])


def test_less_is_allocated():
    config = GPTConfig.preset("gpt2")
    from nanoeuler.ops.storage import STORAGE

    bytes_of = [n_bytes(config, 2, 512, True, STORAGE["cpu"], again) for again in RECOMPUTE.values()]
    assert bytes_of == sorted(bytes_of, reverse=True) and bytes_of[2] < bytes_of[0] / 3


def test_a_run_may_go_on_with_another_choice(tmp_path):
    settings = {**TINY, "data": make_data(tmp_path)}
    train(**settings, out=tmp_path / "a")
    train(**{**settings, "steps": 7, "schedule": "constant"}, out=tmp_path / "b", recompute="full")
    train(**{**settings, "schedule": "constant"}, out=tmp_path / "c")
    train(resume=tmp_path / "b", steps=12, recompute="light")
    assert history(tmp_path / "b")[-1] == history(tmp_path / "c")[-1] != history(tmp_path / "a")[-1]


def test_an_unknown_choice_is_one_line():
    with pytest.raises(UserError, match=r"unknown recompute .ful. .did you mean .full."):
        train(recompute="ful")
    with pytest.raises(UserError, match=r"recompute must be auto or one of none, light, full"):
        GPT(GPTConfig.preset("demo", n_layer=1), "reference", recompute="all")
