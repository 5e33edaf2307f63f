# mypy: disallow-untyped-defs=False
"""Choosing the next token where the logits are: ``inference/sampling.py``'s ``sample_next``, on the GPU.

The same chain with the same numbers: float64 exponentials of ``(logit - largest) / temperature``, the k most probable,
the fewest whose sum reaches p, and the id at which the running sum, in the order of ids, passes u times the whole. u
comes from the same counter-based generator (Philox 4x64, ten rounds: whole numbers, so the same bits).

*Splitting.* A row of V logits is cut into blocks. ``block_stats_kernel`` finds each block's largest logit and its sum
of exponentials, on all of the GPU at once; one program a row then finds the block that holds u's place, and walks over
that block alone. Greedy rows take the largest block's largest.

*Top-k and top-p without sorting.* Both keep the logits above a threshold: the largest t for which still k logits, or
still a share p of the mass, are at least t. A float's bits, sign turned about, are ordered like the float; so t is
found four bits at a time: ``narrow_kernel`` counts (or adds up) for 15 candidates of the next four bits, in every
block, and its next run adds up the blocks, settles the four bits, and goes on. After eight runs t is exact, to the bit;
of logits equal to t the lowest ids are kept, as many as are wanted.

*When it may differ from the host.* Only sums are rounded otherwise: float64, in another order, about 1e-15 of the
whole. So ids can differ only if u's place lies within some 1e-14 of a border between ids, or a sum within that of p.
At temperatures where exponentials of different logits become equal numbers (above 1e7 or so), the host's top-k sees
ties where this sees none.

*Bytes:* the logits once (V = 50257: 0.2 MB a row), and once more for each narrowing run, from L2. *Operations:* an
exponential in float64 costs some 40; for 64 rows 130 million, 10 us if well spread.

Measured on an H200, V = 50257, as a graph (us for 64 rows / for one): temperature only 15 / 9, top-k 151 / 42, top-p
216 / 58, both 351 / 92. Of 4608 ids, of all kinds of settings, all were the host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch, power_of_2

BITS = 4  # of the threshold, settled by one run
RUNS = 32 // BITS
BLOCK = 1024  # logits of a program
# Rows of ``settings`` (fp64): 1 / temperature (0: greedy), what the kept mass must reach; of ``choice`` (i32):
INVERSE, TOP_P = range(2)
TOP_K, SEED, SAMPLE, FIRST, TURN = 0, 1, 3, 5, 6  # seed and sample take two words each, the low one first
CHOICES = 7
ALL = 2**31 - 1  # as top k: do not cut
LOWEST = tl.constexpr(-(2**31))


@triton.jit
def ordered(x):
    """A whole number for each float32, ordered like the floats."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0 is 0
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """The float32 of an ordered number."""
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def wide(low, high):
    """64 bits from two words."""
    return (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit
def philox(seed, sample, position):
    """The first 64 bits of Philox 4x64-10 (Salmon et al. 2011) under the key (seed, sample), counter position + 1."""
    c0 = position.to(tl.uint64) + 1
    c1 = c0 * 0
    c2, c3, k0, k1 = c1, c1, seed, sample
    m0 = c1 + 0xD2E7470EE14C6C93
    m1 = c1 + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high0, low0, high1, low1 = tl.umulhi(m0, c0), m0 * c0, tl.umulhi(m1, c2), m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += 0x9E3779B97F4A7C15
        k1 += 0xBB67AE8584CAA73B
    return c0


@triton.jit
def row_uniform(choice, row, R):
    """``uniform(seed, sample, position)`` of a row's next token."""
    c = choice + row
    seed = wide(tl.load(c + 1 * R), tl.load(c + 2 * R))
    sample = wide(tl.load(c + 3 * R), tl.load(c + 4 * R))
    bits = philox(seed, sample, tl.load(c + 5 * R) + tl.load(c + 6 * R))
    return (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def block_stats_kernel(best, at, mass, logits, settings, n_valid, stride, R, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Of one block of one row: the largest logit, its lowest id (-1 if a logit is not finite), and the sum of
    ``exp((logit - largest) / temperature)``. best fp32, at i32, mass fp64: (R, BLOCKS)."""
    row, block = tl.program_id(0), tl.program_id(1)
    id = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * stride + id, mask=id < stride, other=0.0)
    inside = id < n_valid
    finite = tl.min(tl.where(inside & ~(tl.abs(x) < float("inf")), 0, 1), 0)
    x = tl.where(inside, x, float("-inf"))
    largest = tl.max(x, 0)
    first = tl.min(tl.where(inside & (x == largest), id, 2147483647), 0)
    place = row * BLOCKS + block
    tl.store(best + place, largest)
    tl.store(at + place, tl.where(finite == 1, first, -1))
    inverse = tl.load(settings + row)
    if inverse > 0.0:
        e = tl.where(inside, tl.exp((x.to(tl.float64) - largest.to(tl.float64)) * inverse), 0.0)
        tl.store(mass + place, tl.sum(e, 0))


@triton.jit
def whole_row(best, mass, row, inverse, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """(the row's largest logit in fp64, its blocks' sums of exponentials relative to it)."""
    b = tl.arange(0, WIDTH)
    largest = tl.load(best + row * BLOCKS + b, mask=b < BLOCKS, other=float("-inf"))
    top = tl.max(largest, 0)
    own = tl.load(mass + row * BLOCKS + b, mask=b < BLOCKS, other=0.0)
    scale = tl.exp((tl.where(b < BLOCKS, largest, top).to(tl.float64) - top.to(tl.float64)) * inverse)
    return top.to(tl.float64), own * scale


@triton.jit
def kept(kept_mass, counts, cut, top, inverse, row, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """(mass of each block above the cut, how many logits of it equal the cut, how many of all those to keep, the
    exponential of one)."""
    b = tl.arange(0, WIDTH)
    above = tl.load(kept_mass + row * BLOCKS + b, mask=b < BLOCKS, other=0.0)
    equal = tl.load(counts + (row * BLOCKS + b) * 2 + 1, mask=b < BLOCKS, other=0)
    return above, equal, tl.load(cut + row * 2 + 1), border(tl.load(cut + row * 2), top, inverse)


@triton.jit
def border(key, top, inverse):
    """The exponential of the logit whose ordered number is ``key``; 0 for the lowest number, which is no logit's."""
    x = tl.where(key == LOWEST, 0, key)
    e = tl.exp(tl.minimum(unordered(x).to(tl.float64) - top, 0.0) * inverse)
    return tl.where(key == LOWEST, 0.0, e)


@triton.jit
def settle(prefix, below, target, shift, floor):
    """The prefix with its next digit: the largest whose candidate is still reached by ``below`` (16,)."""
    digit = tl.arange(0, 16)
    candidate = prefix + (digit.to(tl.int64) << shift)
    reached = (below >= target) | (candidate <= floor) | (digit == 0)
    return tl.max(tl.where(reached, candidate, 0), 0)


@triton.jit
def narrow_kernel(
    prefixes, sums, best, mass, kept_mass, counts, cut, logits, settings, choice, n_valid, stride, R, number,
    MASS: tl.constexpr, AGAIN: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A run towards a row's threshold: settle the last run's four bits, count for the next ones.

    MASS: for top-p, else for top-k. AGAIN: after top-k, whose cut is a floor and whose mass the whole. The last run
    only settles. ``number`` of the first run is 1, so that none is 0, for which Triton would compile another kernel.
    ``prefixes`` (2, R) fp64 (whole numbers), read from one and written to the other by turns; ``sums`` (2, R, BLOCKS,
    16) fp64 likewise.
    """
    row, block, run = tl.program_id(0), tl.program_id(1), number - 1
    inverse = tl.load(settings + row)
    top, masses = whole_row(best, mass, row, inverse, BLOCKS, WIDTH)
    floor = tl.full((), 0, tl.int64)
    if MASS:
        whole = tl.sum(masses, 0)
        if AGAIN:
            above, _equal, n, one = kept(kept_mass, counts, cut, top, inverse, row, BLOCKS, WIDTH)
            whole = tl.sum(above, 0) + n.to(tl.float64) * one
            floor = tl.load(cut + row * 2).to(tl.int64) + 2147483648
        target = tl.load(settings + R + row) * whole
    else:
        target = tl.load(choice + row).to(tl.float64)
    now = run % 2
    digit = tl.arange(0, 16)
    prefix = tl.full((), 0, tl.int64)
    if run > 0:
        b = tl.arange(0, WIDTH)
        last = sums + (((1 - now) * R + row) * BLOCKS + b[:, None]) * 16 + digit[None, :]
        below = tl.sum(tl.load(last, mask=(b < BLOCKS)[:, None], other=0.0), 0)
        prefix = tl.load(prefixes + (1 - now) * R + row).to(tl.int64)
        prefix = settle(prefix, below, target, 32 - 4 * run, floor)
    if block == 0:
        tl.store(prefixes + now * R + row, prefix.to(tl.float64))
    if run < 8:
        id = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + row.to(tl.int64) * stride + id, mask=id < stride, other=0.0)
        own = tl.where(id < n_valid, ordered(x), LOWEST)
        if MASS:
            each = tl.exp((x.to(tl.float64) - top) * inverse)
        else:
            each = tl.full((BLOCK,), 1, tl.int32)
        here = sums + ((now * R + row) * BLOCKS + block) * 16
        for d in tl.static_range(1, 16):
            candidate = (prefix + (d << (28 - 4 * run).to(tl.int64)) - 2147483648).to(tl.int32)
            tl.store(here + d, tl.sum(tl.where(own >= candidate, each, 0), 0).to(tl.float64))


@triton.jit
def cut_kernel(
    kept_mass, counts, prefixes, best, mass, logits, settings, n_valid, stride, R,
    BLOCKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one block of one row: the mass above the threshold, and how many logits are above it, and equal to it.

    kept_mass fp64 (R, BLOCKS), counts i32 (R, BLOCKS, 2).
    """
    row, block = tl.program_id(0), tl.program_id(1)
    inverse = tl.load(settings + row)
    top, _ = whole_row(best, mass, row, inverse, BLOCKS, WIDTH)
    key = (tl.load(prefixes + row).to(tl.int64) - 2147483648).to(tl.int32)
    id = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * stride + id, mask=id < stride, other=0.0)
    own = ordered(x)
    inside = id < n_valid
    e = tl.where(inside & (own > key), tl.exp((x.to(tl.float64) - top) * inverse), 0.0)
    place = row * BLOCKS + block
    tl.store(kept_mass + place, tl.sum(e, 0))
    tl.store(counts + place * 2, tl.sum((inside & (own > key)).to(tl.int32), 0))
    tl.store(counts + place * 2 + 1, tl.sum((inside & (own == key)).to(tl.int32), 0))


@triton.jit
def ties_kernel(
    cut, prefixes, kept_mass, counts, old_mass, old_counts, best, mass, settings, choice, R,
    MASS: tl.constexpr, AGAIN: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One row's cut: (ordered threshold, how many of the logits equal to it stay). ``cut`` (R, 2) i32."""
    row, b = tl.program_id(0), tl.arange(0, WIDTH)
    inverse = tl.load(settings + row)
    top, masses = whole_row(best, mass, row, inverse, BLOCKS, WIDTH)
    key = (tl.load(prefixes + row).to(tl.int64) - 2147483648).to(tl.int32)
    place = (row * BLOCKS + b) * 2
    equal = tl.sum(tl.load(counts + place + 1, mask=b < BLOCKS, other=0), 0)
    if MASS:
        whole = tl.sum(masses, 0)
        most = equal
        if AGAIN:
            above, _equal, n, one = kept(old_mass, old_counts, cut, top, inverse, row, BLOCKS, WIDTH)
            whole = tl.sum(above, 0) + n.to(tl.float64) * one
            most = tl.where(key == tl.load(cut + row * 2), n, equal)
        missing = tl.load(settings + R + row) * whole
        missing -= tl.sum(tl.load(kept_mass + row * BLOCKS + b, mask=b < BLOCKS, other=0.0), 0)
        each = border(key, top, inverse)
        wanted = tl.where(each > 0.0, tl.ceil(missing / tl.where(each > 0.0, each, 1.0)), 0.0)
        wanted = tl.minimum(tl.maximum(wanted, 1.0), most.to(tl.float64)).to(tl.int32)
    else:
        above_count = tl.sum(tl.load(counts + place, mask=b < BLOCKS, other=0), 0)
        wanted = tl.minimum(tl.load(choice + row) - above_count, equal)
    tl.store(cut + row * 2, key)
    tl.store(cut + row * 2 + 1, wanted)


@triton.jit
def choose_kernel(
    tokens, positions, epochs, drawn, logits, best, at, mass, kept_mass, counts, cut, settings, choice, n_valid, stride,
    R, RING: tl.constexpr, CUT: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row's next token: into ``tokens``, ``drawn`` (RING, R) at the row's turn, and positions and turns go up.

    -1 if a logit is not finite. ``epochs``: where given, goes up too, for ``kernels/decode.py``.
    """
    row = tl.program_id(0)
    inverse = tl.load(settings + row)
    b = tl.arange(0, WIDTH)
    largest = tl.load(best + row * BLOCKS + b, mask=b < BLOCKS, other=float("-inf"))
    firsts = tl.load(at + row * BLOCKS + b, mask=b < BLOCKS, other=2147483647)
    id = tl.min(tl.where(largest == tl.max(largest, 0), firsts, 2147483647), 0)
    if inverse > 0.0:
        top, masses = whole_row(best, mass, row, inverse, BLOCKS, WIDTH)
        ties, one, rank = tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64), tl.full((WIDTH,), 0, tl.int32)
        key = tl.full((), LOWEST, tl.int32)
        if CUT:
            above, equal, ties, one = kept(kept_mass, counts, cut, top, inverse, row, BLOCKS, WIDTH)
            key = tl.load(cut + row * 2)
            rank = tl.cumsum(equal, 0) - equal  # ties in the blocks before
            masses = above + tl.minimum(tl.maximum(ties - rank, 0), equal).to(tl.float64) * one
        running = tl.cumsum(masses, 0)
        goal = row_uniform(choice, row, R) * tl.max(running, 0)
        alive = tl.max(tl.where(masses > 0.0, b, 0), 0)  # the last block that has anything
        block = tl.minimum(tl.sum(((running <= goal) & (b < BLOCKS)).to(tl.int32), 0), alive)
        before = tl.max(tl.where(b < block, running, 0.0), 0)
        j = tl.arange(0, BLOCK)
        ids = block * BLOCK + j
        x = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < stride, other=0.0)
        inside = ids < n_valid
        if CUT:
            own = ordered(x)
            same = inside & (own == key)
            earlier = tl.sum(tl.where(b == block, rank, 0), 0)
            inside = inside & ((own > key) | (same & (earlier + tl.cumsum(same.to(tl.int32), 0) <= ties)))
        e = tl.where(inside, tl.exp((x.to(tl.float64) - top) * inverse), 0.0)
        passed = tl.sum((before + tl.cumsum(e, 0) <= goal).to(tl.int32), 0)
        id = block * BLOCK + tl.minimum(passed, tl.max(tl.where(e > 0.0, j, 0), 0))
    id = tl.where(tl.min(firsts, 0) < 0, -1, id)
    turn = tl.load(choice + 6 * R + row)
    tl.store(drawn + (turn % RING) * R + row, id)
    tl.store(choice + 6 * R + row, turn + 1)
    tl.store(tokens + row, id)
    tl.store(positions + row, tl.load(positions + row) + 1)
    if epochs is not None:
        tl.store(epochs + row, tl.load(epochs + row) + 1)


# ---- plans ------------------------------------------------------------------------------------------------
def scratch_shapes(rows: int, n_vocab: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """What :func:`sample` needs besides: names, shapes and dtypes."""
    per_block = (rows, cdiv(n_vocab, BLOCK))
    return {
        "best": (per_block, "fp32"), "at": (per_block, "i32"), "mass": (per_block, "fp64"),
        "k_mass": (per_block, "fp64"), "k_counts": ((*per_block, 2), "i32"), "p_mass": (per_block, "fp64"),
        "p_counts": ((*per_block, 2), "i32"), "cut": ((rows, 2), "i32"), "prefixes": ((2, rows), "fp64"),
        "sums": ((2, *per_block, 16), "fp64"),
    }  # fmt: skip


def sample(
    tokens: Array, positions: Array, drawn: Array, logits: Array, settings: Array, choice: Array,
    scratch: Mapping[str, Array], rows: int, n_valid: int, n_vocab: int, top_k: bool, top_p: bool,
    epochs: Array | None = None, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """The next token of the first ``rows`` of ``logits`` (R, stride) fp32, whose first ``n_valid`` columns count.

    ``settings`` (2, R) fp64 and ``choice`` (CHOICES, R) i32: see the top. ``tokens``, ``positions`` (R,) and ``drawn``
    (RING, R): see ``choose_kernel``. ``top_k``, ``top_p``: whether any row is cut so.
    """
    R, stride = logits.shape
    s, blocks = scratch, cdiv(n_vocab, BLOCK)
    width = max(2, power_of_2(blocks))
    common: dict[str, Any] = {"settings": settings, "R": R, "BLOCKS": blocks, "WIDTH": width}
    block: dict[str, Any] = {"BLOCK": BLOCK}
    seen: dict[str, Any] = {"logits": logits, "n_valid": n_valid, "stride": stride}
    first: dict[str, Any] = {"best": s["best"], "mass": s["mass"]}
    calls = [
        launch(
            block_stats_kernel,
            (rows, blocks),
            4,
            at=s["at"],
            settings=settings,
            R=R,
            BLOCKS=blocks,
            **block,
            **seen,
            **first,
        ),
    ]
    for mass in (False, True):
        if not (top_p if mass else top_k):
            continue
        again = mass and top_k
        old = {"mass": s["k_mass"] if again else None, "counts": s["k_counts"] if again else None}
        new = {"mass": s["p_mass" if mass else "k_mass"], "counts": s["p_counts" if mass else "k_counts"]}
        calls += [
            launch(
                narrow_kernel, (rows, blocks if run < RUNS else 1), 2, prefixes=s["prefixes"], sums=s["sums"],
                kept_mass=old["mass"], counts=old["counts"], cut=s["cut"] if again else None, choice=choice,
                number=run + 1, MASS=mass, AGAIN=again, **common, **block, **seen, **first,
            )
            for run in range(RUNS + 1)
        ]  # fmt: skip
        calls += [
            launch(
                cut_kernel, (rows, blocks), 4, kept_mass=new["mass"], counts=new["counts"], prefixes=s["prefixes"],
                **common, **block, **seen, **first,
            ),
            launch(
                ties_kernel, (rows,), 1, cut=s["cut"], prefixes=s["prefixes"], kept_mass=new["mass"],
                counts=new["counts"], old_mass=old["mass"], old_counts=old["counts"], choice=choice, MASS=mass,
                AGAIN=again, **common, **first,
            ),
        ]  # fmt: skip
    limited = top_k or top_p
    last: dict[str, Any] = {"kept_mass": None, "counts": None}
    if limited:
        last = {"kept_mass": s["p_mass" if top_p else "k_mass"], "counts": s["p_counts" if top_p else "k_counts"]}
    calls.append(
        launch(
            choose_kernel, (rows,), 4, tokens=tokens, positions=positions, epochs=epochs, drawn=drawn, at=s["at"],
            choice=choice, cut=s["cut"] if limited else None, RING=drawn.shape[0], CUT=limited,
            **last, **common, **block, **seen, **first,
        )
    )  # fmt: skip
    return calls
