# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: RUF005  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""Pieces of ``decode.py``'s kernel around its products: what goes in, what is done with a row's sum, and the choice."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoeuler.ops.gpu.kernels.decode_exchange import poll_vector, poll_words, word
from nanoeuler.ops.gpu.kernels.decode_ring import CLOBBER, MOST, fragments

SLOPE: gl.constexpr = gl.constexpr(0.7978845608028654)  # sqrt(2/pi)
CUBIC: gl.constexpr = gl.constexpr(0.044715)
LINE: gl.constexpr = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))


# ---- the stream ---------------------------------------------------------------------------------------------------
@gluon.jit
def next_record(n, layers, rest, LAYERS: gl.constexpr, SIZES: gl.constexpr, COUNTS: gl.constexpr):
    """(address, bytes) of the stream's n-th record, and the number of the one after it.

    ``layers``, ``rest``: addresses of the program's layers and of its part of the head. SIZES, COUNTS: bytes of a
    record and number of records, of qkv, projection, fc, back in a layer, and of the head.
    """
    IN_LAYER: gl.constexpr = records_before(COUNTS, 4)
    layer = n // IN_LAYER
    left = n - layer * IN_LAYER
    size = n * 0 + SIZES[0]
    offset = left * SIZES[0]
    for j in gl.static_range(1, 4):
        later = left >= records_before(COUNTS, j)
        size = gl.where(later, SIZES[j], size)
        passed = bytes_before(COUNTS, SIZES, j) + (left - records_before(COUNTS, j)) * SIZES[j]
        offset = gl.where(later, passed, offset)
    in_head = n >= LAYERS * IN_LAYER
    size = gl.where(in_head, SIZES[4], size)
    at = gl.where(
        in_head, rest + (n - LAYERS * IN_LAYER) * SIZES[4], layers + layer * bytes_before(COUNTS, SIZES, 4) + offset
    )
    return at, size, gl.where(n + 1 == LAYERS * IN_LAYER + COUNTS[4], 0, n + 1)


@gluon.constexpr_function
def records_before(counts, j):
    return sum(int(c) for c in counts[: int(j)])


@gluon.constexpr_function
def bytes_before(counts, sizes, j):
    return sum(int(c) * int(s) for c, s in zip(counts[: int(j)], sizes[: int(j)]))


# ---- the vector ---------------------------------------------------------------------------------------------------
@gluon.jit
def channels(v, i, C: gl.constexpr, N: gl.constexpr):
    """Numbers i, i + 256, ... of a vector, as float32."""
    out = ()
    for c in gl.static_range(N):
        k = i + 256 * c
        if C % 256 == 0:
            out = out + (gl.load(v + k).to(gl.float32),)
        else:
            out = out + (gl.load(v + k, mask=k < C, other=0.0).to(gl.float32),)
    return out


@gluon.jit
def residual(words, i, epoch, C: gl.constexpr, N: gl.constexpr):
    """Wait for numbers i, i + 256, ... of x."""
    base = words.to(gl.int64)
    x = poll_vector(base + i * 8, base + gl.minimum(i + 256 * (N - 1), C - 1) * 8, epoch, N, 2048)
    if C % 256 == 0:
        return x
    else:
        out = ()
        for c in gl.static_range(N):
            out = out + (gl.where(i + 256 * c < C, x[c], 0.0),)
        return out


