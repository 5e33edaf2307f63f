"""The loss curve as text: each character cell of the terminal holds 2 x 4 dots (Unicode's braille patterns)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanoeuler.training.plot.curves import Curve, limits, tick_labels, ticks

_DOT = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # the bit of each dot, (4, 2)
_BRAILLE = 0x2800
_MARKS = "●◆▲■"
_ASCII_MARKS = "o+x#"


def terminal_plot(
    curves: Sequence[Curve],
    width: int = 72,
    height: int = 16,
    title: str = "",
    x_label: str = "step",
    ascii_only: bool = False,
) -> str:
    """``curves`` as ``height`` lines of at most ``width`` characters, axes included; no colour, no trailing spaces.

    Noisy curves become lines of dots (smoothed), others marks (● and so on). ``ascii_only`` for terminals that know
    no more than ASCII.

    >>> x = np.linspace(0.0, 100.0, 50)
    >>> text = terminal_plot([Curve("loss", x, 1 / (1 + x), noisy=True)], width=40, height=8)
    >>> len(text.splitlines()), "loss" in text
    (8, True)
    """
    frame = limits(curves)
    y_values = ticks(frame[2], frame[3], max(2, height // 4))
    y_labels = tick_labels(y_values)
    margin = max(map(len, y_labels), default=1) + 2
    columns, rows = max(8, width - margin), max(3, height - 3 - bool(title))
    cells = _draw(curves, frame, columns, rows, ascii_only)
    bar, tee, corner, line, tick = "|+++-" if ascii_only else "│┤└─┬"
    if ascii_only:
        line, tick = "-", "+"
    by_row = {_row(v, frame, rows): label for v, label in zip(y_values, y_labels)}
    lines = [title] if title else []
    for r in range(rows):
        label = by_row.get(r)
        edge = f"{label:>{margin - 2}} {tee}" if label is not None else " " * (margin - 1) + bar
        lines.append(edge + "".join(cells[r]))
    axis, below = _x_axis(frame, columns, corner, line, tick)
    lines.append(" " * (margin - 1) + axis)
    lines.append(" " * (margin - 1) + below)
    lines.append(" " * margin + _legend(curves, x_label, ascii_only))
    return "\n".join(text.rstrip()[:width] for text in lines)


def _row(value: float, frame: tuple[float, float, float, float], rows: int) -> int:
    return min(rows - 1, max(0, int((frame[3] - value) / (frame[3] - frame[2]) * rows)))


def _draw(
    curves: Sequence[Curve], frame: tuple[float, float, float, float], columns: int, rows: int, ascii_only: bool
) -> list[list[str]]:
    """The inside of the plot, one list of characters a row."""
    cells = [[" "] * columns for _ in range(rows)]
    marks = _ASCII_MARKS if ascii_only else _MARKS
    for number, curve in enumerate(curves):
        y = curve.smoothed() if curve.noisy else curve.y
        if curve.noisy and not ascii_only:
            for r, c, character in _braille(curve.x, y, frame, columns, rows):
                cells[r][c] = character
            continue
        # Points are marked where they are; a noisy curve in ASCII becomes a row of full stops.
        for x, value in zip(curve.x, y):
            if np.isfinite(value):
                c = min(columns - 1, int((x - frame[0]) / (frame[1] - frame[0]) * columns))
                cells[_row(value, frame, rows)][c] = "." if curve.noisy else marks[number % len(marks)]
    return cells


def _braille(
    x: np.ndarray, y: np.ndarray, frame: tuple[float, float, float, float], columns: int, rows: int
) -> list[tuple[int, int, str]]:
    """The cells (row, column, character) that a line through the points touches."""
    left, right, bottom, top = frame
    dots = np.zeros((rows * 4, columns * 2), bool)
    good = np.isfinite(y)
    px = (x[good] - left) / (right - left) * (columns * 2 - 1)
    py = (top - y[good]) / (top - bottom) * (rows * 4 - 1)
    for x0, y0, x1, y1 in zip(px, py, px[1:], py[1:]):
        n = int(max(abs(x1 - x0), abs(y1 - y0))) + 2
        dots[np.rint(np.linspace(y0, y1, n)).astype(int), np.rint(np.linspace(x0, x1, n)).astype(int)] = True
    if len(px) == 1:
        dots[round(py[0]), round(px[0])] = True
    codes = (dots.reshape(rows, 4, columns, 2) * _DOT[:, None, :]).sum(axis=(1, 3))  # (rows, columns)
    return [(int(r), int(c), chr(_BRAILLE + int(codes[r, c]))) for r, c in np.argwhere(codes)]


def _x_axis(
    frame: tuple[float, float, float, float], columns: int, corner: str, line: str, tick: str
) -> tuple[str, str]:
    """The line below the plot with its ticks, and the numbers below that."""
    values = ticks(frame[0], frame[1], max(2, columns // 12), whole=True)
    axis, below = [line] * columns, [" "] * (columns + 1)
    taken = -1  # columns of numbers written so far
    for value, label in zip(values, tick_labels(values)):
        c = min(columns - 1, int((value - frame[0]) / (frame[1] - frame[0]) * (columns - 1) + 0.5))
        axis[c] = tick
        start = min(max(0, c + 1 - len(label) // 2), columns + 1 - len(label))
        if start > taken:
            below[start : start + len(label)] = label
            taken = start + len(label)
    return corner + "".join(axis), "".join(below)


def _legend(curves: Sequence[Curve], x_label: str, ascii_only: bool) -> str:
    marks = _ASCII_MARKS if ascii_only else _MARKS
    names = []
    for number, curve in enumerate(curves):
        mark = ("..." if ascii_only else "⠤⠤") if curve.noisy else marks[number % len(marks)]
        last = (curve.smoothed() if curve.noisy else curve.y)[-1]
        names.append(f"{mark} {curve.label} {last:.4g}")
    return "   ".join([x_label, *names])
