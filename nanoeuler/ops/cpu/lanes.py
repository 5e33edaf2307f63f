"""Loops over rows of numbers, written in LLVM's intermediate representation: what LLVM's own vectoriser makes slow.

A row of a small model is short, 128 numbers or eight vectors. Numba's slices, and the tests by which LLVM's vectoriser
makes sure that they do not overlap, then cost several times what the arithmetic does, and a sum that lives in an array
goes through memory each time. Layer norm's backward took 93 us for 768 x 128 on two cores as a Numba loop, and takes 23
with these. Here a loop is emitted as it should run: over whole vectors, sums in registers, then over what remains.

A body is written once: it gets :class:`Lanes`, in the last turn with a mask over what remains of the row.

    def body(v, i, sums):                   # v: Lanes, i: index, sums: what goes from turn to turn
        x = v.load(row, i)
        return [v.add(sums[0], x)]
    [total] = sweep(builder, n, body, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import cgutils

from nanoeuler.ops.cpu.simd import VL, emit_exp

_f32, _i32, _i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
Value: TypeAlias = ir.Value


class Lanes:
    """Arithmetic on VL float32 side by side. With a ``mask``, only its lanes are read (0 in the others) and written."""

    def __init__(self, builder: ir.IRBuilder, mask: Value | None = None) -> None:
        self.b, self.mask = builder, mask
        self.type, self.int = ir.VectorType(_f32, VL), ir.VectorType(_i32, VL)

    def const(self, value: float) -> Value:
        return ir.Constant(self.type, [value] * VL)

    def splat(self, scalar: Value) -> Value:
        kind = self.int if scalar.type == _i32 else self.type
        undef, lane0 = ir.Constant(kind, ir.Undefined), ir.Constant(self.int, [0] * VL)
        return self.b.shuffle_vector(self.b.insert_element(undef, scalar, ir.Constant(_i32, 0)), undef, lane0)

    def _call(self, name: str, *args: Value) -> Value:
        kind = ir.FunctionType(self.type, [self.type] * len(args))
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, f"llvm.{name}.v{VL}f32"), args)

    def load(self, base: Value, i: Value) -> Value:
        place = self.b.bitcast(self.b.gep(base, [i]), self.type.as_pointer())
        if self.mask is None:
            return self.b.load(place, align=4)
        kind = ir.FunctionType(self.type, [place.type, _i32, self.mask.type, self.type])
        masked = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.masked.load.v{VL}f32.p0")
        return self.b.call(masked, [place, ir.Constant(_i32, 4), self.mask, self.const(0.0)])

    def store(self, value: Value, base: Value, i: Value) -> None:
        place = self.b.bitcast(self.b.gep(base, [i]), self.type.as_pointer())
        if self.mask is None:
            self.b.store(value, place, align=4)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.type, place.type, _i32, self.mask.type])
        masked = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.masked.store.v{VL}f32.p0")
        self.b.call(masked, [value, place, ir.Constant(_i32, 4), self.mask])

    def add(self, x: Value, y: Value) -> Value:
        return self.b.fadd(x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.b.fsub(x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.b.fmul(x, y)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """``x y + z``"""
        return self._call("fmuladd", x, y, z)

    def max(self, x: Value, y: Value) -> Value:
        """The larger; NaN in ``x`` stays."""
        return self.b.select(self.b.fcmp_ordered("<", x, y), y, x)

    def reciprocal(self, x: Value) -> Value:
        """``1/x``; with AVX-512 from 14 bits by one step of Newton's method (28 bits), in place of a slow division."""
        if VL != 16:
            return self.b.fdiv(self.const(1.0), x)
        i16 = ir.IntType(16)
        kind = ir.FunctionType(self.type, [self.type, self.type, i16])
        rcp = cgutils.get_or_insert_function(self.b.module, kind, "llvm.x86.avx512.rcp14.ps.512")
        y = self.b.call(rcp, [x, self.const(0.0), ir.Constant(i16, -1)])
        return self.mul(y, self.fma(self.mul(self.const(-1.0), x), y, self.const(2.0)))

    def exp(self, x: Value) -> Value:
        return emit_exp(self.b, x)

    def total(self, x: Value) -> Value:
        """The sum of all lanes: halves are added until one is left."""
        width = VL
        while width > 1:
            half = width // 2
            undef = ir.Constant(ir.VectorType(_f32, width), ir.Undefined)
            low, high = (
                self.b.shuffle_vector(x, undef, ir.Constant(ir.VectorType(_i32, half), list(range(s, s + half))))
                for s in (0, half)
            )
            x, width = self.b.fadd(low, high), half
        return self.b.extract_element(x, ir.Constant(_i32, 0))


Body = Callable[[Lanes, Value, list[Value]], Sequence[Value]]


def loop(b: ir.IRBuilder, start: Value, stop: Value, step: int, carry: list[Value], body: Any) -> list[Value]:
    """``for i in range(start, stop, step): carry = body(i, carry)``; returns the last ``carry``."""
    entry, head = b.block, b.append_basic_block("loop")
    inside, done = b.append_basic_block("loop.body"), b.append_basic_block("loop.done")
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(_i64)
    i.add_incoming(start, entry)
    values = [b.phi(c.type) for c in carry]
    for phi, value in zip(values, carry):
        phi.add_incoming(value, entry)
    b.cbranch(b.icmp_signed("<", i, stop), inside, done)
    b.position_at_end(inside)
    new = list(body(i, values) or [])
    i.add_incoming(b.add(i, ir.Constant(_i64, step)), b.block)
    for phi, value in zip(values, new):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(done)
    return values


def sweep(b: ir.IRBuilder, n: Value, body: Body, sums: int = 0) -> list[Value]:
    """``body`` for all indices below n, VL at a time, the last under a mask; returns ``sums`` sums, plain numbers."""
    zero, whole = ir.Constant(_i64, 0), b.and_(n, ir.Constant(_i64, -VL))
    v = Lanes(b)
    partial = loop(b, zero, whole, VL, [v.const(0.0)] * sums, lambda i, s: body(v, i, s))
    left = v.splat(b.trunc(b.sub(n, whole), _i32))
    mask = b.icmp_signed("<", ir.Constant(v.int, list(range(VL))), left)

    def rest(i: Value, s: list[Value]) -> list[Value]:
        return [b.select(mask, new, old) for new, old in zip(body(Lanes(b, mask), i, s) or (), s)]

    return [v.total(p) for p in loop(b, whole, n, VL, partial, rest)]


def pointers(b: ir.IRBuilder, *addresses: Value) -> list[Value]:
    """Addresses as pointers to float32."""
    return [b.inttoptr(a, _f32.as_pointer()) for a in addresses]
