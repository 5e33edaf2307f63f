"""Launching: from a description of a kernel call to a call of ``cuLaunchKernel``.

The driver takes a kernel's arguments as a table of addresses, one for each parameter, and copies as many bytes from
each as the kernel's binary says. So every argument gets a slot of 8 bytes, a tensor descriptor one of 128, and a loaded
kernel keeps its slots and its table from call to call: a launch only fills in the values.

After its own parameters, a kernel that Triton compiled takes two more: scratch memory (for tensor descriptors that it
makes itself), and a buffer for profiling.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nanoeuler.ops.gpu.kernels.spec import Tiled
from nanoeuler.ops.gpu.runtime.compiler import Binary, Source, compile_all
from nanoeuler.ops.gpu.runtime.driver import CudaError, Device
from nanoeuler.ops.gpu.runtime.memory import ITEM_BYTES, DeviceArray, Memory

WARP = 32  # threads


class Kernel:
    """A kernel in GPU memory, ready to be launched."""

    def __init__(self, device: Device, binary: Binary) -> None:
        cuda, meta = device.cuda, binary.meta
        self.name, self.shared = meta["name"], meta["shared"]
        self.threads = WARP * meta["num_warps"]
        self.scratch_bytes = meta["global_scratch_size"] or 0  # for each program
        if self.shared > device.max_shared:
            raise CudaError(f"{self.name} needs {self.shared} bytes of shared memory, {device.name} has less")
        self.module = cuda.cuModuleLoadData(binary.cubin)
        self.function = cuda.cuModuleGetFunction(self.module, self.name.encode())
        if self.shared > 48 << 10:  # more than this a kernel must ask for
            attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cuda.cuFuncSetAttribute(self.function, attribute, self.shared)
        self.tiles = [entry["block_size"] for entry in meta.get("tensordesc_meta") or []]  # of each descriptor
        self.slots: Any = None
        self.table: Any = None

    def fill(self, values: list[int | bytes]) -> int:
        """Put ``values`` (64 bits each, or bytes) into the slots; the address of the table that points to them."""
        if self.slots is None:
            sizes = [len(value) if isinstance(value, bytes) else 8 for value in values]
            self.slots = (ctypes.c_uint8 * sum(sizes))()
            first = ctypes.addressof(self.slots)
            self.table = (ctypes.c_void_p * len(values))(*(first + sum(sizes[:i]) for i in range(len(values))))
        parts = [value if isinstance(value, bytes) else value.to_bytes(8, "little") for value in values]
        ctypes.memmove(self.slots, b"".join(parts), len(self.slots))
        return ctypes.addressof(self.table)


def describe(value: Any) -> tuple[str, bool, int]:
    """(Triton's type, whether a multiple of 16, the 64 bits to pass) of a run-time argument.

    >>> describe(48), describe(2.0)
    (('i32', True, 48), ('fp32', False, 1073741824))
    >>> describe(DeviceArray(4096, (2,), "bf16"))
    ('*bf16', True, 4096)
    """
    if isinstance(value, Tiled):
        return value.type, False, 0  # what is passed depends on the kernel: see ``descriptor``
    if isinstance(value, bool):
        return "i1", False, int(value)
    if isinstance(value, int):
        kind = "i32" if -(2**31) <= value < 2**31 else "i64"
        return kind, value % 16 == 0, value & 0xFFFFFFFFFFFFFFFF
    if isinstance(value, float):
        return "fp32", False, int.from_bytes(struct.pack("<f", value), "little")
    return "*" + value.dtype, value.ptr % 16 == 0, value.ptr


def descriptor(device: Device, what: Tiled, box: list[int]) -> list[int | bytes]:
    """What a kernel takes for a :class:`Tiled`: a tensor map for copies of ``box`` (rows, columns), shape, strides.

    (NVIDIA, CUDA Driver API, "Tensor Map Object Management".) Dimensions are listed from the innermost out.
    """
    cuda, size = device.cuda, ITEM_BYTES[what.array.dtype]
    kind = {"bf16": "BFLOAT16", "fp32": "FLOAT32"}[what.array.dtype]
    swizzle = min(128, what.tile[1] * size)

    def option(kind: str, name: str) -> Any:
        return getattr(getattr(cuda, f"CUtensorMap{kind}"), f"CU_TENSOR_MAP_{name}")

    made = cuda.cuTensorMapEncodeTiled(
        option("DataType", f"DATA_TYPE_{kind}"), 2, what.array.ptr,
        [cuda.cuuint64_t(n) for n in (what.columns, what.rows)], [cuda.cuuint64_t(what.stride * size)],
        [cuda.cuuint32_t(n) for n in (box[1], box[0])], [cuda.cuuint32_t(1)] * 2,
        option("Interleave", "INTERLEAVE_NONE"), option("Swizzle", f"SWIZZLE_{swizzle}B"),
        option("L2promotion", "L2_PROMOTION_L2_128B"), option("FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
    )  # fmt: skip
    return [ctypes.string_at(int(made.getPtr()), 128), what.rows, what.columns, what.stride, 1]


def source_of(call: Any, sm: int) -> Source:
    """What the machine code for ``call`` (a ``Launch``) is made from."""
    described = [describe(value) for value in call.args.values()]
    return Source(
        call.fn,
        tuple((name, kind) for name, (kind, _, _) in zip(call.args, described)),
        tuple(i for i, (_, aligned, _) in enumerate(described) if aligned),
        tuple(call.constexprs.items()),
        (("num_warps", call.num_warps), ("num_stages", call.num_stages)),
        sm,
    )


class Launcher:
    """Compiles kernels as they are needed, keeps them loaded, and launches them into the device's stream."""

    def __init__(self, device: Device, memory: Memory) -> None:
        self.device, self.memory = device, memory
        self.on_launch: Callable[[str, Any], Any] | None = None  # called with a kernel's name and launch before it
        self._kernels: dict[Any, Kernel] = {}
        self._planned: dict[Any, tuple[Source | None, int]] | None = None
        self._scratch: list[DeviceArray] = []

    def __call__(self, call: Any) -> None:
        """Launch ``call`` (a ``Launch``, see ``kernels/spec.py``); inside :meth:`planning`, only note it."""
        described = [describe(value) for value in call.args.values()]
        key = (
            call.fn,
            tuple((kind, aligned) for kind, aligned, _ in described),
            tuple(call.constexprs.items()),
            call.num_warps,
            call.num_stages,
        )
        kernel = self._kernels.get(key)
        x, y, z = call.grid
        if self._planned is not None:
            source, programs = self._planned.get(key) or (None if kernel else source_of(call, self.device.sm), 0)
            self._planned[key] = source, max(programs, x * y * z)
            return
        if kernel is None:
            kernel = self._load({key: source_of(call, self.device.sm)})[key]
        if self.on_launch is not None:
            self.on_launch(kernel.name, call)
        scratch = self._scratch_for(kernel.scratch_bytes * x * y * z)
        boxes = iter(kernel.tiles)
        values: list[int | bytes] = []
        for value, (_, _, bits) in zip(call.args.values(), described):
            values += descriptor(self.device, value, next(boxes)) if isinstance(value, Tiled) else [bits]
        table = kernel.fill([*values, scratch, 0])
        run = self._early if call.early else self.device.cuda.bindings.cuLaunchKernel
        code = run(kernel.function, x, y, z, kernel.threads, 1, 1, kernel.shared, self.device.stream, table, 0)[0]
        if code != 0:
            raise CudaError(f"{kernel.name} with grid {call.grid} could not be launched: {code}")

    def _early(self, function: Any, *where: Any) -> Any:
        """``cuLaunchKernel`` for a kernel that may begin while the one before it is still at work.

        (CUDA C++ Programming Guide, "Programmatic Dependent Launch".)
        """
        bindings = self.device.cuda.bindings
        attribute, config = bindings.CUlaunchAttribute(), bindings.CUlaunchConfig()
        attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = where[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = where[3:6]
        config.sharedMemBytes, config.hStream = where[6:8]
        config.attrs, config.numAttrs = [attribute], 1
        return bindings.cuLaunchKernelEx(config, function, *where[8:])

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Launch nothing inside, but afterwards have all ready for it: kernels compiled side by side and loaded."""
        assert self._planned is None
        self._planned = {}
        try:
            yield
            planned = self._planned
        finally:
            self._planned = None
        self._load({key: source for key, (source, _) in planned.items() if source is not None})
        self._scratch_for(max((self._kernels[key].scratch_bytes * n for key, (_, n) in planned.items()), default=0))

    def _load(self, sources: dict[Any, Source]) -> dict[Any, Kernel]:
        binaries = compile_all(sources.values())
        loaded = {key: Kernel(self.device, binary) for key, binary in zip(sources, binaries)}
        self._kernels |= loaded
        return loaded

    def _scratch_for(self, n_bytes: int) -> int:
        """The address of scratch memory. Kernels run one after another, so they share it.

        Smaller pieces are kept when it grows: a captured graph may use them.
        """
        if n_bytes == 0:
            return 0
        if not self._scratch or self._scratch[-1].nbytes < n_bytes:
            self._scratch.append(self.memory.empty((n_bytes,), "u8"))
        return self._scratch[-1].ptr
