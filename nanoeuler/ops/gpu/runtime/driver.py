"""The CUDA driver: opening a GPU, streams, events, page-locked memory, and every failure as one clear line.

The *driver API* (``cuStreamCreate`` and its kin; NVIDIA, "CUDA Driver API") is what all higher layers stand on. It
comes with the GPU's driver, so nothing else need be installed; ``cuda.bindings`` lets Python call it. Of its hundreds
of functions this engine needs about thirty.

Work is given to the GPU in *streams*: queues whose entries run in order, while the program goes on. The engine has two:
``stream`` for all arithmetic, and ``copies`` for input that arrives while the GPU still computes the step before.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from nanoeuler.errors import UserError

INSTALL = "pip install 'nanoeuler[gpu]'"
OLDEST = 80  # compute capability 8.0 (Ampere, 2020): the first with bfloat16 matrix units and asynchronous copies


class CudaError(RuntimeError):
    """A call that the driver refused: a bug of ours, or broken hardware."""


class OutOfMemory(UserError):
    """The GPU has no room for an allocation. ``wanted``, ``free`` and ``total`` in bytes."""

    def __init__(self, wanted: int, free: int, total: int) -> None:
        gib = [f"{n / 2**30:.2f} GiB" for n in (wanted, free, total)]
        super().__init__(
            f"out of GPU memory: {gib[0]} more are needed, {gib[1]} of {gib[2]} are free: "
            "lower batch_size or seq_len, or end other programs on this GPU"
        )
        self.wanted, self.free, self.total = wanted, free, total


class Cuda:
    """The driver's functions: ``cuda.cuStreamCreate(0)`` returns the stream, and raises CudaError if it fails.

    ``bindings`` is the module ``cuda.bindings.driver``, whose functions return ``(result, values...)``.
    """

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings

    def __getattr__(self, name: str) -> Any:
        if not (name.startswith("cu") and name[2].isupper()):
            return getattr(self.bindings, name)  # an enumeration, a structure or a type of number
        call = _checked(name, getattr(self.bindings, name), self.bindings)
        setattr(self, name, call)
        return call


def _checked(name: str, function: Callable[..., Any], bindings: Any) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        code, *values = function(*args)
        if code != 0:
            raise CudaError(f"{name}: {_describe(code, bindings)}")
        return values[0] if len(values) == 1 else tuple(values) or None

    return call


def _describe(code: Any, bindings: Any) -> str:
    failed, text = bindings.cuGetErrorString(code)
    name = getattr(code, "name", str(code))
    return name if failed != 0 or text is None else f"{name} ({text.decode()})"


def load_bindings() -> Any:
    """The module ``cuda.bindings.driver``. UserError, saying what to install, where it or Triton is missing."""
    try:
        import triton  # noqa: F401
        from cuda.bindings import driver
    except ImportError as error:
        raise UserError(
            f"device 'gpu' needs Triton and CUDA's Python packages ({error}): {INSTALL}, or choose --device cpu"
        ) from None
    return driver


class Device:
    """One GPU, opened: its properties, its two streams, and the calls that everything else is built from.

    ``sm``: compute capability as a number, 90 for 9.0. ``n_sm``: streaming multiprocessors.

    Raises UserError where there is no driver, no GPU, or only one that is too old.
    """

    def __init__(self, bindings: Any = None, ordinal: int = 0) -> None:
        cuda = self.cuda = Cuda(load_bindings() if bindings is None else bindings)
        handle = _find_gpu(cuda, ordinal)
        self.name = cuda.cuDeviceGetName(128, handle).split(b"\0")[0].decode()
        what = cuda.CUdevice_attribute

        def attribute(name: str) -> int:
            return int(cuda.cuDeviceGetAttribute(getattr(what, "CU_DEVICE_ATTRIBUTE_" + name), handle))

        self.sm = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
        if self.sm < OLDEST:
            raise UserError(
                f"{self.name} has compute capability {self.sm / 10:.1f}, and 8.0 or newer (Ampere, 2020) is needed: "
                "choose --device cpu"
            )
        self.n_sm = attribute("MULTIPROCESSOR_COUNT")
        self.max_shared = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.context = cuda.cuDevicePrimaryCtxRetain(handle)  # the one that other libraries in this process share
        cuda.cuCtxSetCurrent(self.context)
        non_blocking = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = cuda.cuStreamCreate(non_blocking)
        self.copies = cuda.cuStreamCreate(non_blocking)
        self.pool = cuda.cuDeviceGetDefaultMemPool(handle)
        keep = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD  # keep what is freed, for the next allocation
        cuda.cuMemPoolSetAttribute(self.pool, keep, cuda.cuuint64_t(2**64 - 1))

    # ---- waiting and measuring ------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Wait until all arithmetic given so far is done. CudaError if a kernel failed."""
        self.cuda.cuStreamSynchronize(self.stream)

    def event(self, timing: bool = False) -> Any:
        """A mark that can be put into a stream, and waited for."""
        flags = self.cuda.CUevent_flags
        return self.cuda.cuEventCreate(flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING)

    def milliseconds(self, run: Callable[[], Any]) -> float:
        """GPU time of what ``run`` puts into the stream."""
        begin, end = self.event(timing=True), self.event(timing=True)
        self.cuda.cuEventRecord(begin, self.stream)
        run()
        self.cuda.cuEventRecord(end, self.stream)
        self.cuda.cuEventSynchronize(end)
        elapsed = float(self.cuda.cuEventElapsedTime(begin, end))
        for event in (begin, end):
            self.cuda.cuEventDestroy(event)
        return elapsed

    # ---- memory ---------------------------------------------------------------------------------------
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; what this program has given back counts as free."""
        self.synchronize()
        self.cuda.cuMemPoolTrimTo(self.pool, 0)
        free, total = self.cuda.cuMemGetInfo()
        return int(free), int(total)

    def allocate(self, n_bytes: int) -> int:
        """The address of ``n_bytes`` of device memory. OutOfMemory if there is no room."""
        code, address = self.cuda.bindings.cuMemAllocAsync(n_bytes, self.stream)
        if code != 0:
            if getattr(code, "name", "") == "CUDA_ERROR_OUT_OF_MEMORY":
                raise OutOfMemory(n_bytes, *self.memory_info())
            raise CudaError(f"cuMemAllocAsync: {_describe(code, self.cuda.bindings)}")
        return int(address)

    def free(self, address: int) -> None:
        """Give ``address`` back, once all work given so far is done."""
        self.cuda.cuMemFreeAsync(address, self.stream)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A host array that the GPU can read and write by itself.

        Ordinary memory may be moved by the operating system at any moment, so the driver first copies it elsewhere;
        page-locked memory stays where it is, and a transfer runs beside the program and the arithmetic.
        """
        dtype = np.dtype(dtype)
        n_bytes = max(1, int(np.prod(shape)) * dtype.itemsize)
        address = int(self.cuda.cuMemHostAlloc(n_bytes, 0))
        raw = (ctypes.c_uint8 * n_bytes).from_address(address)
        weakref.finalize(raw, self.cuda.cuMemFreeHost, address)  # NumPy's view keeps ``raw`` alive
        array = np.frombuffer(raw, dtype, count=int(np.prod(shape))).reshape(shape)
        array.fill(0)
        return array


