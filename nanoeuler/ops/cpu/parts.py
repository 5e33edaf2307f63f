"""Parts of kernels: functions that kernels call, compiled into each kernel together with it, and never by themselves.

A function under ``njit`` that another one calls is optimised and turned into machine code on its own, then linked into
its caller and optimised again there; nobody ever calls the first copy. With parts that call parts, the same code goes
through LLVM three or four times. A part's code is handed to LLVM once for each kernel that needs it, as a C compiler
does with the functions of a file. Nor is there anything to load for it when the kernels are in the cache.

A part declares its types, ``@part("void(f4[::1], i8)")``, or takes those of its first caller and returns nothing; it
cannot be called from Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import compiler, sigutils, typing
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from nanoeuler.ops.cpu.options import FAST_MATH

_PARTS: dict[Any, Part] = {}


class Part:
    """A function that kernels call, with its declared types (None: those of the call)."""

    def __init__(self, function: Callable[..., Any], signature: str | None, fastmath: Any) -> None:
        self.function, self.fastmath = function, fastmath
        self.declared = sigutils.normalize_signature(signature) if signature else None

    def signature(self, args: tuple[types.Type, ...]) -> typing.Signature:
        """Its types when it is called with ``args``."""
        kinds, result = self.declared or (tuple(types.unliteral(a) for a in args), types.void)
        return typing.signature(result, *kinds)

    def compiled(self, context: Any, signature: typing.Signature) -> Any:
        """Compile it into the library that is being made, if it is not there yet; returns Numba's description."""
        library = context.active_code_library
        done = library.__dict__.setdefault("parts_of_nanoeuler", {})
        if (self, signature.args) not in done:
            flags = compiler.Flags()
            cpu_target.options.parse_as_flags(flags, {"fastmath": self.fastmath, "error_model": "numpy"})
            flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
            types_of = signature.args, signature.return_type
            own = context.subtarget(fastmath=flags.fastmath)  # else the kernel's way with sums would count
            result = compiler.compile_internal(
                context.typing_context, own, library, self.function, *types_of, flags, {}
            )
            # what all calls are inlined of need not be kept
            library.get_function(result.fndesc.llvm_func_name).linkage = "linkonce_odr"
            done[self, signature.args] = result.fndesc
        return done[self, signature.args]


def part(signature: str | None = None, fastmath: Any = False) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a part of the kernels that call it. Sums are computed as they are written."""

    def decorate(function: Callable[..., Any]) -> Any:
        self = Part(function, signature, fastmath)

        def call(typingctx: Any, *args: Any) -> Any:
            def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
                return context.call_internal(builder, self.compiled(context, sig), sig, values)

            return self.signature(args), codegen

        own = inspect.signature(function)
        first = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
        call.__name__ = call.__qualname__ = function.__name__
        call.__doc__, call.__module__ = function.__doc__, function.__module__
        handle = intrinsic(call)
        _PARTS[handle] = self
        return handle

    return decorate


def fast_part(signature: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """The same, but sums may be reordered: not for what decoding must compute to the same bits."""
    return part(signature, FAST_MATH)


def part_of(kind: types.Function) -> Part:
    """The part that Numba knows as the type ``kind``."""
    return _PARTS[kind.typing_key]
