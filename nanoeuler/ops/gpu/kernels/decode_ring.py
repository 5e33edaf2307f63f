# mypy: disallow-untyped-defs=False, disable-error-code="assignment,misc"
# ruff: noqa: RUF005  (Gluon has no tuple unpacking, and an "if" on a constant stands alone)
"""Weights that stream into shared memory without an instruction's help, and products of them by the matrix units.

*The ring.* A program's weights lie in device memory in the order in which it needs them, cut into *records*: some rows
of one product. Shared memory is a ring of slots, each for one record. Thread 0 asks for a record with one instruction
(``cp.async.bulk``: the copy engine of Hopper and later; on older GPUs all threads copy 16 bytes at a time) and an
*mbarrier* tells when it has come. As soon as a record has been read its slot is asked for again, several records ahead,
so the stream never pauses, whatever the program is waiting for. Loads into registers cannot do that: a multiprocessor
answers loads in order, so a question to another program would wait behind kilobytes of weights.

*A record* of R rows: chunks of 32 inputs, each (R, 32) weights; for int8 scales, (groups of 64, R) bfloat16; then for
each row two float32, what ``decode_prepare.py`` says. In this order a warp's lanes read 16 bytes (int8: 8) each, one
after the other, and that is a B operand of ``mma.m16n8k16``: eight rows, 32 inputs, if the vector's inputs are
numbered the same way; a sum does not care.

*The product.* Eight warps share the inputs, chunk by chunk. The vector is operand A, whose 16 rows have room for more
than one vector: even ones hold the number rounded to bfloat16, odd ones what rounding lost, so the vector counts with
16 bits of mantissa and a layer norm can be applied after the product. int8 weights become float16, exactly, and so
does the vector; a group's sum is multiplied by its scale.

Partial sums go through shared memory once. Everything is PTX, for one thread each; the tests' interpreter replaces
these functions by what they compute.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoeuler.ops.gpu.kernels.decode_exchange import ASK, floats, kinds, regs

# What lies where in shared memory, in bytes, before the slots.
BARRIERS, STATS, MOST, PARTS, SPREAD, MERGE, VECTOR = 0, 128, 256, 384, 5504, 7040, 11264
PART = 80  # bytes between two rows' 16 partial sums: a multiple of 16 that meets no bank twice
PARTS_SIZE = 32 * PART
MOST_ROWS = 32  # of a record
CLOBBER: gl.constexpr = gl.constexpr(",~{memory}")
# Of the four pairs that a lane holds of a chunk, 0 and 1 go to rows 0 to 7 of operand A, 2 and 3 to rows 8 to 15, which
# are otherwise free: then the registers of a 16-byte load are the operand as they are. In memory they lie 0, 2, 1, 3:
# bits 0 and 1 of a pair's number change places.
PERMUTE = (
    "and.b32 h0, t, 1; shr.u32 h1, t, 1; and.b32 h1, h1, 1; and.b32 t, t, 0xfffffffc; mad.lo.u32 t, h0, 2, t; "
    "add.u32 t, t, h1;"
)
THREAD = "shr.u32 w, $I, 5; and.b32 l, $I, 31; mov.u32 b, global_smem;"  # warp, lane, where shared memory begins


@gluon.constexpr_function
def inputs_padded(K, PAIRS):
    """K, up to a whole number of chunks a warp (of words of two, where PAIRS)."""
    step = 512 if PAIRS else 256
    return -(-int(K) // step) * step


@gluon.constexpr_function
def scales_at(R, KP, BITS):
    return int(R) * int(KP) * int(BITS) // 8


@gluon.constexpr_function
def vectors_at(R, KP, BITS):
    scales = int(KP) // 64 * int(R) * 2 if int(BITS) == 8 else 0
    return -(-(int(R) * int(KP) * int(BITS) // 8 + scales) // 16) * 16


@gluon.constexpr_function
def record_bytes(R, KP, BITS):
    """Bytes of a record of R rows of KP inputs."""
    scales = int(KP) // 64 * int(R) * 2 if int(BITS) == 8 else 0
    at = -(-(int(R) * int(KP) * int(BITS) // 8 + scales) // 16) * 16
    return -(-(at + 8 * int(R)) // 128) * 128


@gluon.constexpr_function
def with_thread(asm, which):
    """``$I`` is the operand that holds the thread's number."""
    return asm.replace("$I", f"${which}")


