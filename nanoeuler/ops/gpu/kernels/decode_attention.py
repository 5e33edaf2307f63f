# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: RUF005  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""Attention of one token over its cache, for ``decode.py``: shares by programs, and putting them together.

A warp reads a row of keys with 16 bytes a lane, so with heads of 64 numbers four positions at a time, and the eight
warps 32. The lanes of a position have a softmax of their own (the largest logit, the sum); they meet when all positions
are done, first in the warp, then the eight warps in shared memory. Before that nothing crosses warps but the query,
for which one thread a number waits. The first two tiles of keys and values are asked for before the layer begins.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoeuler.ops.gpu.kernels.decode_exchange import floats, poll_shares, poll_vector, put_share, regs
from nanoeuler.ops.gpu.kernels.decode_ring import CLOBBER, MERGE, SPREAD

LOG2_E: gl.constexpr = gl.constexpr(1.4426950408889634)
WARPS: gl.constexpr = gl.constexpr(8)
NONE: gl.constexpr = gl.constexpr(-1e30)  # a logit of what is not there
LINE: gl.constexpr = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))


@gluon.constexpr_function
def spread_asm(N, SIZE):
    """Store N numbers a thread, 256 apart, of SIZE, and wait for all threads. Inputs: thread, numbers."""
    lines = ["{ .reg .pred p; .reg .b32 b, a; mov.u32 b, global_smem; mad.lo.u32 a, $1, 4, b;"]
    for j in range(int(N)):
        lines += [f"setp.lt.u32 p, $1, {int(SIZE) - 256 * j}; @p st.shared.f32 [a+{SPREAD + 1024 * j}], ${2 + j};"]
    return " ".join([*lines, "bar.sync 0; mov.u32 $0, 0; }"])


@gluon.constexpr_function
def eight_asm(OFFSET):
    """Eight neighbouring numbers of those, from number $8 on."""
    lines = ["{ .reg .b32 b, a; mov.u32 b, global_smem; mad.lo.u32 a, $8, 4, b;"]
    for half in (0, 1):
        to = ", ".join(f"${4 * half + i}" for i in range(4))
        lines += [f"ld.shared.v4.f32 {{{to}}}, [a+{SPREAD + 4 * int(OFFSET) + 16 * half}];"]
    return " ".join([*lines, "}"])


@gluon.constexpr_function
def gather_asm(BD):
    """Store a warp's eight numbers a lane ($8 ...), its largest logit ($16) and its sum ($24); wait for all."""
    row = 4 * (int(BD) + 4)
    lines = ["{ .reg .pred p; .reg .b32 b, a, t, w, l; mov.u32 b, global_smem; mov.u32 t, %tid.x; and.b32 l, t, 31;"]
    lines += [f"shr.u32 w, t, 5; mad.lo.u32 a, w, {row}, b; setp.eq.u32 p, l, 0;"]
    lines += [f"@p st.shared.v2.f32 [a+{MERGE + 4 * int(BD)}], {{$16, $24}};"]
    lines += [f"mad.lo.u32 a, l, 32, a; setp.lt.u32 p, l, {int(BD) // 8};"]
    for half in (0, 1):
        values = ", ".join(f"${8 + 4 * half + i}" for i in range(4))
        lines += [f"@p st.shared.v4.f32 [a+{MERGE + 16 * half}], {{{values}}};"]
    return " ".join([*lines, "bar.sync 0;", *(f"mov.u32 ${i}, 0;" for i in range(8)), "}"])


@gluon.constexpr_function
def gathered_asm(BD):
    """Four numbers of each warp, from number 4 * thread on, then each warp's largest logit and its sum."""
    row = 4 * (int(BD) + 4)
    lines = [f"{{ .reg .b32 b, a, t; mov.u32 b, global_smem; and.b32 t, $48, {int(BD) // 4 - 1};"]
    lines += ["mad.lo.u32 a, t, 16, b;"]
    for w in range(8):
        to = ", ".join(f"${4 * w + i}" for i in range(4))
        lines += [f"ld.shared.v4.f32 {{{to}}}, [a+{MERGE + w * row}];"]
        lines += [f"ld.shared.v2.f32 {{${32 + w}, ${40 + w}}}, [b+{MERGE + w * row + 4 * int(BD)}];"]
    return " ".join([*lines, "}"])


@gluon.jit
def spread(i, values, N: gl.constexpr, SIZE: gl.constexpr):
    """Numbers of each thread (N tensors) to all threads: number i + 256 j is the j-th of thread i."""
    asm: gl.constexpr = spread_asm(N, SIZE)
    how: gl.constexpr = "=r,r," + regs("f", N) + CLOBBER
    gl.inline_asm_elementwise(asm, how, (i,) + values, gl.int32, False, 1)


