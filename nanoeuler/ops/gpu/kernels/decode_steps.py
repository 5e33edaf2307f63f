# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: RUF005  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""The steps of ``decode.py``'s kernel: products with one vector, attention over a cache, the head, the embedding."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoeuler.ops.gpu.kernels.decode_exchange import (
    poll_eight,
    poll_shares,
    poll_vector,
    prefetch,
    put_share,
    word,
)

WARPS: gl.constexpr = gl.constexpr(8)
LOG2_E: gl.constexpr = gl.constexpr(1.4426950408889634)
SLOPE: gl.constexpr = gl.constexpr(0.7978845608028654)  # sqrt(2/pi)
CUBIC: gl.constexpr = gl.constexpr(0.044715)
GROUP: gl.constexpr = gl.constexpr(4)  # splits whose shares are asked for at a time
# Rows by warps: each warp one row of a tile, its 32 threads eight inputs each. For products with many rows a program.
TALL: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 32, 1], [8, 1, 1], [2, 1, 0]))
# Inputs by warps: a tile is two rows of 1024 inputs. For products with few rows a program.
WIDE: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 1, 8], [2, 16, 1], [1, 8, 1], [2, 1, 0]))
EACH: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 1], [4, 8], [8, 1], [1, 0]))  # (32, 8): one number a thread
LINE: gl.constexpr = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))


# ---- tiles of weights ------------------------------------------------------------------------------------------
@gluon.jit
def load_tile(w, scale, rows, end, chunk, K: gl.constexpr, layout: gl.constexpr, PACKS: gl.constexpr):
    """(tile of the weights, its scales): rows (R,) of inputs chunk*8*PACKS ...; zero from row ``end`` on."""
    packs = gl.arange(0, PACKS, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout))) + chunk * PACKS
    eight = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    k = packs[None, :, None] * 8 + eight[None, None, :]
    inside = (rows < end)[:, None, None]
    if K % (8 * PACKS) != 0:
        inside = inside & (packs * 8 < K)[None, :, None]
    tile = gl.load(w + rows.to(gl.int64)[:, None, None] * K + k, mask=inside, other=0.0)
    if scale is None:
        return tile, rows
    else:
        groups: gl.constexpr = (K + 63) // 64
        some = (rows < end)[:, None] & (packs * 8 < K)[None, :]
        at = scale + rows.to(gl.int64)[:, None] * groups + (packs // 8)[None, :]
        return tile, gl.load(at, mask=some, other=0.0)


@gluon.jit
def load_rows(w, scale, rows, end, K: gl.constexpr, layout: gl.constexpr, PACKS: gl.constexpr, N: gl.constexpr):
    """The N tiles that make up ``rows``, as a tuple of tiles and a tuple of scales."""
    tiles, scales = (), ()
    for c in gl.static_range(N):
        tile, s = load_tile(w, scale, rows, end, c, K, layout, PACKS)
        tiles, scales = tiles + (tile,), scales + (s,)
    return tiles, scales


@gluon.jit
def multiply(tiles, scales, x, HAS_SCALE: gl.constexpr, FIRST: gl.constexpr, N: gl.constexpr):
    """Sums over each thread's own inputs, (R, PACKS): N tiles from number FIRST on, times x[0] ... x[N-1]."""
    total = tiles[FIRST].to(gl.float32) * x[0][None, :, :]
    if HAS_SCALE:
        acc = gl.sum(total, 2) * scales[FIRST].to(gl.float32)
        for c in gl.static_range(1, N):
            part = gl.sum(tiles[FIRST + c].to(gl.float32) * x[c][None, :, :], 2)
            acc += part * scales[FIRST + c].to(gl.float32)
        return acc
    else:
        for c in gl.static_range(1, N):
            total += tiles[FIRST + c].to(gl.float32) * x[c][None, :, :]
        return gl.sum(total, 2)


@gluon.jit
def add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


# ---- x: to every warp of every program ---------------------------------------------------------------------------
@gluon.jit
def spread_x(shared, words, epoch, C: gl.constexpr, N: gl.constexpr):
    """Wait for the words of x, and put it into shared memory, (N, 32, 8)."""
    i = (gl.arange(0, 32, layout=gl.SliceLayout(1, EACH)) * 8)[:, None]
    i = i + gl.arange(0, 8, layout=gl.SliceLayout(0, EACH))[None, :]
    last = gl.minimum(i + (N - 1) * 256, C - 1)
    base = words.to(gl.int64)
    x = poll_vector(base + i * 8, base + last * 8, epoch, N, 2048)
    for c in gl.static_range(N):
        value = x[c]
        if c == N - 1 and C % 256 != 0:
            value = gl.where(i + c * 256 < C, value, 0.0)
        shared.index(c).store(value)


@gluon.jit
def normalized(shared, gain, shift, C: gl.constexpr, N: gl.constexpr):
    """Layer norm of what lies in shared memory, for TALL tiles: N tensors (32, 8), and the sum is taken by each
    warp."""
    layout: gl.constexpr = gl.SliceLayout(0, TALL)
    k = gl.arange(0, 32, layout=gl.SliceLayout(1, layout))[:, None] * 8
    k = k + gl.arange(0, 8, layout=gl.SliceLayout(0, layout))[None, :]
    x = ()
    for c in gl.static_range(N):
        x = x + (shared.index(c).load(layout),)
    total = x[0]
    for c in gl.static_range(1, N):
        total += x[c]
    mean = gl.sum(gl.sum(total, 1), 0) * (1.0 / C)
    centred = ()
    for c in gl.static_range(N):
        d = x[c] - mean
        if c == N - 1 and C % 256 != 0:
            d = gl.where(k + c * 256 < C, d, 0.0)
        centred = centred + (d,)
    squares = centred[0] * centred[0]
    for c in gl.static_range(1, N):
        squares += centred[c] * centred[c]
    rstd = gl.rsqrt(gl.sum(gl.sum(squares, 1), 0) * (1.0 / C) + 1e-5)
    out = ()
    for c in gl.static_range(N):
        out = out + (centred[c] * rstd * gain[c].to(gl.float32) + shift[c].to(gl.float32),)
    return out


@gluon.jit
def load_vector(v, C: gl.constexpr, N: gl.constexpr):
    """N tensors (32, 8) of a vector, as ``normalized`` wants its gain and shift."""
    layout: gl.constexpr = gl.SliceLayout(0, TALL)
    packs = gl.arange(0, 32, layout=gl.SliceLayout(1, layout))
    k = packs[:, None] * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, layout))[None, :]
    out = ()
    for c in gl.static_range(N):
        if C % 256 == 0:
            out = out + (gl.load(v + c * 256 + k),)
        else:
            out = out + (gl.load(v + c * 256 + k, mask=((packs + c * 32) * 8 < C)[:, None], other=0.0),)
    return out