# ---- the stream ------------------------------------------------------------------------------------------------
@gluon.constexpr_function
def start_asm(SLOTS, TMA):
    count = 1 if TMA else 256
    lines = ["{ .reg .pred p; .reg .b32 b, t; mov.u32 t, %tid.x; mov.u32 b, global_smem; setp.eq.u32 p, t, 0;"]
    lines += [f"@p mbarrier.init.shared.b64 [b+{BARRIERS + 8 * i}], {count};" for i in range(int(SLOTS))]
    fence = "fence.proxy.async;" if TMA else ""
    return " ".join([*lines, fence, "bar.sync 0; mov.u32 $0, $1; }"])


@gluon.constexpr_function
def ask_asm(SLOT, AT, TMA, SECOND):
    """$1: address of the record, $2: its bytes, $3: slot. The last warp asks: the first has sums to finish."""
    lines = ["{ .reg .pred p; .reg .b32 b, m, d, t, h; .reg .b64 s, o; mov.u32 b, global_smem; mov.u32 t, %tid.x;"]
    lines += [f"mad.lo.u32 m, $3, 8, b; mad.lo.u32 d, $3, {int(SLOT)}, b; add.u32 d, d, {int(AT)}; mov.u64 s, $1;"]
    if TMA:
        lines += ["setp.eq.u32 p, t, 224; shr.u32 h, $2, 1;"]
        if SECOND:
            lines += ["cvt.u64.u32 o, h; add.s64 s, s, o; add.u32 d, d, h;"]
        else:
            lines += [f"@p mbarrier.arrive.expect_tx.shared.b64 _, [m+{BARRIERS}], $2;"]
        copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        lines += [f"@p {copy} [d], [s], h, [m];"]
    elif not SECOND:
        lines += ["shl.b32 t, t, 4; cvt.u64.u32 o, t; add.s64 s, s, o; add.u32 d, d, t;"]
        lines += ["more: setp.ge.u32 p, t, $2; @p bra enough; cp.async.cg.shared.global [d], [s], 16;"]
        lines += ["add.u32 t, t, 4096; add.u32 d, d, 4096; add.s64 s, s, 4096; bra more;"]
        lines += [f"enough: cp.async.mbarrier.arrive.noinc.shared.b64 [m+{BARRIERS}];"]
    return " ".join([*lines, "mov.u32 $0, 0; }"])


@gluon.constexpr_function
def wait_text(slot, parity, TMA):
    wait = "try_wait" if TMA else "test_wait"
    lines = [f"mov.u32 n, 0; mad.lo.u32 m, {slot}, 8, b;"]
    lines += [f"again: mbarrier.{wait}.parity.shared.b64 p, [m+{BARRIERS}], {parity};", "@p bra done;", ASK]
    return " ".join(lines)


@gluon.constexpr_function
def drain_asm(TMA):
    start = "{ .reg .pred p, q; .reg .b32 n, m, b; mov.u32 b, global_smem;"
    return " ".join([start, wait_text("$1", "$2", TMA), "mov.u32 $0, 0; }"])


