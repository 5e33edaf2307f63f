# mypy: disallow-untyped-defs=False
"""Causal flash attention, forward and backward: softmax(q k^T) v without ever storing a T x T matrix.

The maths is in ``ops/reference/attention.py``. The matrix of scores of GPT-2 124M at B=16, T=1024 would be 400 MB a
layer in bf16, written and read several times. Here a program holds BM queries of one head and walks over the keys that
they may see, BN at a time: a tile of scores lives in registers from the product that makes it to the product that
consumes it, and never leaves the multiprocessor.

*Forward: online softmax.* The largest score of a row is not known until its last key has been seen. So a running
maximum is kept, and when it grows, what has been summed so far is scaled down (``fade``): at the end all terms have
been divided by the same exp of the same maximum. exp is computed as exp2, which is the hardware's own, with log2(e)
folded into the scale: one multiply-add and one exp2 a score.

*Backward: two kernels, no atomics.* Scores are computed again from q, k and the saved log-sum-exp. dq of a query is a
sum over keys and dk, dv of a key are sums over queries, so one walk order can keep only one of the two in registers.
The usual single kernel walks over queries and adds dq to memory with atomic additions, in whatever order programs
happen to come. Two kernels do 7 products where 5 would do, but each sum has one owner and one order: bit-equal every
time. ``query_gradient_kernel`` also makes ``rowdot`` = dout . out for the other one. In ``key_gradient_kernel`` scores
are held transposed, keys down and queries across: then P^T and dS^T come out of one product in just the register
layout in which the next one takes its left operand.

*The causal triangle.* Tiles that all queries see in full need no mask; only those on the diagonal do, so each loop is
two loops. Long rows start first (grids count blocks down), so that no program is left alone at the end.

*Counting* (one head, T = 1024, D = 64): forward 2 products of T^2/2 D multiply-adds: 134 MFLOP. All heads and
sequences: 26 GFLOP, 35 us at 740 TFLOP/s; and 10^8 exp2 at 16 a cycle and multiprocessor, 27 us. Neither hides the
other within a warp, so what matters is that other warps are there: small tiles (64 x 64, four warps, 120 registers)
with four programs a multiprocessor beat large ones. Measured on an H200: 85 us; backward, with the sums for the bias,
108 + 152 us. (cuDNN: 86 and 277; PyTorch's flash attention: 141 and 448.)

Source: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2"; Milakov & Gimelshein 2018, "Online normalizer
calculation for softmax".
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.dropout import keep, start_of, threshold_of
from nanoeuler.ops.gpu.kernels.reductions import sum_partials
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch, power_of_2

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def load_rows(base, rows, T, stride, D: tl.constexpr, BD: tl.constexpr, EVEN: tl.constexpr):
    """Rows of one head, (len(rows), BD): zero for rows beyond T (unless EVEN) and columns beyond D."""
    columns = tl.arange(0, BD)
    at = base + rows[:, None] * stride + columns[None, :]
    if EVEN and D == BD:
        return tl.load(at)
    else:
        return tl.load(at, mask=(rows < T)[:, None] & (columns < D)[None, :], other=0.0)


@triton.jit
def store_rows(base, tile, rows, T, stride, D: tl.constexpr, BD: tl.constexpr, EVEN: tl.constexpr):
    """Store rows of one head, those below T and columns below D."""
    columns = tl.arange(0, BD)
    at = base + rows[:, None] * stride + columns[None, :]
    tile = tile.to(base.dtype.element_ty)
    if EVEN and D == BD:
        tl.store(at, tile)
    else:
        tl.store(at, tile, mask=(rows < T)[:, None] & (columns < D)[None, :])


@triton.jit
def store_sum(place, tile, rows, T, D: tl.constexpr, BD: tl.constexpr):
    """Store the sum of the rows below T of ``tile`` (len(rows), BD)."""
    columns = tl.arange(0, BD)
    tl.store(place + columns, tl.sum(tl.where((rows < T)[:, None], tile, 0.0), 0), mask=columns < D)


@triton.jit
def kept(i, j, head, T, start, threshold):
    """Dropout's mask for queries i (rows) and keys j (columns) of one of the batch's heads."""
    T32 = T.to(tl.uint32)
    row = (head.to(tl.uint32) * T32 + i.to(tl.uint32)) * T32
    return keep(row + j.to(tl.uint32), start, threshold)


@triton.jit
def attention_kernel(
    out, lse, qkv, seed, site, threshold, rescale, T, C, n_head, scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """BM queries of one head against all keys they may see, BN at a time."""
    blocks = tl.num_programs(1)
    block = blocks - 1 - tl.program_id(1)  # the longest rows first
    head = tl.program_id(0)
    b, h = head // n_head, head % n_head
    q_base = qkv + b.to(tl.int64) * T * 3 * C + h * D
    i = block * BM + tl.arange(0, BM)
    q = load_rows(q_base, i, T, 3 * C, D, BD, EVEN)
    if DROPOUT:
        start = start_of(seed, site)

    most = tl.full((BM,), float("-inf"), tl.float32)  # running maximum of each row's scores, in log2 units
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    full = block * BM // BN * BN  # keys before this one are seen by every query of the block
    for part in tl.static_range(2):
        first = 0 if part == 0 else full
        last = full if part == 0 else min(T, (block + 1) * BM)
        for j0 in tl.range(first, last, BN):
            j = j0 + tl.arange(0, BN)
            k = load_rows(q_base + C, j, T, 3 * C, D, BD, EVEN)
            s = tl.dot(q, k.T, input_precision="ieee")
            if part == 1:
                s = tl.where(i[:, None] >= j[None, :], s, float("-inf"))
            new = tl.maximum(most, tl.max(s, 1) * (scale * LOG2_E))
            p = tl.exp2(s * (scale * LOG2_E) - new[:, None])
            fade = tl.exp2(most - new)
            total = total * fade + tl.sum(p, 1)
            acc = acc * fade[:, None]
            if DROPOUT:
                p = tl.where(kept(i[:, None], j[None, :], head, T, start, threshold), p, 0.0)
            v = load_rows(q_base + 2 * C, j, T, 3 * C, D, BD, EVEN)
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
            most = new
    o_base = out + b.to(tl.int64) * T * C + h * D
    store_rows(o_base, acc * (rescale / total)[:, None], i, T, C, D, BD, EVEN)
    tl.store(lse + head * T + i, (most + tl.log2(total)) * LN_2, mask=i < T)


@triton.jit
def query_gradient_kernel(
    dqkv, delta, sums, dout, out, lse, qkv, seed, site, threshold, rescale, T, C, n_head, scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """dq of BM queries of one head, and ``delta`` = dout . out of each, which the other kernel reads."""
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0)
    b, h = head // n_head, head % n_head
    q_base = qkv + b.to(tl.int64) * T * 3 * C + h * D
    o_start = b.to(tl.int64) * T * C + h * D
    i = block * BM + tl.arange(0, BM)
    q = load_rows(q_base, i, T, 3 * C, D, BD, EVEN)
    g = load_rows(dout + o_start, i, T, C, D, BD, EVEN)
    o = load_rows(out + o_start, i, T, C, D, BD, EVEN)
    rowdot = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + head * T + i, rowdot, mask=i < T)
    level = tl.load(lse + head * T + i, mask=i < T, other=0.0) * LOG2_E
    if DROPOUT:
        start = start_of(seed, site)

    dq = tl.zeros((BM, BD), tl.float32)
    full = block * BM // BN * BN
    for part in tl.static_range(2):
        first = 0 if part == 0 else full
        last = full if part == 0 else min(T, (block + 1) * BM)
        for j0 in tl.range(first, last, BN):
            j = j0 + tl.arange(0, BN)
            k = load_rows(q_base + C, j, T, 3 * C, D, BD, EVEN)
            v = load_rows(q_base + 2 * C, j, T, 3 * C, D, BD, EVEN)
            s = tl.dot(q, k.T, input_precision="ieee")
            dp = tl.dot(g, v.T, input_precision="ieee")
            p = tl.exp2(s * (scale * LOG2_E) - level[:, None])
            if part == 1:
                p = tl.where(i[:, None] >= j[None, :], p, 0.0)
            if DROPOUT:
                dp = tl.where(kept(i[:, None], j[None, :], head, T, start, threshold), dp * rescale, 0.0)
            ds = p * (dp - rowdot[:, None])
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    dq *= scale
    store_rows(dqkv + b.to(tl.int64) * T * 3 * C + h * D, dq, i, T, 3 * C, D, BD, EVEN)
    if sums is not None:
        store_sum(sums + (b * tl.num_programs(1) + block) * 3 * C + h * D, dq, i, T, D, BD)


@triton.jit
def key_gradient_kernel(
    dqkv, delta, sums, dout, lse, qkv, seed, site, threshold, rescale, T, C, n_head, scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """dk and dv of BN keys of one head, from all queries that see them, BM at a time. Scores are held transposed."""
    block = tl.program_id(1)  # the first keys are seen by the most queries: longest first
    head = tl.program_id(0)
    b, h = head // n_head, head % n_head
    q_base = qkv + b.to(tl.int64) * T * 3 * C + h * D
    g_base = dout + b.to(tl.int64) * T * C + h * D
    j = block * BN + tl.arange(0, BN)
    k = load_rows(q_base + C, j, T, 3 * C, D, BD, EVEN)
    v = load_rows(q_base + 2 * C, j, T, 3 * C, D, BD, EVEN)
    if DROPOUT:
        start = start_of(seed, site)

    dk = tl.zeros((BN, BD), tl.float32)
    dv = tl.zeros((BN, BD), tl.float32)
    diagonal = block * BN // BM * BM
    free = min(tl.cdiv((block + 1) * BN, BM) * BM, tl.cdiv(T, BM) * BM)  # queries from here on see all BN keys
    for part in tl.static_range(2):
        first = diagonal if part == 0 else free
        last = free if part == 0 else T
        for i0 in tl.range(first, last, BM):
            i = i0 + tl.arange(0, BM)
            q = load_rows(q_base, i, T, 3 * C, D, BD, EVEN)
            g = load_rows(g_base, i, T, C, D, BD, EVEN)
            if EVEN:
                level = tl.load(lse + head * T + i) * LOG2_E
                rowdot = tl.load(delta + head * T + i)
            else:
                level = tl.load(lse + head * T + i, mask=i < T, other=float("inf")) * LOG2_E
                rowdot = tl.load(delta + head * T + i, mask=i < T, other=0.0)
            s = tl.dot(k, q.T, input_precision="ieee")  # (BN, BM)
            dp = tl.dot(v, g.T, input_precision="ieee")
            p = tl.exp2(s * (scale * LOG2_E) - level[None, :])
            if part == 0:
                p = tl.where(i[None, :] >= j[:, None], p, 0.0)
            a = p
            if DROPOUT:
                mask = kept(i[None, :], j[:, None], head, T, start, threshold)
                a = tl.where(mask, p, 0.0)  # rescaled at the end, where nothing is rounded any more
                dp = tl.where(mask, dp * rescale, 0.0)
            dv = tl.dot(a.to(g.dtype), g, dv, input_precision="ieee")
            ds = p * (dp - rowdot[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    d_base = dqkv + b.to(tl.int64) * T * 3 * C + h * D
    dk *= scale
    dv *= rescale
    store_rows(d_base + C, dk, j, T, 3 * C, D, BD, EVEN)
    store_rows(d_base + 2 * C, dv, j, T, 3 * C, D, BD, EVEN)
    if sums is not None:
        s_base = sums + (b * tl.num_programs(1) + block) * 3 * C + h * D
        store_sum(s_base + C, dk, j, T, D, BD)
        store_sum(s_base + 2 * C, dv, j, T, D, BD)


def attention(
    out: Array, lse: Array, qkv: Array, n_head: int,
    dropout: float = 0.0, seed: Array | None = None, site: int = 0, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """qkv (B,T,3C) packed q|k|v -> out (B,T,C) and lse (B,n_head,T) fp32, the log-sum-exp of each row of scores."""
    common, heads, T = _common(qkv, n_head, dropout, seed, site)
    bm, bn, warps, stages = _tiles(qkv, n_head, target)["forward"]
    return [
        launch(
            attention_kernel, (heads, cdiv(T, bm)), warps, stages, out=out, lse=lse, **common,
            BM=bm, BN=bn, EVEN=T % max(bm, bn) == 0,
        )
    ]  # fmt: skip


def attention_backward_scratch(B: int, n_head: int, T: int, C: int) -> int:
    """fp32 elements of scratch that :func:`attention_backward` needs."""
    return B * n_head * T + B * cdiv(T, 32) * 3 * C


def attention_backward(
    dqkv: Array, dout: Array, out: Array, lse: Array, qkv: Array, n_head: int, scratch: Array,
    dropout: float = 0.0, seed: Array | None = None, site: int = 0, dqkv_sum: Array | None = None,
    accumulate: bool = False, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """dqkv (B,T,3C) from dout (B,T,C), with out, lse, dropout, seed and site as in :func:`attention`.

    ``dqkv_sum`` (3C,) (+)= the sum of dqkv over rows: the gradient of the bias of the layer that made qkv.
    """
    common, heads, T = _common(qkv, n_head, dropout, seed, site)
    tiles = _tiles(qkv, n_head, target)
    sums = None if dqkv_sum is None else scratch[heads * T : scratch.shape[0]]
    common |= {"dqkv": dqkv, "delta": scratch, "sums": sums, "dout": dout, "lse": lse}
    bm, bn, warps, stages = tiles["queries"]
    blocks = cdiv(T, bm)
    queries = launch(
        query_gradient_kernel, (heads, blocks), warps, stages, out=out, **common, BM=bm, BN=bn,
        EVEN=T % max(bm, bn) == 0,
    )  # fmt: skip
    bm, bn, warps, stages = tiles["keys"]
    if cdiv(T, bn) != blocks:
        raise ValueError("both kernels must cut the sequence alike, since they fill the same rows of sums")
    keys = launch(
        key_gradient_kernel, (heads, blocks), warps, stages, **common, BM=bm, BN=bn, EVEN=T % max(bm, bn) == 0
    )
    if dqkv_sum is None or sums is None:
        return [queries, keys]
    return [queries, keys, sum_partials([dqkv_sum], sums, heads // n_head * blocks, accumulate)]


def _common(
    qkv: Array, n_head: int, dropout: float, seed: Array | None, site: int
) -> tuple[dict[str, object], int, int]:
    B, T, C3 = qkv.shape
    C = C3 // 3
    D = C // n_head
    return (
        {
            "qkv": qkv, "seed": seed if dropout else None, "site": site, "threshold": threshold_of(dropout),
            "rescale": 1.0 / (1.0 - dropout), "T": T, "C": C, "n_head": n_head, "scale": D**-0.5,
            "D": D, "BD": max(16, power_of_2(D)), "DROPOUT": dropout > 0.0,
        },
        B * n_head,
        T,
    )  # fmt: skip


def _tiles(qkv: Array, n_head: int, target: Target) -> dict[str, tuple[int, int, int, int]]:
    """Queries and keys a tile, warps and pipeline stages of each kernel."""
    D = qkv.shape[-1] // 3 // n_head
    if qkv.dtype == "fp32":
        return {"forward": (32, 32, 4, 1), "queries": (32, 32, 4, 1), "keys": (32, 32, 4, 1)}
    if D > 64:
        return {"forward": (64, 64, 4, 2), "queries": (64, 32, 4, 2), "keys": (32, 64, 8, 2)}
    return {"forward": (64, 64, 4, 3), "queries": (64, 32, 4, 3), "keys": (32, 64, 4, 3)}
