"""How long operations take on the GPU, and the least that they could: its measured ceilings."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels.matmul import matmul
from nanoeuler.ops.gpu.runtime.graph import Graph

PEAK_TFLOPS = {
    **{"H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "GH200": 989.0, "H200 NVL": 835.0, "H200": 989.0},
    **{"GB200": 2500.0, "B200": 2250.0, "A100": 312.0, "A30": 165.0, "A40": 150.0, "L40S": 362.0, "L40": 181.0},
    **{"L4": 121.0, "RTX A6000": 155.0, "RTX 6000 Ada": 364.0, "RTX 3080": 59.5, "RTX 3090": 71.0},
    **{"RTX 4080": 97.5, "RTX 4090": 165.2, "RTX 5080": 112.6, "RTX 5090": 209.5},
}
"""Dense bfloat16 matrix rate with float32 accumulation, by the makers' data sheets: the first name found counts."""


def peak_flops(gpu: str) -> float | None:
    """Operations a second that the maker promises for the GPU called ``gpu``; None if it is not in the table.

    >>> peak_flops("NVIDIA A100-SXM4-80GB"), peak_flops("NVIDIA RTX A4000"), peak_flops("NVIDIA GeForce RTX 3080 Ti")
    (312000000000000.0, None, None)
    """
    other = r"(?! (Ti|SUPER|Laptop|D)\b)"  # another chip, or the same one slower
    return next((1e12 * rate for name, rate in PEAK_TFLOPS.items() if re.search(rf"\b{name}\b{other}", gpu)), None)


class Ceilings(NamedTuple):
    """The best a GPU does: bytes a second of a copy, operations a second of a large matrix product."""

    bandwidth: float
    flops: float

    def least_seconds(self, n_bytes: float, flops: float) -> float:
        """What moving so many bytes and doing so many operations takes at least, one behind the other."""
        return max(n_bytes / self.bandwidth, flops / self.flops)


class Stopwatch:
    """Times ``run`` on the GPU, back to back as in a training step: replays of a graph that holds it some times.

    ``run`` must not wait for the GPU. What it works on stays in the GPU's cache if it is small enough to.
    """

    def __init__(self, ops: GpuOps, run: Callable[[], Any]) -> None:
        self.device = ops.device
        with ops.planning():
            run()
        self.once = max(ops.device.milliseconds(Graph(ops.device, run).replay) / 1e3, 1e-6)
        self.copies = max(1, min(50, round(1e-3 / self.once)))  # a millisecond a graph: its start does not count
        self.graph = Graph(ops.device, lambda: [run() for _ in range(self.copies)])

    def seconds(self, lasting: float = 0.2) -> float:
        """The median of as many replays as fit into ``lasting`` seconds, at least three, for one ``run``."""
        return statistics.median(self.times(lasting))

    def times(self, lasting: float) -> list[float]:
        """Seconds of one ``run``, of each replay."""
        turns = max(3, min(200, round(lasting / (self.copies * self.once))))
        return [self.device.milliseconds(self.graph.replay) / 1e3 / self.copies for _ in range(turns)]


def median_seconds(ops: GpuOps, run: Callable[[], Any], lasting: float = 0.2) -> float:
    """Median GPU time of ``run``: see :class:`Stopwatch`."""
    return Stopwatch(ops, run).seconds(lasting)


def ceilings(ops: GpuOps) -> Ceilings:
    """Measured now, the product first: a GPU that has been idle takes a moment to raise its clocks."""
    flops = matrix_rate(ops)
    return Ceilings(copy_bandwidth(ops), flops)


def copy_bandwidth(ops: GpuOps, n_bytes: int = 1 << 31) -> float:
    """Bytes a second of a large copy within the GPU, those read and those written counted: the best of a few.

    Plain copies one after another, not in a graph, where an H200 made them at 2.7 TB/s instead of 4.2.
    """
    n_bytes = min(n_bytes, ops.device.memory_info()[0] // 8)
    source, target = (ops.zeros((n_bytes,), "u8") for _ in range(2))

    def copies() -> None:
        for _ in range(4):
            ops.memory.copy(target, source)

    return 4 * 2 * n_bytes / min(ops.device.milliseconds(copies) for _ in range(5)) * 1e3


def matrix_rate(ops: GpuOps, n: int = 8192) -> float:
    """Operations a second of our own product of two large square matrices (n, n) of random numbers, at its best."""
    import numpy as np

    while 3 * n * n * ops.storage.dtype_bytes > ops.device.memory_info()[0] // 4:
        n //= 2
    a, b, c = (ops.empty((n, n)) for _ in range(3))
    part = np.random.default_rng(0).standard_normal((1 << 20,), np.float32)
    for matrix in (a, b):  # zeros would be multiplied faster than real numbers
        flat = matrix.reshape(-1)
        for first in range(0, flat.size, part.size):
            ops.upload(flat[first : first + part.size], part[: flat.size - first])

    def product() -> None:
        for launch in matmul(c, a, b, target=ops.target):
            ops.runtime.launch(launch)

    return 2.0 * n**3 / min(Stopwatch(ops, product).times(0.2))
