"""Every GPU kernel at GPT-2 124M's shapes, in several variants: is it right, and how fast beside PyTorch's?

Usage: ``python benchmarks/gpu_kernels_probe.py compile memory matmul attention classifier``. ``compile`` fills Triton's
disk cache with all variants on all cores; the other parts each print a table. PyTorch holds the buffers and is the
oracle and the peer; nothing of it is used by the kernels.
"""

# ruff: noqa: E501, B023

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from nanoeuler.ops.gpu.kernels import attention, classifier, embedding, layernorm, matmul, optimizer, reductions
from nanoeuler.ops.gpu.kernels.spec import Launch, Target

TARGET = Target(90, 132)
B, T, C, H, V = 16, 1024, 768, 12, 50257
N, D = B * T, 64
ROWS = 5504  # of a classifier's chunk
COPY = 4.27e12


class Fake:
    """An array that is only a shape: enough to plan and to compile."""

    def __init__(self, *shape: int, dtype: str = "bf16") -> None:
        self.shape, self.dtype, self.ptr = shape, dtype, 0

    def __getitem__(self, rows: slice) -> Fake:
        return Fake(len(range(*rows.indices(self.shape[0]))), *self.shape[1:], dtype=self.dtype)


class Real(Fake):
    """A PyTorch tensor as an array."""

    def __init__(self, tensor: Any) -> None:
        self.t = tensor
        names = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.int32": "i32"}
        self.shape, self.dtype, self.ptr = tuple(tensor.shape), names[str(tensor.dtype)], tensor.data_ptr()

    def __getitem__(self, rows: slice) -> Real:
        return Real(self.t[rows])


class Arrays:
    """Makes arrays: fake ones to compile, real ones with random values to run."""

    def __init__(self, real: bool) -> None:
        self.real = real

    def __call__(self, *shape: int, dtype: str = "bf16", scale: float = 1.0) -> Any:
        if not self.real:
            return Fake(*shape, dtype=dtype)
        import torch

        if dtype == "i32":
            return Real(torch.randint(0, int(scale), shape, device="cuda", dtype=torch.int32))
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        return Real(torch.randn(shape, device="cuda", dtype=kind) * scale)


def compiled(launch: Launch) -> Any:
    source = (GluonASTSource if launch.fn.is_gluon() else ASTSource)(
        launch.fn, launch.signature(), launch.constexprs, launch.attributes()
    )
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", TARGET.sm, 32), options=options)


KERNELS: dict[Any, Any] = {}


def start(launch: Launch) -> None:
    """Enqueue one launch on PyTorch's current stream."""
    key = (launch.name, *launch.signature().values(), str(launch.attributes()), str(launch.constexprs),
           launch.num_warps, launch.num_stages)  # fmt: skip
    if key not in KERNELS:
        KERNELS[key] = compiled(launch)
    values = [getattr(launch.args.get(name), "ptr", launch.args.get(name)) for name in launch.signature()]
    KERNELS[key][launch.grid](*values)


def vary(launch: Launch, warps: int = 0, stages: int = 0, grid: tuple[int, ...] = (), **constexprs: Any) -> Launch:
    return dataclasses.replace(
        launch, num_warps=warps or launch.num_warps, num_stages=stages or launch.num_stages,
        grid=(*grid, 1, 1)[:3] if grid else launch.grid, constexprs={**launch.constexprs, **constexprs},
    )  # fmt: skip


