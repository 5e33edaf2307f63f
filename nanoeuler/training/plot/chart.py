"""The loss curve as a picture, without a plotting library (the usual one is larger than all we install)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nanoeuler.durable import write_bytes
from nanoeuler.training.plot.canvas import Canvas, Color
from nanoeuler.training.plot.curves import Curve, limits, tick_labels, ticks

INK: Color = (38, 42, 51)
GREY: Color = (110, 116, 128)
GRID: Color = (228, 231, 236)
COLORS: tuple[Color, ...] = ((31, 106, 190), (232, 108, 20), (34, 139, 84), (150, 80, 170))
LEFT, RIGHT, TOP, BOTTOM = 68, 28, 72, 58  # margins, pixels


def write_png(
    path: str | Path,
    curves: Sequence[Curve],
    title: str = "",
    x_label: str = "step",
    y_label: str = "loss",
    size: tuple[int, int] = (900, 540),
) -> None:
    """Draw ``curves`` into a PNG file of ``size`` (width, height). UserError if it cannot be written."""
    write_bytes(Path(path), draw(curves, title, x_label, y_label, size).to_png())


def draw(
    curves: Sequence[Curve],
    title: str = "",
    x_label: str = "step",
    y_label: str = "loss",
    size: tuple[int, int] = (900, 540),
) -> Canvas:
    """As :func:`write_png`, but return the canvas."""
    canvas = Canvas(*size)
    frame = Frame(size, limits(curves))
    _axes(canvas, frame, x_label, y_label)
    for curve, color in zip(curves, COLORS * len(curves)):
        _curve(canvas, frame, curve, color)
    _legend(canvas, frame, curves)
    canvas.text(LEFT, 34, title, 12, INK)
    return canvas


class Frame:
    """From data to pixels. ``size`` of the picture, ``limits`` (left, right, bottom, top) of the data."""

    def __init__(self, size: tuple[int, int], limits: tuple[float, float, float, float]) -> None:
        self.width, self.height = size
        self.left, self.right, self.bottom, self.top = limits

    def x(self, value: float | np.ndarray) -> float | np.ndarray:
        return LEFT + (value - self.left) / (self.right - self.left) * (self.width - LEFT - RIGHT)

    def y(self, value: float | np.ndarray) -> float | np.ndarray:
        return TOP + (self.top - value) / (self.top - self.bottom) * (self.height - TOP - BOTTOM)

    def points(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Pixels (n, 2) of the finite points."""
        good = np.isfinite(y)
        return np.column_stack((self.x(x[good]), self.y(y[good])))


def _axes(canvas: Canvas, frame: Frame, x_label: str, y_label: str) -> None:
    floor, end = frame.height - BOTTOM, frame.width - RIGHT
    values = ticks(frame.bottom, frame.top, 7)
    for value, label in zip(values, tick_labels(values)):
        y = float(frame.y(value))
        canvas.box(LEFT, round(y), end - LEFT, 1, GRID)
        canvas.text(LEFT - 12, y + 4.5, label, 9, GREY, align=1)
    values = ticks(frame.left, frame.right, 8, whole=True)
    for value, label in zip(values, tick_labels(values)):
        x = float(frame.x(value))
        canvas.box(round(x), floor, 1, 6, GREY)
        canvas.text(x, floor + 22, label, 9, GREY, align=0.5)
    canvas.box(LEFT, floor, end - LEFT + 1, 1, GREY)
    canvas.text((LEFT + end) / 2, frame.height - 14, x_label, 10, INK, align=0.5)
    canvas.text(LEFT - 12, TOP - 13, y_label, 10, INK, align=1)


def _curve(canvas: Canvas, frame: Frame, curve: Curve, color: Color) -> None:
    points = frame.points(curve.x, curve.y)
    if curve.noisy:
        canvas.polyline(_thinned(points), color, 1.0, opacity=0.3)
        points = _thinned(frame.points(curve.x, curve.smoothed()))
        canvas.polyline(points, color, 2.2)
        return
    canvas.polyline(points, color, 2.2)
    if len(points) <= 60:
        for point in points:
            canvas.polyline(point[None], (255, 255, 255), 9.0)
            canvas.polyline(point[None], color, 6.4)


def _thinned(points: np.ndarray, most: int = 4000) -> np.ndarray:
    """Not more points than one sees: of each run, the lowest and the highest."""
    if len(points) <= most:
        return points
    runs = np.array_split(np.arange(len(points)), most // 2)
    kept = [i for run in runs for i in sorted({run[points[run, 1].argmin()], run[points[run, 1].argmax()]})]
    return points[kept]


def _legend(canvas: Canvas, frame: Frame, curves: Sequence[Curve]) -> None:
    """Upper right, where a falling curve leaves room: each curve's name and last value."""
    names = [f"{c.label}  {(c.smoothed() if c.noisy else c.y)[-1]:.4g}" for c in curves]
    if not names:
        return
    width = 58 + max(Canvas(1, 1).text(0, 0, name, 10) for name in names)
    x, y = frame.width - RIGHT - width - 8, TOP + 8
    canvas.box(x, y, width, 14 + 24 * len(names), (255, 255, 255), opacity=0.85)
    for i, (name, color) in enumerate(zip(names, COLORS * len(names))):
        line = y + 20 + 24 * i
        canvas.polyline(np.array([[x + 12, line], [x + 36, line]]), color, 2.4)
        canvas.text(x + 46, line + 5, name, 10, INK)
