"""Causal attention, step by step: with the matrix of scores in memory, and without.

See ``docs/kernels/attention.md``. The last rung of each ladder is the engine's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ladder.common import Get, Ladder, New, Rung, copy
from ladder.matmul import zero
from nanoeuler.ops.gpu.kernels.attention import attention, attention_backward, attention_backward_scratch
from nanoeuler.ops.gpu.kernels.spec import Launch, Target, cdiv, launch, power_of_2
from nanoeuler.ops.reference import ReferenceOps


# ---- with the matrix in memory ---------------------------------------------------------------------------------------
@triton.jit
def head_product_kernel(
    c, a, b, M, N, K, n_head, scale, c_batch, c_head, c_row, a_batch, a_head, a_row, a_column, b_batch, b_head, b_row,
    b_column, CAUSAL: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A BM x BN tile of ``c = scale op(a) op(b)`` for one head; CAUSAL: -inf where the column is after the row.

    A plain matrix product. ``*_batch`` and ``*_head`` say how far apart in memory the matrices of two sequences and of
    two heads begin, ``*_row`` how far apart two rows are; of ``*_row`` and ``*_column`` of an operand one is 1.
    """
    batch, head = tl.program_id(1) // n_head, tl.program_id(1) % n_head
    a += batch.to(tl.int64) * a_batch + head * a_head
    b += batch.to(tl.int64) * b_batch + head * b_head
    c += batch.to(tl.int64) * c_batch + head * c_head
    tiles_n = tl.cdiv(N, BN)
    m = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)
    n = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        if A_T:
            x = tl.load(a + k[:, None] * a_column + m[None, :], mask=(k < K)[:, None] & (m < M)[None, :], other=0.0).T
        else:
            x = tl.load(a + m[:, None] * a_row + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        if B_T:
            y = tl.load(b + n[:, None] * b_column + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0.0).T
        else:
            y = tl.load(b + k[:, None] * b_row + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    acc *= scale
    if CAUSAL:
        acc = tl.where(m[:, None] >= n[None, :], acc, float("-inf"))
    inside = (m < M)[:, None] & (n < N)[None, :]
    tl.store(c + m[:, None] * c_row + n[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def softmax_rows_kernel(s, T, BLOCK: tl.constexpr):
    """One row of scores becomes its softmax, in place."""
    at, columns = tl.program_id(0).to(tl.int64) * T, tl.arange(0, BLOCK)
    z = tl.load(s + at + columns, mask=columns < T, other=float("-inf")).to(tl.float32)
    e = tl.exp(z - tl.max(z, 0))
    tl.store(s + at + columns, (e / tl.sum(e, 0)).to(s.dtype.element_ty), mask=columns < T)


@triton.jit
def softmax_rows_backward_kernel(ds, p, T, BLOCK: tl.constexpr):
    """One row: ds holds dP and becomes ``P (dP - sum P dP)``."""
    at, columns = tl.program_id(0).to(tl.int64) * T, tl.arange(0, BLOCK)
    w = tl.load(p + at + columns, mask=columns < T, other=0.0).to(tl.float32)
    d = tl.load(ds + at + columns, mask=columns < T, other=0.0).to(tl.float32)
    tl.store(ds + at + columns, (w * (d - tl.sum(w * d, 0))).to(ds.dtype.element_ty), mask=columns < T)


def head_product(
    c: tuple[Any, int, int], a: tuple[Any, int, int, bool], b: tuple[Any, int, int, bool], sizes: tuple[int, int, int],
    B: int, n_head: int, scale: float = 1.0, causal: bool = False,
) -> Launch:  # fmt: skip
    """c = scale op(a) op(b) for every head. Operands: (array, elements a row, elements a head, transposed)."""
    M, N, K = sizes
    bn = 64 if N <= 64 else 128
    strides = {"c_row": c[1], "c_head": c[2], "a_head": a[2], "b_head": b[2]}
    strides |= {"a_row": 1 if a[3] else a[1], "a_column": a[1] if a[3] else 1}
    strides |= {"b_row": 1 if b[3] else b[1], "b_column": b[1] if b[3] else 1}
    # Packed heads lie within a row, so a sequence is T rows; a matrix of scores is a head, so a sequence is all heads.
    batch = {
        f"{name}_batch": head * n_head if head >= row * row else rows * row
        for name, row, head, rows in (
            ("c", c[1], c[2], M), ("a", a[1], a[2], K if a[3] else M), ("b", b[1], b[2], N if b[3] else K),
        )
    }  # fmt: skip
    exact = a[0].dtype == "fp32"
    bm, bn, bk = (32, 32, 32) if exact else (128, bn, 64)
    return launch(
        head_product_kernel, (cdiv(M, bm) * cdiv(N, bn), B * n_head), 4 if bn == 64 else 8, 3, c=c[0], a=a[0], b=b[0],
        M=M, N=N, K=K, n_head=n_head, scale=scale, CAUSAL=causal, A_T=a[3], B_T=b[3], BM=bm, BN=bn, BK=bk,
        **strides, **batch,
    )  # fmt: skip


# ---- without ---------------------------------------------------------------------------------------------------------
@triton.jit
def load_rows(base, rows, T, stride, D: tl.constexpr):
    """Rows of one head, (len(rows), D): zero from row T on."""
    return tl.load(base + rows[:, None] * stride + tl.arange(0, D)[None, :], mask=(rows < T)[:, None], other=0.0)


@triton.jit
def online_kernel(
    out, lse, qkv, T, C, n_head, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr
):
    """BM queries of one head against keys, BN at a time, with a running maximum and sum.

    STEP 1: all keys. 2: only up to the diagonal. 3: the programs with the most keys start first. 4: only tiles on the
    diagonal are masked (BM = BN). 5: exp as exp2, its factor in the scores' own scale.
    """
    head, block = tl.program_id(0), tl.program_id(1)
    if STEP >= 3:
        block = tl.num_programs(1) - 1 - block
    b, h = head // n_head, head % n_head
    base = qkv + b.to(tl.int64) * T * 3 * C + h * D
    i = block * BM + tl.arange(0, BM)
    q = load_rows(base, i, T, 3 * C, D)
    most = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    diagonal = block * BM
    last = min(T, (block + 1) * BM) if STEP >= 2 else T
    factor = scale * 1.4426950408889634 if STEP >= 5 else scale  # log2(e): exp(x) = exp2(x log2(e))
    for part in tl.static_range(1 if STEP < 4 else 2):
        begin = 0 if part == 0 else diagonal
        end = diagonal if STEP >= 4 and part == 0 else last
        for first in range(begin, end, BN):
            j = first + tl.arange(0, BN)
            k = load_rows(base + C, j, T, 3 * C, D)
            s = tl.dot(q, k.T, input_precision="ieee")
            if STEP < 4 or part == 1:
                s = tl.where((i[:, None] >= j[None, :]) & (j < T)[None, :], s, float("-inf"))
            new = tl.maximum(most, tl.max(s, 1) * factor)
            if STEP >= 5:
                p, fade = tl.exp2(s * factor - new[:, None]), tl.exp2(most - new)
            else:
                p, fade = tl.exp(s * factor - new[:, None]), tl.exp(most - new)
            total = total * fade + tl.sum(p, 1)
            v = load_rows(base + 2 * C, j, T, 3 * C, D)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
            most = new
    place = out + b.to(tl.int64) * T * C + h * D + i[:, None] * C + tl.arange(0, D)[None, :]
    tl.store(place, (acc / total[:, None]).to(out.dtype.element_ty), mask=(i < T)[:, None])
    level = (most + tl.log2(total)) * 0.6931471805599453 if STEP >= 5 else most + tl.log(total)
    tl.store(lse + head * T + i, level, mask=i < T)


@triton.jit
def rowdot_kernel(delta, dout, out, T, C, n_head, D: tl.constexpr, BM: tl.constexpr):
    """delta (B, n_head, T) = dout . out of each query."""
    head = tl.program_id(0)
    b, h = head // n_head, head % n_head
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    base = b.to(tl.int64) * T * C + h * D
    g, o = load_rows(dout + base, i, T, C, D), load_rows(out + base, i, T, C, D)
    tl.store(delta + head * T + i, tl.sum(g.to(tl.float32) * o.to(tl.float32), 1), mask=i < T)


@triton.jit
def backward_kernel(
    dqkv, dq32, delta, dout, lse, qkv, T, C, n_head, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """All three gradients in one walk: BN keys of one head own their dk and dv and meet every query that sees them;
    their share of each query's dq is added to memory (fp32), in whatever order programs come."""
    head, block = tl.program_id(0), tl.program_id(1)
    b, h = head // n_head, head % n_head
    base = qkv + b.to(tl.int64) * T * 3 * C + h * D
    g_base = b.to(tl.int64) * T * C + h * D
    j = block * BN + tl.arange(0, BN)
    k, v = load_rows(base + C, j, T, 3 * C, D), load_rows(base + 2 * C, j, T, 3 * C, D)
    dk = tl.zeros((BN, D), tl.float32)
    dv = tl.zeros((BN, D), tl.float32)
    for first in range(block * BN // BM * BM, T, BM):
        i = first + tl.arange(0, BM)
        q, g = load_rows(base, i, T, 3 * C, D), load_rows(dout + g_base, i, T, C, D)
        level = tl.load(lse + head * T + i, mask=i < T, other=float("inf"))
        rowdot = tl.load(delta + head * T + i, mask=i < T, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        p = tl.where(i[:, None] >= j[None, :], tl.exp(s - level[:, None]), 0.0)
        dv = tl.dot(p.to(g.dtype).T, g, dv, input_precision="ieee")
        dp = tl.dot(g, v.T, input_precision="ieee")
        ds = (p * (dp - rowdot[:, None]) * scale).to(q.dtype)
        dk = tl.dot(ds.T, q, dk, input_precision="ieee")
        place = dq32 + g_base + i[:, None] * C + tl.arange(0, D)[None, :]
        tl.atomic_add(place, tl.dot(ds, k, input_precision="ieee"), mask=(i < T)[:, None], sem="relaxed")
    place = dqkv + b.to(tl.int64) * T * 3 * C + h * D + j[:, None] * 3 * C + tl.arange(0, D)[None, :]
    tl.store(place + C, dk.to(dqkv.dtype.element_ty), mask=(j < T)[:, None])
    tl.store(place + 2 * C, dv.to(dqkv.dtype.element_ty), mask=(j < T)[:, None])


@triton.jit
def pack_kernel(dqkv, dq32, C, BLOCK: tl.constexpr):
    """One row of dq, rounded, to its place in dqkv."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(dq32 + row * C + columns, mask=columns < C)
    tl.store(dqkv + row * 3 * C + columns, x.to(dqkv.dtype.element_ty), mask=columns < C)


# ---- the ladders -----------------------------------------------------------------------------------------------------
def forward(new: New, target: Target, B: int, T: int, n_head: int, D: int) -> Ladder:
    """qkv (B, T, 3C) -> out (B, T, C)."""
    C = n_head * D
    qkv, out, lse = new(B, T, 3 * C), new(B, T, C), new(B, n_head, T, dtype="fp32")
    s = new(B, n_head, T, T)
    small = qkv.dtype == "fp32"
    bm = 32 if small else 64

    def online(step: int) -> Launch:
        return launch(
            online_kernel, (B * n_head, cdiv(T, bm)), 4, 3, out=out, lse=lse, qkv=qkv, T=T, C=C, n_head=n_head,
            scale=D**-0.5, D=D, BM=bm, BN=bm, STEP=step,
        )  # fmt: skip

    packed = 3 * C
    matrix = [
        head_product(
            (s, T, T * T), (qkv, packed, D, False), (part(qkv, C), packed, D, True), (T, T, D), B, n_head, D**-0.5, True
        ),
        launch(softmax_rows_kernel, (B * n_head * T,), 4, s=s, T=T, BLOCK=power_of_2(T)),
        head_product((out, C, D), (s, T, T * T, False), (part(qkv, 2 * C), packed, D, False), (T, D, T), B, n_head),
    ]
    scores, ends_ = 2.0 * B * n_head * T * T, 2.0 * B * T * 4 * C
    half = 4.0 * B * n_head * T * T / 2 * D
    rungs = [
        Rung("the T x T matrix in memory", matrix, ends_ + 4 * scores, 2 * half),
        Rung("online softmax in tiles, all keys", [online(1)], ends_, 2 * half),
        Rung("keys up to the diagonal", [online(2)], ends_, half),
        Rung("longest rows first", [online(3)], ends_, half),
        Rung("masks only on the diagonal", [online(4)], ends_, half),
        Rung("exp2, with its factor in the scale", [online(5)], ends_, half),
        Rung("the engine's: no bounds to check either", attention(out, lse, qkv, n_head, target=target), ends_, half),
    ]
    for rung in rungs:
        rung.outputs = {"out": out}

    want = np.empty((1, T, C))

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        last = slice(B - 1, B)
        if rung is rungs[0]:
            ReferenceOps().attention(want, np.empty((1, n_head, T)), get(qkv[last]), n_head)
        yield "out", get(rung.outputs["out"][last]), want

    return Ladder("attention", rungs, check)


def part(array: Any, first: int) -> Any:
    """The array as seen from its element ``first`` on: where k and v of a packed row begin."""
    flat = array.reshape(-1)
    return flat[first : flat.shape[0]]


def backward(new: New, target: Target, B: int, T: int, n_head: int, D: int) -> Ladder:
    """dqkv (B, T, 3C) from dout (B, T, C)."""
    C = n_head * D
    qkv, dout, out, lse = new(B, T, 3 * C), new(B, T, C), new(B, T, C), new(B, n_head, T, dtype="fp32")
    dqkv, dq32, delta = new(B, T, 3 * C), new(B, T, C, dtype="fp32"), new(B, n_head, T, dtype="fp32")
    p, ds = new(B, n_head, T, T), new(B, n_head, T, T)
    scratch = new(attention_backward_scratch(B, n_head, T, C), dtype="fp32")
    small = qkv.dtype == "fp32"
    bm = 32 if small else 64
    k, v, packed, square, scale = part(qkv, C), part(qkv, 2 * C), 3 * C, (T, T * T), D**-0.5
    kept = [  # what the forward pass left behind
        *attention(out, lse, qkv, n_head, target=target),
        head_product((p, *square), (qkv, packed, D, False), (k, packed, D, True), (T, T, D), B, n_head, scale, True),
        launch(softmax_rows_kernel, (B * n_head * T,), 4, s=p, T=T, BLOCK=power_of_2(T)),
    ]
    dq, dk, dv = dqkv, part(dqkv, C), part(dqkv, 2 * C)
    matrix = [
        head_product((dv, packed, D), (p, *square, True), (dout, C, D, False), (T, D, T), B, n_head),
        head_product((ds, *square), (dout, C, D, False), (v, packed, D, True), (T, T, D), B, n_head),
        launch(softmax_rows_backward_kernel, (B * n_head * T,), 4, ds=ds, p=p, T=T, BLOCK=power_of_2(T)),
        head_product((dq, packed, D), (ds, *square, False), (k, packed, D, False), (T, D, T), B, n_head, scale),
        head_product((dk, packed, D), (ds, *square, True), (qkv, packed, D, False), (T, D, T), B, n_head, scale),
    ]
    heads, blocks = B * n_head, cdiv(T, bm)
    sizes = {"T": T, "C": C, "n_head": n_head, "D": D, "BM": bm}
    single = [
        zero(dq32),
        launch(rowdot_kernel, (heads, blocks), 4, delta=delta, dout=dout, out=out, **sizes),
        launch(
            backward_kernel, (heads, blocks), 4, 2, dqkv=dqkv, dq32=dq32, delta=delta, dout=dout, lse=lse, qkv=qkv,
            scale=scale, BN=bm, **sizes,
        ),
        launch(pack_kernel, (B * T,), 4, dqkv=dqkv, dq32=dq32, C=C, BLOCK=power_of_2(C)),
    ]  # fmt: skip
    scores, ends_ = 2.0 * B * n_head * T * T, 2.0 * B * T * 8 * C
    half = 10.0 * B * n_head * T * T / 2 * D
    two = attention_backward(dqkv, dout, out, lse, qkv, n_head, scratch, target=target)
    rungs = [
        Rung("P and dP in memory", matrix, ends_ + 7 * scores, 2 * half),
        Rung("one kernel, dq added by atomics", single, ends_, half),
        Rung("two kernels, every sum with one owner", two, ends_, half * 1.4),
    ]
    for rung in rungs:
        rung.before, rung.outputs = [copy(dqkv, qkv), *kept], {"dqkv": dqkv}

    want = np.empty((1, T, 3 * C))

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        last = slice(B - 1, B)
        if rung is rungs[0]:
            want_out, want_lse = np.empty((1, T, C)), np.empty((1, n_head, T))
            ReferenceOps().attention(want_out, want_lse, get(qkv[last]), n_head)
            ReferenceOps().attention_backward(want, get(dout[last]), want_out, want_lse, get(qkv[last]), n_head)
        got = get(rung.outputs["dqkv"][last])
        for i, name in enumerate(("dq", "dk", "dv")):
            yield name, got[..., i * C : (i + 1) * C], want[..., i * C : (i + 1) * C]

    return Ladder("attention backward", rungs, check)