@gluon.jit
def hidden_pairs(words, i, epoch, K: gl.constexpr, N: gl.constexpr):
    """Wait for words i, i + 256, ... of a vector of K numbers, two a word."""
    base = words.to(gl.int64)
    last = i + 256 * (N // 2 - 1)
    x = poll_words(base + i * 8, base + gl.minimum(last, K // 2 - 1) * 8, epoch, N // 2, 2048)
    if K % 512 == 0:
        return x
    else:
        out = ()
        for c in gl.static_range(N // 2):
            out = out + (gl.where(i + 256 * c < K // 2, x[c], 0),)
        return out


@gluon.jit
def before_norm(i, x, gain, N: gl.constexpr, BITS: gl.constexpr):
    """x times the norm's gain as a product's vector, and this thread's share of the sums of x and of its squares."""
    a, b = x[0], x[0] * x[0]
    scaled = (x[0] * gain[0] * (0.0625 if BITS == 8 else 1.0),)  # float16 ends at 65504
    for c in gl.static_range(1, N):
        a += x[c]
        b += x[c] * x[c]
        scaled = scaled + (x[c] * gain[c] * (0.0625 if BITS == 8 else 1.0),)
    return fragments(i, scaled, N, BITS, "exact"), a, b


@gluon.jit
def after_norm(total, a, b, weight_sum, shift, C: gl.constexpr, BITS: gl.constexpr):
    """A row's product with the norm of x, from its product with x times gain, and the sums of x and of its squares:
    sum W (x - mean) rstd gain + shift, where ``weight_sum`` is the row's sum of W gain."""
    mean = a * (1.0 / C)
    rstd = gl.rsqrt(gl.maximum(b * (1.0 / C) - mean * mean, 0.0) + 1e-5)
    return (total * (16.0 if BITS == 8 else 1.0) - mean * weight_sum) * rstd + shift


@gluon.jit
def embedding(wte, wte_scale, wpe, token, pos, k, C: gl.constexpr):
    """Channels k of the embedding of ``token`` at ``pos``; 0 from C on."""
    value = gl.load(wte + token.to(gl.int64) * C + k, mask=k < C, other=0.0).to(gl.float32)
    if wte_scale is not None:
        groups: gl.constexpr = (C + 63) // 64
        value *= gl.load(wte_scale + token * groups + k // 64, mask=k < C, other=0.0).to(gl.float32)
    return value + gl.load(wpe + pos * C + k, mask=k < C, other=0.0).to(gl.float32)


# ---- a row's sum ----------------------------------------------------------------------------------------------------
@gluon.jit
def put_row(words, rows, y, epoch, inside):
    """Hand over one number a row."""
    gl.store(words + rows, word(y.to(gl.int32, bitcast=True), epoch), mask=inside)


@gluon.jit
def put_gelu(i, words, rows, y, epoch, inside, BITS: gl.constexpr):
    """GELU, and hand over two rows a word."""
    u = SLOPE * (y + CUBIC * y * y * y)
    y = y * (1.0 - 1.0 / (gl.exp(2.0 * u) + 1.0))
    pair = two_in_one(y, neighbour(y), BITS)
    gl.store(words + rows // 2, word(pair, epoch), mask=inside & (i % 2 == 0))


@gluon.jit
def neighbour(y):
    """The next lane's number, in even lanes."""
    return gl.inline_asm_elementwise("shfl.sync.bfly.b32 $0, $1, 1, 31, 0xffffffff;", "=f,f", [y], gl.float32, False, 1)


@gluon.jit
def two_in_one(low, high, BITS: gl.constexpr):
    """Two float32 as bfloat16 in one i32; as float16 where weights are int8."""
    kind: gl.constexpr = gl.float16 if BITS == 8 else gl.bfloat16
    a = low.to(kind).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return a | (high.to(kind).to(gl.int16, bitcast=True).to(gl.int32) << 16)


# ---- the choice -----------------------------------------------------------------------------------------------------
@gluon.jit
def ranked(value, id):
    """A number (i64) that is larger for a larger value, and of equal ones for the lower id."""
    bits = value.to(gl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(gl.int64) << 32) | (0xFFFFFFFF - id.to(gl.int64))


@gluon.constexpr_function
def offer_asm(PLACE):
    lines = ["{ .reg .pred p; .reg .b32 b, t, w, l, x, y; .reg .b64 v, o; mov.b64 v, $1; mov.u32 t, %tid.x;"]
    lines += ["mov.u32 b, global_smem; and.b32 l, t, 31; shr.u32 w, t, 5; mad.lo.u32 b, w, 8, b;"]
    for d in (16, 8, 4, 2, 1):
        lines += [f"mov.b64 {{x, y}}, v; shfl.sync.bfly.b32 x, x, {d}, 31, 0xffffffff;"]
        lines += [f"shfl.sync.bfly.b32 y, y, {d}, 31, 0xffffffff; mov.b64 o, {{x, y}}; max.s64 v, v, o;"]
    at = MOST + 64 * int(PLACE)
    return " ".join([*lines, f"setp.eq.u32 p, l, 0; @p st.shared.b64 [b+{at}], v; bar.sync 0; mov.u32 $0, 0; }}"])


@gluon.constexpr_function
def most_asm(PLACE):
    lines = ["{ .reg .b32 b; .reg .b64 v, o; mov.u32 b, global_smem;"]
    at = MOST + 64 * int(PLACE)
    lines += [f"ld.shared.b64 v, [b+{at}];"]
    lines += [f"ld.shared.b64 o, [b+{at + 8 * i}]; max.s64 v, v, o;" for i in range(1, 8)]
    return " ".join([*lines, "mov.b64 $0, v; }"])


@gluon.jit
def offer(rank, PLACE: gl.constexpr):
    """Put every warp's largest number into one of two places."""
    asm: gl.constexpr = offer_asm(PLACE)
    how: gl.constexpr = "=r,l" + CLOBBER
    gl.inline_asm_elementwise(asm, how, [rank], gl.int32, False, 1)


@gluon.jit
def most_of(epoch, PLACE: gl.constexpr):
    """The largest number offered there."""
    asm: gl.constexpr = most_asm(PLACE)
    how: gl.constexpr = "=l,r" + CLOBBER
    return gl.inline_asm_elementwise(asm, how, [epoch], gl.int64, False, 1)


@gluon.jit
def choose(i, words, rank, epoch, PROGRAMS: gl.constexpr):
    """The id of the largest rank of all programs, each of which offers its threads' ``rank``."""
    offer(rank, 0)
    best, pid = most_of(epoch, 0), gl.program_id(0)
    low, high = best.to(gl.int32), (best >> 32).to(gl.int32)
    gl.store(words + 2 * pid, word(high, epoch))
    gl.store(words + 2 * pid + 1, word(low, epoch))
    at = words.to(gl.int64) + gl.minimum(i, PROGRAMS - 1) * 16
    got = poll_words(at, at + 8, epoch, 2, 8)
    offer((got[0].to(gl.int64) << 32) | (got[1].to(gl.int64) & 0xFFFFFFFF), 1)
    return (0xFFFFFFFF - (most_of(epoch, 1) & 0xFFFFFFFF)).to(gl.int32)
