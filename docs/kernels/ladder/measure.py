"""Measure every rung of every ladder on a GPU, at GPT-2 124M's shapes.

    python docs/kernels/ladder/measure.py run results.json [ladder...]     check and time, all or those named
    python docs/kernels/ladder/measure.py compile                          only fill the cache of kernels; needs no GPU

Every rung's result is compared with NumPy first. Times are medians of replays of a CUDA graph, back to back; ladders
that are bound by memory take turns over three sets of arrays, more than the L2 holds.
"""

from __future__ import annotations

import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from ladder import attention, classifier, matmul, memory, reductions
from ladder.common import Ladder, Rung
from nanoeuler.ops.gpu.kernels.spec import Launch, Target
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

B, T, C, H, V = 16, 1024, 768, 12, 50257
N = B * T

LADDERS: dict[str, tuple[Callable[[Any, Target], Ladder], int]] = {  # how to make it, and how many sets of arrays
    "matmul": (lambda new, target: matmul.forward(new, target, N, 4 * C, C), 1),
    "order of tiles": (lambda new, target: matmul.order(new, target, 8192, 8192, 8192), 1),
    "epilogue": (lambda new, target: matmul.epilogue(new, target, N, 4 * C, C), 1),
    "weight gradient": (lambda new, target: matmul.weight_gradient(new, target, C, 3 * C, N), 1),
    "copy": (lambda new, target: memory.copies(new, target, 1 << 28), 1),
    "transpose": (lambda new, target: memory.transposes(new, target, 8192, 8192), 1),
    "layer norm": (lambda new, target: reductions.layer_norms(new, target, N, C), 3),
    "column sums": (lambda new, target: reductions.bias_gradients(new, target, N, 4 * C), 3),
    "cross-entropy": (lambda new, target: reductions.cross_entropies(new, target, 5504, V), 1),
    "attention": (lambda new, target: attention.forward(new, target, B, T, H, C // H), 1),
    "attention backward": (lambda new, target: attention.backward(new, target, B, T, H, C // H), 1),
    "classifier": (lambda new, target: classifier.ladder(new, target, N, C, V, (5504, 2048)), 1),
    "AdamW": (lambda new, target: memory.adamws(new, target, 124_439_808), 1),
}


class Shapes:
    """Arrays that are only shapes: enough to plan and to compile."""

    def __call__(self, *shape: int, dtype: str = "bf16", **_: Any) -> DeviceArray:
        return DeviceArray(1 << 20, shape, dtype)


class Arrays:
    """Arrays on the GPU. A million random numbers are made on the host and repeated: random enough to time."""

    def __init__(self, ops: Any) -> None:
        self.ops, self.rng = ops, np.random.default_rng(0)

    def __call__(
        self, *shape: int, dtype: str = "bf16", scale: float = 1.0, below: int = 0, value: float | None = None
    ) -> DeviceArray:
        array = self.ops.empty(shape, dtype)
        n, some = array.size, min(array.size, 1_000_448)  # no multiple of a row's length, but of 128
        if value is not None:
            part = np.full(some, value, np.float32)
        elif below:
            part = self.rng.integers(0, below, some).astype(np.int32)
        else:
            part = self.rng.standard_normal(some, np.float32) * np.float32(scale)
        flat = array.reshape(-1)
        self.ops.upload(flat[:some], part)
        while some < n:
            more = min(some, n - some)
            self.ops.memory.copy(flat[some : some + more], flat[:more])
            some += more
        return array


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def measure(ops: Any, sets: list[Ladder], i: int) -> dict[str, Any]:
    """One rung: is it right, and how fast?"""
    from nanoeuler.ops.gpu.runtime.graph import Graph
    from nanoeuler.ops.gpu.runtime.profile import by_kernel, timeline

    ladder, rung = sets[0], sets[0].rungs[i]
    start(ops, [launch for each in sets for launch in each.rungs[i].launches], plan=True)
    for output in rung.outputs.values():
        ops.device.cuda.cuMemsetD8Async(output.ptr, 0xFF, output.nbytes, ops.device.stream)  # NaN
    start(ops, [*rung.before, *rung.launches])
    get = functools.cache(lambda a: ops.download(a).astype(np.float64))
    errors = {}
    for what, got, want in ladder.check(get, rung):
        errors[what] = float(np.maximum(errors.get(what, 0.0), error(got, want)))  # NaN stays NaN

    def record() -> None:
        for each in sets:
            start(ops, each.rungs[i].launches)

    once = ops.device.milliseconds(Graph(ops.device, record).replay)
    copies = max(1, min(20, round(2.0 / once)))
    graph = Graph(ops.device, lambda: [record() for _ in range(copies)])
    turns = max(3, min(15, round(80.0 / (once * copies))))
    times = [ops.device.milliseconds(graph.replay) for _ in range(turns)]
    us = statistics.median(times) / copies / len(sets) * 1e3
    result = {"title": rung.title, "us": us, "bytes": rung.bytes, "operations": rung.operations, "errors": errors}
    if len(rung.launches) > 1:
        kernels = by_kernel(timeline(ops.device, ops.runtime.launch, record, replays=3))
        result["kernels"] = [[k.name, k.launches / len(sets), k.milliseconds / len(sets) * 1e3] for k in kernels]
    return result


def start(ops: Any, launches: list[Launch], plan: bool = False) -> None:
    if plan:
        with ops.planning():
            start(ops, launches)
        return
    for launch in launches:
        ops.runtime.launch(launch)


def line(ladder: str, r: dict[str, Any]) -> str:
    worst = float(np.max(list(r["errors"].values())))
    rate = f"{r['operations'] / r['us'] / 1e6:7.0f} TFLOP/s" if r["operations"] else " " * 15
    return (
        f"{ladder:18} {r['us']:9.1f} us {r['bytes'] / r['us'] / 1e6:6.2f} TB/s {rate} error {worst:.1e}"
        f"{' WRONG' if not worst < 1e-2 else ''}  {r['title']}"
    )


def run(file: Path, names: list[str]) -> None:
    import triton

    from nanoeuler.ops.gpu.engine import GpuOps
    from nanoeuler.ops.gpu.timing import matrix_rate

    ops = GpuOps("gpu")
    matrix_rate(ops)  # wakes the clock
    results: dict[str, Any] = {
        "gpu": ops.device.name, "multiprocessors": ops.device.n_sm, "triton": triton.__version__,
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
        "ladders": {},
    }  # fmt: skip
    if names and file.exists():  # the other ladders stay
        results["ladders"] = json.loads(file.read_text(encoding="utf-8"))["ladders"]
    for name in names or LADDERS:
        make, count = LADDERS[name]
        sets = [make(Arrays(ops), ops.target) for _ in range(count)]
        results["ladders"][name] = []
        for i, rung in enumerate(sets[0].rungs):
            try:
                made = measure(ops, sets, i)
                results["ladders"][name].append(made)
                print(line(name, made), flush=True)
            except Exception as problem:  # the others are still worth measuring
                print(f"{name}: {rung.title}: {str(problem)[:200]}", flush=True)
        del sets
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def compile_only(names: list[str]) -> None:
    """Compile all launches for an H100 or H200."""
    from nanoeuler.ops.gpu.runtime.compiler import Source, compile_all
    from nanoeuler.ops.gpu.runtime.launch import describe

    sources: dict[str, tuple[Source, Rung]] = {}
    for name in names or LADDERS:
        for rung in LADDERS[name][0](Shapes(), Target(90, 132)).rungs:
            for call in [*rung.before, *rung.launches]:
                described = [describe(value) for value in call.args.values()]
                source = Source(
                    call.fn,
                    tuple((name, kind) for name, (kind, _, _) in zip(call.args, described, strict=True)),
                    tuple(i for i, (_, aligned, _) in enumerate(described) if aligned),
                    tuple(call.constexprs.items()),
                    (("num_warps", call.num_warps), ("num_stages", call.num_stages)),
                    90,
                )
                sources.setdefault(source.key(), (source, rung))
    for source, rung in sources.values():
        try:
            [binary] = compile_all([source])
        except Exception as problem:
            print(f"{rung.title}: {source.fn.__name__}: {str(problem)[-300:]}")
            continue
        too_much = binary.meta["shared"] > Target(90).shared_memory
        print(
            f"{binary.meta['name']:28} shared {binary.meta['shared']:7}{' TOO MUCH' if too_much else ''}  {rung.title}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["compile"]:
        compile_only(sys.argv[2:])
    elif sys.argv[1:2] == ["run"]:
        run(Path(sys.argv[2]), sys.argv[3:])
    else:
        sys.exit(__doc__)
