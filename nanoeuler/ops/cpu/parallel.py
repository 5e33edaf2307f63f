"""Run a function for many indices on all threads: Numba's ``prange`` for a fraction of its compile time.

Numba makes a function of its own from each ``prange`` loop, wraps it twice, and lets LLVM optimise the same code again
in each of these. (Attention's backward took 6 s so, and a loop of four lines 1.3.) Here the loop's body is a function
already: ``fork`` puts its arguments on the stack and gives Numba's threads (OpenMP's, mostly) the address of a small
function that takes them from there. Nothing else is compiled.

    @part()
    def scale_block(block, x, factor): ...

    @njit(**KERNEL)
    def scale(x, factor):
        fork(scale_block, x.shape[0] // BLOCK, (x, factor))

Thread t gets the t-th part of the indices, in order: the same in every kernel, so it often meets rows that it has just
written itself.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.ufunc.parallel import _launch_threads

from nanoeuler.ops.cpu.parts import part_of

_launch_threads()  # starts the threads, and tells LLVM where to find the functions called below

_i8p, _i32, _i64 = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)


def _i(value: int) -> ir.Constant:
    return ir.Constant(_i64, value)


def _count_up(b: ir.IRBuilder, start: ir.Value, stop: ir.Value) -> Any:
    """``for i in range(start, stop)``, as a context that gives ``i``."""
    return cgutils.for_range_slice(b, start, stop, _i(1), _i64)


def _task(context: Any, module: ir.Module, name: str, part: Any, packet: ir.Type) -> ir.Function:
    """What the threads call: ``part`` for one thread's share of the indices, with the arguments in ``packet``.

    Numba calls it as a loop over arrays: ``places[0]`` is ``data`` plus the thread's number, ``counts[0]`` says for how
    many threads' numbers from there on it works.
    """
    kind = ir.FunctionType(ir.VoidType(), [_i8p.as_pointer(), _i64.as_pointer(), _i64.as_pointer(), _i8p])
    task = ir.Function(module, kind, module.get_unique_name(name))
    task.linkage = "internal"
    places, counts, _, data = task.args
    b = ir.IRBuilder(task.append_basic_block("entry"))
    values = [b.extract_value(b.load(b.bitcast(data, packet.as_pointer())), i) for i in range(len(packet.elements))]
    n, threads, arguments = values[0], values[1], values[2:]
    first = b.sub(b.ptrtoint(b.load(places), _i64), b.ptrtoint(data, _i64))
    last = b.add(first, b.load(counts))
    start, stop = (b.sdiv(b.mul(t, n), threads) for t in (first, last))
    with _count_up(b, start, stop) as (i, _):
        fndesc, sig = part
        context.call_internal_no_propagate(b, fndesc, sig, [i, *arguments])
    b.ret_void()
    return task


@intrinsic
def fork(typingctx: Any, part: Any, n: Any, arguments: Any) -> Any:
    """``for i in range(n): part(i, *arguments)`` on all threads; returns when all is done. An exception is ignored."""
    plain = [types.unliteral(a) for a in arguments]
    called = part_of(part)
    signature = called.signature((types.int64, *plain))

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        n, kinds, given = args[1], signature.args[1:], sig.args[2]
        get_threads = cgutils.get_or_insert_function(b.module, ir.FunctionType(_i32, []), "get_num_threads")
        threads = b.sext(b.call(get_threads, []), _i64)
        alone = b.or_(b.icmp_signed("<=", n, _i(1)), b.icmp_signed("<=", threads, _i(1)))
        threads = b.select(alone, _i(1), threads)
        values = [context.cast(b, b.extract_value(args[2], i), given[i], kind) for i, kind in enumerate(kinds)]
        packet = ir.LiteralStructType([v.type for v in (n, threads, *values)])
        data = cgutils.alloca_once(b, packet)
        for i, value in enumerate((n, threads, *values)):
            b.store(value, b.gep(data, [ir.Constant(_i32, 0), ir.Constant(_i32, i)]))
        part = (called.compiled(context, signature), signature)
        task = _task(context, b.module, f"{b.function.name}.task", part, packet)

        def on_stack(value: ir.Value) -> ir.Value:
            place = cgutils.alloca_once(b, value.type)
            b.store(value, place)
            return b.bitcast(place, _i8p)

        data = b.bitcast(data, _i8p)
        places, counts, steps = on_stack(data), on_stack(threads), on_stack(_i(1))
        kind = ir.FunctionType(ir.VoidType(), [_i8p] * 5 + [_i64] * 2 + [_i32])
        parallel_for = cgutils.get_or_insert_function(b.module, kind, "numba_parallel_for")
        arguments = [b.bitcast(task, _i8p), places, counts, steps, data, _i(0), _i(1), b.trunc(threads, _i32)]
        # Always with all threads, though some may get nothing: what parallel_for is told stays the number of threads of
        # the calling thread, for all that follows.
        with b.if_else(alone) as (one, many):
            with one:
                typed = [b.bitcast(place, kind) for place, kind in zip((places, counts, steps), task.type.pointee.args)]
                b.call(task, [*typed, data])
            with many:
                b.call(parallel_for, arguments)
        return context.get_dummy_value()

    return types.void(part, types.int64, arguments), codegen