@gluon.jit
def prefetch_rows(w, first, end, row_bytes: gl.constexpr, ROWS: gl.constexpr):
    """Bring rows ``first`` ... ``end`` - 1 (at most ROWS) into L2."""
    COUNT: gl.constexpr = (ROWS * row_bytes + 127) // 128
    start = w.to(gl.int64) + first.to(gl.int64) * row_bytes
    size = (end - first) * row_bytes
    lines = gl.arange(0, 256, layout=LINE) * 128
    for turn in gl.static_range((COUNT + 255) // 256):
        prefetch(start + gl.minimum(lines + turn * 32768, gl.maximum(size - 1, 0)))


# ---- the steps ----------------------------------------------------------------------------------------------------
@gluon.jit
def tall_rows(first, j: gl.constexpr, PAIRS: gl.constexpr):
    """The rows of the j-th tile of a TALL product; with PAIRS tiles come in twos: even rows, then the odd ones after
    them."""
    i = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, TALL)))
    if PAIRS:
        rows = first * 2 + j // 2 * 16 + 2 * i + j % 2
    else:
        rows = first + j * 8 + i
    return rows


@gluon.jit
def tall_product(
    words, w, scale, bias, x_shared, x_words, epoch, embedded, gain, shift, first, end,
    C: gl.constexpr, N: gl.constexpr, STEPS: gl.constexpr, PAIRS: gl.constexpr,
):  # fmt: skip
    """Layer norm of x and rows ``first`` ... of a product with it; with PAIRS GELU, and rows two by two.

    ``embedded``: x lies in shared memory already. ``end`` counts pairs where PAIRS. The first HELD steps' weights
    are asked
    for before x is waited for.
    """
    HELD: gl.constexpr = STEPS if STEPS < 4 else 4
    count = end * 2 if PAIRS else end
    tiles, scales = (), ()
    for j in gl.static_range(HELD):
        tile, s = load_rows(w, scale, tall_rows(first, j, PAIRS), count, C, TALL, 32, N)
        tiles, scales = tiles + tile, scales + s
    g, b = load_vector(gain, C, N), load_vector(shift, C, N)
    if embedded == 0:
        spread_x(x_shared, x_words, epoch, C, N)
    x = normalized(x_shared, g, b, C, N)
    even = gl.zeros([WARPS], gl.float32, gl.SliceLayout(1, gl.SliceLayout(2, TALL)))
    for j in gl.static_range(STEPS):
        rows = tall_rows(first, j, PAIRS)
        inside = rows < count
        shifted = gl.load(bias + rows, mask=inside, other=0.0).to(gl.float32)
        if j < HELD:
            y = gl.sum(multiply(tiles, scales, x, scale is not None, j * N, N), 1) + shifted
        else:
            tile, s = load_rows(w, scale, rows, count, C, TALL, 32, N)
            y = gl.sum(multiply(tile, s, x, scale is not None, 0, N), 1) + shifted
        if not PAIRS:
            gl.store(words + rows, word(y.to(gl.int32, bitcast=True), epoch), mask=inside)
        else:
            u = SLOPE * (y + CUBIC * y * y * y)
            y = y * (1.0 - 1.0 / (gl.exp(2.0 * u) + 1.0))
            if j % 2 == 0:
                even = y
            else:
                gl.store(words + rows // 2, word(two_in_one(even, y), epoch), mask=inside)


@gluon.jit
def two_in_one(low, high):
    """Two float32 as bfloat16 in one i32."""
    a = low.to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return a | (high.to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32) << 16)


