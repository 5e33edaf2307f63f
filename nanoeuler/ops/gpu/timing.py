"""How long operations take on the GPU, and the least that they could: its measured ceilings."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels.matmul import matmul
from nanoeuler.ops.gpu.runtime.graph import Graph

PEAK_TFLOPS = {
    **{"H100 PCIe": 756.0, "H100": 989.0, "H200": 989.0, "B200": 2250.0, "A100": 312.0, "A30": 165.0, "A40": 150.0},
    **{"L40S": 362.0, "L40": 181.0, "L4": 121.0, "RTX A6000": 155.0, "RTX 6000 Ada": 364.0},
    **{"RTX 3080": 59.5, "RTX 3090": 71.0, "RTX 4080": 97.5, "RTX 4090": 165.2, "RTX 5080": 112.6, "RTX 5090": 209.5},
}
"""Dense bfloat16 matrix rate with float32 accumulation, by the makers' data sheets: the first name found counts."""


def peak_flops(gpu: str) -> float | None:
    """Operations a second that the maker promises for the GPU called ``gpu``; None if it is not in the table.

    >>> peak_flops("NVIDIA H200"), peak_flops("NVIDIA Titan")
    (989000000000000.0, None)
    """
    return next((1e12 * tflops for name, tflops in PEAK_TFLOPS.items() if name in gpu), None)


def median_seconds(ops: GpuOps, run: Callable[[], Any], seconds: float = 0.2) -> float:
    """Median GPU time of ``run``, back to back as in a training step: replays of a graph that holds it some times.

    ``run`` must not wait for the GPU. What it works on stays in the GPU's cache if it is small enough to.
    """
    with ops.planning():
        run()
    once = ops.device.milliseconds(Graph(ops.device, run).replay) / 1e3
    copies = max(1, min(50, round(1e-3 / max(once, 1e-6))))  # a millisecond a graph: its start does not count
    graph = Graph(ops.device, lambda: [run() for _ in range(copies)])
    turns = max(3, min(200, round(seconds / (copies * max(once, 1e-6)))))
    return statistics.median(ops.device.milliseconds(graph.replay) for _ in range(turns)) / 1e3 / copies


def copy_bandwidth(ops: GpuOps, n_bytes: int = 1 << 30) -> float:
    """Bytes a second of a large copy within the GPU, those read and those written counted."""
    source, target = (ops.zeros((n_bytes,), "u8") for _ in range(2))
    return 2 * n_bytes / median_seconds(ops, lambda: ops.memory.copy(target, source))


def matrix_rate(ops: GpuOps, n: int = 8192) -> float:
    """Operations a second of our own product of two large square matrices (n, n) of random numbers."""
    import numpy as np

    a, b, c = (ops.empty((n, n)) for _ in range(3))
    part = np.random.default_rng(0).standard_normal((1 << 20,), np.float32)
    for matrix in (a, b):  # zeros would be multiplied faster than real numbers
        flat = matrix.reshape(-1)
        for first in range(0, flat.size, part.size):
            ops.upload(flat[first : first + part.size], part[: flat.size - first])

    def product() -> None:
        for launch in matmul(c, a, b, target=ops.target):
            ops.runtime.launch(launch)

    return 2.0 * n**3 / median_seconds(ops, product)
