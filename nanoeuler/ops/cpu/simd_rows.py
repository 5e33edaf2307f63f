"""Products of few rows with a large matrix, as LLVM instructions: what decoding spends its time on.

A token multiplies one row by every weight once, so the weights stream from memory and are never used twice: the kernels
here only have to keep up with memory, and to add in a known order. ``y = x W`` with outputs in the vector lanes:

    for k:  broadcast x[k]; load W[k, some vectors of outputs]; one multiply-add for each

Each output then sums over k one after the other, as the register tile of ``simd.py`` does, so a row's result has the
same bits whether it is computed alone or in a batch. With several rows, weights in a register serve them all.

Weights come as float32 in place (:func:`columns`), as bfloat16 (two bytes, :func:`columns_bf16`) or as 8-bit integers
with a scale for every 64 inputs (:func:`columns_int8`). For the last, x is rounded to 8 bits as well and the products
are summed as integers: ``vpdpbusd`` does 64 of them in one instruction on processors with AVX-512 VNNI, 32 with
AVX-VNNI. Others take the bytes apart by shifts; the sums are the same integers.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nanoeuler.ops.cpu.simd import VL, _f32, _i, _i32, _i64, _llvm_function, _vec

WIDE = 8  # vectors of outputs at a time of a matrix that comes from memory: longer pieces of its rows
NV = 4  # vectors of outputs at a time: as many chains of multiply-adds as hide their latency
COLUMNS = NV * VL
PANEL = 2 * VL  # outputs in a packed panel of bf16 or int8 weights
GROUP = 64  # inputs that share a scale
AHEAD = 2048  # bytes that packed weights are prefetched ahead of their use
BF16_ROWS = 4  # rows that share a weight in a register
INT8_ROWS = 4

_i8, _i16 = ir.IntType(8), ir.IntType(16)
_words = ir.VectorType(_i32, VL)


def has_vnni() -> bool:
    """Whether this processor sums products of bytes in one instruction, at the width of our vectors."""
    features = llvm.get_host_cpu_features()
    if VL == 16:
        return bool(features.get("avx512vnni"))
    return VL == 8 and bool(features.get("avxvnni") or (features.get("avx512vnni") and features.get("avx512vl")))


VNNI = has_vnni()


def _splat(b: ir.IRBuilder, scalar: ir.Value, kind: ir.VectorType) -> ir.Value:
    undef = ir.Constant(kind, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(_i32, kind.count), [0] * kind.count)
    return b.shuffle_vector(b.insert_element(undef, scalar, ir.Constant(_i32, 0)), undef, lanes)


def _load(b: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return b.load(b.inttoptr(address, kind.as_pointer()), align=4)


def _store(b: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=4)


def _prefetch(b: ir.IRBuilder, address: ir.Value) -> None:
    i8p = _i8.as_pointer()
    prefetch = _llvm_function(b, "llvm.prefetch.p0", ir.VoidType(), [i8p, _i32, _i32, _i32])
    b.call(prefetch, [b.inttoptr(address, i8p), *(ir.Constant(_i32, x) for x in (0, 3, 1))])


def _fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    function = _llvm_function(b, f"llvm.fmuladd.v{VL}f32", _vec, [_vec] * 3)
    return b.call(function, [x, y, z])


def _halves(b: ir.IRBuilder, pairs: ir.Value) -> list[ir.Value]:
    """2 VL bfloat16 numbers, packed as (number i, number i + VL) in each 32-bit lane, as two vectors of float32."""
    low = b.shl(pairs, ir.Constant(_words, [16] * VL))
    high = b.and_(pairs, ir.Constant(_words, [-65536] * VL))
    return [b.bitcast(low, _vec), b.bitcast(high, _vec)]


class _Loop:
    """``for k in range(n)`` with values carried from turn to turn: ``with`` its body, then :attr:`last`."""

    def __init__(self, b: ir.IRBuilder, n: ir.Value, first: list[ir.Value]) -> None:
        self.b, self.n, self.first = b, n, first
        self.last: list[ir.Value] = []

    def __enter__(self) -> _Loop:
        b = self.b
        entry, self.body, self.done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.branch(self.body)
        b.position_at_end(self.body)
        self.k = b.phi(_i64)
        self.k.add_incoming(_i(0), entry)
        self.values = [b.phi(value.type) for value in self.first]
        for phi, value in zip(self.values, self.first):
            phi.add_incoming(value, entry)
        return self

    def __exit__(self, *error: object) -> None:
        b, end = self.b, self.b.block
        for phi, value in zip(self.values, self.last):
            phi.add_incoming(value, end)
        k_next = b.add(self.k, _i(1))
        self.k.add_incoming(k_next, end)
        b.cbranch(b.icmp_signed("<", k_next, self.n), self.body, self.done)
        b.position_at_end(self.done)


_ZERO = ir.Constant(_vec, [0.0] * VL)


def _finish(b: ir.IRBuilder, sums: list[ir.Value], places: list[ir.Value], add: ir.Value) -> None:
    """Store ``sums``, or add them to what is there."""
    with b.if_else(b.icmp_signed("!=", add, _i(0))) as (then, otherwise):
        with then:
            for value, place in zip(sums, places):
                _store(b, b.fadd(_load(b, place, _vec), value), place)
        with otherwise:
            for value, place in zip(sums, places):
                _store(b, value, place)


def _make_columns(n_vectors: int, ahead: int = 0) -> Any:
    @intrinsic
    def columns(typingctx: Any, kc: Any, x: Any, w: Any, ldw: Any, out: Any, add: Any) -> Any:
        """``out[j] (+)= sum over k < kc of x[k] * w[k*ldw + j]`` for a few vectors of j, in the order of k; weights are
        prefetched some rows ahead, where a matrix is to come from memory.

        ``x``, ``w``, ``out`` are addresses of float32, ``ldw`` counts bytes; ``kc >= 1``.
        """

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
            kc, x, w, ldw, out, add = args
            with _Loop(b, kc, [w, *[_ZERO] * n_vectors]) as loop:
                row, *sums = loop.values
                value = _splat(b, _load(b, b.add(x, b.mul(loop.k, _i(4))), _f32), _vec)
                loop.last = [b.add(row, ldw)]
                for j in range(n_vectors):
                    place = b.add(row, _i(4 * VL * j))
                    if ahead and 4 * VL * j % 64 == 0:
                        _prefetch(b, b.add(place, b.mul(ldw, _i(ahead))))
                    loop.last.append(_fma(b, value, _load(b, place, _vec), sums[j]))
            _finish(b, loop.last[1:], [b.add(out, _i(4 * VL * j)) for j in range(n_vectors)], add)
            return context.get_dummy_value()

        return types.void(types.int64, types.intp, types.intp, types.int64, types.intp, types.int64), codegen

    return columns


columns, columns2, columns1 = _make_columns(NV), _make_columns(2), _make_columns(1)
wide_columns = _make_columns(WIDE, ahead=8)


def _make_columns_bf16(rows: int) -> Any:
    @intrinsic
    def columns_bf16(typingctx: Any, kc: Any, x: Any, ldx: Any, w: Any, out: Any, ldo: Any, add: Any) -> Any:
        """One panel of bfloat16 weights: ``out[r, j] (+)= sum over k < kc of x[r, k] * w[k, j]`` for PANEL outputs j.

        ``w`` holds PANEL numbers for each k, see :func:`_halves`; strides count bytes.
        """

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
            kc, x, ldx, w, out, ldo, add = args
            with _Loop(b, kc, [w, *[_ZERO] * (2 * rows)]) as loop:
                at, *sums = loop.values
                _prefetch(b, b.add(at, _i(AHEAD)))
                weights = _halves(b, _load(b, at, _words))
                loop.last = [b.add(at, _i(2 * PANEL))]
                for r in range(rows):
                    place = b.add(b.add(x, b.mul(ldx, _i(r))), b.mul(loop.k, _i(4)))
                    value = _splat(b, _load(b, place, _f32), _vec)
                    loop.last += [_fma(b, value, weights[j], sums[2 * r + j]) for j in range(2)]
            places = [b.add(b.add(out, b.mul(ldo, _i(r))), _i(4 * VL * j)) for r in range(rows) for j in range(2)]
            _finish(b, loop.last[1:], places, add)
            return context.get_dummy_value()

        arguments = (types.int64, types.intp, types.int64, types.intp, types.intp, types.int64, types.int64)
        return types.void(*arguments), codegen

    return columns_bf16


columns_bf16, columns_bf16_1 = _make_columns_bf16(BF16_ROWS), _make_columns_bf16(1)


def _dot_bytes(b: ir.IRBuilder, sums: ir.Value, unsigned: ir.Value, signed: ir.Value, vnni: bool) -> ir.Value:
    """``sums[i] + sum over 4 bytes of unsigned * signed`` in each 32-bit lane."""
    if vnni:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * VL}"
        return b.call(_llvm_function(b, name, _words, [_words] * 3), [sums, unsigned, signed])
    for byte in range(4):
        w = b.and_(b.lshr(unsigned, ir.Constant(_words, [8 * byte] * VL)), ir.Constant(_words, [255] * VL))
        x = b.shl(signed, ir.Constant(_words, [24 - 8 * byte] * VL))
        sums = b.add(sums, b.mul(w, b.ashr(x, ir.Constant(_words, [24] * VL))))
    return sums


def make_columns_int8(rows: int, vnni: bool = VNNI) -> Any:
    @intrinsic
    def columns_int8(
        typingctx: Any, groups: Any, x: Any, ldx: Any, scales: Any, offsets: Any, lds: Any, w: Any, out: Any, ldo: Any
    ) -> Any:
        """One panel of 8-bit weights: ``out[r, j] = sum over groups g of sx[r, g] sw[g, j] dot(x[r, g], w[g, j])``.

        For each group ``w`` holds PANEL scales (bfloat16, as :func:`_halves` wants them), then for every 4 inputs and
        every output 4 bytes ``weight + 128``: ``vpdpbusd`` wants one factor unsigned. ``offsets[r, g]`` is therefore
        ``-128`` times the sum of ``x`` (int8) in that group, where the sum begins. Strides ``ldx``, ``lds`` (for
        ``scales`` and ``offsets``) and ``ldo`` count bytes.
        """

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
            groups, x, ldx, scales, offsets, lds, w, out, ldo = args
            with _Loop(b, groups, [w, *[_ZERO] * (2 * rows)]) as loop:
                at, *sums = loop.values
                _prefetch(b, b.add(at, _i(AHEAD)))
                weight_scales = _halves(b, _load(b, at, _words))
                at = b.add(at, _i(2 * PANEL))
                here = b.mul(loop.k, _i(4))

                def number(base: ir.Value, r: int, kind: ir.Type) -> ir.Value:
                    return _load(b, b.add(b.add(base, b.mul(lds, _i(r))), here), kind)

                whole = [_splat(b, number(offsets, r, _i32), _words) for r in range(rows) for _ in range(2)]
                x_group = b.add(x, b.mul(loop.k, _i(GROUP)))
                for four in range(GROUP // 4):
                    weights = []
                    for j in range(2):
                        place = b.add(at, _i(4 * (four * PANEL + j * VL)))
                        if (four * 2 + j) * 4 * VL % 64 == 0:
                            _prefetch(b, b.add(place, _i(AHEAD)))
                        weights.append(_load(b, place, _words))
                    for r in range(rows):
                        four_x = _load(b, b.add(b.add(x_group, b.mul(ldx, _i(r))), _i(4 * four)), _i32)
                        value = _splat(b, four_x, _words)
                        for j in range(2):
                            whole[2 * r + j] = _dot_bytes(b, whole[2 * r + j], weights[j], value, vnni)
                loop.last = [b.add(at, _i(GROUP * PANEL))]
                for r in range(rows):
                    scale = _splat(b, number(scales, r, _f32), _vec)
                    for j in range(2):
                        dot = b.fmul(b.sitofp(whole[2 * r + j], _vec), scale)
                        loop.last.append(_fma(b, dot, weight_scales[j], sums[2 * r + j]))
            places = [b.add(b.add(out, b.mul(ldo, _i(r))), _i(4 * VL * j)) for r in range(rows) for j in range(2)]
            _finish(b, loop.last[1:], places, _i(0))
            return context.get_dummy_value()

        i8, pointer = types.int64, types.intp
        arguments = (i8, pointer, i8, pointer, pointer, i8, pointer, pointer, i8)
        return types.void(*arguments), codegen

    return columns_int8


columns_int8, columns_int8_1 = make_columns_int8(INT8_ROWS), make_columns_int8(1)


def _make_dots(n: int, m: int) -> Any:
    @intrinsic
    def dots(typingctx: Any, vectors: Any, x: Any, ldx: Any, w: Any, ldw: Any, out: Any, ldo: Any) -> Any:
        """``out[r, v] = sum of x[r, :] * w[v, :]`` over ``vectors`` whole vectors, for n rows r and m rows v.

        Each lane sums its own share; then the lanes are added, always in the same tree. Strides count bytes.
        """

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
            vectors, x, ldx, w, ldw, out, ldo = args
            with _Loop(b, vectors, [_ZERO] * (n * m)) as loop:
                here = b.mul(loop.k, _i(4 * VL))
                xs = [_load(b, b.add(b.add(x, b.mul(ldx, _i(r))), here), _vec) for r in range(n)]
                ws = [_load(b, b.add(b.add(w, b.mul(ldw, _i(v))), here), _vec) for v in range(m)]
                loop.last = [_fma(b, xs[r], ws[v], loop.values[r * m + v]) for r in range(n) for v in range(m)]
            for r in range(n):
                for v in range(m):
                    total = _lanes_sum(b, loop.last[r * m + v])
                    _store(b, total, b.add(b.add(out, b.mul(ldo, _i(r))), _i(4 * v)))
            return context.get_dummy_value()

        arguments = (types.int64, types.intp, types.int64, types.intp, types.int64, types.intp, types.int64)
        return types.void(*arguments), codegen

    return dots


def _lanes_sum(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of a vector's lanes: halves onto halves."""
    while (lanes := vector.type.count) > 1:
        pick = [
            ir.Constant(ir.VectorType(_i32, lanes // 2), [i + at for i in range(lanes // 2)]) for at in (0, lanes // 2)
        ]
        undef = ir.Constant(vector.type, ir.Undefined)
        vector = b.fadd(b.shuffle_vector(vector, undef, pick[0]), b.shuffle_vector(vector, undef, pick[1]))
    return b.extract_element(vector, ir.Constant(_i32, 0))


DOT_ROWS = 4
dots, dots1 = _make_dots(DOT_ROWS, DOT_ROWS), _make_dots(1, DOT_ROWS)
dots_last, dots1_last = _make_dots(DOT_ROWS, 1), _make_dots(1, 1)


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """float32 ``x * y + z``, as the vector kernels compute it."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return b.call(_llvm_function(b, "llvm.fmuladd.f32", _f32, [_f32] * 3), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def nearest(typingctx: Any, x: Any) -> Any:
    """float32 rounded to the nearest whole number, ties to even."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return b.call(_llvm_function(b, "llvm.rint.f32", _f32, [_f32]), args)

    return types.float32(types.float32), codegen


@intrinsic
def stand_alone(typingctx: Any) -> Any:
    """Keep the function that calls this from being copied into its callers: large ones would be compiled many times."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        b.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen
