"""The few instructions that Python cannot say: a register tile of fused multiply-adds, and a vectorisable exp.

Numba turns loops into machine code through LLVM. Its vectoriser is good at elementwise loops but does not
keep a block of accumulators in registers, which is what a matrix product lives on. So the inner tile is written
here directly in LLVM's intermediate representation, with ``llvmlite``, as a Numba *intrinsic*: still Python, still
compiled for the machine at hand.

The tile is ``MR`` rows by ``NR`` columns of C, held in registers while k runs:

    for k:  load NR values of B (NV vectors); for each of MR rows: broadcast one value of A, NV multiply-adds

With AVX-512 (32 registers of 16 floats): 12 x 32, that is 24 accumulators, 2 vectors of B and 12 broadcasts, which
the processor takes from memory inside the multiply-add. 14 loads feed 24 multiply-adds, so the two
arithmetic units stay busy (12 cycles) while the two load ports do not quite (7 cycles).

Source of the scheme: Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication".
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def tile_shape() -> tuple[int, int, int]:
    """(rows MR, vectors NV, floats per vector VL) of the register tile for this processor.

    Chosen by features, never by the processor's name: virtual machines misreport it.
    """
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 12, 2, 16  # 24 of 32 registers accumulate
    if features.get("avx2") and features.get("fma"):
        return 6, 2, 8  # 12 of 16
    if platform.machine().lower() in ("arm64", "aarch64"):
        return 8, 3, 4  # 24 of 32
    return 6, 2, 4  # SSE2


MR, NV, VL = tile_shape()
NR = NV * VL

_f32, _i32, _i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_vec = ir.VectorType(_f32, VL)


def _i(value: int) -> ir.Constant:
    return ir.Constant(_i64, value)


def _llvm_function(builder: ir.IRBuilder, name: str, result: ir.Type, args: list[ir.Type]) -> ir.Function:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, args), name)


def _vector_at(builder: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    return builder.bitcast(builder.gep(base, [index]), _vec.as_pointer())


def _address_packed(b: ir.IRBuilder, a: ir.Value, stride: Any) -> Any:
    return lambda k, i: b.gep(a, [b.add(b.mul(k, _i(MR)), _i(i))])


def _address_by_columns(b: ir.IRBuilder, a: ir.Value, stride: Any) -> Any:
    return lambda k, i: b.gep(a, [b.add(b.mul(k, stride), _i(i))])


def _address_by_rows(b: ir.IRBuilder, a: ir.Value, stride: Any) -> Any:
    """Every third row has a pointer; the processor adds one or two strides to it as it loads. (Twelve pointers, or
    twelve products of a stride, would not fit into the registers.)"""
    bases = [b.gep(a, [b.mul(stride, _i(i))]) for i in range(0, MR, 3)]

    def address(k: ir.Value, i: int) -> ir.Value:
        at = b.gep(bases[i // 3], [k])
        return b.gep(at, [b.mul(stride, _i(i % 3))]) if i % 3 else at

    return address


def _tile_loop(b: ir.IRBuilder, kc: ir.Value, address: Any, bp: ir.Value) -> list[list[ir.Value]]:
    """Emit the loop over k; return the MR x NV accumulators as they leave it. ``address(k, i)`` is where A's lie."""
    fma = _llvm_function(b, f"llvm.fmuladd.v{VL}f32", _vec, [_vec, _vec, _vec])
    entry, loop, done = b.block, b.append_basic_block("k"), b.append_basic_block("k.done")
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(_i64)
    k.add_incoming(_i(0), entry)
    acc = [[b.phi(_vec) for _ in range(NV)] for _ in range(MR)]
    b_k = b.mul(k, _i(NR))
    b_vecs = [b.load(_vector_at(b, bp, b.add(b_k, _i(j * VL))), align=4) for j in range(NV)]
    undef, lane0 = ir.Constant(_vec, ir.Undefined), ir.Constant(_i32, 0)
    all_lane0 = ir.Constant(ir.VectorType(_i32, VL), [0] * VL)
    new: list[list[ir.Value]] = []
    for i in range(MR):
        value = b.load(address(k, i), align=4)
        broadcast = b.shuffle_vector(b.insert_element(undef, value, lane0), undef, all_lane0)
        new.append([b.call(fma, [broadcast, b_vecs[j], acc[i][j]]) for j in range(NV)])
    for i in range(MR):
        for j in range(NV):
            acc[i][j].add_incoming(ir.Constant(_vec, [0.0] * VL), entry)
            acc[i][j].add_incoming(new[i][j], loop)
    k_next = b.add(k, _i(1))
    k.add_incoming(k_next, loop)
    b.cbranch(b.icmp_signed("<", k_next, kc), loop, done)
    b.position_at_end(done)
    return new


