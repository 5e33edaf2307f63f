"""A batch shared by two workers: the gradient is the whole batch's, the same bits on any number of threads."""

import subprocess
import sys

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.data_parallel import MAX_PARAMS, micro_batches
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.storage import STORAGE

CONFIG = GPTConfig(vocab_size=65, block_size=64, n_layer=2, n_head=3, n_embd=24)
CPU = STORAGE["cpu"]


def batch(B: int, T: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, CONFIG.vocab_size, (B, T)).astype(np.int32) for _ in range(2))
    y[0, : T // 2] = -1  # the halves have different numbers of targets
    return x, y


def lively(device: str, config: GPTConfig = CONFIG) -> GPT:
    """Weights large enough that every part of the network matters."""
    n = GPT(config, device="reference").layout.n_params
    return GPT(config, device=device, params=np.random.default_rng(1).normal(0, 0.3, n))


@pytest.mark.parametrize("B, T", [(2, 1), (2, 64), (4, 33), (10, 64), (13, 64), (12, 17)])
def test_loss_and_gradient_equal_the_references(B: int, T: int) -> None:
    """Also when the calls are repeated from their record, on other tokens, and when gradients add up."""
    model, reference = lively("cpu"), lively("reference")
    for step, accumulate in enumerate((False, False, True, True, False)):
        x, y = batch(B, T, seed=step)
        losses = [m.loss_and_grad(x, y, scale=0.5 + step // 2, accumulate=accumulate) for m in (model, reference)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        for name, want in reference.g.items():
            assert np.linalg.norm(model.g[name] - want) <= 1e-5 * np.linalg.norm(want), name
    assert model._parallel is not None and model._parallel.sizes == micro_batches(CONFIG, B, T, CPU)


def test_after_a_step_the_record_computes_with_the_new_parameters() -> None:
    model, reference = lively("cpu"), lively("reference")
    moments = model.moments(), reference.moments()
    for step in range(1, 4):
        x, y = batch(4, 20, seed=step)
        for m, own in zip((model, reference), moments):
            m.loss_and_grad(x, y)
            m.update(own, step, lr=1e-2, eps=1e-3)  # so that tiny gradients do not count
    assert np.abs(model.params - reference.params).max() < 1e-5
    before = model.params.copy()
    model.ops.upload(model.master, np.zeros_like(before))
    assert model.loss_and_grad(x, y) == pytest.approx(np.log(CONFIG.vocab_size))


def test_batches_of_other_sizes_in_turns() -> None:
    model, reference = lively("cpu"), lively("reference")
    for B, T in ((4, 20), (4, 21), (3, 20), (1, 64), (4, 20)):
        x, y = batch(B, T)
        model.loss_and_grad(x, y)
        reference.loss_and_grad(x, y)
        assert np.linalg.norm(model.grads - reference.grads) <= 1e-5 * np.linalg.norm(reference.grads)
        assert model.loss(x, y) == pytest.approx(reference.loss(x, y), rel=1e-5)


@pytest.mark.parametrize("threads", ["1", "3", "4"])
def test_bits_do_not_depend_on_the_number_of_threads(threads: str) -> None:
    script = """
import hashlib, sys
sys.path.insert(0, "tests")
from test_data_parallel import batch, lively
model = lively("cpu")
losses = [model.loss_and_grad(*batch(10, 64, seed)) for seed in range(3)]
print(losses, hashlib.sha256(model.grads.tobytes()).hexdigest(), model._parallel.together)
"""

    def run(n: str) -> str:
        import os

        env = {**os.environ, "NUMBA_NUM_THREADS": n}
        return subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        ).stdout

    two, other = run("2").split(), run(threads).split()
    assert two[:-1] == other[:-1]
    assert two[-1] == "True" and other[-1] == str(threads != "1")


def test_a_worker_that_fails_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in one half must not leave the other one writing into the arrays of what comes next."""
    model = lively("cpu")
    x, y = batch(4, 20)
    model.loss_and_grad(x, y)
    want = model.grads.copy()
    first, second = model._parallel.workers
    ended = []
    run = second.run

    def slow(*arguments: object) -> float:
        import time

        time.sleep(0.3)
        ended.append(True)
        return run(*arguments)  # type: ignore[arg-type]

    def interrupted(*arguments: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(second, "run", slow)
        patch.setattr(first, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.loss_and_grad(x, y)
    assert ended == [True]
    model.loss_and_grad(x, y)
    assert np.array_equal(model.grads, want)


def test_bad_ids_are_refused_before_anything_is_computed() -> None:
    model = lively("cpu")
    x, y = batch(4, 20)
    model.loss_and_grad(x, y)
    before = model.grads.copy()
    for bad_x, bad_y in ((x + 60, y), (x, y - 2), (x, y[:, :5]), (x.astype(float), y)):
        with pytest.raises(UserError):
            model.loss_and_grad(bad_x, bad_y)
    assert np.array_equal(model.grads, before)


def test_who_takes_batches_whole() -> None:
    assert micro_batches(CONFIG, 12, 64, CPU) == ((3, 3), (3, 3))
    assert micro_batches(CONFIG, 4, 1024, CPU) == ((1, 1), (1, 1))
    assert micro_batches(CONFIG, 3, 64, CPU) == micro_batches(CONFIG, 1, 64, CPU) == ()  # one would wait for the other
    assert micro_batches(CONFIG, 12, 64, STORAGE["reference"]) == micro_batches(CONFIG, 12, 64, STORAGE["gpu"]) == ()
    assert micro_batches(GPTConfig.preset("gpt2"), 4, 64, CPU) == ()
    assert GPTConfig.preset("gpt2").n_params > MAX_PARAMS > GPTConfig.preset("demo").n_params
    dropping = GPTConfig(vocab_size=65, block_size=64, n_layer=2, n_head=3, n_embd=24, dropout=0.1)
    assert micro_batches(dropping, 12, 64, CPU) == ()
