"""The GPU engine in float32 without a GPU: device memory is host memory, and kernels run in Triton's interpreter."""

import ctypes
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from fake_cuda import FakeCuda

import nanoeuler.model.gpt
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.model.parameters import Layout
from nanoeuler.ops.gpu.engine import GpuOps, Runtime
from nanoeuler.ops.gpu.runtime.driver import Device
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_interpreter import NUMPY, HostArray, run


def host_view(array):
    """A device array as the host memory that it really is."""
    dtype = np.dtype(NUMPY[array.dtype])
    raw = (ctypes.c_uint8 * array.nbytes).from_address(array.ptr)
    return HostArray(np.frombuffer(raw, dtype).reshape(array.shape))


class Interpreter:
    """In the place of the launcher."""

    def __init__(self, cuda):
        self.cuda, self.planned, self.names = cuda, False, []

    def __call__(self, launch):
        self.names.append(launch.name)
        if not self.planned:
            args = {k: host_view(v) if isinstance(v, DeviceArray) else v for k, v in launch.args.items()}
            self.cuda.do(lambda: run([replace(launch, args=args)]))

    @contextmanager
    def planning(self):
        self.planned = True
        yield
        self.planned = False


def interpreted_engine():
    cuda = FakeCuda(memory=1 << 28)
    runtime = Runtime(Device(cuda))
    runtime.launch = Interpreter(cuda)
    return GpuOps("gpu-fp32", runtime)


def lively_models(monkeypatch, vocab_size):
    """A maker of pairs (interpreted GPU model, reference model) with the same parameters, larger than a new model's."""
    true = nanoeuler.model.gpt.get_engine
    choose = {"gpu-fp32": interpreted_engine}
    monkeypatch.setattr(nanoeuler.model.gpt, "get_engine", lambda name: choose.get(name, lambda: true(name))())

    def make(C, H, layers=2):
        config = GPTConfig(vocab_size=vocab_size, block_size=32, n_layer=layers, n_head=H, n_embd=C)
        flat = np.random.default_rng(C).standard_normal(Layout(config).n_params, np.float32) * np.float32(C**-0.5)
        flat[Layout(config).n_decay :] *= np.float32(2.0)
        return [GPT(config, device, params=flat) for device in ("gpu-fp32", "reference")]

    return make