def _prefetch(b: ir.IRBuilder, place: ir.Value, write: int, locality: int) -> None:
    i8p = ir.IntType(8).as_pointer()
    call = _llvm_function(b, "llvm.prefetch.p0", ir.VoidType(), [i8p, _i32, _i32, _i32])
    b.call(call, [b.bitcast(place, i8p), *(ir.Constant(_i32, x) for x in (write, locality, 1))])


def _emit_tile(b: ir.IRBuilder, layout: Any, kc: Any, a: Any, stride: Any, bp: Any, c: Any, ldc: Any, add: Any) -> None:
    a, bp, c = (b.inttoptr(x, _f32.as_pointer()) for x in (a, bp, c))
    places = [_vector_at(b, c, b.add(b.mul(ldc, _i(i)), _i(j * VL))) for i in range(MR) for j in range(NV)]
    for place in places:  # the lines that will be written when the loop over k is done come while it runs
        _prefetch(b, place, 1, 3)
    sums = _tile_loop(b, kc, layout(b, a, stride), bp)
    values = [sums[i][j] for i in range(MR) for j in range(NV)]
    with b.if_else(b.icmp_signed("!=", add, _i(0))) as (adds, overwrites):
        with adds:
            for place, value in zip(places, values):
                b.store(b.fadd(b.load(place, align=4), value), place, align=4)
        with overwrites:
            for place, value in zip(places, values):
                b.store(value, place, align=4)


@intrinsic
def tile(typingctx: Any, kc: Any, a: Any, b: Any, c: Any, ldc: Any, accumulate: Any) -> Any:
    """``C[MR,NR] (+)= A B`` on packed operands: ``a[k][MR]``, ``b[k][NR]``, C with row stride ``ldc`` floats.

    ``a``, ``b``, ``c`` are addresses; ``kc >= 1``; ``accumulate`` 0 overwrites C, 1 adds to it.
    """

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        _emit_tile(builder, _address_packed, args[0], args[1], None, *args[2:])
        return context.get_dummy_value()

    return types.void(types.int64, types.intp, types.intp, types.intp, types.int64, types.int64), codegen


def _make_unpacked(layout: Any) -> Any:
    @intrinsic
    def unpacked(typingctx: Any, kc: Any, a: Any, stride: Any, b: Any, c: Any, ldc: Any, accumulate: Any) -> Any:
        """:func:`tile` with A as it lies in memory, ``a[i*stride + k]`` (by rows) or ``a[k*stride + i]`` (by columns).

        For an A that is used once or twice, where packing would cost more than it saves.
        """

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            _emit_tile(builder, layout, *args)
            return context.get_dummy_value()

        i64, at = types.int64, types.intp
        return types.void(i64, at, i64, at, at, i64, i64), codegen

    return unpacked


tile_of_rows, tile_of_columns = _make_unpacked(_address_by_rows), _make_unpacked(_address_by_columns)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at ``address`` (into L2) without waiting for it."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        _prefetch(builder, builder.inttoptr(args[0], _f32.as_pointer()), 0, 2)
        return context.get_dummy_value()

    return types.void(types.intp), codegen