@gluon.jit
def wide_rows(first, j: gl.constexpr):
    """The rows of the j-th tile of a WIDE product."""
    return first + 2 * j + gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, WIDE)))


@gluon.jit
def load_wide(w, scale, first, end, K: gl.constexpr, STEPS: gl.constexpr):
    """All tiles of a WIDE product's rows."""
    tiles, scales = (), ()
    for j in gl.static_range(STEPS):
        tile, s = load_rows(w, scale, wide_rows(first, j), end, K, WIDE, 128, (K + 1023) // 1024)
        tiles, scales = tiles + tile, scales + s
    return tiles, scales


@gluon.jit
def add_product(
    own, words, tiles, scales, x, bias, first, end, epoch,
    K: gl.constexpr, HAS_SCALE: gl.constexpr, STEPS: gl.constexpr,
):  # fmt: skip
    """Add a WIDE product with x, and its bias, to the program's own rows of the residual stream, and hand them over."""
    N: gl.constexpr = (K + 1023) // 1024
    sums = ()
    for j in gl.static_range(STEPS):
        sums = sums + (multiply(tiles, scales, x, HAS_SCALE, j * N, N),)
    out = ()
    for j in gl.static_range((STEPS + 2) // 3):  # three at a time through shared memory
        if 3 * j + 3 <= STEPS:
            a, b, c = gl.reduce((sums[3 * j], sums[3 * j + 1], sums[3 * j + 2]), 1, add_three)
            out = out + (a, b, c)
        else:
            for i in gl.static_range(3 * j, STEPS):
                out = out + (gl.sum(sums[i], 1),)
    new = ()
    for j in gl.static_range(STEPS):
        rows = wide_rows(first, j)
        value = own[j] + out[j] + gl.load(bias + rows, mask=rows < end, other=0.0).to(gl.float32)
        gl.store(words + rows, word(value.to(gl.int32, bitcast=True), epoch), mask=rows < end)
        new = new + (value,)
    return new


@gluon.jit
def load_past(base, place, pos, d, D: gl.constexpr):
    """Keys or values (T, D) at ``place``, those before ``pos``."""
    inside = (place < pos)[:, None] & (d < D)[None, :]
    return gl.load(base + place[:, None] * D + d[None, :], mask=inside, other=0.0)


@gluon.jit
def attend(
    shares, qkv, keys, values, epoch, pos, head, split, scale,
    C: gl.constexpr, D: gl.constexpr, BD: gl.constexpr, SPLITS: gl.constexpr, BLOCK: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """One head's attention over the positions of one split; keys and values (T, D) of this layer and head."""
    AT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BD, BD // 8], [8, 1], [1, 0])
    d = gl.arange(0, BD, layout=gl.SliceLayout(0, AT))
    i = gl.arange(0, TILE, layout=gl.SliceLayout(1, AT))
    place = (i // BLOCK * SPLITS + split) * BLOCK + i % BLOCK
    k, v = load_past(keys, place, pos, d, D), load_past(values, place, pos, d, D)

    at = qkv.to(gl.int64) + (gl.where(d < D, d, d % 8) + head * D) * 8
    q, k_new, v_new = poll_eight(at, at + 2 * C * 8, epoch, 3, C * 8, False)
    q = gl.where(d < D, q * (scale * LOG2_E), 0.0)
    k_new, v_new = k_new.to(keys.dtype.element_ty), v_new.to(keys.dtype.element_ty)
    mine = (pos // BLOCK) % SPLITS == split
    some = gl.where(mine, d, BD) < D
    gl.store(keys + pos * D + d, k_new, mask=some)
    gl.store(values + pos * D + d, v_new, mask=some)

    most = gl.where(mine, gl.sum(q * k_new.to(gl.float32), 0), -1e30)
    total = gl.where(mine, 1.0, 0.0)
    acc = gl.where(mine, v_new.to(gl.float32), 0.0)
    blocks = (gl.cdiv(pos, BLOCK) - split + SPLITS - 1) // SPLITS
    turns = gl.maximum(gl.cdiv(blocks * BLOCK, TILE), 1)
    for turn in range(turns):
        s = gl.where(place < pos, gl.sum(k.to(gl.float32) * q[None, :], 1), -1e30)
        new = gl.maximum(most, gl.max(s, 0))
        p = gl.where(place < pos, gl.exp2(s - new), 0.0)
        fade = gl.exp2(most - new)
        total = total * fade + gl.sum(p, 0)
        acc = acc * fade + gl.sum(p[:, None] * v.to(gl.float32), 0)
        most = new
        place += TILE * SPLITS
        if turn + 1 < turns:
            k, v = load_past(keys, place, pos, d, D), load_past(values, place, pos, d, D)
    to = shares.to(gl.int64) + (d + split * C + head * D) * 4
    put_share(to, acc / total, most + gl.log2(total), epoch, D // 8)


@gluon.jit
def combine(shares, epoch, active, C: gl.constexpr):
    """Attention's output as WIDE tiles' inputs, from the shares of the ``active`` splits of each head."""
    layout: gl.constexpr = gl.SliceLayout(0, WIDE)
    out = ()
    for c in gl.static_range((C + 1023) // 1024):
        k = (gl.arange(0, 128, layout=gl.SliceLayout(1, layout)) + c * 128)[:, None] * 8
        k = gl.minimum(k, C - 8) + gl.arange(0, 8, layout=gl.SliceLayout(0, layout))[None, :]
        at = shares.to(gl.int64) + k * 4
        most = gl.full([128], -1e30, gl.float32, gl.SliceLayout(1, layout))
        total = gl.zeros([128], gl.float32, gl.SliceLayout(1, layout))
        acc = gl.zeros([128, 8], gl.float32, layout)
        for group in range(gl.cdiv(active, GROUP)):
            got = poll_shares(at, C * 4, active - group * GROUP, epoch, GROUP)
            at += GROUP * C * 4
            new, lse = most, ()
            for g in gl.static_range(GROUP):
                one = gl.max(got[GROUP + g], 1)
                lse = lse + (one,)
                new = gl.maximum(new, one)
            fade = gl.exp2(most - new)
            total, acc, most = total * fade, acc * fade[:, None], new
            for g in gl.static_range(GROUP):
                weight = gl.exp2(lse[g] - new)
                total += weight
                acc += got[g] * weight[:, None]
        out = out + (acc / total[:, None],)
    return out


@gluon.jit
def better(a, i, b, j):
    """The larger value with its index; of equals the lower index."""
    first = (a > b) | ((a == b) & (i < j))
    return gl.where(first, a, b), gl.where(first, i, j)


@gluon.jit
def poll_pairs(words, epoch, K: gl.constexpr):
    """A vector of K numbers that lies two to a word, as WIDE tiles' inputs."""
    layout: gl.constexpr = gl.SliceLayout(0, WIDE)
    N: gl.constexpr = (K + 1023) // 1024
    k = gl.arange(0, 128, layout=gl.SliceLayout(1, layout))[:, None] * 8
    last = gl.minimum(k + (N - 1) * 1024, K - 8)
    eight = gl.arange(0, 8, layout=gl.SliceLayout(0, layout))[None, :]
    base = words.to(gl.int64)
    return poll_eight(base + (k + eight) * 4, base + (last + eight) * 4, epoch, N, 4096, True)


@gluon.jit
def head(
    logits, wte, scale, shared, x_words, epoch, gain, shift, first, end, n_valid,
    C: gl.constexpr, N: gl.constexpr, STEPS: gl.constexpr,
):  # fmt: skip
    """The logits of rows ``first`` ... ``end`` - 1, and (value, id) of the largest of those below n_valid.

    STEPS tiles of 8 rows at a time, and the next ones' weights always under way.
    """
    i = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, TALL)))
    best = gl.full([WARPS], float("-inf"), gl.float32, gl.SliceLayout(1, gl.SliceLayout(2, TALL)))
    id = gl.zeros([WARPS], gl.int32, gl.SliceLayout(1, gl.SliceLayout(2, TALL)))
    tiles, scales = head_tiles(wte, scale, first + i, end, C, N, STEPS)
    g, b = load_vector(gain, C, N), load_vector(shift, C, N)
    spread_x(shared, x_words, epoch, C, N)
    x = normalized(shared, g, b, C, N)
    for row in range(first, end, 8 * STEPS):
        now, now_scales = tiles, scales
        tiles, scales = head_tiles(wte, scale, i + (row + 8 * STEPS), end, C, N, STEPS)
        for j in gl.static_range(STEPS):
            y = gl.sum(multiply(now, now_scales, x, scale is not None, j * N, N), 1)
            rows = row + 8 * j + i
            gl.store(logits + rows, y, mask=rows < end)
            more = (y > best) & (rows < end) & (rows < n_valid)
            best, id = gl.where(more, y, best), gl.where(more, rows, id)
    return gl.reduce((best, id), 0, better)


@gluon.jit
def head_tiles(wte, scale, rows, end, C: gl.constexpr, N: gl.constexpr, STEPS: gl.constexpr):
    tiles, scales = (), ()
    for j in gl.static_range(STEPS):
        tile, s = load_rows(wte, scale, rows + 8 * j, end, C, TALL, 32, N)
        tiles, scales = tiles + tile, scales + s
    return tiles, scales


@gluon.jit
def embed_all(shared, wte, wte_scale, wpe, token, pos, C: gl.constexpr, N: gl.constexpr):
    """x of ``token`` at ``pos`` into shared memory."""
    i = (gl.arange(0, 32, layout=gl.SliceLayout(1, EACH)) * 8)[:, None]
    i = i + gl.arange(0, 8, layout=gl.SliceLayout(0, EACH))[None, :]
    for c in gl.static_range(N):
        shared.index(c).store(embedding(wte, wte_scale, wpe, token, pos, i + c * 256, C))


@gluon.jit
def embedding(wte, wte_scale, wpe, token, pos, k, C: gl.constexpr):
    """Channels k of the embedding of ``token`` at ``pos``; 0 from C on."""
    value = gl.load(wte + token.to(gl.int64) * C + k, mask=k < C, other=0.0).to(gl.float32)
    if wte_scale is not None:
        groups: gl.constexpr = (C + 63) // 64
        value *= gl.load(wte_scale + token * groups + k // 64, mask=k < C, other=0.0).to(gl.float32)
    return value + gl.load(wpe + pos * C + k, mask=k < C, other=0.0).to(gl.float32)
