"""What memory wants: wide, neighbouring accesses, enough of them under way, and none twice.

See ``docs/kernels/memory.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ladder.common import Get, Ladder, New, Rung, copy, ends
from nanoeuler.ops.gpu.kernels.optimizer import adamw
from nanoeuler.ops.gpu.kernels.spec import Target, cdiv, launch


# ---- transposing: one side of it is always against the grain -------------------------------------------------------
@triton.jit
def transpose_kernel(out, x, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ALONG: tl.constexpr):
    """out (C, R) = x (R, C) transposed, a tile a program.

    ALONG "reads": threads are laid out along the rows of x, so loads are wide and stores go to places a row of ``out``
    apart. "both": the tile is turned round within the program (by way of shared memory) between load and store.
    """
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (r < R)[:, None] & (c < C)[None, :]
    tile = tl.load(x + r[:, None] * C + c[None, :], mask=inside)
    if ALONG == "reads":
        tl.store(out + c[None, :] * R + r[:, None], tile, mask=inside)
    else:
        tl.store(out + c[:, None] * R + r[None, :], tl.trans(tile), mask=(c < C)[:, None] & (r < R)[None, :])


def transposes(new: New, target: Target, R: int, C: int) -> Ladder:
    """The same bytes read and written, in three orders."""
    x, out = new(R, C), new(C, R)

    def call(rows: int, columns: int, along: str) -> Any:
        return launch(
            transpose_kernel, (cdiv(R, rows), cdiv(C, columns)), 4, out=out, x=x, R=R, C=C, ROWS=rows, COLUMNS=columns,
            ALONG=along,
        )  # fmt: skip

    steps = {
        "a row of x a program: each number stored to a row of its own": call(1, 1024, "reads"),
        "tiles of 64 x 64, turned round in shared memory": call(64, 64, "both"),
    }
    rungs = [Rung(title, [each], 4.0 * R * C, outputs={"out": out}) for title, each in steps.items()]

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        whole = get(x)
        for rows in ends(C):
            yield "out", get(rung.outputs["out"][rows]), whole[:, rows].T

    return Ladder("transpose", rungs, check)


# ---- copying: bytes under way ----------------------------------------------------------------------------------------
@triton.jit
def copy_loop_kernel(out, x, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Every PROGRAMS-th block of a copy; a block is loaded, then stored, then comes the next one."""
    for first in tl.range(tl.program_id(0).to(tl.int64) * BLOCK, n, PROGRAMS * BLOCK, num_stages=1):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def copies(new: New, target: Target, n: int) -> Ladder:
    """A copy by more and more warps, and by narrow accesses."""
    x, out = new(n + 1), new(n + 1)

    def call(x: Any, out: Any, per: int, warps: int, width: int) -> Any:
        programs = per * target.multiprocessors
        return launch(
            copy_loop_kernel, (programs,), warps, out=out, x=x, n=n, PROGRAMS=programs, BLOCK=32 * warps * width
        )  # fmt: skip

    rungs = []
    for per, warps in ((1, 4), (1, 8), (1, 16), (2, 16), (4, 16)):
        title = f"{per * warps} warps a multiprocessor, 16 bytes a thread: {per * warps / 2:g} KB under way"
        launches = [call(x, out, per, warps, 8)]
        rungs.append(Rung(title, launches, 4.0 * n, outputs={"out": out[:n]}, inputs={"x": x[:n]}))
    # From the second element on: no longer aligned to 16 bytes, so every access is of one number.
    title = "64 warps, 2 bytes a thread: 4 KB under way"
    x, out = x[1 : n + 1], out[1 : n + 1]
    rungs.append(Rung(title, [call(x, out, 4, 16, 1)], 4.0 * n, outputs={"out": out}, inputs={"x": x}))

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for part in ends(n, 1000):
            yield "out", get(rung.outputs["out"][part]), get(rung.inputs["x"][part])

    return Ladder("copy", rungs, check)


