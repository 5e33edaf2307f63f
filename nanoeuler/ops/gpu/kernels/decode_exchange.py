# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: RUF005  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""How programs of one running kernel hand each other small vectors: every value travels with a flag.

A barrier across the GPU costs three trips to L2 (write and wait for it to be there, count, see the count) and then a
fourth for the data. Here the data is its own signal. A *word* of 8 bytes holds 4 bytes of data and the number of the
token it belongs to (its *epoch*); it is written and read as one, so who sees the epoch has the data. The reader asks
for the words that it needs, all at once, until all show the right epoch: two trips. NCCL's "LL" protocol does the
same between GPUs. Vectors are small (GPT-2 124M: 768 channels, 6 KB), so doubling their bytes costs nothing.

Nothing is ever reset: epochs only grow, and each vector of a forward pass has words of its own. A word may be written
again when the next token comes to it, which cannot happen before all programs have read it, since a program hands
over its choice of the token only after it has read everything before.

All of this is PTX, because a compiler may not be trusted to keep asking: ``ld.relaxed.gpu`` goes to L2, where all
multiprocessors meet. A program that has asked four million times (seconds) stops with a trap: a hang would hold the
GPU.

The tests' interpreter runs programs one after another, so there it replaces these functions by plain reads that check
the epoch.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ASK = "add.u32 n, n, 1; setp.lt.u32 q, n, 4194304; @q bra again; trap; done:"


@gluon.constexpr_function
def all_flags(count, epoch):
    """p = whether f0 ... are all ``epoch``."""
    rest = "".join(f" setp.eq.and.u32 p, f{i}, {epoch}, p;" for i in range(1, count))
    return f"setp.eq.u32 p, f0, {epoch};{rest}"


@gluon.constexpr_function
def regs(kind, count):
    return ",".join([kind] * int(count))


@gluon.constexpr_function
def kinds(count):
    return (gl.int32,) * int(count)


@gluon.constexpr_function
def floats(count):
    return (gl.float32,) * int(count)


@gluon.constexpr_function
def vector_asm(N, STRIDE):
    """N words, STRIDE bytes apart; the last one's address is given apart, for it must not reach beyond the end."""
    N, STRIDE = int(N), int(STRIDE)
    address, last, epoch = (f"${N + i}" for i in range(3))
    lines = ["{ .reg .pred p, q; .reg .b32 n; mov.u32 n, 0;"]
    lines += [f".reg .b32 d{i}, f{i}; .reg .b64 v{i};" for i in range(N)]
    lines += ["again:"]
    lines += [f"ld.relaxed.gpu.global.b64 v{i}, [{address}+{i * STRIDE}];" for i in range(N - 1)]
    lines += [f"ld.relaxed.gpu.global.b64 v{N - 1}, [{last}];"]
    lines += [f"mov.b64 {{d{i}, f{i}}}, v{i};" for i in range(N)]
    lines += [all_flags(N, epoch), "@p bra done;", ASK]
    return " ".join([*lines, *(f"mov.b32 ${i}, d{i};" for i in range(N)), "}"])


@gluon.constexpr_function
def shares_asm(N):
    """Four values and their log-sum-exp from each of N splits, as far as there are so many.

    Outputs: four values of each split, one split after the other, then the log-sum-exps.
    """
    N = int(N)
    address, stride, count, epoch = (f"${5 * N + i}" for i in range(4))
    lines = ["{ .reg .pred p, q; .reg .b32 n; .reg .b64 a, s; mov.u32 n, 0;"]
    for i in range(N):  # what stays where there is no such split
        lines += [f".reg .pred p{i}; .reg .b32 a{i}, b{i}, e{i}, f{i}; .reg .b64 x{i}, y{i}; .reg .b128 v{i};"]
        lines += [f"mov.b32 a{i}, 0; mov.b32 b{i}, 0; mov.b32 e{i}, 0xff800000; mov.b32 f{i}, {epoch};"]
        lines += [f"mov.b64 x{i}, {{a{i}, b{i}}}; mov.b64 y{i}, {{e{i}, f{i}}}; mov.b128 v{i}, {{x{i}, y{i}}};"]
        lines += [f"setp.gt.s32 p{i}, {count}, {i};"]
    lines += [f"cvt.s64.s32 s, {stride};", "again:", f"mov.b64 a, {address};"]
    for i in range(N):
        lines += [f"@p{i} ld.relaxed.gpu.global.b128 v{i}, [a]; add.s64 a, a, s;"]
    lines += [f"mov.b128 {{x{i}, y{i}}}, v{i}; mov.b64 {{e{i}, f{i}}}, y{i};" for i in range(N)]
    lines += [all_flags(N, epoch), "@p bra done;", ASK]
    for i in range(N):
        lines += [f"mov.b64 {{a{i}, b{i}}}, x{i};"]
        lines += [f"shl.b32 ${4 * i}, a{i}, 16; and.b32 ${4 * i + 1}, a{i}, 0xffff0000;"]
        lines += [f"shl.b32 ${4 * i + 2}, b{i}, 16; and.b32 ${4 * i + 3}, b{i}, 0xffff0000;"]
    lines += [f"mov.b32 ${4 * N + i}, e{i};" for i in range(N)]
    return " ".join([*lines, "}"])


