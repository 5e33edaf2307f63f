"""The GPU engine in float32 without a GPU: device memory is host memory, and kernels run in Triton's interpreter."""

import ctypes
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from fake_cuda import FakeCuda

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