@gluon.jit
def eight_of(d, OFFSET: gl.constexpr):
    """Numbers OFFSET + d of what was spread, for a tensor d of which each thread holds eight neighbours."""
    asm: gl.constexpr = eight_asm(OFFSET)
    how: gl.constexpr = regs("=f", 8) + "," + regs("r", 8) + CLOBBER
    return gl.inline_asm_elementwise(asm, how, [d], gl.float32, False, 8)


@gluon.jit
def gather(acc, most, total, BD: gl.constexpr):
    """Hand over each warp's weighted values (8, BD), largest logit and sum."""
    asm: gl.constexpr = gather_asm(BD)
    how: gl.constexpr = regs("=r", 8) + "," + regs("f", 24) + CLOBBER
    AT: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(1, past_layout(BD)))
    zero = gl.zeros_like(acc)
    most = zero + gl.convert_layout(most, AT)[:, None]
    total = zero + gl.convert_layout(total, AT)[:, None]
    gl.inline_asm_elementwise(asm, how, [acc, most, total], gl.int32, False, 8)


@gluon.jit
def gathered(i, BD: gl.constexpr):
    """Of the eight warps: numbers 4 i ... 4 i + 3 each; the largest logits; the sums."""
    asm: gl.constexpr = gathered_asm(BD)
    how: gl.constexpr = regs("=f", 48) + ",r" + CLOBBER
    kind: gl.constexpr = floats(48)
    return gl.inline_asm_elementwise(asm, how, [i], kind, False, 1)


@gluon.jit
def load_past(base, place, pos, d, D: gl.constexpr, BD: gl.constexpr):
    """Keys or values (T, D) at ``place``, those before ``pos``."""
    inside = (place < pos)[:, :, None]
    if D != BD:
        inside = inside & (d < D)[None, None, :]
    return gl.load(base + place[:, :, None] * D + d[None, None, :], mask=inside, other=0.0)


@gluon.jit
def first_tiles(keys, place, pos, d, D: gl.constexpr, BD: gl.constexpr, VALUES: gl.constexpr, SPLITS: gl.constexpr):
    """Keys and values of a split's first two tiles."""
    after = place + 2048 // BD * SPLITS
    k, v = load_past(keys, place, pos, d, D, BD), load_past(keys + VALUES, place, pos, d, D, BD)
    return k, v, load_past(keys, after, pos, d, D, BD), load_past(keys + VALUES, after, pos, d, D, BD)