# ---- AdamW -----------------------------------------------------------------------------------------------------------
@triton.jit
def moment_kernel(m, grad, n, beta, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
    """``m = beta m + (1 - beta) grad``, or of grad squared."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(grad + at, mask=at < n, other=0.0).to(tl.float32)
    if SQUARE:
        g *= g
    tl.store(m + at, tl.load(m + at, mask=at < n, other=0.0) * beta + g * (1.0 - beta), mask=at < n)


@triton.jit
def direction_kernel(out, m, v, hyper, n, eps, BLOCK: tl.constexpr):
    """``out = mhat / (sqrt(vhat) + eps)``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mhat = tl.load(m + at, mask=at < n, other=0.0) / tl.load(hyper + 1)
    vhat = tl.load(v + at, mask=at < n, other=0.0) / tl.load(hyper + 2)
    tl.store(out + at, mhat / (tl.sqrt(vhat) + eps), mask=at < n)


@triton.jit
def step_kernel(master, direction, hyper, n, n_decay, weight_decay, BLOCK: tl.constexpr):
    """``master -= lr (direction + decay master)``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w = tl.load(master + at, mask=at < n, other=0.0)
    decay = tl.where(at < n_decay, weight_decay, 0.0)
    d = tl.load(direction + at, mask=at < n, other=0.0)
    tl.store(master + at, w - tl.load(hyper) * (d + decay * w), mask=at < n)


BETA1, BETA2, ADAM_EPS, DECAY = 0.9, 0.95, 1e-8, 0.1


def adamws(new: New, target: Target, n: int) -> Ladder:
    """One AdamW step over n parameters."""
    start = [new(n, dtype="fp32") for _ in range(2)]  # parameters, gradients
    master, m, v, direction = (new(n, dtype="fp32") for _ in range(4))
    grad, param, rounded = start[1], new(n), n // 2
    hyper, norm = (
        new(3, dtype="fp32", value=1.0),
        new(2, dtype="fp32", value=1.0),
    )  # so mhat = m, and nothing is clipped
    grid, size = (cdiv(n, 1024),), {"n": n, "BLOCK": 1024}
    apart = [
        launch(moment_kernel, grid, 4, m=m, grad=grad, beta=BETA1, SQUARE=False, **size),
        launch(moment_kernel, grid, 4, m=v, grad=grad, beta=BETA2, SQUARE=True, **size),
        launch(direction_kernel, grid, 4, out=direction, m=m, v=v, hyper=hyper, eps=ADAM_EPS, **size),
        launch(
            step_kernel, grid, 4, master=master, direction=direction, hyper=hyper, n_decay=rounded, weight_decay=DECAY,
            **size,
        ),
        copy(param, master),
    ]  # fmt: skip
    at_once = adamw(
        param, master, grad, m, v, hyper, norm, rounded, BETA1, BETA2, ADAM_EPS, DECAY, target=target
    )  # fmt: skip
    before = [copy(master, start[0]), copy(m, start[0]), copy(v, master), *squares(v)]
    outputs = {"master": master, "param": param, "m": m, "v": v}
    rungs = [
        Rung("a kernel an operation", apart, 54.0 * n, before=before, outputs=outputs),
        Rung("one pass", at_once, 30.0 * n, before=before, outputs=outputs),
    ]

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for part in ends(n, 1000):
            w, g = get(start[0][part]), get(grad[part])
            want_m, want_v = BETA1 * w + (1 - BETA1) * g, BETA2 * w**2 + (1 - BETA2) * g**2
            decays = np.where(np.arange(n)[part] < rounded, DECAY, 0.0)
            want = w - (want_m / (np.sqrt(want_v) + ADAM_EPS) + decays * w)
            for name, value in (("m", want_m), ("v", want_v), ("master", want), ("param", want)):
                yield name, get(rung.outputs[name][part]), value

    return Ladder("AdamW", rungs, check)


@triton.jit
def square_kernel(x, n, BLOCK: tl.constexpr):
    """x = x^2."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(x + at, value * value, mask=at < n)


def squares(x: Any) -> list[Any]:
    n = x.shape[0]
    return [launch(square_kernel, (cdiv(n, 1024),), 4, x=x, n=n, BLOCK=1024)]
