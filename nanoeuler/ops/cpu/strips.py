"""The steps of attention's softmax on a strip of scores ``S^T[key][NR queries]``, in registers down the keys.

Each query is a lane. Its maximum and its sum stay in a register while the keys go by; kept in an array, they would go
through memory for each key, and the strip's exponentials would wait for that.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nanoeuler.ops.cpu.lanes import Lanes, Value, loop, pointers
from nanoeuler.ops.cpu.simd import NR, NV, VL

_i32, _i64 = ir.IntType(32), ir.IntType(64)
_i64t, _f32t, _at = types.int64, types.float32, types.intp


def _i(value: int) -> ir.Constant:
    return ir.Constant(_i64, value)


@intrinsic
def softmax_strip(typingctx: Any, S: Any, keys: Any, top: Any, total: Any) -> Any:
    """``S = exp(S - top)`` with each lane's maximum in ``top`` and sum in ``total``; ``keys`` >= 1."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        keys, v = args[1], Lanes(b)
        S, top, total = pointers(b, args[0], args[2], args[3])

        def at(k: Value, j: int) -> Value:
            return b.add(b.mul(k, _i(NR)), _i(j * VL))

        first = [v.load(S, _i(j * VL)) for j in range(NV)]
        tops = loop(b, _i(1), keys, 1, first, lambda k, t: [v.max(v.load(S, at(k, j)), t[j]) for j in range(NV)])

        def exponentials(k: Value, sums: list[Value]) -> list[Value]:
            new = []
            for j in range(NV):
                e = v.exp(v.sub(v.load(S, at(k, j)), tops[j]))
                v.store(e, S, at(k, j))
                new.append(v.add(sums[j], e))
            return new

        sums = loop(b, _i(0), keys, 1, [v.const(0.0)] * NV, exponentials)
        for j in range(NV):
            v.store(tops[j], top, _i(j * VL))
            v.store(sums[j], total, _i(j * VL))
        return context.get_dummy_value()

    return types.void(_at, _i64t, _at, _at), codegen


@intrinsic
def grad_strip(typingctx: Any, P: Any, dP: Any, keys: Any, lse: Any, delta: Any, scale: Any) -> Any:
    """Scores to probabilities, ``P = exp(P - lse)``, and ``dP`` to ``dS = P (dP - delta) scale``, lane by lane."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        keys, v = args[2], Lanes(b)
        P, dP, lse, delta = pointers(b, args[0], args[1], args[3], args[4])
        scale = v.splat(args[5])
        lses, deltas = ([v.load(p, _i(j * VL)) for j in range(NV)] for p in (lse, delta))

        def step(k: Value, carry: list[Value]) -> list[Value]:
            for j in range(NV):
                at = b.add(b.mul(k, _i(NR)), _i(j * VL))
                p = v.exp(v.sub(v.load(P, at), lses[j]))
                v.store(p, P, at)
                v.store(v.mul(v.mul(p, v.sub(v.load(dP, at), deltas[j])), scale), dP, at)
            return []

        loop(b, _i(0), keys, 1, [], step)
        return context.get_dummy_value()

    return types.void(_at, _at, _i64t, _at, _at, _f32t), codegen


@intrinsic
def mask_strip(typingctx: Any, S: Any, q0: Any, keys: Any, value: Any) -> Any:
    """Write ``value`` where a key lies in a query's future: lane i is query ``q0 + i``, and only the last keys can."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        q0, keys, v = args[1], args[2], Lanes(b)
        [S] = pointers(b, args[0])
        value = v.splat(args[3])
        kind = ir.VectorType(_i32, VL)

        def step(k: Value, carry: list[Value]) -> list[Value]:
            past = b.trunc(b.sub(k, q0), _i32)
            behind = v.splat(past)
            for j in range(NV):
                at = b.add(b.mul(k, _i(NR)), _i(j * VL))
                lane = ir.Constant(kind, list(range(j * VL, (j + 1) * VL)))
                v.store(b.select(b.icmp_signed("<", lane, behind), value, v.load(S, at)), S, at)
            return []

        loop(b, b.add(q0, _i(1)), keys, 1, [], step)
        return context.get_dummy_value()

    return types.void(_at, _i64t, _i64t, _f32t), codegen
