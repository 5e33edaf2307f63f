# mypy: disallow-untyped-defs=False
"""One token of each of many sequences: the network on a few rows, kernel after kernel, for a CUDA graph to run.

*Counting.* n sequences read every weight once together: 248 MB for GPT-2 124M in bfloat16, 58 us at an H200's 4.27
TB/s, whether n is 1 or 64; and each reads its own keys and values, 37 KB for every token it holds: 64 sequences of 64
tokens 150 MB (35 us), of 512 tokens 1.2 GB (283 us). The arithmetic is nothing: 64 rows are 64 operations a byte of
weights where the chip could do some 180. So products must stream weights, and what is in the way is that a kernel
begins empty and ends empty: seven kernels a layer, each a microsecond or two besides its bytes.

    kernel         programs                         reads                       writes
    add_norm       a row each                       x, shares of the product    x (float32), layer norm of x
    row_product    BN columns, a share of K each    rows, a slab of weights     qkv
    cached_att.    (row, head, share of positions)  q, k, v; keys and values    new key and value; output
    row_product    BN columns, a share of K         rows, weights               shares of the projection
    add_norm       ..
    row_product    BN columns                       rows, weights               hidden, GELU applied
    row_product    BN columns, a share of K         hidden, weights             shares of the second product

*A product of few rows* has few tiles: 768 columns are 24 tiles of 32, for 132 multiprocessors. So K is cut as well, and
the partial sums are added by the kernel that needs all columns of a row anyway, the next layer norm: that costs no
launch, and the order of the sum is fixed, so the bits are.

*Attention* of one query is a pass over keys and values. A program walks over TILE positions at a time; each of the TILE
lanes has a softmax of its own, so that within the loop nothing is exchanged but the sum over a key's channels. Where
rows and heads are too few to fill the chip, positions are shared out; the program that ends last puts the shares
together, in their order.

*Beginning early.* A kernel of a graph starts when the one before has ended, a microsecond or so later. With EARLY it
starts while that one still works, asks for its weights to come to L2, and only then waits (programmatic dependent
launch).

Measured on an H200, GPT-2 124M, 64 sequences, without the choice: 355 us a step at position 64 (weights and caches
alone: 93), 507 at 288, 623 at 512. From 64 to 512 that is 3.9 TB/s for keys and values, 92 % of a copy; what is left is
87 kernels of 2 to 5 us. Each alone, 12 launches, position 64: qkv 56 us, attention 92, projection 32, hidden 65, second
product 53, two norms 51; the head 33. ``docs/performance-log.md`` has what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.activation import gelu
from nanoeuler.ops.gpu.kernels.layernorm import EPS
from nanoeuler.ops.gpu.kernels.spec import DTYPES, Array, Launch, Target, cdiv, launch, power_of_2

LEAST = tl.constexpr(-1.0e30)  # in the place of -infinity, whose differences are no numbers
MOST_SPLITS = 16


@triton.jit
def normalized(x, weight, bias, columns, C, eps):
    """Layer norm of one row, in fp32."""
    inside = columns < C
    centred = tl.where(inside, x - tl.sum(x, 0) / C, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    return centred * rstd * gain + tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def embed_norm_kernel(
    x, out, wte, wpe, tokens, positions, weight, bias, T, C, eps, COLUMNS: tl.constexpr, EARLY: tl.constexpr
):
    """One row: ``x = wte[token] + wpe[position]``, ``out = layernorm(x)``. Where there is none, some row is read."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    inside = columns < C
    token = tl.maximum(tl.load(tokens + row), 0)
    position = tl.minimum(tl.maximum(tl.load(positions + row), 0), T - 1)
    v = tl.load(wte + token.to(tl.int64) * C + columns, mask=inside, other=0.0).to(tl.float32)
    v += tl.load(wpe + position.to(tl.int64) * C + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + row * C + columns, v, mask=inside)
    y = normalized(v, weight, bias, columns, C, eps)
    tl.store(out + row * C + columns, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def prefetch(pointers):
    """Ask for memory to be brought into L2, and do not wait."""
    asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,l", [pointers.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def add_norm_kernel(
    x, out, shares, added, weight, bias, R, C, eps, SPLITS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr
):
    """One row: ``x += added + sum of shares`` (SPLITS, R, C), ``out = layernorm(x)``."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    inside = columns < C
    v = tl.load(x + row * C + columns, mask=inside, other=0.0)
    v += tl.load(added + columns, mask=inside, other=0.0).to(tl.float32)
    for s in tl.static_range(SPLITS):
        v += tl.load(shares + (s * R + row) * C + columns, mask=inside, other=0.0)
    tl.store(x + row * C + columns, v, mask=inside)
    y = normalized(v, weight, bias, columns, C, eps)
    tl.store(out + row * C + columns, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def row_product_kernel(
    out, a, w, bias, R, N, K, w_stride, out_stride, W_T: tl.constexpr, GELU: tl.constexpr, SPLITS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
    FULL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BN columns of ``out = a w (+ bias) (, GELU)`` for BM of R rows, over one of SPLITS shares of K.

    Without SPLITS out is (R, out_stride), else fp32 (SPLITS, R, out_stride) and nothing but the product. W_T: w is
    stored (N, K). EVEN, FULL: K and N are whole numbers of blocks. R is one of BM.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    share = tl.cdiv(tl.cdiv(K, BK), SPLITS)
    first = tl.program_id(1) * share
    if FULL:
        within = n.to(tl.int64)
    else:
        within = tl.minimum(n, N - 1).to(tl.int64)  # beyond the last column: read something, store nothing
    last = tl.minimum(first + share, tl.cdiv(K, BK))
    if EARLY:  # weights depend on nobody: their way from memory to L2 begins before the rows are there
        if W_T:
            for step in range(first, last):
                lines = tl.minimum(step * BK + tl.arange(0, BK // 64) * 64, K - 1)
                prefetch(w + within[:, None] * w_stride + lines[None, :])
        else:
            for step in range(first, last):
                prefetch(w + tl.minimum(step * BK + k, K - 1).to(tl.int64) * w_stride + tl.program_id(0) * BN)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(first, last):
        at = step * BK + k
        if EVEN:
            x = tl.load(a + m[:, None] * K + at[None, :])
            if W_T:
                y = tl.load(w + within[:, None] * w_stride + at[None, :]).T
            else:
                y = tl.load(w + at.to(tl.int64)[:, None] * w_stride + within[None, :])
        else:
            x = tl.load(a + m[:, None] * K + at[None, :], mask=(at < K)[None, :], other=0.0)
            if W_T:
                y = tl.load(w + within[:, None] * w_stride + at[None, :], mask=(at < K)[None, :], other=0.0).T
            else:
                y = tl.load(
                    w + at.to(tl.int64)[:, None] * w_stride + within[None, :], mask=(at < K)[:, None], other=0.0
                )
        acc = tl.dot(x, y, acc, input_precision="ieee")
    inside = (n < N)[None, :]
    place = out + (tl.program_id(1) * R + m).to(tl.int64)[:, None] * out_stride + n[None, :]
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if GELU:
        acc = gelu(acc, a.dtype.element_ty == tl.float32)
    tl.store(place, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def cached_attention_kernel(
    out, qkv, cache, parts, tickets, positions, slots, T, layers, layer, scale,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    SPLITS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of one row and head over a share of the slot's positions; the row's own key and value join the cache.

    ``cache`` (slots, layers, 2, H, T, D). ``parts`` (R, H, SPLITS, BD + 2) fp32: outputs of the shares, their maxima
    (of scores in base 2) and sums. ``tickets`` (R, H) i32, zero before and after. Rows whose slot is below 0, or
    whose position is beyond the cache, do nothing.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    C: tl.constexpr = H * D
    d, t = tl.arange(0, BD), tl.arange(0, TILE)
    real = d < D
    own = qkv + row * (3 * C) + head * D + d
    q = tl.load(own, mask=real, other=0.0).to(tl.float32) * scale
    if (slot >= 0) & (position < T):
        keys = cache + ((slot.to(tl.int64) * layers + layer) * 2 * H + head) * T * D
        values = keys + H * T * D
        most = tl.full((TILE,), LEAST, tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        acc = tl.zeros((TILE, BD), tl.float32)
        if split == 0:
            k = tl.load(own + C, mask=real, other=0.0)
            v = tl.load(own + 2 * C, mask=real, other=0.0)
            tl.store(keys + position * D + d, k.to(cache.dtype.element_ty), mask=real)
            tl.store(values + position * D + d, v.to(cache.dtype.element_ty), mask=real)
            mine = t == 0
            most = tl.where(mine, tl.sum(q * k.to(tl.float32), 0), most)
            total = tl.where(mine, 1.0, total)
            acc = tl.where(mine[:, None], v.to(tl.float32)[None, :], acc)
        share = tl.cdiv(tl.cdiv(position, SPLITS), TILE) * TILE
        begin = split * share
        end = tl.minimum(begin + share, position)
        for first in tl.range(begin, end, TILE, num_stages=STAGES):
            at = first + t
            inside = (at < end)[:, None] & real[None, :]
            k = tl.load(keys + at[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
            v = tl.load(values + at[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
            score = tl.where(at < end, tl.sum(q[None, :] * k, 1), LEAST)
            larger = tl.maximum(most, score)
            shrink = tl.exp2(most - larger)
            weight = tl.where(at < end, tl.exp2(score - larger), 0.0)
            total = total * shrink + weight
            acc = acc * shrink[:, None] + weight[:, None] * v
            most = larger
        top = tl.max(most, 0)
        factor = tl.where(most > LEAST, tl.exp2(most - top), 0.0)
        whole = tl.sum(total * factor, 0)
        y = tl.sum(acc * factor[:, None], 0)
        if SPLITS == 1:
            tl.store(out + row * C + head * D + d, (y / whole).to(out.dtype.element_ty), mask=real)
        else:
            unit = row * H + head
            place = parts + (unit * SPLITS + split).to(tl.int64) * (BD + 2)
            tl.store(place + d, y)
            tl.store(place + BD, top)
            tl.store(place + BD + 1, whole)
            tl.debug_barrier()  # all warps' stores come before the ticket
            if tl.atomic_add(tickets + unit, 1) == SPLITS - 1:
                s = tl.arange(0, SPLITS)
                each = parts + (unit * SPLITS + s).to(tl.int64) * (BD + 2)
                tops = tl.load(each + BD, volatile=True)
                factors = tl.exp2(tops - tl.max(tops, 0))
                whole = tl.sum(tl.load(each + BD + 1, volatile=True) * factors, 0)
                y = tl.sum(tl.load(each[:, None] + d[None, :], volatile=True) * factors[:, None], 0)
                tl.store(out + row * C + head * D + d, (y / whole).to(out.dtype.element_ty), mask=real)
                tl.store(tickets + unit, 0)


@dataclass(frozen=True)
class Cut:
    """How a product of few rows is cut: columns and depth of a tile, shares of K, warps, stages."""

    bn: int = 32
    bk: int = 128
    splits: int = 1
    warps: int = 4
    stages: int = 4


def row_block(rows: int) -> int:
    """Rows of a tile, for ``rows`` rows in all: a multiple of 16, at most 128.

    >>> [row_block(n) for n in (1, 16, 17, 64, 200)]
    [16, 16, 32, 64, 128]
    """
    return min(128, max(16, power_of_2(rows)))


def fitting(cut: Cut, bm: int, item_bytes: int, target: Target) -> Cut:
    """``cut`` with fewer stages, then less of K at a time, until its tiles fit into the target's shared memory.

    >>> fitting(Cut(32, 256, 1, 4, 3), 64, 2, Target(90)), fitting(Cut(32, 256, 1, 4, 3), 128, 2, Target(89))
    (Cut(bn=32, bk=256, splits=1, warps=4, stages=3), Cut(bn=32, bk=128, splits=1, warps=4, stages=2))
    """
    room = target.shared_memory - (8 << 10)
    while (bm + cut.bn) * cut.bk * item_bytes * cut.stages > room and cut.bk > 16:
        cut = replace(cut, stages=cut.stages - 1) if cut.stages > 2 else replace(cut, bk=cut.bk // 2)
    return cut


def row_product(
    out: Array, a: Array, w: Array, bias: Array | None = None, gelu: bool = False, w_t: bool = False,
    cut: Cut = Cut(), columns: int | None = None, early: bool = False, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``out = gelu(a w + bias)``: a (R, K); out (R, N), or with ``cut.splits`` shares (splits, R, N) fp32, bare."""
    R, K = a.shape
    N = columns or out.shape[-1]
    bm = row_block(R)
    cut = fitting(replace(cut, bk=min(cut.bk, max(16, power_of_2(K)))), bm, DTYPES[a.dtype], target)
    assert R % bm == 0 and (cut.splits == 1 or (bias is None and not gelu))
    return [
        launch(
            row_product_kernel, (cdiv(N, cut.bn), cut.splits, R // bm), cut.warps, cut.stages, out=out, a=a, w=w,
            bias=bias, R=R, N=N, K=K, w_stride=w.shape[1], out_stride=out.shape[-1], W_T=w_t, GELU=gelu,
            SPLITS=cut.splits, BM=bm, BN=cut.bn, BK=cut.bk, EVEN=K % cut.bk == 0, FULL=N % cut.bn == 0, EARLY=early,
        )
    ]  # fmt: skip


def embed_norm(
    x: Array, out: Array, wte: Array, wpe: Array, tokens: Array, positions: Array, weight: Array, bias: Array,
    rows: int, early: bool = False, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """x (R, C) fp32 = the embedding of the first ``rows`` tokens, out = layer norm of x."""
    C = x.shape[1]
    return [
        launch(
            embed_norm_kernel, (rows,), _warps(C), x=x, out=out, wte=wte, wpe=wpe, tokens=tokens, positions=positions,
            weight=weight, bias=bias, T=wpe.shape[0], C=C, eps=EPS, COLUMNS=power_of_2(C), EARLY=early,
        )
    ]  # fmt: skip


def add_norm(
    x: Array, out: Array, shares: Array, added: Array, weight: Array, bias: Array, rows: int, early: bool = False,
    *, target: Target,
) -> list[Launch]:  # fmt: skip
    """The first ``rows`` of x (R, C) fp32 += added (C,) + the sum of shares (splits, R, C); out = layer norm of x."""
    splits, R, C = shares.shape
    return [
        launch(
            add_norm_kernel, (rows,), _warps(C), x=x, out=out, shares=shares, added=added, weight=weight, bias=bias,
            R=R, C=C, eps=EPS, SPLITS=splits, COLUMNS=power_of_2(C), EARLY=early,
        )
    ]  # fmt: skip


def _warps(C: int) -> int:
    return min(8, max(1, power_of_2(C) // 256))


def attention_splits(rows: int, heads: int, target: Target) -> int:
    """Shares of a head's positions, so that some six programs fall to each multiprocessor.

    >>> [attention_splits(n, 12, Target()) for n in (1, 8, 32, 64)]
    [16, 8, 2, 1]
    """
    return min(MOST_SPLITS, power_of_2(cdiv(5 * target.multiprocessors, rows * heads)))


def cached_attention(
    out: Array, qkv: Array, cache: Array, parts: Array, tickets: Array, positions: Array, slots: Array, layer: int,
    rows: int, splits: int, tile: int = 64, warps: int = 2, stages: int = 3,
    early: bool = False, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """Attention of the first ``rows`` of qkv (R, 3C) in one layer, over their slots' positions up to their own."""
    _, layers, _, H, T, D = cache.shape
    width = max(16, power_of_2(D))
    while 2 * tile * width * DTYPES[cache.dtype] * stages > target.shared_memory // 2 and stages > 1:
        stages -= 1
    return [
        launch(
            cached_attention_kernel, (rows, H, splits), warps, out=out, qkv=qkv, cache=cache, parts=parts,
            tickets=tickets, positions=positions, slots=slots, T=T, scale=D**-0.5 * 1.4426950408889634, layers=layers,
            layer=layer, H=H, D=D, BD=width, SPLITS=splits, TILE=tile, STAGES=stages,
            EARLY=early,
        )
    ]  # fmt: skip
