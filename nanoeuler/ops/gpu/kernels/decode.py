# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: E741, RUF005, SIM102  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""The whole of GPT-2 for one token in one kernel that stays on the GPU, for as many tokens as it is asked.

*Counting.* To write a token every weight is read once: for GPT-2 124M 248 MB in bfloat16, 58 us at the 4.27 TB/s that
an H200 copies with; the arithmetic, two operations a weight, is nothing. What interrupts the stream of weights is the
chain: a layer is four matrix-vector products and attention in sequence, 60 steps for 12 layers, and each needs all of
the last one's results.

*One program a multiprocessor, all the time.* Each computes some rows of every product. Its weights stream into shared
memory some records ahead, whatever it is waiting for (``decode_ring.py``), and are multiplied by the matrix units.
Between steps, results travel by words that carry their own flag (``decode_exchange.py``).

    step             rows of a program      waits for                       hands over
    qkv              18 of 3C = 2304        x: all channels                 q, k, v
    attention        a share of one head    q, k, v of the head             share of the output, log-sum-exp
    projection       6 of C = 768           all shares of all heads         x + its part
    fc, GELU         24 of 4C = 3072        x                               hidden, two bfloat16 a word
    back             6 of C                 hidden                          x + its part
    head             384 of V = 50257       x                               logits; the best of its rows
    choice           -                      the best of all                 -

*The inside of a step* is the same each time: take the record's weights into registers; wait for the vector, an eighth
of it each warp; multiply; meet once in shared memory, where 24 rows' partial sums lie; finish the rows in one warp, and
hand them over. A layer norm needs no step of its own: its gain goes into the vector, mean and deviation are summed
beside the product and applied to the row's sum. The rows of x that a program owns stay in a register, in float32.

*Attention over a long context.* The positions of a head are dealt out in blocks of BLOCK to ``splits`` programs,
which keep them for good: no other program reads those keys and values, and new ones are stored by the program that
will need them. Each share has a softmax of its own; the projection's readers put them together by their log-sum-exps.

All programs must run at the same time, one on each multiprocessor: the grid is never larger than the GPU.

Measured on an H200, GPT-2 124M, eight tokens a launch, one launch queued behind another: 129 us a token at position 64
and 148 at position 1000, in bfloat16 and with int8 weights alike: the chain, not the stream, is what takes the time.
``docs/performance-log.md`` has what led here and each step's cycles.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoeuler.ops.gpu.kernels.decode_attention import attend, attention_output, first_tiles, past_layout, positions
from nanoeuler.ops.gpu.kernels.decode_ring import (
    ask,
    await_slot,
    fragments,
    hold,
    inputs_padded,
    multiply,
    multiply_and_sum,
    record_bytes,
    start_ring,
)
from nanoeuler.ops.gpu.kernels.decode_shape import Records, Shape, Weights
from nanoeuler.ops.gpu.kernels.decode_steps import (
    LINE,
    after_norm,
    before_norm,
    channels,
    choose,
    embedding,
    hidden_pairs,
    next_record,
    put_gelu,
    put_row,
    ranked,
    residual,
)
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, launch, power_of_2

__all__ = ["STATE", "Records", "Shape", "Weights", "decode", "decode_kernel", "fits"]

WARPS = 8
STATE = 8  # i32: token, position, epoch, stop id, slot; the rest is free


