"""A picture to draw on: anti-aliased lines, dots, boxes and text in a NumPy array, and the PNG file it becomes."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from nanoeuler.training.plot.font import CAP_HEIGHT, strokes

Color = tuple[int, int, int]


class Canvas:
    """``pixels`` (height, width, 3) float64, 0 to 255; x runs to the right, y down, pixel centres at ``.5``.

    >>> canvas = Canvas(20, 10)
    >>> canvas.polyline(np.array([[0.0, 5.0], [20.0, 5.0]]), (0, 0, 0), width=2.0)
    >>> canvas.pixels[4, 10].tolist(), canvas.pixels[8, 10].tolist()
    ([0.0, 0.0, 0.0], [255.0, 255.0, 255.0])
    """

    def __init__(self, width: int, height: int, background: Color = (255, 255, 255)) -> None:
        self.width, self.height = width, height
        self.pixels = np.empty((height, width, 3))
        self.pixels[...] = background

    def polyline(self, points: np.ndarray, color: Color, width: float = 1.0, opacity: float = 1.0) -> None:
        """A line through ``points`` (n, 2) with round joints; one point is a dot. Parts outside are cut off."""
        self._blend(self._coverage(points, width), color, opacity)

    def box(self, x: float, y: float, width: float, height: float, color: Color, opacity: float = 1.0) -> None:
        """A filled rectangle with its upper left corner at (x, y)."""
        across = np.clip(np.minimum(np.arange(self.width) + 1 - x, x + width - np.arange(self.width)), 0, 1)
        down = np.clip(np.minimum(np.arange(self.height) + 1 - y, y + height - np.arange(self.height)), 0, 1)
        self._blend(down[:, None] * across, color, opacity)

    def text(
        self, x: float, y: float, text: str, size: float = 10.0, color: Color = (0, 0, 0), align: float = 0.0
    ) -> float:
        """Write ``text`` with capitals ``size`` pixels high, its baseline at ``y``; returns its width in pixels.

        ``align``: 0 starts at ``x``, 0.5 is centred there, 1 ends there.
        """
        lines, units = strokes(text)
        scale = size / CAP_HEIGHT
        width = units * scale
        pen = max(1.0, 0.135 * size)
        cover = np.zeros((self.height, self.width))
        for line in lines:
            at = np.column_stack((x - align * width + line[:, 0] * scale, y - line[:, 1] * scale))
            np.maximum(cover, self._coverage(at, pen * 1.25 if len(line) == 1 else pen), out=cover)
        self._blend(cover, color, 1.0)
        return width

    def to_png(self) -> bytes:
        """The picture as a PNG file (8-bit RGB)."""
        return encode_png(np.clip(np.rint(self.pixels), 0, 255).astype(np.uint8))

    def _coverage(self, points: np.ndarray, width: float) -> np.ndarray:
        """How much of each pixel a line covers, 0 to 1: its distance to the nearest segment, against half the width.

        The maximum over segments, not the sum, so that joints are no darker than the rest.
        """
        cover = np.zeros((self.height, self.width))
        reach = width / 2 + 1
        starts, ends = (points, points) if len(points) == 1 else (points[:-1], points[1:])
        for (x0, y0), (x1, y1) in zip(starts, ends):
            left, right = max(0, int(min(x0, x1) - reach)), min(self.width, int(max(x0, x1) + reach) + 1)
            top, bottom = max(0, int(min(y0, y1) - reach)), min(self.height, int(max(y0, y1) + reach) + 1)
            if left >= right or top >= bottom:
                continue
            px, py = np.arange(left, right) + 0.5 - x0, np.arange(top, bottom)[:, None] + 0.5 - y0
            dx, dy = x1 - x0, y1 - y0
            along = np.clip((px * dx + py * dy) / ((dx * dx + dy * dy) or 1.0), 0, 1)
            distance = np.hypot(px - along * dx, py - along * dy)
            part = cover[top:bottom, left:right]
            np.maximum(part, np.clip(width / 2 + 0.5 - distance, 0, 1), out=part)
        return cover

    def _blend(self, cover: np.ndarray, color: Color, opacity: float) -> None:
        rows, columns = np.flatnonzero(cover.any(axis=1)), np.flatnonzero(cover.any(axis=0))
        if len(rows):
            where = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            self.pixels[where] += (opacity * cover[where])[..., None] * (np.array(color) - self.pixels[where])


def encode_png(pixels: np.ndarray) -> bytes:
    """A PNG file of ``pixels``, uint8 (height, width, 3). Source: PNG specification, W3C 2003.

    >>> encode_png(np.zeros((2, 2, 3), np.uint8))[:4]
    b'\\x89PNG'
    """
    height, width, _ = pixels.shape
    # Each row starts with its filter: 2 stores the difference to the row above, and a plot's rows are much alike.
    rows = np.diff(pixels.reshape(height, -1), axis=0, prepend=np.zeros((1, width * 3), np.uint8))
    data = np.column_stack((np.full(height, 2, np.uint8), rows)).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
