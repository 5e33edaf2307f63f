"""A stand-in for ``cuda.bindings.driver`` whose "device memory" is host memory: the runtime's logic without a GPU."""

import ctypes
from enum import IntEnum
from types import SimpleNamespace


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Names:
    """Any attribute is its own name: for enumerations."""

    def __getattr__(self, name):
        return name


class FakeCuda:
    """One GPU of ``memory`` bytes. ``calls`` lists what was called, ``launches`` each kernel's (name, table)."""

    CUdevice_attribute = CUstream_flags = CUevent_flags = CUmemPool_attribute = CUstreamCaptureMode = Names()
    CUfunction_attribute = CUlaunchAttributeID = CUmemorytype = CUevent_record_flags = Names()
    cuuint64_t = int

    def __init__(self, memory=1 << 20, sm=90, gpus=1, init=Result.CUDA_SUCCESS):
        self.memory, self.sm, self.gpus, self.init = memory, sm, gpus, init
        self.blocks, self.pinned, self.calls, self.launches, self.early = {}, {}, [], [], []
        self.recording, self.freed_while_recording = None, 0

    def do(self, action):
        """Run ``action`` now, or while a graph is captured, at each of its replays."""
        if self.recording is None:
            action()
        else:
            self.recording.append(action)
        return (Result.CUDA_SUCCESS,)

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def anything(*args):
            self.calls.append(name)
            return (Result.CUDA_SUCCESS, name)

        return anything

    def cuInit(self, flags):
        return (self.init,)

    def cuGetErrorString(self, code):
        return Result.CUDA_SUCCESS, b"what the driver says"

    def cuDeviceGetCount(self):
        return Result.CUDA_SUCCESS, self.gpus

    def cuDeviceGetName(self, length, device):
        return Result.CUDA_SUCCESS, b"Fake GPU".ljust(length, b"\0")

    def cuDeviceGetAttribute(self, name, device):
        known = {"MAJOR": self.sm // 10, "MINOR": self.sm % 10, "COUNT": 4, "OPTIN": 227 << 10}
        return Result.CUDA_SUCCESS, known[name.rsplit("_", 1)[1]]

    def cuMemAllocAsync(self, n_bytes, stream):
        if n_bytes > self.memory - self.used:
            return Result.CUDA_ERROR_OUT_OF_MEMORY, 0
        return Result.CUDA_SUCCESS, _take(self.blocks, n_bytes)

    @property
    def used(self):
        return sum(n_bytes for _, n_bytes in self.blocks.values())

    def cuMemFreeAsync(self, address, stream):
        return self.free(self.blocks, address)

    def free(self, blocks, address):
        if self.recording is not None:  # a real driver then lets the capture fail
            self.freed_while_recording += 1
        del blocks[address]
        return (Result.CUDA_SUCCESS,)

    def cuMemGetInfo(self):
        return Result.CUDA_SUCCESS, self.memory - self.used, self.memory

    def cuMemHostAlloc(self, n_bytes, flags):
        return Result.CUDA_SUCCESS, _take(self.pinned, n_bytes)

    def cuMemFreeHost(self, address):
        return self.free(self.pinned, address)

    def cuMemsetD8Async(self, address, value, n_bytes, stream):
        return self.do(lambda: ctypes.memset(address, value, n_bytes))

    def cuMemsetD32Async(self, address, value, n, stream):
        return self.do(lambda: setattr(ctypes.c_uint32.from_address(address), "value", value))

    def cuMemcpyHtoDAsync(self, dst, src, n_bytes, stream):
        return self.do(lambda: ctypes.memmove(dst, src, n_bytes))

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def CUDA_MEMCPY2D(self):
        return SimpleNamespace()

    CUlaunchConfig = CUDA_MEMCPY2D

    def CUlaunchAttribute(self):
        return SimpleNamespace(value=SimpleNamespace())

    def cuMemcpy2DAsync(self, c, stream):
        for row in range(c.Height):
            ctypes.memmove(c.dstDevice + row * c.dstPitch, c.srcDevice + row * c.srcPitch, c.WidthInBytes)
        return (Result.CUDA_SUCCESS,)

    def cuStreamBeginCapture(self, stream, mode):
        self.recording = []
        return (Result.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream):
        self.calls.append("cuStreamEndCapture")
        graph, self.recording = self.recording, None
        return Result.CUDA_SUCCESS, graph

    def cuGraphGetNodes(self, graph, n):
        return Result.CUDA_SUCCESS, [], len(graph)

    def cuGraphInstantiate(self, graph, flags):
        return Result.CUDA_SUCCESS, graph

    def cuGraphLaunch(self, graph, stream):
        for action in graph:
            action()
        return (Result.CUDA_SUCCESS,)

    def cuEventElapsedTime(self, begin, end):
        return Result.CUDA_SUCCESS, 0.5

    def cuModuleGetFunction(self, module, name):
        return Result.CUDA_SUCCESS, name.decode()

    def cuLaunchKernelEx(self, config, function, table, extra):
        c = config
        self.early.append([attribute.id for attribute in c.attrs])
        self.launches.append((function, (c.gridDimX, c.gridDimY, c.gridDimZ), c.blockDimX, table))
        return (Result.CUDA_SUCCESS,)

    def cuLaunchKernel(self, function, x, y, z, bx, by, bz, shared, stream, table, extra):
        self.launches.append((function, (x, y, z), bx, table))
        return (Result.CUDA_SUCCESS,)


def _take(blocks, n_bytes):
    """The address of ``n_bytes`` of host memory, noted in ``blocks``."""
    block = ctypes.create_string_buffer(n_bytes + 256)
    address = -(-ctypes.addressof(block) // 256) * 256
    blocks[address] = (block, n_bytes)
    return address