@gluon.jit
def decode_kernel(
    state, drawn, logits, cache, exchange, stream, wte, ste, wpe, vectors, tokens, n_valid, scale,
    LAYERS: gl.constexpr, C: gl.constexpr, H: gl.constexpr, D: gl.constexpr, BD: gl.constexpr, V: gl.constexpr,
    T: gl.constexpr, PROGRAMS: gl.constexpr, SPLITS: gl.constexpr, BLOCK: gl.constexpr, CHOOSE: gl.constexpr,
    BITS: gl.constexpr, RQ: gl.constexpr, RO: gl.constexpr, RF: gl.constexpr, RB: gl.constexpr, RV: gl.constexpr,
    SQ: gl.constexpr, SO: gl.constexpr, SF: gl.constexpr, SB: gl.constexpr, SV: gl.constexpr,
    BUSY: gl.constexpr, SLOT: gl.constexpr, SLOTS: gl.constexpr, AT: gl.constexpr, SHARED: gl.constexpr,
    TMA: gl.constexpr,
):  # fmt: skip
    """Up to ``tokens`` tokens, from the state on; with CHOOSE each the most probable one after the last.

    ``state``: token, its position, epoch, the id after which to stop, slot. ``drawn[p]``: the id chosen after
    position p. ``cache`` (slots, LAYERS, 2, H, T, D): keys and values. ``exchange``: words, see
    ``Shape.exchange_words``. R., S.: rows of a record, and records a program, of qkv, projection, fc, back, head.
    BUSY: programs that have rows of a layer; the others read along with the last of them, for nothing.
    """
    pid = gl.program_id(0)
    i = gl.arange(0, 256, layout=LINE)
    row = i % 32
    token, pos, epoch = gl.load(state), gl.load(state + 1), gl.load(state + 2)
    stop, slot = gl.load(state + 3), gl.load(state + 4)
    x_words = exchange.to(gl.pointer_type(gl.int64), bitcast=True)
    q_words = x_words + 2 * LAYERS * C
    h_words = q_words + 3 * LAYERS * C
    share_words = h_words + 2 * LAYERS * C
    best_words = share_words + LAYERS * SPLITS * (C // 2)
    KP: gl.constexpr = inputs_padded(C, False)
    KH: gl.constexpr = inputs_padded(4 * C, True)
    N: gl.constexpr = KP // 256
    NH: gl.constexpr = KH // 256
    SIZES: gl.constexpr = (
        record_bytes(RQ, KP, BITS), record_bytes(RO, KP, BITS), record_bytes(RF, KP, BITS),
        record_bytes(RB, KH, BITS), record_bytes(RV, KP, BITS),
    )  # fmt: skip
    COUNTS: gl.constexpr = (SQ, SO, SF, SB, SV)
    LAYER: gl.constexpr = SQ * SIZES[0] + SO * SIZES[1] + SF * SIZES[2] + SB * SIZES[3]
    PART: gl.constexpr = LAYERS * LAYER + SV * SIZES[4]
    layers = stream.to(gl.int64) + gl.minimum(pid, BUSY - 1).to(gl.int64) * PART
    rest = stream.to(gl.int64) + pid.to(gl.int64) * PART + LAYERS * LAYER
    memory = gl.allocate_shared_memory(gl.float32, [SHARED // 1024, 256], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    memory.index(0).store(gl.zeros([256], gl.float32, LINE))  # all of it: what follows finds its place by itself
    start_ring(epoch, SLOTS, TMA)
    n, at = pid * 0, (pid * 0, pid * 0, pid * 0)  # the record to ask for; slot, its parity, and flip of the one to use
    for j in gl.static_range(SLOTS - 1):
        record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
        ask(record, size, j, False, SLOT, AT, TMA)
        ask(record, size, j, True, SLOT, AT, TMA)
    cache += slot.to(gl.int64) * (LAYERS * 2 * H * T * D)
    d = gl.arange(0, BD, layout=gl.SliceLayout(0, gl.SliceLayout(1, past_layout(BD))))

    t = 0
    while (t < tokens) & (token != stop) & (pos < T):
        epoch += 1
        active = gl.minimum(pos // BLOCK + 1, SPLITS)
        past = gl.where((pid < H * SPLITS) & (pid % SPLITS < active), pos, 0)  # positions of the program's first unit
        x = ()
        for c in gl.static_range(N):
            x = x + (embedding(wte, ste, wpe, token, pos, i + 256 * c, C),)
        own = ()
        for s in gl.static_range(SO):
            own = own + (embedding(wte, ste, wpe, token, pos, (pid * SO + s) * RO + row, C),)
        for l in range(LAYERS):
            v = vectors + l * (13 * C)
            x_mid, x_end = x_words + 2 * l * C, x_words + (2 * l + 1) * C
            qkv, shares, hidden = q_words + l * 3 * C, share_words + l * SPLITS * (C // 2), h_words + l * 2 * C
            place = positions(pid % SPLITS, SPLITS, BLOCK, BD)
            keys = cache + (gl.minimum(pid // SPLITS, H - 1) + l * 2 * H).to(gl.int64) * (T * D)

            record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
            tiles, factor, shift = hold(i, at[0], at[1], N, RQ, BITS, False, SLOT, AT, TMA)
            gain = channels(v, i, C, N)
            k, v_first, k_next, v_next = first_tiles(keys, place, past, d, D, BD, H * T * D, SPLITS)
            if l > 0:
                x = residual(x_mid - C, i, epoch, C, N)
            vector, a, b = before_norm(i, x, gain, N, BITS)
            for s in gl.static_range(SQ):
                if s > 0:
                    record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
                    tiles, factor, shift = hold(i, at[0], at[1], N, RQ, BITS, False, SLOT, AT, TMA)
                ask(record, size, before(at, SLOTS), False, SLOT, AT, TMA)
                total, sum, squares = multiply_and_sum(i, at[2], vector, tiles, a, b, N, RQ, BITS)
                rows = (pid * SQ + s) * RQ + row
                y = after_norm(total, sum, squares, factor, shift, C, BITS)
                put_row(qkv, rows, y, epoch, (i < RQ) & (rows < 3 * C))
                ask(record, size, before(at, SLOTS), True, SLOT, AT, TMA)
                at = step(at, SLOTS)

            for unit in range(pid, H * SPLITS, PROGRAMS):  # one at most, unless programs are few
                my_head = unit // SPLITS
                split = unit - my_head * SPLITS
                if split < active:
                    keys = cache + (my_head + l * 2 * H).to(gl.int64) * (T * D)
                    if unit != pid:
                        place = positions(split, SPLITS, BLOCK, BD)
                        k, v_first, k_next, v_next = first_tiles(keys, place, pos, d, D, BD, H * T * D, SPLITS)
                    attend(
                        i, shares, qkv, keys, k, v_first, k_next, v_next, place, d, epoch, pos, my_head, split, scale,
                        C, D, BD, H * T * D, SPLITS, BLOCK,
                    )  # fmt: skip

            record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
            tiles, factor, shift = hold(i, at[0], at[1], N, RO, BITS, False, SLOT, AT, TMA)
            vector = fragments(i, attention_output(i, shares, active, epoch, C, SPLITS, N), N, BITS, "quads")
            new = ()
            for s in gl.static_range(SO):
                if s > 0:
                    record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
                    tiles, factor, shift = hold(i, at[0], at[1], N, RO, BITS, False, SLOT, AT, TMA)
                rows = (pid * SO + s) * RO + row
                ask(record, size, before(at, SLOTS), False, SLOT, AT, TMA)
                y = own[s] + multiply(i, at[2], vector, tiles, N, RO, BITS) * 0.5 + shift
                put_row(x_mid, rows, y, epoch, (i < RO) & (rows < C))
                new = new + (y,)
                ask(record, size, before(at, SLOTS), True, SLOT, AT, TMA)
                at = step(at, SLOTS)
            own = new

            record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
            tiles, factor, shift = hold(i, at[0], at[1], N, RF, BITS, False, SLOT, AT, TMA)
            gain = channels(v + 6 * C, i, C, N)
            vector, a, b = before_norm(i, residual(x_mid, i, epoch, C, N), gain, N, BITS)
            for s in gl.static_range(SF):
                if s > 0:
                    record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
                    tiles, factor, shift = hold(i, at[0], at[1], N, RF, BITS, False, SLOT, AT, TMA)
                ask(record, size, before(at, SLOTS), False, SLOT, AT, TMA)
                total, sum, squares = multiply_and_sum(i, at[2], vector, tiles, a, b, N, RF, BITS)
                rows = (pid * SF + s) * RF + row
                y = after_norm(total, sum, squares, factor, shift, C, BITS)
                put_gelu(i, hidden, rows, y, epoch, (i < RF) & (rows < 4 * C), BITS)
                ask(record, size, before(at, SLOTS), True, SLOT, AT, TMA)
                at = step(at, SLOTS)

            record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
            tiles, factor, shift = hold(i, at[0], at[1], NH, RB, BITS, True, SLOT, AT, TMA)
            vector = fragments(i, hidden_pairs(hidden, i, epoch, 4 * C, NH), NH, BITS, "pairs")
            new = ()
            for s in gl.static_range(SB):
                if s > 0:
                    record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
                    tiles, factor, shift = hold(i, at[0], at[1], NH, RB, BITS, True, SLOT, AT, TMA)
                rows = (pid * SB + s) * RB + row
                ask(record, size, before(at, SLOTS), False, SLOT, AT, TMA)
                y = own[s] + multiply(i, at[2], vector, tiles, NH, RB, BITS) * 0.5 + shift
                put_row(x_end, rows, y, epoch, (i < RB) & (rows < C))
                new = new + (y,)
                ask(record, size, before(at, SLOTS), True, SLOT, AT, TMA)
                at = step(at, SLOTS)
            own = new

        gain = channels(vectors + LAYERS * (13 * C), i, C, N)
        x = residual(x_words + (2 * LAYERS - 1) * C, i, epoch, C, N)
        vector, a, b = before_norm(i, x, gain, N, BITS)
        best = ranked(gl.full([256], float("-inf"), gl.float32, LINE), i)
        for s in range(SV):
            record, size, n = next_record(n, layers, rest, LAYERS, SIZES, COUNTS)
            tiles, factor, shift = hold(i, at[0], at[1], N, RV, BITS, False, SLOT, AT, TMA)
            ask(record, size, before(at, SLOTS), False, SLOT, AT, TMA)
            total, sum, squares = multiply_and_sum(i, at[2], vector, tiles, a, b, N, RV, BITS)
            rows = (pid * SV + s) * RV + row
            y = after_norm(total, sum, squares, factor, shift, C, BITS)
            gl.store(logits + rows, y, mask=(i < RV) & (rows < V))
            best = gl.where((row < RV) & (rows < n_valid), gl.maximum(best, ranked(y, rows)), best)
            ask(record, size, before(at, SLOTS), True, SLOT, AT, TMA)
            at = step(at, SLOTS)
        if CHOOSE:
            token = choose(i, best_words, best, epoch, PROGRAMS)
            if pid == 0:
                gl.store(drawn + pos, token)
        pos += 1
        t += 1
    for _ in gl.static_range(SLOTS - 1):
        await_slot(at[0], at[1], TMA)
        at = step(at, SLOTS)
    if CHOOSE:  # all programs have read the state, or the last choice would not have been made
        if (pid == 0) & (t > 0):
            gl.store(state, token)
            gl.store(state + 1, pos)
            gl.store(state + 2, epoch)


@gluon.jit
def step(at, SLOTS: gl.constexpr):
    """The slot of the next record, with its parity and the other place for partial sums."""
    last = at[0] + 1 == SLOTS
    return gl.where(last, 0, at[0] + 1), gl.where(last, at[1] ^ 1, at[1]), at[2] ^ 1


@gluon.jit
def before(at, SLOTS: gl.constexpr):
    """The slot of the record before: free, since all threads met when they had summed it."""
    return gl.where(at[0] == 0, SLOTS - 1, at[0] - 1)


def fits(C: int, H: int) -> bool:
    """Whether the kernel can run a model of this shape."""
    return C % 8 == 0 and C // H % 8 == 0 and C // H <= 128


def decode(
    shape: Shape, weights: Weights, state: Array, drawn: Array, logits: Array, cache: Array, exchange: Array,
    tokens: int, choose: bool, n_valid: int, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """Up to ``tokens`` forward passes of one sequence: see ``decode_kernel``."""
    C, D = shape.C, shape.C // shape.H
    q, o, f, b, v = shape.records
    slot, slots, at, shared = shape.memory(target.shared_memory)
    assert slots >= 2, "a record does not fit twice"
    return [
        launch(
            decode_kernel, (shape.programs,), WARPS, 1, state=state, drawn=drawn, logits=logits, cache=cache,
            exchange=exchange, stream=weights.stream, wte=weights.wte, ste=weights.scales, wpe=weights.wpe,
            vectors=weights.vectors, tokens=tokens, n_valid=n_valid, scale=D**-0.5,
            LAYERS=shape.layers, C=C, H=shape.H, D=D, BD=max(8, power_of_2(D)), V=shape.V, T=shape.T,
            PROGRAMS=shape.programs, SPLITS=shape.splits, BLOCK=shape.block, CHOOSE=choose, BITS=shape.bits,
            RQ=q.rows, RO=o.rows, RF=f.rows, RB=b.rows, RV=v.rows,
            SQ=q.count, SO=o.count, SF=f.count, SB=b.count, SV=v.count,
            BUSY=shape.busy, SLOT=slot, SLOTS=slots, AT=at, SHARED=shared, TMA=target.has_tma,
        )
    ]  # fmt: skip
