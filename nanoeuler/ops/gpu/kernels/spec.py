"""What it takes to run one kernel, as data: the contract between the kernels and the runtime that launches them.

A *plan* (every public function of this package) looks only at shapes, dtypes and the target GPU and returns a list of
:class:`Launch`. Nothing here needs a GPU or Triton's compiler, so a launch can be inspected, compiled for a GPU that is
elsewhere, or run in the interpreter.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "i32": 4, "i8": 1}  # bytes an element

#: Shared memory one program may use, by compute capability (CUDA C++ Programming Guide, "Technical Specifications per
#: Compute Capability"); the driver keeps 1 KB of each multiprocessor's memory for itself.
SHARED_MEMORY = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}


class Array(Protocol):
    """What plans need to know of an array on the device: row-major, dense unless a plan says otherwise."""

    shape: tuple[int, ...]
    dtype: str  # a key of DTYPES
    ptr: int  # device address

    def __getitem__(self, rows: slice) -> Array: ...


@dataclass(frozen=True)
class Target:
    """The GPU to plan for: compute capability times ten, and its number of multiprocessors.

    >>> Target(90).shared_memory
    232448
    """

    sm: int = 90
    multiprocessors: int = 132

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory one program may use."""
        return SHARED_MEMORY.get(self.sm, 99) * 1024

    @property
    def has_tma(self) -> bool:
        """Whether tiles can be copied by the tensor memory accelerator (Hopper and later)."""
        return self.sm >= 90


@dataclass(frozen=True)
class Tiled:
    """A matrix as the tensor memory accelerator sees it: ``rows`` of ``columns`` numbers, ``stride`` apart, in tiles.

    The kernel gets a *descriptor* of it, 128 bytes that the host makes. (A kernel could make it itself; but it would
    have to write it to memory and make sure that the copy engine sees it, before its first load.)
    """

    array: Array
    rows: int
    columns: int
    stride: int
    tile: tuple[int, int]

    @property
    def type(self) -> str:
        """Gluon's name for it: dtype, tile, and how a tile's rows are shuffled in shared memory, so that neither the
        copy engine nor the tensor cores meet a bank twice.

        >>> from types import SimpleNamespace
        >>> Tiled(SimpleNamespace(dtype="bf16"), 5, 40, 40, (64, 128)).type
        'tensordesc<bf16[64,128],NVMMASharedLayout(swizzle_byte_width=128,element_bitwidth=16,rank=2)>'
        """
        size = DTYPES[self.array.dtype]
        layout = f"swizzle_byte_width={min(128, self.tile[1] * size)},element_bitwidth={8 * size},rank=2"
        return f"tensordesc<{self.array.dtype}[{self.tile[0]},{self.tile[1]}],NVMMASharedLayout({layout})>"


@dataclass(frozen=True)
class Launch:
    """One kernel launch: all that is needed to compile it and to run it."""

    fn: Any  # the @triton.jit function
    args: dict[str, Any]  # run-time arguments in the order of fn's parameters: Array, Tiled, int or float
    constexprs: dict[str, Any]  # values that are compiled in; an absent (None) array is one of them
    grid: tuple[int, int, int]
    num_warps: int = 4
    num_stages: int = 3
    early: bool = False  # may begin before the launch before it has ended: it waits itself for what that has written

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.fn.__name__)

    def signature(self) -> dict[str, str]:
        """The type of every parameter, in order, as Triton's ``ASTSource`` wants it (``"constexpr"`` where fixed)."""
        types = {name: type_name(value) for name, value in self.args.items()}
        return {name: types.get(name, "constexpr") for name in parameters(self.fn)}

    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """What the compiler may assume: which arguments are multiples of 16, so that it can load 16 bytes at once."""
        order = list(parameters(self.fn))
        return {
            (order.index(name),): [["tt.divisibility", 16]]
            for name, value in self.args.items()
            if not isinstance(value, (float, Tiled)) and getattr(value, "ptr", value) % 16 == 0
        }


def launch(fn: Any, grid: tuple[int, ...], num_warps: int = 4, num_stages: int = 3, **arguments: Any) -> Launch:
    """Sort ``arguments`` into run-time ones and compiled-in ones and check that none is missing or too many.

    One called EARLY says that the kernel may begin early, see :class:`Launch`.
    """
    names = parameters(fn)
    if set(arguments) != set(names):
        raise TypeError(f"{fn.__name__}: arguments differ in {sorted(set(arguments) ^ set(names))}")
    fixed = {name for name, is_constexpr in names.items() if is_constexpr or arguments[name] is None}
    return Launch(
        fn,
        {name: arguments[name] for name in names if name not in fixed},
        {name: arguments[name] for name in names if name in fixed},
        (grid[0], grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1),
        num_warps,
        num_stages,
        bool(arguments.get("EARLY")),
    )


@functools.cache
def parameters(fn: Any) -> Mapping[str, bool]:
    """The names of a kernel's parameters in order, and whether each is a ``tl.constexpr``."""
    signature = inspect.signature(fn.fn)
    return {name: "constexpr" in str(p.annotation) for name, p in signature.parameters.items()}


def type_name(value: Any) -> str:
    """Triton's name for the type of a run-time argument.

    >>> type_name(3), type_name(2**40), type_name(0.5)
    ('i32', 'i64', 'fp32')
    """
    if isinstance(value, Tiled):
        return value.type
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "*" + value.dtype


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up.

    >>> cdiv(7, 3)
    3
    """
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``.

    >>> power_of_2(768)
    1024
    """
    return 1 << max(0, n - 1).bit_length()
