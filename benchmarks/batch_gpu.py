"""Many texts at once on one GPU: a step by position, and whole runs in which the device chooses."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.ops.gpu.batch_decode import AT_ONCE
from nanoeuler.ops.gpu.decode import GpuDecoder

STARTS = (64, 128, 288, 512)
FROM, TO = 64, 512  # positions of the run whose time is taken by the clock on the wall
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 0.8": {"temperature": 0.8},
    "top-k 50": {"temperature": 0.8, "top_k": 50},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
}


def many(decoder: GpuDecoder, n: int) -> dict[str, Any]:
    """Microseconds a step of ``n`` texts: by position, on the GPU (temperature 0.8), and over a whole run."""
    rng, slots, V = np.random.default_rng(0), list(range(n)), decoder.config.vocab_size
    rows, results = decoder.rows(n), {"texts": n, "us_a_step_at": {}, "run": {}}
    rows.sampler.set([SamplingConfig(seed=i) for i in slots], slots, [0] * n)
    drawing = rows.drawing([SamplingConfig()], V)
    for start in STARTS:
        times = []
        for _ in range(20):
            rows.place(rng.integers(0, V, n).tolist(), [start] * n, slots)
            times.append(1e3 * decoder.ops.device.milliseconds(drawing.replay) / AT_ONCE)
        us = results["us_a_step_at"][str(start)] = median(times)
        print(f"{n} texts, position {start}: {us:.0f} us a step, {1e6 * n / us:,.0f} tokens/s")
    decoder.prefill(0, rng.integers(0, V, FROM).tolist())
    for slot in slots[1:]:
        decoder.copy(0, slot)
    for name, setting in SETTINGS.items():
        configs = [SamplingConfig(seed=i, **setting) for i in slots]
        seconds = []
        for _ in range(3):
            for slot in slots:
                decoder.truncate(slot, FROM)
            draws = decoder.draw(slots, [11] * n, configs, slots, [0] * n, V, TO - FROM)
            assert draws is not None
            begun = time.perf_counter()
            steps = sum(1 for _ in draws)
            seconds.append((time.perf_counter() - begun) / steps)
        us = results["run"][name] = 1e6 * min(seconds[1:])
        print(f"{n} texts, positions {FROM} to {TO}, {name}: {us:.0f} us a step, {1e6 * n / us:,.0f} tokens/s")
    return results
