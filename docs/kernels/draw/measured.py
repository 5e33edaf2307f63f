"""What was measured, from the newest result file."""

from __future__ import annotations

import json
import math
from pathlib import Path

from draw.picture import Picture

MEASURED = max((Path(__file__).parents[3] / "benchmarks" / "results").glob("kernel_ladder-*.json"))


def bars(ladder: str) -> Picture:
    """The rungs of a ladder, each as long as its time."""
    rungs = json.loads(MEASURED.read_text(encoding="utf-8"))["ladders"][ladder]
    low, high = min(r["us"] for r in rungs), max(r["us"] for r in rungs)
    logarithmic = high / low > 30
    p = Picture(760, 62 + 26 * len(rungs), f"Measured: {ladder}")
    p.text(20, 28, f"{ladder}: microseconds on an H200", 15)
    if logarithmic:
        p.text(740, 28, "logarithmic", 12, "end", "dim")
    for i, r in enumerate(rungs):
        y = 46 + i * 26
        share = math.log(r["us"] / low * 3) / math.log(high / low * 3) if logarithmic else r["us"] / high
        p.text(426, y + 14, r["title"], 12, "end")
        p.rect(434, y, 240 * share, 18, "c" if r["us"] == low else "a", radius=2)
        p.text(440 + 240 * share, y + 14, number(r["us"]), 12)
    return p


def number(us: float) -> str:
    """Microseconds with as many digits as mean something."""
    return f"{us:,.0f}".replace(",", " ") if us >= 1000 else f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def roofline() -> Picture:
    """Rate against operations a byte: the fastest rung of each ladder under the machine's two ceilings."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    copy, cores = 4.27e12, 8.0e14  # the most that was measured: see measurements.md
    p = Picture(760, 420, "Roofline of an H200 with the engine's kernels")
    p.text(20, 28, "What bounds a kernel: operations a byte, and the rate reached", 15)
    x = lambda intensity: 90 + 130 * math.log10(intensity / 0.1)  # noqa: E731
    y = lambda rate: 370 - 75 * math.log10(rate / 1e11)  # noqa: E731
    for power in range(-1, 5):
        p.line(x(10.0**power), 70, x(10.0**power), 370, dash="2 4")
        p.text(x(10.0**power), 388, f"{10.0**power:g}", 11, "middle", "dim")
    for power in range(11, 16):
        p.line(90, y(10.0**power), 740, y(10.0**power), dash="2 4")
        p.text(82, y(10.0**power) + 4, f"{10.0 ** (power - 12):g}", 11, "end", "dim")
    p.text(90, 58, "TFLOP/s", 11, "middle", "dim")
    p.text(740, 408, "operations a byte of device memory", 11, "end", "dim")
    ridge = cores / copy
    p.line(x(0.1), y(copy * 0.1), x(ridge), y(cores))
    p.line(x(ridge), y(cores), x(10**4), y(cores))
    p.text(x(9), y(copy * 10) - 4, f"memory: {copy / 1e12:.2f} TB/s", 12, "end")
    p.text(x(10**4), y(cores) - 14, f"tensor cores: {cores / 1e12:.0f} TFLOP/s", 12, "end")
    small = {"AdamW": 15 / 30, "layer norm": 10 / 8, "column sums": 0.5, "cross-entropy": 10 / 6}  # operations a byte
    places = {  # colour, and where the name stands
        **{"AdamW": ("d", -8, "end", -4), "column sums": ("d", 10, "start", 12), "layer norm": ("d", -8, "end", 2)},
        **{"cross-entropy": ("d", 10, "start", 8), "attention": ("b", -10, "end", 4)},
        **{"attention backward": ("b", 8, "start", 16), "matmul": ("c", 10, "start", 2)},
        **{"classifier": ("c", -10, "end", 0), "weight gradient": ("c", 10, "start", 18)},
    }
    for name, (style, dx, anchor, dy) in places.items():
        r = min(measured["ladders"][name], key=lambda rung: rung["us"])
        operations = r["operations"] or small[name] * r["bytes"]
        at, rate = x(operations / r["bytes"]), y(operations / r["us"] * 1e6)
        p.parts.append(f'<circle cx="{at:.1f}" cy="{rate:.1f}" r="5" class="{style}"/>')
        p.text(at + dx, rate + dy, name, 11, anchor)
    return p