def _transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose VL vectors of VL lanes in log2(VL) steps of two-input shuffles (Eklundh 1972)."""
    rows = list(rows)
    step = 1
    while step < VL:
        low = [j if not j & step else VL + j - step for j in range(VL)]
        high = [j + step if not j & step else VL + j for j in range(VL)]
        mask = [ir.Constant(ir.VectorType(_i32, VL), m) for m in (low, high)]
        for i in range(VL):
            if not i & step:
                x, y = rows[i], rows[i + step]
                rows[i], rows[i + step] = b.shuffle_vector(x, y, mask[0]), b.shuffle_vector(x, y, mask[1])
        step *= 2
    return rows


def _store_lanes(b: ir.IRBuilder, value: ir.Value, lanes: int, address: ir.Value) -> None:
    """Store the first ``lanes`` of a vector, in pieces of a power of two."""
    done = 0
    while done < lanes:
        width = 1 << (min(lanes - done, VL).bit_length() - 1)
        pick = ir.Constant(ir.VectorType(_i32, width), list(range(done, done + width)))
        piece = value if width == VL else b.shuffle_vector(value, ir.Constant(_vec, ir.Undefined), pick)
        place = b.bitcast(b.gep(address, [_i(done)]), ir.VectorType(_f32, width).as_pointer())
        b.store(piece, place, align=4)
        done += width


def _make_turn(R: int) -> Any:
    @intrinsic
    def turn(typingctx: Any, dst: Any, dst_stride: Any, src: Any, src_stride: Any) -> Any:
        """``dst[k*dst_stride + i] = src[i*src_stride + k]`` for i < R, k < VL: R rows become VL columns.

        ``dst`` and ``src`` are addresses; strides count floats.
        """

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            dst, src = (builder.inttoptr(x, _f32.as_pointer()) for x in (args[0], args[2]))
            for g in range(0, R, VL):
                n = min(VL, R - g)
                rows = [
                    builder.load(_vector_at(builder, src, builder.mul(args[3], _i(g + i))), align=4) for i in range(n)
                ]
                rows += [ir.Constant(_vec, ir.Undefined)] * (VL - n)
                for k, column in enumerate(_transposed(builder, rows)):
                    at = builder.add(builder.mul(args[1], _i(k)), _i(g))
                    _store_lanes(builder, column, n, builder.gep(dst, [at]))
            return context.get_dummy_value()

        return types.void(types.intp, types.int64, types.intp, types.int64), codegen

    return turn


turn_a, turn_b, turn_square = _make_turn(MR), _make_turn(NR), _make_turn(VL)


def _make_copy(R: int) -> Any:
    @intrinsic
    def copy(typingctx: Any, dst: Any, src: Any) -> Any:
        """``dst[:R] = src[:R]`` floats between addresses, in whole vectors."""

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            dst, src = (builder.inttoptr(x, _f32.as_pointer()) for x in args)
            done = 0
            while done < R:
                width = 1 << (min(R - done, VL).bit_length() - 1)
                pointer = ir.VectorType(_f32, width).as_pointer()
                value = builder.load(builder.bitcast(builder.gep(src, [_i(done)]), pointer), align=4)
                builder.store(value, builder.bitcast(builder.gep(dst, [_i(done)]), pointer), align=4)
                done += width
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    return copy


copy_a, copy_b = _make_copy(MR), _make_copy(NR)


@intrinsic
def copy_floats(typingctx: Any, dst: Any, src: Any, n: Any) -> Any:
    """``dst[:n] = src[:n]`` floats between addresses that do not overlap."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        i8p = ir.IntType(8).as_pointer()
        memcpy = _llvm_function(builder, "llvm.memcpy.p0.p0.i64", ir.VoidType(), [i8p, i8p, _i64, ir.IntType(1)])
        dst, src = (builder.inttoptr(x, i8p) for x in args[:2])
        builder.call(memcpy, [dst, src, builder.mul(args[2], _i(4)), ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.int64), codegen


@intrinsic
def widest_vectors(typingctx: Any) -> Any:
    """Let the loops of the function that calls this use the widest vectors there are.

    LLVM prefers 256 bits on processors with AVX-512, against lower clocks on the first of them. Long polynomials on
    later ones are almost twice as fast with 512.
    """

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        # llvmlite only knows attributes without values; as a set of strings it prints this one just as well
        set.add(builder.function.attributes, f'"prefer-vector-width"="{32 * VL}"')
        return context.get_dummy_value()

    return types.void(), codegen


def emit_exp(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """float32 ``e^x`` of a number or of a vector of numbers, as straight-line arithmetic.

    ``x = n ln2 + r`` with ``|r| <= ln2/2``; ``e^r`` by its Taylor polynomial of degree 7 (truncation error below
    6e-9 relative), ``2^n`` by writing n into the exponent bits. Below -87 the result is 0. Above 80 it is clamped to
    e^80: only GELU goes there, far below zero, and must not meet denormal numbers, which are slow. Measured error:
    below 1.2e-7 relative, one unit in the last place.
    """
    n_lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
    suffix, ints = (f"v{n_lanes}f32", ir.VectorType(_i32, n_lanes)) if n_lanes else ("f32", _i32)

    def const(kind: ir.Type, value: float) -> ir.Constant:
        return ir.Constant(kind, [value] * n_lanes if n_lanes else value)

    def f(value: float) -> ir.Constant:
        return const(x.type, value)

    fmuladd = _llvm_function(b, f"llvm.fmuladd.{suffix}", x.type, [x.type] * 3)
    rint = _llvm_function(b, f"llvm.rint.{suffix}", x.type, [x.type])
    low, high = f(-87.0), f(80.0)
    vanishes = b.fcmp_ordered("<", x, low)
    x = b.select(vanishes, low, x)
    x = b.select(b.fcmp_ordered(">", x, high), high, x)
    n = b.call(rint, [b.fmul(x, f(1.4426950408889634))])
    r = b.call(fmuladd, [n, f(-0.693145751953125), x])  # ln2 in two parts: the first product is exact
    r = b.call(fmuladd, [n, f(-1.428606765330187e-06), r])
    poly = f(1.0 / 5040.0)
    for factorial in (720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        poly = b.call(fmuladd, [poly, r, f(1.0 / factorial)])
    exponent = b.shl(b.add(b.fptosi(n, ints), const(ints, 127)), const(ints, 23))
    return b.select(vanishes, f(0.0), b.fmul(poly, b.bitcast(exponent, x.type)))


@intrinsic
def exp(typingctx: Any, x: Any) -> Any:
    """float32 ``e^x`` for loops in Numba, which vectorise over it (libm's exp is a scalar call)."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return emit_exp(builder, args[0])

    return types.float32(types.float32), codegen
