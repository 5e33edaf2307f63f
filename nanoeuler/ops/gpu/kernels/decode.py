# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: E741, RUF005, SIM102  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""The whole of GPT-2 for one token in one kernel that stays on the GPU, for as many tokens as it is asked.

*Counting.* To write a token every weight is read once: for GPT-2 124M 248 MB in bfloat16, 58 us at the 4.27 TB/s that
an H200 copies with; the arithmetic, two operations a weight, is nothing. So the time of a token is the time of
streaming the weights, if nothing interrupts the stream. What interrupts it is the chain: a layer is five matrix-
vector products and attention in sequence, 60 steps for 12 layers, and each needs all of the last one's results.

*One program a multiprocessor, all the time.* Each computes some rows of every product, so the weights of the next
step can be asked for while the last step's results are still under way: into L2 a layer ahead (``prefetch``), into
registers before it waits. Between steps, results travel by words that carry their own flag, see
``decode_exchange.py``.

    step             rows of a program      waits for                       hands over
    qkv              18 of 3C = 2304        x: all channels                 q, k, v
    attention        a share of one head    q, k, v of the head             share of the output, log-sum-exp
    projection       6 of C = 768           all shares of all heads         x + its part
    fc, GELU         24 of 4C = 3072        x                               hidden, two bfloat16 a word
    back             6 of C                 hidden                          x + its part
    head             381 of V = 50257       x                               logits; the best of its rows
    choice           -                      the best of all                 -

Layer norm is computed by every warp for itself from all of x: cheaper than asking somebody. The rows of x that a
program owns stay in its registers, in float32, through all layers.

*Attention over a long context.* The positions of a head are dealt out in blocks of BLOCK to ``splits`` programs,
which keep them for good: no other program reads those keys and values, and new ones are stored by the program that
will need them. Each share has a softmax of its own; the projection's readers put them together by their log-sum-exps.

*Weights* are (out, in), rows of a product one after the other; bfloat16, or int8 with a scale for every 64 inputs.

All programs must run at the same time, one on each multiprocessor: the grid is never larger than the GPU.

Measured on an H200, GPT-2 124M, bfloat16, eight tokens a launch: 202 us a token at position 64, 218 at position 1000.
The steps' chain is what takes the time, not the stream; ``docs/performance-log.md`` has each step's cycles.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoeuler.ops.gpu.kernels.decode_exchange import poll_vector, word
from nanoeuler.ops.gpu.kernels.decode_steps import (
    LINE,
    add_product,
    attend,
    better,
    combine,
    embed_all,
    embedding,
    head,
    load_wide,
    poll_pairs,
    prefetch_rows,
    tall_product,
    wide_rows,
)
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv, launch, power_of_2

WARPS = 8
STATE = 8  # i32: token, position, epoch, stop id, slot; the rest is free
VECTORS = 13  # times C numbers a layer: two norms (4), biases of qkv (3), projection, fc (4), back