def _find_gpu(cuda: Cuda, ordinal: int) -> Any:
    """The handle of a GPU; UserError if there is none."""
    missing = "install NVIDIA's driver, or choose --device cpu"
    try:
        code = cuda.bindings.cuInit(0)[0]
    except Exception as error:  # the bindings raise one of several errors of their own when the library is not there
        raise UserError(f"device 'gpu' found no NVIDIA driver ({str(error).splitlines()[0]}): {missing}") from None
    name = getattr(code, "name", str(code))
    if name in ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "CUDA_ERROR_INSUFFICIENT_DRIVER"):
        raise UserError(f"the NVIDIA driver is too old or half-updated ({name}): update it and restart the machine")
    if code != 0 or int(cuda.cuDeviceGetCount()) <= ordinal:
        reason = "" if name == "CUDA_SUCCESS" else f" ({name})"
        raise UserError(f"device 'gpu' found no NVIDIA GPU{reason}: ask nvidia-smi why, or choose --device cpu")
    return cuda.cuDeviceGet(ordinal)


@functools.cache
def open_device() -> Device:
    """The first GPU (``CUDA_VISIBLE_DEVICES`` chooses which that is), opened once per process."""
    return Device()


def free_bytes() -> int | None:
    """Free memory of this machine's GPU; None if there is none that will do."""
    try:
        return open_device().memory_info()[0]
    except UserError:
        return None