@gluon.constexpr_function
def hold_asm(N, R, BITS, PAIRS, SLOT, AT, TMA):
    """Outputs: for each of N chunks and each tile of eight rows 4 (int8: 2) registers of weights; int8: for each of
    those two rows' scales; the row's two numbers. Inputs: thread, slot, parity."""
    N, R, PAIRS, bits = int(N), int(R), bool(PAIRS), int(BITS)
    tiles, size = -(-R // 8), 32 * bits // 8
    count = 4 if bits == 16 else 2
    outputs = N * tiles * (count + (bits == 8)) + 2
    thread, slot, parity = outputs, outputs + 1, outputs + 2
    warp_chunks = 2 if PAIRS else 1

    def chunk(c):  # of warp 0
        return c // 2 * 16 + c % 2 if PAIRS else c * 8

    lines = ["{ .reg .pred p, q; .reg .b32 n, m, a, v, s, b, w, l;", with_thread(THREAD, thread)]
    lines += [wait_text(f"${slot}", f"${parity}", TMA)]
    lines += [f"mad.lo.u32 b, ${slot}, {int(SLOT)}, b; add.u32 b, b, {int(AT)};"]
    lines += [f"mad.lo.u32 a, w, {warp_chunks * R * size}, b; mad.lo.u32 a, l, {size // 4}, a;"]
    kind = "v4" if count == 4 else "v2"
    for c in range(N):
        for t in range(tiles):
            first = (c * tiles + t) * count
            to = ", ".join(f"${first + i}" for i in range(count))
            lines += [f"ld.shared.{kind}.b32 {{{to}}}, [a+{chunk(c) * R * size + t * 8 * size}];"]
    KP = N * 256
    if bits == 8:  # lane's rows are 2 (l % 4), and the one after
        base = N * tiles * count
        at = R * KP
        for c in range(N):  # group: half the chunk's number
            lines += [f"mad.lo.u32 s, w, {warp_chunks}, {chunk(c)}; shr.u32 s, s, 1; mad.lo.u32 s, s, {2 * R}, b;"]
            lines += ["and.b32 v, l, 3; mad.lo.u32 s, v, 4, s;"]
            lines += [f"ld.shared.b32 ${base + c * tiles + t}, [s+{at + 16 * t}];" for t in range(tiles)]
    lines += [f"min.u32 v, l, {R - 1}; mad.lo.u32 v, v, 8, b;"]
    lines += [f"ld.shared.v2.b32 {{${outputs - 2}, ${outputs - 1}}}, [v+{vectors_at(R, KP, bits)}]; }}"]
    return " ".join(lines)


# ---- the vector -------------------------------------------------------------------------------------------------
@gluon.constexpr_function
def round_pair(out, high, low, BITS):
    kind = "bf16x2" if int(BITS) == 16 else "f16x2"
    return f"cvt.rn.{kind}.f32 {out}, {high}, {low};"


@gluon.constexpr_function
def fragments_asm(N, BITS, FORM):
    """A operands, 4 registers for each of N chunks, of what a thread has of the vector.

    FORM "exact": one number of each chunk, float32; rows take turns in what rounding keeps and what it loses. "pairs":
    words of two, of two chunks each. "quads": four neighbours, as float32, of every fourth chunk.
    """
    N, FORM = int(N), str(FORM)
    outputs = 4 * N
    lines = ["{ .reg .pred p; .reg .b32 a, b, w, l, t, r, h0, h1; .reg .b16 z, h, o; .reg .f32 f;"]
    lines += [with_thread(THREAD, outputs), f"mad.lo.u32 a, w, {N * (128 if FORM == 'exact' else 64)}, b;"]
    lines += ["bar.warp.sync 0xffffffff;"]
    given = [
        f"${outputs + 1 + i}" for i in range(N if FORM == "exact" else N // 2 if FORM == "pairs" else (N + 3) // 4 * 4)
    ]
    if FORM == "exact":
        lines += ["shr.u32 t, l, 1;", PERMUTE, "and.b32 r, l, 1; mad.lo.u32 t, t, 4, a; mad.lo.u32 t, r, 2, t;"]
        lines += ["mov.b16 z, 0;"]
        for c in range(N):
            if int(BITS) == 16:
                lines += [f"cvt.rn.bf16.f32 h, {given[c]}; mov.b32 r, {{z, h}}; mov.b32 f, r;"]
                lines += [f"sub.f32 f, {given[c]}, f; cvt.rn.bf16.f32 o, f;"]
            else:
                lines += [f"cvt.rn.f16.f32 h, {given[c]}; cvt.f32.f16 f, h;"]
                lines += [f"sub.f32 f, {given[c]}, f; cvt.rn.f16.f32 o, f;"]
            lines += [f"st.shared.b16 [t+{VECTOR + 128 * c}], h; st.shared.b16 [t+{VECTOR + 128 * c + 64}], o;"]
    elif FORM == "pairs":
        lines += ["mov.u32 t, l;", PERMUTE, "mad.lo.u32 t, t, 4, a;"]
        lines += [f"st.shared.b32 [t+{VECTOR + 128 * j}], {given[j]};" for j in range(N // 2)]
    else:
        lines += ["shl.b32 t, l, 1;", PERMUTE, "mad.lo.u32 t, t, 4, a; shr.u32 r, l, 3;"]
        for turn in range((N + 3) // 4):
            x = given[4 * turn : 4 * turn + 4]
            lines += [round_pair("h0", x[1], x[0], BITS), round_pair("h1", x[3], x[2], BITS)]
            lines += [f"setp.lt.u32 p, r, {N - 4 * turn};"]
            at = VECTOR + 256 * turn
            lines += [f"@p st.shared.b32 [t+{at}], h0; @p st.shared.b32 [t+{at + 8}], h1;"]
    lines += ["bar.warp.sync 0xffffffff; and.b32 t, l, 3; mad.lo.u32 a, t, 16, a;"]
    if FORM == "exact":
        lines += ["and.b32 t, l, 4; mad.lo.u32 a, t, 16, a;"]  # odd rows: what was lost
    step = 128 if FORM == "exact" else 64
    for c in range(N):
        to = ", ".join(f"${4 * c + i}" for i in range(4))
        lines += [f"ld.shared.v4.b32 {{{to}}}, [a+{VECTOR + step * c}];"]
    return " ".join([*lines, "}"])


# ---- the product --------------------------------------------------------------------------------------------------
@gluon.constexpr_function
def mma_text(c, a, b, BITS, zero):
    kind = "bf16" if int(BITS) == 16 else "f16"
    to = ", ".join(f"{c}_{i}" for i in range(4))
    start = ", ".join(["0f00000000"] * 4) if zero else to
    shape = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    return f"{shape} {{{to}}}, {{{', '.join(a)}}}, {{{b[0]}, {b[1]}}}, {{{start}}};"


@gluon.constexpr_function
def multiply_asm(N, R, BITS, NORM):
    """Outputs: the row's sum (row: lane of any warp), NORM: two sums over all threads. Inputs: thread, flip; 4 N
    fragments; what ``hold`` gives but for its last two; NORM: the thread's two numbers to be summed."""
    N, R, NORM, bits = int(N), int(R), bool(NORM), int(BITS)
    tiles = -(-R // 8)
    count = 4 if bits == 16 else 2
    thread = 3 if NORM else 1
    flip, frag = thread + 1, thread + 2
    weight = frag + 4 * N
    scale = weight + N * tiles * count
    stats = scale + (N * tiles if bits == 8 else 0)
    chains = min(N, 2 if tiles == 1 else 1)
    lines = ["{ .reg .pred p; .reg .b32 a, b, w, l, t, u; .reg .f32 s0, s1, s2, s3, f, g, e;"]
    lines += [with_thread(THREAD, thread), f"mad.lo.u32 b, ${flip}, {PARTS_SIZE}, b;"]
    if NORM:  # the sums over the warp, beside the product
        lines += [f"mov.b32 f, ${stats}; mov.b32 g, ${stats + 1};"]
        for d in (16, 8, 4, 2, 1):
            lines += [f"shfl.sync.bfly.b32 e, f, {d}, 31, 0xffffffff; add.f32 f, f, e;"]
            lines += [f"shfl.sync.bfly.b32 e, g, {d}, 31, 0xffffffff; add.f32 g, g, e;"]
    for t in range(tiles):
        for u in range(chains):  # upper: of pairs 0 and 1 in rows 0 to 7; lower: of pairs 2 and 3 in rows 8 to 15
            lines += [f".reg .f32 {', '.join(f'{x}{t}_{u}_{i}' for x in 'cd' for i in range(4))};"]
    if bits == 8:
        lines += [".reg .b32 v0, v1, v2, v3;"]
        for t in range(tiles):
            lines += [f".reg .f32 e{t}_0, e{t}_1; mov.f32 e{t}_0, 0f00000000; mov.f32 e{t}_1, 0f00000000;"]
    for c in range(N):
        a = [f"${frag + 4 * c + i}" for i in range(4)]
        for t in range(tiles):
            first, acc = weight + (c * tiles + t) * count, f"{t}_{c % chains}"
            if bits == 16:
                b = [f"${first + i}" for i in range(4)]
            else:  # a byte x beside 0x64: 1024 + x in float16; x is the weight + 128
                b = ["v0", "v1", "v2", "v3"]
                for half in (0, 1):
                    for part, order in ((0, "0x4140"), (1, "0x4342")):
                        v = b[2 * half + part]
                        lines += [f"prmt.b32 {v}, ${first + half}, 0x64646464, {order};"]
                        lines += [f"sub.rn.f16x2 {v}, {v}, m1152;"]
            lines += [mma_text("c" + acc, a, b[:2], bits, c < chains or bits == 8)]
            lines += [mma_text("d" + acc, a, b[2:], bits, c < chains or bits == 8)]
            if bits == 8:
                pair = f"${scale + c * tiles + t}"
                for row, unpack in ((0, f"shl.b32 u, {pair}, 16;"), (1, f"and.b32 u, {pair}, 0xffff0000;")):
                    lines += [f"add.f32 s1, c{acc}_{row}, d{acc}_{row + 2}; {unpack} mov.b32 s0, u;"]
                    lines += [f"fma.rn.f32 e{t}_{row}, s1, s0, e{t}_{row};"]
    if bits == 8:
        lines.insert(1, ".reg .b32 m1152; mov.b32 m1152, 0x64806480;")
    # lanes 0 to 7 hold rows 0 and 1 of A times two columns: row of weights 2 (l % 4), and the one after
    lines += [f"and.b32 t, l, 3; mad.lo.u32 a, t, {2 * PART}, b; mad.lo.u32 a, w, 8, a; shr.u32 t, l, 2;"]
    lines += ["mad.lo.u32 a, t, 4, a; setp.lt.u32 p, l, 8;"]
    for t in range(tiles):
        for i in (0, 1):
            if bits == 16:
                for u in range(chains):
                    lines += [f"add.f32 c{t}_{u}_{i}, c{t}_{u}_{i}, d{t}_{u}_{i + 2};"]
                for u in range(1, chains):
                    lines += [f"add.f32 c{t}_0_{i}, c{t}_0_{i}, c{t}_{u}_{i};"]
            value = f"c{t}_0_{i}" if bits == 16 else f"e{t}_{i}"
            lines += [f"@p st.shared.f32 [a+{PARTS + (8 * t + i) * PART}], {value};"]
    if NORM:
        lines += [f"mov.u32 t, global_smem; mad.lo.u32 t, ${flip}, 64, t; mad.lo.u32 u, w, 8, t;"]
        lines += [f"setp.eq.u32 p, l, 0; @p st.shared.v2.f32 [u+{STATS}], {{f, g}};"]
    lines += [f"bar.sync 0; mad.lo.u32 a, l, {PART}, b;"]
    for i in range(4):
        to = ", ".join(f"r{i}{j}" for j in range(4))
        lines += [f".reg .f32 {to}; ld.shared.v4.f32 {{{to}}}, [a+{PARTS + 16 * i}];"]
    if NORM:
        for i in range(4):
            to = ", ".join(f"q{i}{j}" for j in range(4))
            lines += [f".reg .f32 {to}; ld.shared.v4.f32 {{{to}}}, [t+{STATS + 16 * i}];"]
    for i in range(4):
        lines += [f"add.f32 r{i}0, r{i}0, r{i}1; add.f32 r{i}2, r{i}2, r{i}3; add.f32 r{i}0, r{i}0, r{i}2;"]
    lines += ["add.f32 r00, r00, r10; add.f32 r20, r20, r30; add.f32 $0, r00, r20;"]
    if NORM:
        for i in range(4):
            lines += [f"add.f32 q{i}0, q{i}0, q{i}2; add.f32 q{i}1, q{i}1, q{i}3;"]
        lines += [
            f"add.f32 q0{j}, q0{j}, q1{j}; add.f32 q2{j}, q2{j}, q3{j}; add.f32 ${1 + j}, q0{j}, q2{j};" for j in (0, 1)
        ]
    return " ".join([*lines, "}"])


# ---- for kernels --------------------------------------------------------------------------------------------------
@gluon.jit
def start_ring(epoch, SLOTS: gl.constexpr, TMA: gl.constexpr):
    """Make the slots' barriers."""
    asm: gl.constexpr = start_asm(SLOTS, TMA)
    how: gl.constexpr = "=r,r" + CLOBBER
    gl.inline_asm_elementwise(asm, how, [epoch], gl.int32, False, 1)


@gluon.jit
def ask(address, size, slot, SECOND: gl.constexpr, SLOT: gl.constexpr, AT: gl.constexpr, TMA: gl.constexpr):
    """Let the first or the second half of ``size`` bytes at ``address`` (i64) come into a slot, which all threads must
    have read. In halves, for what other programs have to tell waits behind what is asked for."""
    asm: gl.constexpr = ask_asm(SLOT, AT, TMA, SECOND)
    how: gl.constexpr = "=r,l,r,r" + CLOBBER
    gl.inline_asm_elementwise(asm, how, [address, size, slot], gl.int32, False, 1)


@gluon.jit
def await_slot(slot, parity, TMA: gl.constexpr):
    """Wait for what was asked for: nothing may be on its way into a program that has ended."""
    asm: gl.constexpr = drain_asm(TMA)
    how: gl.constexpr = "=r,r,r" + CLOBBER
    gl.inline_asm_elementwise(asm, how, [slot, parity], gl.int32, False, 1)


@gluon.jit
def hold(
    i, slot, parity, N: gl.constexpr, R: gl.constexpr, BITS: gl.constexpr, PAIRS: gl.constexpr,
    SLOT: gl.constexpr, AT: gl.constexpr, TMA: gl.constexpr,
):  # fmt: skip
    """Wait for the slot's record: this thread's part of the weights (registers), and the row's two float32."""
    asm: gl.constexpr = hold_asm(N, R, BITS, PAIRS, SLOT, AT, TMA)
    COUNT: gl.constexpr = N * ((R + 7) // 8) * (4 if BITS == 16 else 3)
    how: gl.constexpr = regs("=r", COUNT + 2) + ",r,r,r" + CLOBBER
    kind: gl.constexpr = kinds(COUNT + 2)
    raw = gl.inline_asm_elementwise(asm, how, [i, slot, parity], kind, False, 1)
    tiles = ()
    for j in gl.static_range(COUNT):
        tiles = tiles + (raw[j],)
    return tiles, raw[COUNT].to(gl.float32, bitcast=True), raw[COUNT + 1].to(gl.float32, bitcast=True)


@gluon.jit
def fragments(i, x, N: gl.constexpr, BITS: gl.constexpr, FORM: gl.constexpr):
    """The vector as operand A of ``multiply``, see ``fragments_asm``."""
    asm: gl.constexpr = fragments_asm(N, BITS, FORM)
    given: gl.constexpr = N if FORM == "exact" else (N // 2 if FORM == "pairs" else (N + 3) // 4 * 4)
    how: gl.constexpr = regs("=r", 4 * N) + ",r," + regs("r" if FORM == "pairs" else "f", given) + CLOBBER
    kind: gl.constexpr = kinds(4 * N)
    return gl.inline_asm_elementwise(asm, how, (i,) + x, kind, False, 1)


@gluon.jit
def multiply(i, flip, vector, tiles, N: gl.constexpr, R: gl.constexpr, BITS: gl.constexpr):
    """The record's row ``i % 32`` times the vector, twice that where the vector is not "exact"."""
    asm: gl.constexpr = multiply_asm(N, R, BITS, False)
    COUNT: gl.constexpr = N * ((R + 7) // 8) * (4 if BITS == 16 else 3)
    how: gl.constexpr = "=f," + regs("r", 2 + 4 * N + COUNT) + CLOBBER
    return gl.inline_asm_elementwise(asm, how, (i, flip) + vector + tiles, gl.float32, False, 1)


@gluon.jit
def multiply_and_sum(i, flip, vector, tiles, a, b, N: gl.constexpr, R: gl.constexpr, BITS: gl.constexpr):
    """``multiply``, and the sums of ``a`` and ``b`` over all threads."""
    asm: gl.constexpr = multiply_asm(N, R, BITS, True)
    COUNT: gl.constexpr = N * ((R + 7) // 8) * (4 if BITS == 16 else 3)
    how: gl.constexpr = regs("=f", 3) + "," + regs("r", 2 + 4 * N + COUNT) + ",f,f" + CLOBBER
    kind: gl.constexpr = floats(3)
    return gl.inline_asm_elementwise(asm, how, (i, flip) + vector + tiles + (a, b), kind, False, 1)