@gluon.jit
def decode_kernel(
    state, drawn, logits, cache, exchange, wq, wo, wf, wb, wte, wpe, sq, so, sf, sb, ste, vectors, tokens, n_valid,
    scale,
    LAYERS: gl.constexpr, C: gl.constexpr, H: gl.constexpr, D: gl.constexpr, BD: gl.constexpr, V: gl.constexpr,
    T: gl.constexpr, PROGRAMS: gl.constexpr, SPLITS: gl.constexpr, BLOCK: gl.constexpr, TILE: gl.constexpr,
    CHOOSE: gl.constexpr, AHEAD: gl.constexpr, HEAD_STEPS: gl.constexpr,
):  # fmt: skip
    """Up to ``tokens`` tokens, from the state on; with CHOOSE each the most probable one after the last.

    ``state``: token, its position, epoch, the id after which to stop, slot. ``drawn[p]``: the id chosen after
    position p.
    ``cache`` (slots, LAYERS, 2, H, T, D): keys and values. ``exchange``: words, see ``Shape.exchange_words``.
    """
    pid = gl.program_id(0)
    token, pos, epoch = gl.load(state), gl.load(state + 1), gl.load(state + 2)
    stop, slot = gl.load(state + 3), gl.load(state + 4)
    words = exchange.to(gl.pointer_type(gl.int64), bitcast=True)
    x_words = words
    q_words = x_words + 2 * LAYERS * C
    h_words = q_words + 3 * LAYERS * C
    share_words = h_words + 2 * LAYERS * C
    best_words = share_words + LAYERS * SPLITS * (C // 2)
    N: gl.constexpr = (C + 255) // 256
    G: gl.constexpr = (C + 63) // 64  # groups with one scale
    SQ: gl.constexpr = 3 * C * G  # scales of a layer
    SO: gl.constexpr = C * G
    SF: gl.constexpr = 4 * C * G
    SB: gl.constexpr = C * ((4 * C + 63) // 64)
    RQ: gl.constexpr = (3 * C + PROGRAMS - 1) // PROGRAMS  # rows of this program, for each product
    RO: gl.constexpr = (C + PROGRAMS - 1) // PROGRAMS
    RF: gl.constexpr = (2 * C + PROGRAMS - 1) // PROGRAMS  # pairs
    RV: gl.constexpr = (V + PROGRAMS - 1) // PROGRAMS
    QSTEPS: gl.constexpr = (RQ + 7) // 8
    OSTEPS: gl.constexpr = (RO + 1) // 2
    FSTEPS: gl.constexpr = 2 * ((RF + 7) // 8)
    q0, q1 = gl.minimum(pid * RQ, 3 * C), gl.minimum(pid * RQ + RQ, 3 * C)
    o0, o1 = gl.minimum(pid * RO, C), gl.minimum(pid * RO + RO, C)
    f0, f1 = gl.minimum(pid * RF, 2 * C), gl.minimum(pid * RF + RF, 2 * C)
    v0, v1 = gl.minimum(pid * RV, V), gl.minimum(pid * RV + RV, V)
    item: gl.constexpr = wq.dtype.element_ty.primitive_bitwidth // 8
    shared = gl.allocate_shared_memory(gl.float32, [N, 32, 8], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    cache += slot.to(gl.int64) * (LAYERS * 2 * H * T * D)

    t = 0
    while (t < tokens) & (token != stop) & (pos < T):
        epoch += 1
        active = gl.minimum(pos // BLOCK + 1, SPLITS)
        embed_all(shared, wte, ste, wpe, token, pos, C, N)
        own = ()
        for j in gl.static_range(OSTEPS):
            rows = wide_rows(o0, j)
            own = own + (embedding(wte, ste, wpe, token, pos, rows, C),)
        for l in range(LAYERS):
            v = vectors + l * (13 * C)
            x_mid, x_end = x_words + 2 * l * C, x_words + (2 * l + 1) * C
            qkv, shares = q_words + l * 3 * C, share_words + l * SPLITS * (C // 2)
            tall_product(
                qkv,
                wq + l * (3 * C * C),
                sq if sq is None else sq + l * SQ,
                v + 2 * C,
                shared,
                x_mid - C,
                epoch,
                l == 0,
                v,
                v + C,
                q0,
                q1,
                C,
                N,
                QSTEPS,
                False,
            )
            if AHEAD:
                if l + 1 < LAYERS:
                    prefetch_rows(wq + (l + 1) * (3 * C * C), q0, q1, C * item, RQ)
                    prefetch_rows(wo + (l + 1) * (C * C), o0, o1, C * item, RO)
            for unit in range(pid, H * SPLITS, PROGRAMS):
                my_head = unit // SPLITS
                split = unit - my_head * SPLITS
                if split < active:
                    keys = cache + (pid * 0 + my_head + l * 2 * H).to(gl.int64) * (T * D)
                    attend(
                        shares,
                        qkv,
                        keys,
                        keys + H * T * D,
                        epoch,
                        pos,
                        my_head,
                        split,
                        scale,
                        C,
                        D,
                        BD,
                        SPLITS,
                        BLOCK,
                        TILE,
                    )
            w, s = load_wide(wo + l * (C * C), so if so is None else so + l * SO, o0, o1, C, OSTEPS)
            if AHEAD:
                if l + 1 < LAYERS:
                    prefetch_rows(wf + (l + 1) * (4 * C * C), 2 * f0, 2 * f1, C * item, 2 * RF)
            x = combine(shares, epoch, active, C)
            own = add_product(own, x_mid, w, s, x, v + 5 * C, o0, o1, epoch, C, so is not None, OSTEPS)
            tall_product(
                h_words + l * 2 * C,
                wf + l * (4 * C * C),
                sf if sf is None else sf + l * SF,
                v + 8 * C,
                shared,
                x_mid,
                epoch,
                0,
                v + 6 * C,
                v + 7 * C,
                f0,
                f1,
                C,
                N,
                FSTEPS,
                True,
            )
            if AHEAD:
                if l + 1 < LAYERS:
                    prefetch_rows(wb + (l + 1) * (4 * C * C), o0, o1, 4 * C * item, RO)
                if l + AHEAD >= LAYERS:  # the beginning of the head's rows, a part in each of the last layers
                    part = (l + AHEAD - LAYERS) * 64
                    prefetch_rows(wte, gl.minimum(v0 + part, v1), gl.minimum(v0 + part + 64, v1), C * item, 64)
            w, s = load_wide(wb + l * (4 * C * C), sb if sb is None else sb + l * SB, o0, o1, 4 * C, OSTEPS)
            x = poll_pairs(h_words + l * 2 * C, epoch, 4 * C)
            own = add_product(own, x_end, w, s, x, v + 12 * C, o0, o1, epoch, 4 * C, sb is not None, OSTEPS)
        v = vectors + LAYERS * (13 * C)
        value, id = head(
            logits, wte, ste, shared, x_words + (2 * LAYERS - 1) * C, epoch, v, v + C, v0, v1, n_valid, C, N, HEAD_STEPS
        )
        if AHEAD:
            prefetch_rows(wq, q0, q1, C * item, RQ)
            prefetch_rows(wo, o0, o1, C * item, RO)
            prefetch_rows(wf, 2 * f0, 2 * f1, C * item, 2 * RF)
            prefetch_rows(wb, o0, o1, 4 * C * item, RO)
        if CHOOSE:
            gl.store(best_words + 2 * pid, word(value.to(gl.int32, bitcast=True), epoch))
            gl.store(best_words + 2 * pid + 1, word(id, epoch))
            every = gl.minimum(gl.arange(0, 256, layout=LINE), PROGRAMS - 1)
            at = best_words.to(gl.int64) + every * 16
            values, ids = poll_vector(at, at + 8, epoch, 2, 8)
            value, token = gl.reduce((values, ids.to(gl.int32, bitcast=True)), 0, better)
            if pid == 0:
                gl.store(drawn + pos, token)
        pos += 1
        t += 1
    if CHOOSE:  # all programs have read the state, or the last choice would not have been made
        if (pid == 0) & (t > 0):
            gl.store(state, token)
            gl.store(state + 1, pos)
            gl.store(state + 2, epoch)


@dataclass(frozen=True)
class Weights:
    """A model's weights for decoding: products as (layers, out, in), bfloat16 or int8 with ``scales`` (layers, out,
    in/64).

    ``vectors``: norms and biases, layer after layer as :class:`~nanoeuler.model.parameters.Layout` has them, then the
    last norm. ``wte`` (V, C) is embedding and head.
    """

    qkv: Array
    out: Array
    fc: Array
    back: Array
    wte: Array
    wpe: Array
    vectors: Array
    scales: tuple[Array, Array, Array, Array, Array] | None = None  # of qkv, out, fc, back, wte


@dataclass(frozen=True)
class Shape:
    """What a decoding kernel is compiled for."""

    layers: int
    C: int
    H: int
    V: int
    T: int
    programs: int
    block: int = 32
    tile: int = 128
    ahead: int = 2  # layers before the head that bring in its first rows; 0: nothing is brought into L2 ahead
    head_steps: int = 4

    @property
    def splits(self) -> int:
        """Programs that share a head's positions."""
        return max(1, min(self.programs // self.H, cdiv(self.T, self.block)))

    @property
    def exchange_words(self) -> int:
        """Words of 8 bytes through which programs talk: x twice a layer, q k v, hidden, shares, and the choice."""
        return self.layers * self.C * (2 + 3 + 2) + self.layers * self.splits * (self.C // 2) + 2 * self.programs


def fits(C: int, H: int, programs: int) -> bool:
    """Whether the kernel can run a model of this shape."""
    return C % 8 == 0 and C // H % 8 == 0 and C // H <= 256 and programs <= 256


def decode(
    shape: Shape, weights: Weights, state: Array, drawn: Array, logits: Array, cache: Array, exchange: Array,
    tokens: int, choose: bool, n_valid: int, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """Up to ``tokens`` forward passes of one sequence: see ``decode_kernel``."""
    C, D = shape.C, shape.C // shape.H
    scales = weights.scales or (None,) * 5
    names = dict(zip(("sq", "so", "sf", "sb", "ste"), scales))
    return [
        launch(
            decode_kernel, (shape.programs,), WARPS, 1, state=state, drawn=drawn, logits=logits, cache=cache,
            exchange=exchange, wq=weights.qkv, wo=weights.out, wf=weights.fc, wb=weights.back, wte=weights.wte,
            wpe=weights.wpe, vectors=weights.vectors, tokens=tokens, n_valid=n_valid, scale=D**-0.5, **names,
            LAYERS=shape.layers, C=C, H=shape.H, D=D, BD=max(8, power_of_2(D)), V=shape.V, T=shape.T,
            PROGRAMS=shape.programs, SPLITS=shape.splits, BLOCK=shape.block, TILE=shape.tile, CHOOSE=choose,
            AHEAD=shape.ahead, HEAD_STEPS=shape.head_steps,
        )
    ]  # fmt: skip