@gluon.constexpr_function
def past_layout(BD):
    """Warps, positions of a warp, numbers of a head."""
    lanes = int(BD) // 8
    return gl.BlockedLayout([1, 1, 8], [1, 32 // lanes, lanes], [8, 1, 1], [2, 1, 0])


@gluon.jit
def positions(split, SPLITS: gl.constexpr, BLOCK: gl.constexpr, BD: gl.constexpr):
    """The positions of a split's first tile (8, positions a warp)."""
    AT: gl.constexpr = past_layout(BD)
    EACH: gl.constexpr = 256 // BD
    w = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, AT)))
    j = gl.arange(0, EACH, layout=gl.SliceLayout(0, gl.SliceLayout(2, AT)))
    n = w[:, None] * EACH + j[None, :]
    return (n // BLOCK * SPLITS + split) * BLOCK + n % BLOCK


@gluon.jit
def attend(
    i, shares, qkv, keys, k, v, k_next, v_next, place, d, epoch, pos, head, split, scale,
    C: gl.constexpr, D: gl.constexpr, BD: gl.constexpr, VALUES: gl.constexpr, SPLITS: gl.constexpr,
    BLOCK: gl.constexpr,
):  # fmt: skip
    """One head's attention over the positions of one split. ``keys`` (T, D) of this layer and head, its values VALUES
    numbers further; k and v hold the first tile already, k_next and v_next the second."""
    TILE: gl.constexpr = 2048 // BD
    WORDS: gl.constexpr = (3 * BD + 255) // 256
    kind: gl.constexpr = keys.dtype.element_ty
    mine = (pos // BLOCK) % SPLITS == split
    new = ()
    for j in gl.static_range(WORDS):
        n = gl.minimum(i + 256 * j, 3 * BD - 1)
        which = gl.where(mine, n // BD, 0)  # the new key and value only where they belong
        here = gl.minimum(n % BD, D - 1)
        at = qkv.to(gl.int64) + (which * C + head * D + here) * 8
        got = poll_vector(at, at, epoch, 1, 8)
        value = gl.where(n % BD < D, got[0], 0.0)
        rounded = value.to(kind)
        some = (n % BD < D) & (which > 0) & (i + 256 * j < 3 * BD)
        gl.store(keys + (gl.where(which == 2, VALUES, 0) + pos * D + here), rounded, mask=some)
        new = new + (gl.where(n < BD, value * (scale * LOG2_E), rounded.to(gl.float32)),)
    spread(i, new, WORDS, 3 * BD)
    q, k_new, v_new = eight_of(d, 0), eight_of(d, BD), eight_of(d, 2 * BD)

    AT: gl.constexpr = past_layout(BD)
    most = gl.full([WARPS, 256 // BD], NONE, gl.float32, gl.SliceLayout(2, AT))  # each position's lanes for themselves
    total = gl.zeros([WARPS, 256 // BD], gl.float32, gl.SliceLayout(2, AT))
    acc = gl.zeros([WARPS, 256 // BD, BD], gl.float32, AT)
    blocks = (pos // BLOCK - split + SPLITS) // SPLITS
    turns = gl.cdiv(blocks * BLOCK, TILE)
    for turn in range(turns):
        after = place + 2 * TILE * SPLITS
        k_after, v_after = k_next, v_next
        if turn + 2 < turns:
            k_after = load_past(keys, after, pos, d, D, BD)
            v_after = load_past(keys + VALUES, after, pos, d, D, BD)
        new_one = (place == pos)[:, :, None]
        keyed = gl.where(new_one, k_new[None, None, :], k.to(gl.float32))
        valued = gl.where(new_one, v_new[None, None, :], v.to(gl.float32))
        s = gl.where(place <= pos, gl.sum(keyed * q[None, None, :], 2), NONE)
        larger = gl.maximum(most, s)
        p = gl.where(place <= pos, gl.exp2(s - larger), 0.0)
        fade = gl.exp2(most - larger)
        total = total * fade + p
        acc = acc * fade[:, :, None] + p[:, :, None] * valued
        most, place = larger, place + TILE * SPLITS
        k, v, k_next, v_next = k_next, v_next, k_after, v_after
    largest = gl.max(most, 1)
    fade = gl.exp2(most - largest[:, None])
    gather(gl.sum(acc * fade[:, :, None], 1), largest, gl.sum(total * fade, 1), BD)
    o, lse = merged(i, BD)
    put_share(shares.to(gl.int64) + (i * 4 + split * C + head * D) * 4, o, lse, epoch, D // 4)


@gluon.jit
def merged(i, BD: gl.constexpr):
    """The eight warps' softmaxes as one: (numbers 4 i ... 4 i + 3, log-sum-exp)."""
    got = gathered(i, BD)
    most = got[32]
    for w in gl.static_range(1, 8):
        most = gl.maximum(most, got[32 + w])
    weight = gl.exp2(got[32] - most)
    total = got[40] * weight
    a, b, c, d = got[0] * weight, got[1] * weight, got[2] * weight, got[3] * weight
    for w in gl.static_range(1, 8):
        weight = gl.exp2(got[32 + w] - most)
        total += got[40 + w] * weight
        a += got[4 * w] * weight
        b += got[4 * w + 1] * weight
        c += got[4 * w + 2] * weight
        d += got[4 * w + 3] * weight
    part = 1.0 / total
    return (a * part, b * part, c * part, d * part), most + gl.log2(total)


@gluon.jit
def combined(at, active, epoch, C: gl.constexpr, GROUP: gl.constexpr):
    """Four channels of attention's output, from the words at ``at`` of all ``active`` splits' shares."""
    most = gl.full([256], NONE, gl.float32, LINE)
    total = gl.zeros([256], gl.float32, LINE)
    a, b, c, d = total, total, total, total
    for group in range(gl.cdiv(active, GROUP)):
        got = poll_shares(at, C * 4, active - group * GROUP, epoch, GROUP)
        at += GROUP * C * 4
        larger = most
        for g in gl.static_range(GROUP):
            larger = gl.maximum(larger, got[4 * GROUP + g])
        fade = gl.exp2(most - larger)
        total, a, b, c, d = total * fade, a * fade, b * fade, c * fade, d * fade
        most = larger
        for g in gl.static_range(GROUP):
            weight = gl.exp2(got[4 * GROUP + g] - most)
            total += weight
            a += got[4 * g] * weight
            b += got[4 * g + 1] * weight
            c += got[4 * g + 2] * weight
            d += got[4 * g + 3] * weight
    part = 1.0 / total
    return (a * part, b * part, c * part, d * part)


@gluon.jit
def attention_output(i, shares, active, epoch, C: gl.constexpr, SPLITS: gl.constexpr, N: gl.constexpr):
    """Attention's output as ``fragments`` wants it in "quads": lane l of a warp has four channels of its chunk l // 8,
    and so on every four chunks."""
    FEW: gl.constexpr = 4 if SPLITS > 4 else SPLITS
    ALL: gl.constexpr = 12 if SPLITS > 12 else SPLITS
    out = ()
    for turn in gl.static_range((N + 3) // 4):
        chunk = gl.minimum(i % 32 // 8 + 4 * turn, N - 1)
        k = chunk * 256 + i // 32 * 32 + i % 8 * 4
        at = shares.to(gl.int64) + gl.minimum(k, C - 4) * 4
        if active <= FEW:
            o = combined(at, active, epoch, C, FEW)
        else:
            o = combined(at, active, epoch, C, ALL)
        for j in gl.static_range(4):
            out = out + (gl.where(k < C, o[j], 0.0),)
    return out
