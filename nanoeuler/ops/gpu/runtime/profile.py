"""Where a step's time goes: the GPU time of each kernel in a recorded graph.

Marks (*events*) are recorded into the graph between the kernels, so the kernels run back to back as in a real step,
and the time between two marks is that of the kernel between them, its start included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from nanoeuler.ops.gpu.runtime.driver import Device
from nanoeuler.ops.gpu.runtime.graph import Graph
from nanoeuler.ops.gpu.runtime.launch import Launcher


class Span(NamedTuple):
    """One launch of a kernel in a step; ``sizes`` are those of a matrix product, else empty."""

    name: str
    sizes: str
    milliseconds: float


class KernelTime(NamedTuple):
    """One kernel: its launches in a step, and the milliseconds of all of them together."""

    name: str
    launches: int
    milliseconds: float


def timeline(device: Device, launcher: Launcher, record: Callable[[], Any], replays: int = 5) -> list[Span]:
    """What ``record`` launches, in order: medians over ``replays``. All must be compiled already."""
    cuda = device.cuda
    external = cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
    calls: list[tuple[str, str]] = []
    marks: list[Any] = []

    def mark() -> None:
        marks.append(device.event(timing=True))
        cuda.cuEventRecordWithFlags(marks[-1], device.stream, external)

    def before(name: str, call: Any) -> None:
        mark()
        calls.append((name, sizes_of(call)))

    def marked() -> None:
        record()
        mark()

    launcher.on_launch = before
    try:
        graph = Graph(device, marked)
    finally:
        launcher.on_launch = None
    runs = []
    for _ in range(replays + 1):
        graph.replay()
        device.synchronize()
        runs.append([float(cuda.cuEventElapsedTime(a, b)) for a, b in pairwise(marks)])
    for event in marks:
        cuda.cuEventDestroy(event)
    medians = [sorted(times)[len(times) // 2] for times in zip(*runs[1:])]  # the first replay warms up
    return [Span(*call, ms) for call, ms in zip(calls, medians)]


def sizes_of(call: Any) -> str:
    """The sizes of a matrix product's launch, rows x columns x inner: they tell one product of a step from another."""
    values = {**call.constexprs, **call.args}
    return "x".join(str(values[name]) for name in "MNK") if all(name in values for name in "MNK") else ""


def by_kernel(spans: Sequence[Span]) -> list[KernelTime]:
    """The sums over a step's launches of each kernel, products of each size apart, longest first.

    >>> by_kernel([Span("norm", "", 0.1), Span("matmul", "8x8x8", 1.0), Span("norm", "", 0.2)])[1].launches
    2
    """
    totals: dict[str, tuple[int, float]] = {}
    for span in spans:
        name = f"{span.name} {span.sizes}".strip()
        launches, total = totals.get(name, (0, 0.0))
        totals[name] = launches + 1, total + span.milliseconds
    return sorted((KernelTime(name, *total) for name, total in totals.items()), key=lambda k: -k.milliseconds)
