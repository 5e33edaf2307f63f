"""On a real GPU: training runs that repeat, stop and go on bit for bit, and what happens when memory is short."""

import re
import signal

import numpy as np
import pytest

pytest.importorskip("triton")

import sys
from pathlib import Path

from golden_start import GOLDENS

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.engine import open_runtime
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.plan import plan
from nanoeuler.training.run import train
from nanoeuler.training.step import new_stepper

sys.path.insert(0, str(Path(__file__).parents[1]))
from training_runs import TINY, history, make_data, same_end

pytestmark = pytest.mark.gpu

RUN = {**TINY, "device": "gpu", "n_layer": 2, "n_head": 3, "n_embd": 192, "block_size": 100, "dropout": 0.1}
RUN |= {"grad_accum": 2, "lr": 1e-3, "eval_tokens": 200}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with data and a whole run."""
    folder = tmp_path_factory.mktemp("runs")
    make_data(folder)
    result = train(**RUN, data=folder / "data", out=folder / "whole")
    assert result.loss < history(folder / "whole")[0]["loss"]
    return folder


def test_two_runs_with_one_seed_are_the_same(runs):
    train(**RUN, data=runs / "data", out=runs / "again")
    assert same_end(runs / "whole", runs / "again")
    train(**{**RUN, "seed": 5}, data=runs / "data", out=runs / "other")
    assert history(runs / "other")[0] != history(runs / "whole")[0]


def test_a_run_that_is_interrupted_and_goes_on_is_the_same_run(runs):
    def ctrl_c(event):
        if type(event).__name__ == "Step" and event.step == 6:
            signal.raise_signal(signal.SIGINT)

    result = train(**RUN, data=runs / "data", out=runs / "stopped", on_event=ctrl_c)
    assert result.interrupted and 6 <= result.step < 12
    assert not train(resume=runs / "stopped").interrupted
    assert same_end(runs / "whole", runs / "stopped")


def test_a_run_that_crashes_and_goes_on_is_the_same_run(runs):
    def crash(event):
        if type(event).__name__ == "Step" and event.step == 7:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(**RUN, data=runs / "data", out=runs / "crashed", on_event=crash)
    train(resume=runs / "crashed")
    assert same_end(runs / "whole", runs / "crashed")


def test_recomputing_blocks_is_the_same_run(runs):
    train(**RUN, data=runs / "data", out=runs / "full", recompute="full")
    assert same_end(runs / "whole", runs / "full")


def test_a_run_goes_on_on_another_engine(runs):
    train(**{**RUN, "steps": 4}, data=runs / "data", out=runs / "moved")
    result = train(resume=runs / "moved", device="reference", steps=6)
    assert result.step == 6 and np.isfinite(result.loss)


def test_gpt2_trains_twice_to_the_same_bits():
    golden = GOLDENS["gpt2"]
    start = golden.parameters()

    def run():
        model = GPT(golden.config, "gpu", params=start)

        def fetch(n, out):
            out[0][...], out[1][...] = np.random.default_rng(n).integers(0, golden.config.vocab_size, (2, 4, 1024))

        stepper = new_stepper(model, model.moments(), TrainConfig(device="gpu", batch_size=4), 1024, fetch)
        done = [d for step in range(1, 5) for d in stepper.run(step, 3e-4)] + stepper.finish()
        return [(d.loss, d.norm) for d in done], model.ops.download(model.master)

    (first, params), (second, again) = run(), run()
    assert first == second and len(first) == 4
    np.testing.assert_array_equal(params, again)
    assert (params != start).mean() > 0.99


# ---- memory ---------------------------------------------------------------------------------------------------
MIDDLE = GPTConfig(vocab_size=5000, block_size=1024, n_layer=4, n_head=8, n_embd=512)


def one_step(B, recompute="auto"):
    model = GPT(MIDDLE, "gpu", recompute=recompute)
    config = TrainConfig(device="gpu", batch_size=B, recompute=recompute)
    stepper = new_stepper(model, model.moments(), config, 1024, lambda n, out: (out[0].fill(1), out[1].fill(2)))
    return [*stepper.run(1, 1e-4), *stepper.finish()]


def test_what_the_plan_says_is_what_a_step_takes():
    memory = open_runtime().memory
    for recompute in ("none", "light", "full"):
        memory.peak, before = memory.live, memory.live
        one_step(8, recompute)
        rows = plan(MIDDLE, 8, 1024, "gpu", recompute=recompute).rows
        planned = sum(row.bytes for row in rows if row.name != "program")
        assert abs(memory.peak - before - planned) < 2 << 20


def test_a_batch_that_does_not_fit_is_told_which_one_would():
    runtime = open_runtime()
    free, _ = runtime.device.memory_info()
    ballast = runtime.memory.empty((free - (3 << 30),), "u8")  # another program, as it were
    try:
        with pytest.raises(UserError, match="out of GPU memory: batches of 400 x 1024 tokens need") as caught:
            one_step(400)
        line = str(caught.value)
        del caught  # its traceback holds the model that failed
        assert "\n" not in line and "activations" in line
        light, full = map(int, re.search(r"batch_size (\d+) fits, batch_size (\d+) does with", line).groups())
        assert 8 < light < full < 400
        [done] = one_step(light)
        assert done.finite
        [done] = one_step(full, "full")
        assert done.finite
    finally:
        del ballast


def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path):
    with pytest.raises(UserError, match=r"this run needs .* GiB are free: batch_size \d+ fits"):
        train(**{**RUN, "batch_size": 10**7}, data=make_data(tmp_path), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
