"""A picture to draw on: anti-aliased lines, dots, boxes and text in a NumPy array, and the PNG file it becomes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

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
        self._stroke([points], color, width, opacity)

    def box(self, x: float, y: float, width: float, height: float, color: Color, opacity: float = 1.0) -> None:
        """A filled rectangle with its upper left corner at (x, y)."""
        across = np.clip(np.minimum(np.arange(self.width) + 1 - x, x + width - np.arange(self.width)), 0, 1)
        down = np.clip(np.minimum(np.arange(self.height) + 1 - y, y + height - np.arange(self.height)), 0, 1)
        self._blend(0, 0, down[:, None] * across, color, opacity)

    def text(
        self, x: float, y: float, text: str, size: float = 10.0, color: Color = (0, 0, 0), align: float = 0.0
    ) -> float:
        """Write ``text`` with capitals ``size`` pixels high, its baseline at ``y``; returns its width in pixels.

        ``align``: 0 starts at ``x``, 0.5 is centred there, 1 ends there.
        """
        lines, units = strokes(text)
        scale = size / CAP_HEIGHT
        start = x - align * units * scale
        places = [np.column_stack((start + line[:, 0] * scale, y - line[:, 1] * scale)) for line in lines]
        self._stroke(places, color, max(1.0, 0.135 * size))
        return units * scale

    def to_png(self) -> bytes:
        """The picture as a PNG file (8-bit RGB)."""
        return encode_png(np.clip(np.rint(self.pixels), 0, 255).astype(np.uint8))

    def _stroke(self, lines: Sequence[np.ndarray], color: Color, width: float, opacity: float = 1.0) -> None:
        """Draw lines with one pen. A pixel is covered by how near the nearest segment is, against half the width.

        The maximum over segments, not the sum: so joints and crossings are no darker than the rest.
        """
        points = np.concatenate([*lines, np.empty((0, 2))])
        if not len(points):
            return
        reach = width / 2 + 1
        (left, top), (right, bottom) = np.floor(points.min(0) - reach), np.ceil(points.max(0) + reach)
        left, top = max(0, int(left)), max(0, int(top))
        cover = np.zeros((max(0, min(self.height, int(bottom)) - top), max(0, min(self.width, int(right)) - left)))
        for line in lines:
            starts, ends = (line, line) if len(line) == 1 else (line[:-1], line[1:])
            for a, b in zip(starts - (left, top), ends - (left, top)):
                _cover_segment(cover, a[0], a[1], b[0], b[1], width)
        self._blend(left, top, cover, color, opacity)

    def _blend(self, left: int, top: int, cover: np.ndarray, color: Color, opacity: float) -> None:
        under = self.pixels[top : top + cover.shape[0], left : left + cover.shape[1]]
        under += (opacity * cover)[..., None] * (np.array(color) - under)


def _cover_segment(cover: np.ndarray, x0: float, y0: float, x1: float, y1: float, width: float) -> None:
    """Raise ``cover`` (rows, columns) to what a segment covers of each pixel, 0 to 1."""
    reach = width / 2 + 1
    left, right = max(0, int(min(x0, x1) - reach)), int(max(x0, x1) + reach) + 1
    top, bottom = max(0, int(min(y0, y1) - reach)), int(max(y0, y1) + reach) + 1
    part = cover[top : max(top, bottom), left : max(left, right)]
    px = np.arange(left, left + part.shape[1]) + 0.5 - x0
    py = np.arange(top, top + part.shape[0])[:, None] + 0.5 - y0
    dx, dy = x1 - x0, y1 - y0
    along = np.clip((px * dx + py * dy) / ((dx * dx + dy * dy) or 1.0), 0, 1)
    distance = np.hypot(px - along * dx, py - along * dy)
    np.maximum(part, np.clip(width / 2 + 0.5 - distance, 0, 1), out=part)


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
