"""What is drawn: curves, their smoothing, and round numbers for the axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Points (x, y), each (n,) float64. ``noisy`` curves are drawn faintly, with their running mean on top."""

    label: str
    x: np.ndarray
    y: np.ndarray
    noisy: bool = False

    @classmethod
    def of(cls, label: str, points: Iterable[tuple[float, float]], noisy: bool = False) -> Curve:
        xy = np.array(list(points), np.float64).reshape(-1, 2)
        return cls(label, xy[:, 0], xy[:, 1], noisy)

    def smoothed(self) -> np.ndarray:
        """The mean of ``y`` around each point: over a thirtieth of the curve, less at its steep start.

        >>> Curve("", np.arange(90.0), np.arange(90.0)).smoothed()[:4].tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        n = len(self.y)
        at = np.arange(n)
        first = np.maximum(0, at - n // 60)
        last = np.minimum(n - 1, at + np.minimum(at, n // 60))
        sums = np.concatenate(([0.0], np.cumsum(self.y)))
        return (sums[last + 1] - sums[first]) / (last + 1 - first)


def loss_curves(records: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Training and validation loss out of the lines of ``metrics.jsonl``; only curves that have points."""
    records = [r for r in records if _is_number(r.get("step"))]
    train = Curve.of("training", ((r["step"], r["loss"]) for r in records if _is_number(r.get("loss"))), noisy=True)
    val = Curve.of("validation", ((r["step"], r["val_loss"]) for r in records if _is_number(r.get("val_loss"))))
    return [curve for curve in (train, val) if len(curve.x)]


def _is_number(value: Any) -> bool:
    """A damaged line of metrics may hold anything."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def limits(curves: Sequence[Curve]) -> tuple[float, float, float, float]:
    """(left, right, bottom, top) of a frame around all finite points, with a little room above and below."""
    x = np.concatenate([c.x for c in curves] or [np.zeros(1)])
    y = np.concatenate([c.y for c in curves] or [np.zeros(1)])
    y = y[np.isfinite(y)] if np.isfinite(y).any() else np.zeros(1)
    left, right, low, high = float(x.min()), float(x.max()), float(y.min()), float(y.max())
    room = 0.04 * (high - low) or 0.5
    return min(0.0, left), right if right > min(0.0, left) else left + 1.0, low - room, high + room


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """At most about ``most`` round numbers, 1, 2 or 5 times a power of ten apart, from ``low`` to ``high``.

    ``whole``: whole numbers only, for what is counted.

    >>> ticks(0, 2000, 6), ticks(1.4, 4.2, 4)
    ([0.0, 500.0, 1000.0, 1500.0, 2000.0], [2.0, 3.0, 4.0])
    """
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= 0.8 * raw)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """The numbers as short text, all with the same number of decimals; from ten thousand on in thousands.

    >>> tick_labels([1.0, 1.5]), tick_labels([0.0, 20000.0])
    (['1.0', '1.5'], ['0', '20k'])
    """
    if not values:
        return []
    if max(map(abs, values)) >= 10_000 and all(v % 100 == 0 for v in values):
        return ["0" if v == 0 else f"{v / 1000:g}k" for v in values]
    gap = min((b - a for a, b in pairwise(values)), default=abs(values[0]) or 1.0)
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9))
    return [f"{v:.{decimals}f}" for v in values]
