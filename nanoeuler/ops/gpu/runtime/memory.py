"""Arrays in GPU memory.

A :class:`DeviceArray` is what NumPy's array is on the host, reduced to what the engine needs: an address, a shape, a
dtype, and views. It computes nothing; kernels do. Its memory lives as long as any view of it.

NumPy has no bfloat16, so dtypes go by name: ``"bf16"``, ``"fp32"``, ``"i32"``, ``"i8"`` and ``"u8"``. A bfloat16 is
the upper half of a float32; on its way to the host it becomes a float32, which holds it exactly.
"""

from __future__ import annotations

import math
import sys
from types import EllipsisType
from typing import Any

import numpy as np

from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.ops.gpu.runtime.driver import Device

ITEM_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8, "i32": 4, "i8": 1, "u8": 1}
_FROM_NUMPY: dict[np.dtype, str] = {
    np.dtype(np.float32): "fp32",
    np.dtype(np.float64): "fp64",
    np.dtype(np.int32): "i32",
    np.dtype(np.int8): "i8",
    np.dtype(np.uint8): "u8",
}
_ON_HOST: dict[str, np.dtype] = {"bf16": np.dtype(np.uint16), **{name: dtype for dtype, name in _FROM_NUMPY.items()}}

Index = int | slice | EllipsisType


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, given as such or as NumPy's.

    >>> dtype_name(np.int32), dtype_name("bf16")
    ('i32', 'bf16')
    """
    return dtype if isinstance(dtype, str) and dtype in ITEM_BYTES else _FROM_NUMPY[np.dtype(dtype)]


class Allocation:
    """A piece of device memory, given back when the last array in it is gone."""

    def __init__(self, memory: Memory, n_bytes: int) -> None:
        self.memory, self.n_bytes = memory, n_bytes
        self.ptr = memory.device.allocate(max(1, n_bytes))

    def __del__(self) -> None:
        if hasattr(self, "ptr") and not sys.is_finalizing():
            self.memory.give_back(self)


class DeviceArray:
    """``shape`` elements of ``dtype`` from address ``ptr`` on; ``strides`` in elements.

    >>> a = DeviceArray(4096, (2, 3, 4), "bf16")
    >>> a.nbytes, a[1].ptr, a.reshape(6, -1).shape
    (48, 4120, (6, 4))
    >>> last = a[:, -1, :]
    >>> last.ptr, last.shape, last.strides, last.contiguous
    (4112, (2, 4), (12, 1), False)
    """

    __slots__ = ("dtype", "owner", "ptr", "shape", "strides")

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...],
        dtype: str,
        owner: Any = None,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.ptr, self.shape, self.dtype, self.owner = ptr, shape, dtype, owner
        self.strides = _dense(shape) if strides is None else strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie without gaps, in row-major order."""
        return all(n == 1 or s == d for n, s, d in zip(self.shape, self.strides, _dense(self.shape)))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({'x'.join(map(str, self.shape))} {self.dtype} at {self.ptr:#x})"

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same elements under another shape, of which one size may be -1. Only for arrays without gaps."""
        new = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
        if -1 in new:
            rest = -math.prod(new)
            new = tuple(self.size // rest if n == -1 else n for n in new)
        if math.prod(new) != self.size or not self.contiguous:
            raise ValueError(f"cannot reshape {self} to {new}")
        return DeviceArray(self.ptr, new, self.dtype, self.owner)

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as elements of ``dtype``; one dimension, without gaps."""
        name = dtype_name(dtype)
        size, rest = divmod(self.nbytes, ITEM_BYTES[name])
        if rest or self.ndim != 1 or not self.contiguous:
            raise ValueError(f"cannot view {self} as {name}")
        return DeviceArray(self.ptr, (size,), name, self.owner)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> DeviceArray:
        """A view by whole numbers, slices with step 1, and ``...``, as NumPy's basic indexing."""
        entries = list(index) if isinstance(index, tuple) else [index]
        if Ellipsis in entries:
            at = entries.index(Ellipsis)
            entries[at : at + 1] = [slice(None)] * (self.ndim - len(entries) + 1)
        if len(entries) > self.ndim:
            raise IndexError(f"{len(entries)} indices for {self}")
        ptr = self.ptr
        shape, strides = [], []
        for n, stride, entry in zip(self.shape, self.strides, entries):
            if isinstance(entry, slice):
                start, stop, step = entry.indices(n)
                if step != 1:
                    raise IndexError(f"a slice of {self} must have step 1, not {step}")
                shape.append(max(0, stop - start))
                strides.append(stride)
            else:
                assert isinstance(entry, int)
                start = entry + n if entry < 0 else entry
                if not 0 <= start < n:
                    raise IndexError(f"index {entry} is outside {self}")
            ptr += start * stride * self.itemsize
        left = len(entries)
        return DeviceArray(ptr, (*shape, *self.shape[left:]), self.dtype, self.owner, (*strides, *self.strides[left:]))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array without gaps."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class Memory:
    """Allocates device memory, moves bytes, and counts: ``live`` bytes now, ``peak`` bytes at most so far."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.live = self.peak = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """An uninitialised array. OutOfMemory if there is no room."""
        name = dtype_name(dtype)
        owner = Allocation(self, math.prod(shape) * ITEM_BYTES[name])
        self.live += owner.n_bytes
        self.peak = max(self.peak, self.live)
        return DeviceArray(owner.ptr, tuple(shape), name, owner)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """An array of zeros. OutOfMemory if there is no room."""
        array = self.empty(shape, dtype)
        self.zero(array)
        return array

    def give_back(self, allocation: Allocation) -> None:
        self.live -= allocation.n_bytes
        self.device.free(allocation.ptr)

    def zero(self, array: DeviceArray) -> None:
        """Set all bytes of an array without gaps to zero."""
        assert array.contiguous
        if array.size:
            self.device.cuda.cuMemsetD8Async(array.ptr, 0, array.nbytes, self.device.stream)

    def put(self, array: DeviceArray, value: float | int) -> None:
        """Write a number into an array of one 4-byte element, in order with the kernels and without waiting."""
        assert array.nbytes == 4, array
        bits = np.float32(value).view(np.uint32) if array.dtype == "fp32" else int(value) & 0xFFFFFFFF
        self.device.cuda.cuMemsetD32Async(array.ptr, int(bits), 1, self.device.stream)

    def copy(self, dst: DeviceArray, src: DeviceArray) -> None:
        """Copy within the GPU; dtypes and shapes must agree, and rows without gaps."""
        assert dst.dtype == src.dtype and dst.shape == src.shape, (dst, src)
        cuda, stream = self.device.cuda, self.device.stream
        if dst.contiguous and src.contiguous:
            cuda.cuMemcpyDtoDAsync(dst.ptr, src.ptr, src.nbytes, stream)
            return
        assert src.ndim == 2 and src.strides[1] == dst.strides[1] == 1, (dst, src)
        both = cuda.CUDA_MEMCPY2D()
        both.srcMemoryType = both.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        both.srcDevice, both.srcPitch = src.ptr, src.strides[0] * src.itemsize
        both.dstDevice, both.dstPitch = dst.ptr, dst.strides[0] * dst.itemsize
        both.WidthInBytes, both.Height = src.shape[1] * src.itemsize, src.shape[0]
        cuda.cuMemcpy2DAsync(both, stream)

    def upload(self, dst: DeviceArray, src: np.ndarray) -> None:
        """Copy a host array into ``dst``, rounding it to its dtype; returns when ``src`` may change again."""
        if dst.shape != src.shape or not dst.contiguous:
            raise ValueError(f"cannot copy an array of shape {src.shape} into {dst}")
        raw = np.ascontiguousarray(to_host_dtype(src, dst.dtype))
        if raw.size:
            self.device.cuda.cuMemcpyHtoDAsync(dst.ptr, raw.ctypes.data, raw.nbytes, self.device.stream)
            self.device.synchronize()

    def download(self, src: DeviceArray) -> np.ndarray:
        """A host copy, when all work given so far is done: float32 for ``bf16`` and ``fp32``."""
        if not src.contiguous:
            dense = self.empty(src.shape, src.dtype)
            self.copy(dense, src)
            src = dense
        raw = np.empty(src.shape, _ON_HOST[src.dtype])
        if raw.size:
            self.device.cuda.cuMemcpyDtoHAsync(raw.ctypes.data, src.ptr, raw.nbytes, self.device.stream)
        self.device.synchronize()
        return from_bfloat16(raw) if src.dtype == "bf16" else raw


def to_host_dtype(src: np.ndarray, dtype: str) -> np.ndarray:
    """``src`` as the bytes of a device array of ``dtype``: bfloat16 as uint16, rounded to nearest.

    >>> to_host_dtype(np.array([1.0, -2.0]), "bf16").tolist()
    [16256, 49152]
    """
    if dtype == "bf16":
        return to_bfloat16(np.asarray(src, np.float32))
    return np.asarray(src, _ON_HOST[dtype])
