"""The plan's figures for a GPU against what a recorded step allocates, and what is said when it does not fit."""

import gc
from contextlib import nullcontext

import pytest

pytest.importorskip("triton")

from fake_cuda import FakeCuda

import nanoeuler.model.gpt
from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu import scratch
from nanoeuler.ops.gpu.engine import GpuOps, Runtime
from nanoeuler.ops.gpu.kernels.spec import Target
from nanoeuler.ops.gpu.runtime.driver import Device
from nanoeuler.training import plan as planning
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.plan import plan
from nanoeuler.training.step import new_stepper

CONFIG = GPTConfig(vocab_size=700, block_size=96, n_layer=3, n_head=2, n_embd=32)


class Idle:
    """A launcher that launches nothing."""

    def __call__(self, launch):
        pass

    def planning(self):
        return nullcontext()


@pytest.fixture
def step(monkeypatch):
    """A function that runs one step on a fake GPU of so many bytes; returns the model and the runtime."""
    target = Target(90, 4)
    monkeypatch.setattr(scratch, "_target_here", lambda: target)
    monkeypatch.setattr("nanoeuler.ops.gpu.runtime.driver.load_bindings", lambda: None)

    def run(config, B, T, memory=1 << 28, recompute="auto", others=0):
        runtime = Runtime(Device(FakeCuda(memory)))
        runtime.others = runtime.memory.empty((others,), "u8")
        runtime.launch = Idle()
        monkeypatch.setattr(nanoeuler.model.gpt, "get_engine", lambda name: GpuOps(name, runtime))
        model = GPT(config, "gpu", recompute=recompute)
        stepper = new_stepper(model, model.moments(), TrainConfig(device="gpu", batch_size=B), T, lambda n, out: 0)
        stepper.run(1, 1e-3)
        return model, runtime.memory

    return run


@pytest.mark.parametrize("recompute", ["none", "light", "full"])
@pytest.mark.parametrize(("B", "T", "dropout"), [(4, 96, 0.0), (3, 65, 0.1)])
def test_every_figure_is_what_is_allocated(step, B, T, dropout, recompute):
    config = GPTConfig(**{**CONFIG.to_dict(), "dropout": dropout})
    model, memory = step(config, B, T, recompute=recompute)
    rows = {row.name: row.bytes for row in plan(config, B, T, "gpu", 1 << 30, recompute).rows}
    assert rows["parameters"] == model.master.nbytes + model.params.nbytes == config.n_params * 6
    assert rows["gradients"] == model.grads.nbytes
    assert rows["logits"] == ("logits" in model.ops._scratch and model.ops._scratch["logits"].nbytes)
    total = sum(rows.values()) - rows["program"]
    assert 0 <= memory.peak - total < 1024  # single numbers, such as the learning rate


def test_without_room_the_error_says_what_would_fit(step, monkeypatch):
    monkeypatch.setattr(planning, "PROGRAM_BYTES", {"gpu": 0})
    monkeypatch.setattr(planning, "CONTEXT_BYTES", 0)
    memory = 8 << 20
    with pytest.raises(UserError, match="out of GPU memory: batches of 64 x 96 tokens need") as caught:
        step(CONFIG, 64, 96, memory)
    line = str(caught.value)
    assert "\n" not in line and "activations" in line
    largest = int(line.split("batch_size ")[1].split(" fits")[0])
    step(CONFIG, largest, 96, memory + 1024)
    with pytest.raises(UserError, match=f"batch_size {largest} fits"):
        step(CONFIG, largest + 1, 96, memory)


def test_what_others_in_this_process_hold_does_not_count_as_free(step, monkeypatch):
    monkeypatch.setattr(planning, "PROGRAM_BYTES", {"gpu": 0})
    monkeypatch.setattr(planning, "CONTEXT_BYTES", 0)
    words = r"and 0\.01 of the GPU's 0\.02 are free: batch_size (\d+) fits"
    with pytest.raises(UserError, match=words) as caught:
        step(CONFIG, 64, 96, 16 << 20, others=8 << 20)
    largest = int(str(caught.value).split("batch_size ")[1].split(" fits")[0])
    step(CONFIG, largest, 96, (16 << 20) + 1024, others=8 << 20)
    with pytest.raises(UserError, match=f"batch_size {largest} fits"):
        step(CONFIG, largest + 1, 96, 16 << 20, others=8 << 20)


def test_a_failed_step_leaves_no_memory_behind(step, monkeypatch):
    monkeypatch.setattr(planning, "PROGRAM_BYTES", {"gpu": 0})
    runtimes = []
    true = Runtime.__init__
    monkeypatch.setattr(Runtime, "__init__", lambda self, device: (true(self, device), runtimes.append(self))[0])
    with pytest.raises(UserError, match="out of GPU memory"):
        step(CONFIG, 64, 96, 8 << 20)
    gc.collect()
    assert runtimes[0].memory.live == 0


def test_a_model_too_large_for_the_gpu_says_so(step):
    with pytest.raises(UserError, match="out of GPU memory") as caught:
        step(CONFIG, 1, 8, memory=1 << 16)
    assert "\n" not in str(caught.value)