@gluon.constexpr_function
def put_share_asm(THREADS):
    """Four values, rounded to bfloat16, with log-sum-exp and epoch, by the program's first THREADS threads."""
    lines = ["{ .reg .pred p; .reg .b32 t, a, b; .reg .b64 x, y; .reg .b128 v;"]
    lines += [f"mov.u32 t, %tid.x; setp.lt.u32 p, t, {int(THREADS)}; mov.b64 y, {{$6, $7}};"]
    lines += ["cvt.rn.bf16x2.f32 a, $3, $2; cvt.rn.bf16x2.f32 b, $5, $4;"]
    lines += ["mov.b64 x, {a, b}; mov.b128 v, {x, y}; @p st.relaxed.gpu.global.b128 [$1], v; mov.b32 $0, 0; }"]
    return " ".join(lines)


@gluon.jit
def word(bits, epoch):
    """The word of 32 ``bits`` (i32), to be stored in one piece."""
    return (epoch.to(gl.int64) << 32) | (bits.to(gl.int64) & 0xFFFFFFFF)


@gluon.jit
def poll_vector(address, last, epoch, N: gl.constexpr, STRIDE: gl.constexpr):
    """N tensors of float32 out of words at ``address`` (i64), STRIDE bytes apart; the last one's are at ``last``."""
    return as_floats(poll_words(address, last, epoch, N, STRIDE), N)


@gluon.jit
def poll_words(address, last, epoch, N: gl.constexpr, STRIDE: gl.constexpr):
    """As ``poll_vector``, the words' bits."""
    asm: gl.constexpr = vector_asm(N, STRIDE)
    how: gl.constexpr = regs("=r", N) + ",l,l,r"
    kind: gl.constexpr = kinds(N)
    raw = gl.inline_asm_elementwise(asm, how, [address, last, epoch], kind if N > 1 else gl.int32, False, 1)
    return raw if N > 1 else (raw,)


@gluon.jit
def poll_shares(address, stride, count, epoch, N: gl.constexpr):
    """Four values of each of N splits ``stride`` bytes apart, then N log-sum-exps; 0 and -inf beyond ``count``."""
    asm: gl.constexpr = shares_asm(N)
    how: gl.constexpr = regs("=r", 5 * N) + ",l,r,r,r"
    kind: gl.constexpr = kinds(5 * N)
    return as_floats(gl.inline_asm_elementwise(asm, how, [address, stride, count, epoch], kind, False, 1), 5 * N)


@gluon.jit
def put_share(address, values, lse, epoch, THREADS: gl.constexpr):
    """Store four ``values`` a thread with ``lse``: what ``poll_shares`` reads."""
    asm: gl.constexpr = put_share_asm(THREADS)
    arguments = (address,) + values + (lse, epoch)
    gl.inline_asm_elementwise(asm, "=r,l,f,f,f,f,f,r", arguments, gl.int32, False, 1)


@gluon.jit
def as_floats(raw, N: gl.constexpr):
    """The same bits as float32."""
    out = ()
    for i in gl.static_range(N):
        out = out + (raw[i].to(gl.float32, bitcast=True),)
    return out
