"""Run a kernel's launch in Triton's interpreter on NumPy arrays: the GPU's arithmetic without a GPU.

Triton's own entry to its interpreter wants PyTorch tensors and an environment variable set before the kernels are
imported. Here the interpreter's parts are used directly instead, so that the very functions that other tests compile
for GPUs are interpreted in the same process: while :func:`interpreting` is open, Triton's language runs on NumPy and a
``@triton.jit`` function called by another is interpreted too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from nanoeuler.ops.gpu.kernels.spec import Launch

NUMPY = {"fp32": np.float32, "fp64": np.float64, "fp16": np.float16, "i32": np.int32, "i8": np.int8}
TRITON = {"fp32": tl.float32, "fp64": tl.float64, "fp16": tl.float16, "i32": tl.int32, "i8": tl.int8}


@dataclass
class HostArray:
    """A NumPy array that looks like one on the device."""

    host: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def dtype(self) -> str:
        return next(name for name, dtype in NUMPY.items() if self.host.dtype == dtype)

    @property
    def ptr(self) -> int:
        return self.host.ctypes.data

    def __getitem__(self, rows: slice) -> HostArray:
        return HostArray(self.host[rows])


def array(values: np.ndarray, dtype: str = "fp32") -> HostArray:
    """A copy of ``values`` as a device array, aligned to 64 bytes as on the device."""
    values = np.asarray(values, NUMPY[dtype])
    space = np.empty(values.nbytes + 64, np.uint8)
    start = -space.ctypes.data % 64
    host = space[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    host[...] = values
    return HostArray(host)


def empty(*shape: int, dtype: str = "fp32") -> HostArray:
    """An array of NaN (of -77 for integers), so that an element left unwritten shows."""
    return array(np.full(shape, -77 if dtype == "i32" else np.nan), dtype)


def run(launches: list[Launch]) -> None:
    """Interpret the launches one after the other."""
    with interpreting():
        for launch in launches:
            _run(launch)


def _run(launch: Launch) -> None:
    arguments = {name: _argument(value) for name, value in launch.args.items()}
    arguments |= {name: _constant(value) for name, value in launch.constexprs.items()}
    kernel = _interpreted(launch.fn)
    interpreter.interpreter_builder.set_grid_dim(*launch.grid)
    for index in np.ndindex(*launch.grid):
        interpreter.interpreter_builder.set_grid_idx(*index)
        kernel(**arguments)


def _argument(value: Any) -> tl.tensor:
    if isinstance(value, HostArray):
        kind = tl.pointer_type(TRITON[value.dtype])
        return tl.tensor(interpreter.TensorHandle(np.array([value.ptr], np.uint64), kind), kind)
    kind = tl.float32 if isinstance(value, float) else tl.int32 if -(2**31) <= value < 2**31 else tl.int64
    dtype = {tl.float32: np.float32, tl.int32: np.int32, tl.int64: np.int64}[kind]
    return tl.tensor(interpreter.TensorHandle(np.array([value], dtype), kind), kind)


def _constant(value: Any) -> Any:
    return None if value is None else tl.constexpr(value)


def _interpreted(fn: JITFunction) -> Callable[..., Any]:
    if fn.fn not in _REWRITTEN:  # parsing a function's text takes longer than interpreting a small one
        _REWRITTEN[fn.fn] = interpreter.InterpretedFunction(fn.fn).rewrite()
    return _REWRITTEN[fn.fn]


_REWRITTEN: dict[Callable[..., Any], Callable[..., Any]] = {}


@contextmanager
def interpreting() -> Iterator[None]:
    """Triton's language on NumPy, restored at the end."""
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    compiled_call = JITFunction.__call__

    def call(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
        return _interpreted(self)(*args, **kwargs)

    JITFunction.__call__ = call
    scope.set_attr(tl, "inline_asm_elementwise", _assembly)
    scope.set_attr(interpreter.InterpreterBuilder, "create_descriptor_reduce", _add_to_tile)
    scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
    try:
        yield
    finally:
        JITFunction.__call__ = compiled_call
        scope.restore()


def _add_to_tile(builder: Any, kind: Any, desc: Any, value: Any, indices: list[Any]) -> None:
    """``descriptor.atomic_add``, which the interpreter lacks."""
    pointers, mask = desc.materialize_pointers(indices)
    mask = np.asarray(mask if isinstance(mask, np.ndarray) else mask.data)  # Triton 3.6, or later
    kind = np.ctypeslib.as_ctypes_type(value.data.dtype)
    for address, inside, more in zip(pointers.data.ravel(), mask.ravel(), value.data.ravel(), strict=True):
        if inside:
            place = kind.from_address(int(address))
            place.value = np.float32(place.value) + more


def _assembly(asm: str, constraints: str, args: list[tl.tensor], dtype: tl.dtype, **_: Any) -> tl.tensor:
    """The few instructions that kernels write out, by what they compute."""
    instructions = {"tanh.approx.f32 $0, $1;": np.tanh}
    result = instructions[asm](args[0].handle.data)
    return tl.tensor(interpreter.TensorHandle(result, args[0].handle.dtype), args[0].type)
