"""Loss curves: the PNG decodes, and what is drawn lies where the numbers say."""

import struct
import zlib

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.training.plot import Curve, loss_curves, terminal_plot, write_png
from nanoeuler.training.plot.canvas import Canvas, encode_png
from nanoeuler.training.plot.chart import COLORS, Frame, draw
from nanoeuler.training.plot.curves import limits, tick_labels, ticks
from nanoeuler.training.plot.font import _GLYPHS, strokes


def decode_png(data):
    """The pixels of an 8-bit RGB PNG, every checksum checked; filters 0 and 2 only."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + content)
        chunks.append((kind, content))
        at += 12 + size
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, color, rest) == (8, 2, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + 3 * width)
    out = np.zeros((height, 3 * width), np.uint8)
    for y, row in enumerate(rows):
        assert row[0] in (0, 2)
        out[y] = row[1:] + (out[y - 1] if row[0] == 2 and y else 0)
    return out.reshape(height, width, 3)


def test_any_picture_survives():
    for shape in ((1, 1, 3), (7, 13, 3), (64, 3, 3)):
        pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        np.testing.assert_array_equal(decode_png(encode_png(pixels)), pixels)


def test_a_curve_is_where_its_numbers_are(tmp_path):
    x = np.linspace(0.0, 1000.0, 11)
    curve = Curve("validation", x, 5.0 - 0.003 * x)
    write_png(tmp_path / "loss.png", [curve], title="a run")
    pixels = decode_png((tmp_path / "loss.png").read_bytes())
    assert pixels.shape == (540, 900, 3)
    frame = Frame((900, 540), limits([curve]))
    blue = np.array(COLORS[0])
    for at in (150.0, 350.0, 650.0):  # between two marks
        column = pixels[:, int(frame.x(at))].astype(int)
        rows = np.flatnonzero(np.abs(column - blue).sum(axis=1) < 60)
        assert len(rows) and abs(rows.mean() + 0.5 - frame.y(5.0 - 0.003 * at)) < 1.5
        assert len(rows) <= 4, "a line is thin"
    for i in range(11):  # the marks themselves, filled
        np.testing.assert_allclose(pixels[int(frame.y(curve.y[i])), int(min(frame.x(x[i]), 899))], blue, atol=2)


def test_a_line_has_its_width_and_soft_edges():
    canvas = Canvas(40, 20)
    canvas.polyline(np.array([[5.0, 10.25], [35.0, 10.25]]), (0, 0, 0), width=3.0)
    darkness = (255 - canvas.pixels[:, 20, 0]) / 255
    assert darkness.sum() == pytest.approx(3.0, abs=0.01)
    np.testing.assert_allclose(darkness[8:13], [0.25, 1.0, 1.0, 0.75, 0.0], atol=1e-9)


def test_a_line_through_its_own_points_is_no_darker():
    one, two = Canvas(30, 30), Canvas(30, 30)
    one.polyline(np.array([[3.0, 3.0], [27.0, 20.0]]), (10, 20, 30), 2.0, opacity=0.5)
    two.polyline(np.array([[3.0, 3.0], [27.0, 20.0], [3.0, 3.0]]), (10, 20, 30), 2.0, opacity=0.5)
    np.testing.assert_allclose(one.pixels, two.pixels)


def test_what_lies_outside_is_cut_off():
    canvas = Canvas(10, 10)
    for points in ([[-50, -50]], [[-20, 5], [30, 5]], [[100, 0], [100, 90]], [[5, -9], [5, 40]]):
        canvas.polyline(np.array(points, float), (0, 0, 0), 2.0)
    canvas.text(-500, 3, "outside")
    canvas.text(500, 300, "outside")
    assert (canvas.pixels[5] == 0).all() and (canvas.pixels[0, 0] == 255).all()


def test_every_character_has_a_shape_of_its_own():
    seen = {}
    for character in map(chr, range(33, 127)):
        assert character in _GLYPHS, character
        canvas = Canvas(30, 30)
        canvas.text(5, 20, character, 12)
        shape = canvas.pixels.tobytes()
        assert canvas.pixels.min() < 128 and shape not in seen, (character, seen.get(shape))
        seen[shape] = character
    assert strokes("é")[1] > 0 and strokes("")[1] == 0


def test_text_can_be_centred():
    canvas = Canvas(100, 30)
    canvas.text(50, 20, "HHH", 10, align=0.5)
    columns = np.flatnonzero((canvas.pixels < 200).any(axis=(0, 2)))
    assert abs((columns[0] + columns[-1] + 1) / 2 - 50) < 1


def test_odd_curves_can_be_drawn(tmp_path):
    lonely = Curve.of("training", [(1, 4.0)], noisy=True)
    holes = Curve("x", np.arange(4.0), np.array([1.0, np.nan, np.inf, 2.0]))
    long = Curve("training", np.arange(30_000.0), np.random.default_rng(0).random(30_000), noisy=True)
    for curves in ([], [lonely], [holes], [long], [Curve.of("flat", [(1, 2.0), (2, 2.0)])]):
        assert np.isfinite(draw(curves).pixels).all()
        for ascii_only in (False, True):
            lines = terminal_plot(curves, 50, 10, ascii_only=ascii_only).splitlines()
            assert len(lines) == 10 and max(map(len, lines)) <= 50


def test_an_unwritable_picture_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        write_png(tmp_path / "no" / "such" / "folder.png", [])


@pytest.mark.parametrize("noisy", [False, True])
def test_terminal_plot_draws_a_falling_line(noisy):
    x = np.linspace(0, 100, 60)
    text = terminal_plot([Curve("loss", x, 6 - 0.05 * x, noisy)], width=60, height=16, title="a title")
    lines = text.splitlines()
    assert lines[0] == "a title" and len(lines) == 16 and "loss 1" in lines[-1] and lines[-1].strip().startswith("step")
    marks = [(r, c) for r, line in enumerate(lines[1:13]) for c, ch in enumerate(line) if ch == "●" or ch >= "\u2800"]
    rows, columns = np.array(marks).T
    assert np.corrcoef(rows, columns)[0, 1] > 0.99 and len(set(rows)) == 12
    assert [line.split()[0] for line in lines if "┤" in line] == ["6", "4", "2"]


def test_terminal_plot_in_ascii_is_ascii():
    curves = [Curve("a", np.arange(9.0), np.arange(9.0), True), Curve("b", np.arange(9.0), np.arange(9.0))]
    assert terminal_plot(curves, ascii_only=True).isascii()


def test_curves_come_from_metrics():
    records = [{"step": 0, "val_loss": 3.0}, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    train, val = loss_curves([*records, {"step": 2, "sample": "x"}])
    assert (train.label, train.x.tolist(), train.y.tolist()) == ("training", [1.0, 2.0], [2.0, 1.0])
    assert (val.x.tolist(), val.y.tolist()) == ([0.0], [3.0])
    assert loss_curves([]) == []


def test_smoothing_is_a_mean_without_lag():
    rng = np.random.default_rng(0)
    x = np.arange(3000.0)
    smooth = Curve("", x, 3 - x / 1000 + rng.normal(0, 0.1, 3000)).smoothed()
    assert np.abs(smooth - (3 - x / 1000))[100:-100].max() < 0.05
    assert Curve("", x, np.full(3000, 7.0)).smoothed() == pytest.approx(7.0)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1.37, 1.42), (-3, 12), (0, 600_000), (1e-7, 3e-7), (10.9, 11.1)])
def test_ticks_are_round_and_inside(low, high):
    values = ticks(low, high, 6)
    assert 2 <= len(values) <= 9
    assert all(low - 1e-9 <= v <= high + 1e-9 for v in values)
    gaps = np.diff(values)
    assert gaps == pytest.approx(gaps[0], rel=1e-6)
    assert [float(label.replace("k", "e3")) for label in tick_labels(values)] == pytest.approx(values)
