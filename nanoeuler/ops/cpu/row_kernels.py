"""Rows of layer norm and of GELU, as straight loops over vectors (see ``lanes.py`` for why).

GELU in its tanh form, ``gelu(x) = x/2 (1 + tanh(u))`` with ``u = sqrt(2/pi) (x + 0.044715 x^3)`` (Hendrycks & Gimpel
2016). Since ``(1 + tanh(u))/2 = sigmoid(2u)``, this is ``x s`` with ``s = 1/(1 + e^{-2u})``: one exponential and one
reciprocal. Its derivative is ``s + x s (1-s) 2 du/dx``, ``du/dx = sqrt(2/pi) (1 + 3*0.044715 x^2)``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.ops.cpu.lanes import Lanes, Value, pointers, sweep

_f32, _i64 = ir.FloatType(), ir.IntType(64)
_i64t, _f32t, _at = types.int64, types.float32, types.intp


def _sqrt(b: ir.IRBuilder, x: Value) -> Value:
    kind = ir.FunctionType(_f32, [_f32])
    return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.sqrt.f32"), [x])


@intrinsic
def normalize_row(
    typingctx: Any, C: Any, out: Any, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, eps: Any
) -> Any:
    """``out = (x - mean) rstd weight + bias`` for a row of C; mean and rstd are written to their addresses."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        C, eps = args[0], args[7]
        out, x, weight, bias, mean_at, rstd_at = pointers(b, *args[1:7])
        one = ir.Constant(_f32, 1.0)
        scale = b.fdiv(one, b.sitofp(C, _f32))
        [total] = sweep(b, C, lambda v, i, s: [v.add(s[0], v.load(x, i))], 1)
        mean = b.fmul(total, scale)

        def square(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
            d = v.sub(v.load(x, i), v.splat(mean))
            return [v.fma(d, d, s[0])]

        [squares] = sweep(b, C, square, 1)
        rstd = b.fdiv(one, _sqrt(b, b.fadd(b.fmul(squares, scale), eps)))

        def write(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
            d = v.mul(v.sub(v.load(x, i), v.splat(mean)), v.splat(rstd))
            v.store(v.fma(d, v.load(weight, i), v.load(bias, i)), out, i)
            return []

        sweep(b, C, write)
        b.store(mean, mean_at)
        b.store(rstd, rstd_at)
        return context.get_dummy_value()

    return types.void(_i64t, *[_at] * 6, _f32t), codegen


@intrinsic
def add_row(typingctx: Any, n: Any, out: Any, x: Any, y: Any) -> Any:
    """``out = x + y`` for n numbers."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        out, x, y = pointers(b, *args[1:])

        def body(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
            v.store(v.add(v.load(x, i), v.load(y, i)), out, i)
            return []

        sweep(b, args[0], body)
        return context.get_dummy_value()

    return types.void(_i64t, _at, _at, _at), codegen


def _norm_row_backward(add: bool) -> Any:
    @intrinsic
    def row(
        typingctx: Any, C: Any, dx: Any, shares: Any, dout: Any, x: Any, w: Any, past: Any, mean: Any, rstd: Any
    ) -> Any:
        """``dx = rstd (g - mean(g) - xhat mean(g xhat))`` with ``g = dout w``, ``xhat = (x - mean) rstd``; with
        ``add``, ``past`` is added. To the three rows of ``shares`` are added ``dout xhat``, ``dout`` and ``dx``."""

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
            C, mean, rstd = args[0], args[7], args[8]
            dx, dw, dout, x, w, past = pointers(b, *args[1:7])
            db, dx_sum = b.gep(dw, [C]), b.gep(dw, [b.add(C, C)])
            scale = b.fdiv(ir.Constant(_f32, 1.0), b.sitofp(C, _f32))

            def sums(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
                g = v.mul(v.load(dout, i), v.load(w, i))
                return [v.add(s[0], g), v.fma(g, v.sub(v.load(x, i), v.splat(mean)), s[1])]

            sum_g, sum_gx = sweep(b, C, sums, 2)
            mean_g = b.fmul(sum_g, scale)
            mean_gx = b.fmul(b.fmul(sum_gx, rstd), scale)  # of g xhat

            def write(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
                g = v.load(dout, i)
                xhat = v.mul(v.sub(v.load(x, i), v.splat(mean)), v.splat(rstd))
                v.store(v.fma(g, xhat, v.load(dw, i)), dw, i)
                v.store(v.add(g, v.load(db, i)), db, i)
                d = v.sub(v.mul(g, v.load(w, i)), v.fma(xhat, v.splat(mean_gx), v.splat(mean_g)))
                d = v.fma(d, v.splat(rstd), v.load(past, i)) if add else v.mul(d, v.splat(rstd))
                v.store(d, dx, i)
                v.store(v.add(d, v.load(dx_sum, i)), dx_sum, i)
                return []

            sweep(b, C, write)
            return context.get_dummy_value()

        return types.void(_i64t, *[_at] * 6, _f32t, _f32t), codegen

    return row


norm_row_backward, norm_row_backward_add = _norm_row_backward(False), _norm_row_backward(True)

_TWO_ROOT = 1.5957691216057308  # 2 sqrt(2/pi)
_CUBIC = 0.044715


def _sigmoid_part(v: Lanes, x: Value) -> tuple[Value, Value]:
    """GELU's ``s = 1/(1 + e^{-2u})`` and ``x^2``; see the top of this file."""
    x2 = v.mul(x, x)
    u = v.mul(x, v.fma(x2, v.const(-_TWO_ROOT * _CUBIC), v.const(-_TWO_ROOT)))
    return v.reciprocal(v.add(v.const(1.0), v.exp(u))), x2


def gelu_body(v: Lanes, x: Value) -> Value:
    return v.mul(x, _sigmoid_part(v, x)[0])


def gelu_grad_body(v: Lanes, x: Value) -> Value:
    s, x2 = _sigmoid_part(v, x)
    slope = v.fma(x2, v.const(3 * _CUBIC * _TWO_ROOT), v.const(_TWO_ROOT))  # 2 du/dx
    rest = v.mul(v.mul(x, s), v.sub(v.const(1.0), s))
    return v.fma(rest, slope, s)


@intrinsic
def bias_gelu_row(typingctx: Any, n: Any, c: Any, pre: Any, bias: Any) -> Any:
    """``pre = c + bias; c = gelu(pre)`` for n numbers."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        c, pre, bias = pointers(b, *args[1:])

        def body(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
            x = v.add(v.load(c, i), v.load(bias, i))
            v.store(x, pre, i)
            v.store(gelu_body(v, x), c, i)
            return []

        sweep(b, args[0], body)
        return context.get_dummy_value()

    return types.void(_i64t, _at, _at, _at), codegen


@intrinsic
def gelu_row(typingctx: Any, n: Any, out: Any, pre: Any) -> Any:
    """``out = gelu(pre)`` for n numbers."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        out, pre = pointers(b, *args[1:])

        def body(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
            v.store(gelu_body(v, v.load(pre, i)), out, i)
            return []

        sweep(b, args[0], body)
        return context.get_dummy_value()

    return types.void(_i64t, _at, _at), codegen


@intrinsic
def gelu_grad_row(typingctx: Any, n: Any, c: Any, pre: Any) -> Any:
    """``c *= gelu'(pre)`` for n numbers."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> Any:
        c, pre = pointers(b, *args[1:])

        def body(v: Lanes, i: Value, s: list[Value]) -> list[Value]:
            v.store(v.mul(v.load(c, i), gelu_grad_body(v, v.load(pre, i))), c, i)
            return []

        sweep(b, args[0], body)
        return context.get_dummy_value()

    return types.void(_i64t, _at, _at), codegen
