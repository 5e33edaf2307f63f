"""Where a step's time goes: the GPU time of each kernel in a recorded graph.

Marks (*events*) are recorded into the graph between the kernels, so the kernels run back to back as in a real step,
and the time between two marks is that of the kernel between them, its start included.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from nanoeuler.ops.gpu.runtime.driver import Device
from nanoeuler.ops.gpu.runtime.graph import Graph
from nanoeuler.ops.gpu.runtime.launch import Launcher


class KernelTime(NamedTuple):
    """One kernel: its launches in a step, and the milliseconds of all of them together."""

    name: str
    launches: int
    milliseconds: float


def profile(device: Device, launcher: Launcher, record: Callable[[], Any], replays: int = 5) -> list[KernelTime]:
    """The kernels that ``record`` launches, longest first: medians over ``replays``. All must be compiled already."""
    cuda = device.cuda
    external = cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
    names: list[str] = []
    marks: list[Any] = []

    def mark() -> None:
        marks.append(device.event(timing=True))
        cuda.cuEventRecordWithFlags(marks[-1], device.stream, external)

    def before(name: str) -> None:
        mark()
        names.append(name)

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
    totals: dict[str, tuple[int, float]] = {}
    for name, times in zip(names, zip(*runs[1:])):  # the first replay warms up
        launches, total = totals.get(name, (0, 0.0))
        totals[name] = launches + 1, total + sorted(times)[len(times) // 2]
    return sorted((KernelTime(name, *total) for name, total in totals.items()), key=lambda k: -k.milliseconds)


def bars(kernels: list[KernelTime]) -> str:
    """A picture of a profile, as SVG: one bar a kernel, as long as its time.

    >>> picture = bars([KernelTime("matmul_kernel", 112, 16.4), KernelTime("adamw_kernel", 1, 0.9)])
    >>> picture.count("<rect"), "adamw_kernel" in picture
    (3, True)
    """
    row, left, longest = 24, 250, max((k.milliseconds for k in kernels), default=1.0)
    total = sum(k.milliseconds for k in kernels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{row * len(kernels) + 40}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20">One training step: {total:.2f} ms of kernels</text>',
    ]
    for i, k in enumerate(kernels):
        y, width, share = 34 + row * i, 330 * k.milliseconds / longest, k.milliseconds / total
        lines += [
            f'<text x="{left - 10}" y="{y + 13}" text-anchor="end">{k.launches} x {k.name}</text>',
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{row - 6}" fill="#4477aa"/>',
            f'<text x="{left + width + 6:.1f}" y="{y + 13}">{k.milliseconds:.3f} ms, {share:.1%}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])