def microseconds(calls: list[Callable[[], Any]], repeat: int = 1) -> float:
    """Median time of one call, from replays of a CUDA graph of all of them."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeat):
                for call in calls:
                    call()
        times = []
        for _ in range(7):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(stream)
            graph.replay()
            b.record(stream)
            torch.cuda.synchronize()
            times.append(a.elapsed_time(b))
    return statistics.median(times[2:]) * 1e3 / (repeat * len(calls))


def runner(launches: list[Launch]) -> Callable[[], None]:
    return lambda: [start(launch) for launch in launches]  # type: ignore[func-returns-value]


# ---- memory-bound kernels ------------------------------------------------------------------------------------------
def memory_cases(new: Arrays) -> Iterator[tuple[str, float, list[tuple[str, list[Launch]]]]]:
    """(name, bytes moved, [(variant, launches)]) of each kernel."""
    x, delta, out, res = (new(N, C) for _ in range(4))
    w, b, dw, db = (new(C) for _ in range(4))
    mean, rstd = new(N, dtype="fp32"), new(N, dtype="fp32", scale=0.1)
    scratch = new(2 * 132 * 8 * 4096, dtype="fp32")
    forward = layernorm.layernorm(out, mean, rstd, x, w, b, delta, res, target=TARGET)[0]
    variants = [(f"r{r} w{k}", [vary(forward, k, grid=(-(-N // r),), ROWS=r)])
                for r, k in ((1, 1), (2, 2), (2, 4), (4, 4))]  # fmt: skip
    yield "add_layernorm", 4 * N * C * 2, variants
    back = layernorm.layernorm_backward(out, dw, db, x, res, mean, rstd, w, scratch, delta, new(C), target=TARGET)
    variants = [
        (f"p{p} w{k} s{st}", [vary(back[0], k, grid=(132 * p,), STAGES=st)])
        for p, k, st in ((4, 2, 4), (4, 2, 5), (5, 2, 4), (3, 2, 5), (5, 2, 5), (4, 1, 4))
    ]  # fmt: skip
    yield "layernorm_backward+sum", 4 * N * C * 2, variants
    yield "layernorm sum_partials", 3 * 1056 * C * 4, [
        (f"r{r} c{c} w{k}", [vary(back[1], k, grid=(-(-C // c), 3), ROWS=r, COLUMNS=c)])
        for r, c, k in ((128, 16, 8), (64, 32, 8), (256, 16, 8), (128, 32, 8), (256, 8, 8))
    ]  # fmt: skip
    big = new(N, 4 * C)
    sums = reductions.column_sums(new(4 * C), big, scratch, False, target=TARGET)[0]
    variants = []
    for r, s, k, u in (
        (8, 32, 4, 4),
        (8, 16, 4, 4),
        (8, 16, 4, 2),
        (8, 32, 4, 8),
        (4, 32, 2, 8),
        (16, 16, 4, 2),
        (16, 16, 4, 4),
    ):
        c = 256
        grid = (-(-N // (r * s)), -(-4 * C // c))
        variants.append((f"r{r} s{s} w{k} u{u}", [vary(sums, k, grid=grid, ROWS=r, COLUMNS=c, STEPS=s, UNROLL=u)]))
    yield "column_sums 3072", N * 4 * C * 2, variants
    idx = new(B, T, dtype="i32", scale=V)
    wte, wpe, order = new(V, C), new(T, C), new(N, dtype="i32", scale=N)
    emb = embedding.embedding(Shaped(out, (B, T, C)), idx, wte, wpe, target=TARGET)[0]
    yield "embedding", 2 * N * C * 2, [(f"r{r} w{k}", [vary(emb, k, grid=(-(-N // r),), ROWS=r)])
                                       for r, k in ((4, 4), (1, 1), (2, 2), (8, 8))]  # fmt: skip
    rank = embedding.sort_places(order, idx, target=TARGET)[0]
    yield "sort_places", N * 8, [(f"p{p} o{o} w{k}", [vary(rank, k, grid=(-(-N // p),), PLACES=p, OTHERS=o)])
                                 for p, o, k in ((32, 256, 4), (16, 512, 4), (32, 512, 8), (64, 128, 4), (32, 128, 2), (16, 256, 2))]  # fmt: skip
    grads = embedding.embedding_backward(wte, wpe, Shaped(x, (B, T, C)), idx, order, target=TARGET)
    yield "position_gradient", N * C * 2, [(f"r{r} c{c} w{k}", [vary(grads[0], k, grid=(-(-T // r), -(-C // c)), ROWS=r, COLUMNS=c)])
                                           for r, c, k in ((8, 256, 4), (4, 256, 4), (2, 256, 2), (4, 128, 2))]  # fmt: skip
    yield "token_gradient (uniform ids)", 3 * N * C * 2, [
        (f"f{f} m{m} w{k}", [rank, vary(grads[1], k, FEW=f, MANY=m)])
        for f, m, k in ((4, 16, 4), (4, 16, 2), (2, 16, 4), (1, 16, 4), (4, 32, 4), (4, 8, 4), (2, 8, 2))
    ]  # fmt: skip
    n = 124_439_808
    param, grad = new(n), new(n, scale=0.01)
    master, m, v = new(n, dtype="fp32"), new(n, dtype="fp32", scale=0.01), new(n, dtype="fp32", scale=0.0)
    hyper, norm, limit = new(3, dtype="fp32"), new(2, dtype="fp32"), new(1, dtype="fp32")
    grad32 = new(n, dtype="fp32", scale=0.01)
    if new.real:
        for number in (hyper, norm, limit):
            number.t.fill_(0.5)
    rates = (124_318_464, 0.9, 0.95, 1e-8, 0.1)
    step = optimizer.adamw(param, master, grad32, m, v, hyper, norm, *rates, target=TARGET)[0]
    yield "adamw, fp32 gradient", 30 * n, [(f"b{s} w{k}", [vary(step, k, grid=(-(-n // s),), BLOCK=s)])
                                           for s, k in ((1024, 4), (512, 4), (2048, 4), (1024, 8), (512, 2), (256, 2))]  # fmt: skip
    step = optimizer.adamw(param, master, grad, m, v, hyper, norm, 124_318_464, 0.9, 0.95, 1e-8, 0.1, target=TARGET)[0]
    yield "adamw", 28 * n, [(f"b{s} w{k}", [vary(step, k, grid=(-(-n // s),), BLOCK=s)])
                            for s, k in ((1024, 4), (512, 4), (2048, 4), (1024, 8), (256, 2))]  # fmt: skip
    norms = optimizer.global_norm(norm, grad, limit, scratch, target=TARGET)
    yield "global_norm", 2 * n, [("default", norms)]
    norms32 = optimizer.global_norm(norm, grad32, limit, scratch, target=TARGET)
    yield "global_norm, fp32", 4 * n, [("default", norms32)]


class Shaped:
    """The same memory with another shape."""

    def __init__(self, array: Any, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.ptr = shape, array.dtype, array.ptr
        self.t = getattr(array, "t", None)


def part_memory() -> None:
    import torch

    a, b = (
        torch.randn(2**30, device="cuda", dtype=torch.bfloat16),
        torch.empty(2**30, device="cuda", dtype=torch.bfloat16),
    )
    t = microseconds([functools.partial(b.copy_, a)], repeat=3)
    print(f"copy {4 * 2**30 / t / 1e6:.2f} TB/s")
    sets = [list(memory_cases(Arrays(True))) for _ in range(3)]  # together larger than the L2
    for cases in zip(*sets, strict=True):
        name, size, _ = cases[0]
        line = []
        for variants in zip(*(case[2] for case in cases), strict=True):
            label = variants[0][0]
            try:
                t = microseconds([runner(launches) for _, launches in variants], repeat=2)
                line.append((t, f"{label}: {t:.1f}"))
            except Exception as error:
                line.append((1e9, f"{label}: {str(error)[:60]}"))
        best = min(line)[0]
        print(f"{name}: best {best:.1f} us = {size / best / 1e6:.2f} TB/s ({size / best / 1e6 / 4.27:.0%}) | "
              + "  ".join(text for _, text in line), flush=True)  # fmt: skip


def part_check() -> None:
    """The memory-bound kernels as planned by default, against PyTorch in fp32 (or fp64)."""
    import torch
    import torch.nn.functional as F

    new = Arrays(True)
    go = lambda launches: [start(launch) for launch in launches]  # noqa: E731
    x, delta, g, past, out, res, dx = (new(N, C) for _ in range(7))
    w, b, dw, db = (new(C) for _ in range(4))
    mean, rstd, scratch = new(N, dtype="fp32"), new(N, dtype="fp32"), new(10**7, dtype="fp32")
    go(layernorm.layernorm(out, mean, rstd, x, w, b, delta, res, target=TARGET))
    h = (x.t.float() + delta.t.float()).bfloat16().float().requires_grad_()
    weight, bias = (p.t.float().requires_grad_() for p in (w, b))
    y = F.layer_norm(h, (C,), weight, bias)
    y.backward(g.t.float())
    go(layernorm.layernorm_backward(dx, dw, db, g, res, mean, rstd, w, scratch, past, target=TARGET))
    want = {
        "out": (out, y),
        "res": (res, h),
        "dx": (dx, h.grad + past.t.float()),
        "dw": (dw, weight.grad),
        "db": (db, bias.grad),
    }
    print("layernorm", {k: f"{relative(a.t, v.detach()):.1e}" for k, (a, v) in want.items()})
    for label, ids in (("uniform", V), ("few", 65), ("one", 1)):
        idx, order = new(B, T, dtype="i32", scale=ids), new(N, dtype="i32", scale=N)
        wte, wpe, big = new(V, C), new(T, C), new(B, T, C)
        dwte, dwpe = new(V, C), new(T, C)
        first = dwte.t.float()
        go(embedding.embedding(big, idx, wte, wpe, target=TARGET))
        e = relative(big.t, wte.t.float()[idx.t.long()] + wpe.t.float())
        go(embedding.sort_places(order, idx, target=TARGET))
        sorted_right = bool((order.t.long() == torch.sort(idx.t.view(-1), stable=True).indices).all())
        us = microseconds([runner(embedding.embedding_backward(dwte, dwpe, big, idx, order, target=TARGET))])
        dwte.t.copy_(first)
        go(embedding.embedding_backward(dwte, dwpe, big, idx, order, target=TARGET))
        first.index_add_(0, idx.t.view(-1).long(), big.t.float().view(N, C))
        print(f"embedding {label}: {e:.1e} sorted {sorted_right} dwte {relative(dwte.t, first):.1e} "
              f"dwpe {relative(dwpe.t, big.t.float().sum(0)):.1e} backward {us:.0f} us")  # fmt: skip
    n = 10_000_019
    param, grad, norm, limit = new(n), new(n), new(2, dtype="fp32"), new(1, dtype="fp32")
    limit.t.fill_(1.0)
    go(optimizer.global_norm(norm, grad, limit, scratch, target=TARGET))
    exact = grad.t.double().norm()
    master, m, v = new(n, dtype="fp32"), new(n, dtype="fp32"), new(n, dtype="fp32")
    v.t.abs_()
    hyper = new(3, dtype="fp32")
    hyper.t.copy_(torch.tensor([0.01, 1 - 0.9**3, 1 - 0.95**3]))
    p64, m64, v64, g64 = (z.t.double() for z in (master, m, v, grad))
    g64 /= exact
    m64, v64 = 0.9 * m64 + 0.1 * g64, 0.95 * v64 + 0.05 * g64**2
    decay = torch.where(torch.arange(n, device="cuda") < 7_000_001, 0.1, 0.0)
    p64 = p64 - 0.01 * (m64 / (1 - 0.9**3) / ((v64 / (1 - 0.95**3)).sqrt() + 1e-8) + decay * p64)
    go(optimizer.adamw(param, master, grad, m, v, hyper, norm, 7_000_001, 0.9, 0.95, 1e-8, 0.1, target=TARGET))
    print(f"norm {abs(norm.t[0].item() / exact.item() - 1):.1e} adamw {relative(master.t, p64):.1e} "
          f"m {relative(m.t, m64):.1e} v {relative(v.t, v64):.1e} bf16 {relative(param.t, p64):.1e}")  # fmt: skip
    big, sums = new(N, 4 * C), new(4 * C)
    go(reductions.column_sums(sums, big, scratch, False, target=TARGET))
    print(f"column_sums {relative(sums.t, big.t.double().sum(0)):.1e}")


# ---- matrix products -----------------------------------------------------------------------------------------------
TILES = {
    "a": matmul.Tiles(128, 256, 64, 2, 1, 8, 3),
    "b": matmul.Tiles(128, 256, 64, 1, 1, 8, 3),
    "c": matmul.Tiles(128, 256, 64, 2, 1, 8, 4),
    "e": matmul.Tiles(128, 128, 64, 2, 2, 4, 3),
    "f": matmul.Tiles(128, 128, 64, 4, 2, 4, 3),
    "S": matmul.Tiles(128, 256, 64, 2, 1, 8, 3, schedule="stream"),
    "T": matmul.Tiles(256, 128, 64, 2, 1, 8, 3, schedule="stream"),
    "P": matmul.ROLES,
}


def matmul_cases(new: Arrays) -> Iterator[tuple[str, tuple[int, int, int], Any, dict[str, list[Launch]]]]:
    scratch = new(60_000_000, dtype="fp32")
    act = {n: new(N, n) for n in (C, 3 * C, 4 * C)}
    more = {n: new(N, n) for n in (C, 3 * C, 4 * C)}
    weights = {(i, o): new(i, o, scale=0.05) for i, o in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C))}
    grads = {key: new(*key) for key in weights}
    bias = {n: new(n) for n in act}
    pre = new(N, 4 * C)

    def all_tiles(names: str, **arguments: Any) -> dict[str, list[Launch]]:
        return {n: matmul.matmul(**arguments, scratch=scratch, tiles=TILES[n], target=TARGET) for n in names}

    for name, (i, o) in {"qkv": (C, 3 * C), "proj": (C, C), "fc": (C, 4 * C), "fcproj": (4 * C, C)}.items():
        x, w, y = act[i], weights[i, o], more[o]
        kw = dict(c=y, a=x, b=w, bias=bias[o])
        if name == "fc":
            kw |= dict(pre=pre, gelu=1)
        yield f"{name} forward", (N, o, i), (x, w, bias[o]), all_tiles("eP" if name == "fc" else "aeP", **kw)
        if name == "fcproj":
            kw |= dict(residual=act[o])
            yield f"{name} forward+residual", (N, o, i), (x, w, bias[o]), all_tiles("aP", **kw)
        kw = dict(c=more[i], a=act[o], b=w, b_t=True)
        if name == "fcproj":
            kw |= dict(pre=pre, gelu=2)
        yield f"{name} dx", (N, i, o), (act[o], w), all_tiles("aP" if name == "fcproj" else "aeP", **kw)
        if name == "fcproj":
            kw |= dict(sums=scratch)
            yield f"{name} dx+sums", (N, i, o), (act[o], w), all_tiles("aP", **kw)
            kw |= dict(act=act[i])
            yield f"{name} dx+sums+act", (N, i, o), (act[o], w), all_tiles("aP", **kw)
        kw = dict(c=grads[i, o], a=act[i], b=more[o], a_t=True)
        yield f"{name} dw", (i, o, N), (act[i], more[o]), all_tiles("aST", **kw)
        kw = dict(c=new(i, o, dtype="fp32"), a=act[i], b=more[o], a_t=True)
        yield f"{name} fp32 dw", (i, o, N), (act[i], more[o]), all_tiles("S", **kw)
    for rows in (5504, 2048):
        z, wte, x, dx = new(rows, 50304, scale=0.01), new(V, C), new(rows, C), new(rows, C)
        yield f"logits {rows}", (rows, V, C), (x, wte), all_tiles("aeP", c=z, a=x, b=wte, b_t=True, columns=V)
        yield f"logits {rows} dx", (rows, C, V), (z, wte), all_tiles("aSP", c=dx, a=z, b=wte, inner=V)
        yield f"logits {rows} dw", (V, C, rows), (z, x), all_tiles("aP", c=new(V, C), a=z, b=x, a_t=True)
        kw = dict(c=new(V, C, dtype="fp32"), a=z, b=x, a_t=True)
        yield f"logits {rows} fp32 dw", (V, C, rows), (z, x), all_tiles("a", **kw)
        yield f"logits {rows} fp32 acc dw", (V, C, rows), (z, x), all_tiles("a", **kw, accumulate=True)


def peer_of(name: str, operands: Any) -> Callable[[], Any]:
    import torch

    ts = [o.t for o in operands]
    if name == "fc forward":
        return lambda: torch._addmm_activation(ts[2], ts[0], ts[1], use_gelu=True)
    if "forward" in name:
        return lambda: torch.addmm(ts[2], ts[0], ts[1])
    if name in ("logits 5504", "logits 2048"):
        return lambda: torch.mm(ts[0], ts[1].t())
    if name.startswith("logits") and name.endswith("dx"):
        return lambda: torch.mm(ts[0][:, :V], ts[1])
    if name.startswith("logits") and name.endswith("dw"):
        return lambda: torch.mm(ts[0][:, :V].t(), ts[1])
    if name.endswith("dw"):
        return lambda: torch.mm(ts[0].t(), ts[1])
    return lambda: torch.mm(ts[0], ts[1].t())


def matmul_errors(name: str, launches: list[Launch], product: Any) -> dict[str, float]:
    """Relative errors of all that a product wrote; ``product`` is PyTorch's without what the kernel adds to it."""
    import torch

    args = {key: value.t for key, value in launches[0].args.items() if isinstance(value, Real)}
    args |= {key: value.t for key, value in launches[-1].args.items() if key == "c"}
    c, want = args["c"][:, : product.shape[1]], product.float()
    extra = args.get("extra", args.get("pre", args.get("residual")))
    if "acc" in name:
        return {}
    if "residual" in name:
        return {"c": relative(c, want + extra.float())}
    if name == "fc forward":
        return {"c": relative(c, want), "pre": relative(extra, torch.addmm(args["bias"], args["a"], args["b"]))}
    if "fcproj dx" not in name:
        return {"c": relative(c, want)}
    x = extra.float().requires_grad_()
    y = torch.nn.functional.gelu(x, approximate="tanh")
    y.sum().backward()
    want *= x.grad
    errors = {"c": relative(c, want)}
    if "act" in args:
        errors["act"] = relative(args["act"], y.detach())
    if "sums" in args:
        rows = 128
        sums = args["sums"][: N // rows * want.shape[1]].view(N // rows, -1)
        errors["sums"] = relative(sums, want.view(N // rows, rows, -1).sum(1)) / 3  # want is rounded to bf16 here
    return errors


def part_roles() -> None:
    part_matmul("P")


def part_matmul(names: str = "abcefST") -> None:
    for name, (m, n, k), operands, variants in matmul_cases(Arrays(True)):
        peer = peer_of(name, operands)
        peer_time = microseconds([peer], repeat=8)
        line = []
        want = peer()
        for label, launches in variants.items():
            if label not in names:
                continue
            try:
                t = microseconds([runner(launches)], repeat=8)
                errors = matmul_errors(name, launches, want)
                flag = "" if all(e < 0.01 for e in errors.values()) else f" ERROR {errors}"
                line.append((t, f"{label}: {t:.0f}{flag}"))
            except Exception as error:
                line.append((1e9, f"{label}: {str(error)[:50]}"))
        if not line:
            continue
        best = min(line)[0]
        rate = 2 * m * n * k / best / 1e6
        print(f"{name}: best {best:.1f} us {rate:.0f} TF | cuBLAS {peer_time:.1f} = {peer_time / best:.2f} | "
              + "  ".join(text for _, text in line), flush=True)  # fmt: skip


# ---- attention -----------------------------------------------------------------------------------------------------
FORWARD = [(64, 64, 4, 3), (64, 64, 4, 4), (64, 32, 4, 3), (64, 32, 4, 4)]
QUERIES = [(64, 32, 4, 3), (64, 32, 4, 4), (64, 16, 4, 4), (64, 32, 4, 2)]
KEYS = [(32, 64, 4, 3), (32, 64, 4, 4), (32, 64, 4, 2), (16, 64, 4, 4)]


def attention_cases(new: Arrays) -> Iterator[tuple[str, Any, Launch]]:
    qkv, out, lse = new(B, T, 3 * C), new(B, T, C), new(B, H, T, dtype="fp32")
    dqkv, dout = new(B, T, 3 * C), new(B, T, C)
    delta = new(attention.attention_backward_scratch(B, H, T, C), dtype="fp32")
    arrays = (qkv, out, lse, dqkv, dout)

    def tiles(**chosen: Any) -> None:
        attention._tiles = lambda *_: {"forward": FORWARD[0], "queries": QUERIES[0], "keys": KEYS[0]} | chosen

    for t in FORWARD:
        tiles(forward=t)
        yield f"forward {t}", arrays, attention.attention(out, lse, qkv, H, target=TARGET)[0]
    for which, kind, place in ((QUERIES, "queries", 0), (KEYS, "keys", 1)):
        for t in which:
            tiles(**{kind: t})
            both = attention.attention_backward(dqkv, dout, out, lse, qkv, H, delta, dqkv_sum=new(3 * C), target=TARGET)
            yield f"{kind} {t}", arrays, both[place]


def relative(got: Any, want: Any) -> float:
    return float(((got.double() - want.double()).norm() / want.double().norm()).item())


def part_attention() -> None:
    import torch
    import torch.nn.functional as F

    wants: dict[str, Any] = {}
    for label, (qkv, out, _, dqkv, dout), launch in attention_cases(Arrays(True)):
        if not wants:

            def heads(x: Any) -> Any:
                return x.t.view(B, T, -1, H, D).permute(2, 0, 3, 1, 4)

            for kind in (torch.float32, torch.bfloat16):
                q, k, v = (x.to(kind).detach().requires_grad_() for x in heads(qkv))
                backend = torch.nn.attention.SDPBackend
                with torch.nn.attention.sdpa_kernel(backend.MATH if kind == torch.float32 else backend.FLASH_ATTENTION):
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    y.backward(heads(dout)[0].to(kind))
                wants[str(kind)] = [z.detach().float() for z in (y, q.grad, k.grad, v.grad)]
                del q, k, v, y
            print(
                "peer flash bf16 errors",
                [f"{relative(a, b):.2e}" for a, b in zip(wants["torch.bfloat16"], wants["torch.float32"])],
            )
            for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
                with torch.nn.attention.sdpa_kernel(getattr(backend, name)):
                    q, k, v = (x.detach().requires_grad_() for x in heads(qkv))
                    gy = heads(dout)[0]

                    def fwd() -> Any:
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

                    try:
                        print(name, *(f"{x:.0f}" for x in event_times(fwd, gy)), "us forward, both", flush=True)
                    except Exception as error:
                        print(name, str(error)[:100])
        try:
            us = microseconds([lambda launch=launch: start(launch)], repeat=8)
            got = dict(forward=[heads(out)[0]], queries=[heads(dqkv)[0]], keys=[heads(dqkv)[1], heads(dqkv)[2]])[
                label.split()[0]
            ]
            ref = dict(forward=[0], queries=[1], keys=[2, 3])[label.split()[0]]
            errors = [f"{relative(g, wants['torch.float32'][r]):.2e}" for g, r in zip(got, ref)]
            kernel = list(KERNELS.values())[-1]
            print(f"{label}: {us:.1f} us  errors {errors} regs {kernel.n_regs} spills {kernel.n_spills}", flush=True)
        except Exception as error:
            print(label, str(error)[:100])


def event_times(fwd: Callable[[], Any], gy: Any) -> tuple[float, float]:
    import torch

    result = []
    for both in (False, True):
        times = []
        for _ in range(12):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(2_000_000)  # lets the host run ahead
            a.record()
            for _ in range(5):
                y = fwd()
                if both:
                    y.backward(gy)
            b.record()
            torch.cuda.synchronize()
            times.append(a.elapsed_time(b) * 1e3 / 5)
        result.append(statistics.median(times[2:]))
    return result[0], result[1]


# ---- odd sizes -----------------------------------------------------------------------------------------------------
ODD = [(1000, 576, 192), (100, 192, 768), (37, 65, 64), (257, 136, 520), (8191, 768, 768), (130, 264, 4096)]


def odd_cases(new: Arrays) -> Iterator[tuple[str, Callable[[], dict[str, float]], list[Launch]]]:
    """(label, how wrong the outputs are, launches) at sizes that fill no tile."""
    scratch = new(40_000_000, dtype="fp32")
    schedules = {"tiles": TILES["a"], "small": TILES["e"], "stream": TILES["S"], "roles": matmul.ROLES}
    for m, n, k in ODD:
        for (form, a_t, b_t), (how, tiles) in itertools.product(
            (("nn", 0, 0), ("nt", 0, 1), ("tn", 1, 0)), schedules.items()
        ):
            a, b, c = new(*((k, m) if a_t else (m, k))), new(*((n, k) if b_t else (k, n))), new(m, n)
            bias, pre, act = (new(n), new(m, n), new(m, n)) if form != "tn" and how != "stream" else (None,) * 3
            kw = {"bias": bias} | ({"pre": pre, "gelu": 1 if form == "nn" else 2} if bias else {})
            if form == "nt" and bias:
                kw |= {"act": act}
            launches = matmul.matmul(c, a, b, bool(a_t), bool(b_t), **kw, scratch=scratch, tiles=tiles, target=TARGET)

            def errors(a=a, b=b, c=c, a_t=a_t, b_t=b_t, bias=bias, pre=pre, act=act, form=form) -> dict[str, float]:
                import torch.nn.functional as F

                want = (a.t.T if a_t else a.t).double() @ (b.t.T if b_t else b.t).double()
                result = {}
                if bias is not None:
                    want += bias.t.double()
                    if form == "nn":
                        result["pre"] = relative(pre.t, want)
                        want = F.gelu(want, approximate="tanh")
                    else:
                        x = pre.t.double().requires_grad_()
                        y = F.gelu(x, approximate="tanh")
                        y.sum().backward()
                        want *= x.grad
                        result["act"] = relative(act.t, y.detach())
                return result | {"c": relative(c.t, want)}

            yield f"{form} {how} {(m, n, k)}", errors, launches
    for b, t, h, d in ((2, 1000, 3, 64), (1, 77, 2, 80), (2, 513, 4, 128), (1, 4096, 4, 64), (3, 100, 1, 16)):
        qkv, out, lse, dqkv, dout = (
            new(b, t, 3 * h * d),
            new(b, t, h * d),
            new(b, h, t, dtype="fp32"),
            new(b, t, 3 * h * d),
            new(b, t, h * d),
        )
        sums, space = new(3 * h * d), new(attention.attention_backward_scratch(b, h, t, h * d), dtype="fp32")
        launches = attention.attention(out, lse, qkv, h, target=TARGET)
        launches += attention.attention_backward(dqkv, dout, out, lse, qkv, h, space, dqkv_sum=sums, target=TARGET)

        def errors(qkv=qkv, out=out, dqkv=dqkv, dout=dout, sums=sums, b=b, t=t, h=h, d=d) -> dict[str, float]:
            import torch

            leaf = qkv.t.double().requires_grad_()
            q, k, v = leaf.view(b, t, 3, h, d).permute(2, 0, 3, 1, 4)
            mask = torch.ones(t, t, device="cuda", dtype=torch.bool).tril()
            y = torch.softmax((q @ k.mT / d**0.5).masked_fill(~mask, -torch.inf), -1) @ v
            y = y.permute(0, 2, 1, 3).reshape(b, t, h * d)
            y.backward(dout.t.double())
            return {"out": relative(out.t, y.detach()), "dqkv": relative(dqkv.t, leaf.grad),
                    "sum": relative(sums.t, leaf.grad.sum((0, 1)))}  # fmt: skip

        yield f"attention {(b, t, h, d)}", errors, launches


def part_odd() -> None:
    worst: dict[str, float] = {}
    for label, errors, launches in odd_cases(Arrays(True)):
        try:
            runner(launches)()
            found = errors()
        except Exception as error:
            print(label, str(error)[:100])
            continue
        if not all(e < 0.01 for e in found.values()):
            print("ERROR", label, found)
        for name, e in found.items():
            key = label.split("(")[0] + name
            worst[key] = max(worst.get(key, 0.0), e)
    print("odd sizes, worst errors:", {k: f"{v:.1e}" for k, v in worst.items()})


# ---- classifier ----------------------------------------------------------------------------------------------------
def classifier_cases(new: Arrays) -> Iterator[tuple[str, Any, list[Launch]]]:
    z = new(ROWS, 50304)
    losses, targets, scale = new(ROWS, dtype="fp32"), new(ROWS, dtype="i32", scale=V), new(1, dtype="fp32")
    ce = classifier.cross_entropy(losses, z, targets, V, scale)
    for b, k in ((4096, 8), (8192, 16), (4096, 16), (2048, 8), (2048, 4), (8192, 8)):
        yield f"cross_entropy b{b} w{k}", None, [vary(ce, k, BLOCK=b)]
    x, wte, dx, dwte = new(N, C), new(V, C, scale=0.05), new(N, C), new(V, C)
    losses, targets = new(N, dtype="fp32"), new(N, dtype="i32", scale=V)
    scratch = new(60_000_000, dtype="fp32")
    arrays = (losses, x, wte, targets, dx, dwte, scale)
    yield (
        "classifier",
        arrays,
        classifier.classifier(losses, x, wte, targets, z, scratch, dx, dwte, scale, target=TARGET),
    )


def part_classifier() -> None:
    import torch

    for label, arrays, launches in classifier_cases(Arrays(True)):
        try:
            us = microseconds([runner(launches)], repeat=2)
        except Exception as error:
            print(label, str(error)[:100])
            continue
        if arrays is None:
            size = 2 * ROWS * V * 2
            print(f"{label}: {us:.1f} us = {size / us / 1e6:.2f} TB/s ({size / us / 1e6 / 4.27:.0%})", flush=True)
            continue
        losses, x, wte, targets, dx, dwte, scale = (a.t for a in arrays)
        rows, got = [], {"losses": losses, "dx": dx, "dwte": dwte}
        for kind in (torch.float32, torch.bfloat16):
            w, total, answers = wte.to(kind), torch.zeros(V, C, device="cuda"), ([], [])
            for first in range(0, N, 4096):
                xs, ts = x[first : first + 4096].to(kind), targets[first : first + 4096].long()
                zs = (xs @ w.T).float()
                answers[0].append(torch.nn.functional.cross_entropy(zs, ts, reduction="none"))
                dz = torch.softmax(zs, 1)
                dz[torch.arange(len(ts)), ts] -= 1
                dz = (dz * scale).to(kind)
                answers[1].append((dz @ w).float())
                total += dz.T.float() @ xs.float()
            rows.append([torch.cat(answers[0]), torch.cat(answers[1]), total])
        for name, ours, want, formula in zip(got, got.values(), rows[0], rows[1], strict=True):
            formula = formula.to(ours.dtype)
            print(
                f"  {name}: error {relative(ours, want):.2e}, the formula's own in bf16 {relative(formula, want):.2e}"
            )
        print(f"{label}: {us:.0f} us = {6 * N * V * C / us / 1e6:.0f} TF", flush=True)


# ---- all -----------------------------------------------------------------------------------------------------------
def all_launches() -> Iterator[Launch]:
    new = Arrays(False)
    for _, _, variants in memory_cases(new):
        for _, launches in variants:
            yield from launches
    for _, _, _, tiles in matmul_cases(new):
        for launches in tiles.values():
            yield from launches
    for _, _, launch in attention_cases(new):
        yield launch
    for _, _, launches in classifier_cases(new):
        yield from launches
    for _, _, launches in odd_cases(new):
        yield from launches


def compile_one(index: int) -> str:
    launch = LAUNCHES[index]
    try:
        kernel = compiled(launch)
        too_much = kernel.metadata.shared > TARGET.shared_memory
        return f"{launch.name}: {kernel.metadata.shared} bytes of shared memory" if too_much else ""
    except Exception as error:
        return f"{launch.name}: {str(error)[-200:]}"


LAUNCHES: list[Launch] = []


def part_compile() -> None:
    began = time.time()
    seen = {}
    for launch in all_launches():
        key = (launch.name, str(launch.signature()), str(launch.attributes()), str(launch.constexprs), launch.num_warps, launch.num_stages)  # fmt: skip
        seen.setdefault(key, launch)
    LAUNCHES.extend(seen.values())
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        complaints = [c for c in pool.map(compile_one, range(len(LAUNCHES))) if c]
    print(f"compiled {len(LAUNCHES)} variants in {time.time() - began:.0f} s", *complaints[:12], sep="\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    for part in sys.argv[1:]:
        began = time.time()
        try:
            if part != "compile":
                import torch

                torch.manual_seed(0)
                triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
            globals()["part_" + part]()
        except Exception:
            traceback.print_exc()
        print(f"-- {part}: {time.time() - began:.0f} s", flush=True)
