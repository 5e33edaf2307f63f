"""A stroke font: each character is a few lines, drawn with the same pen as the curves, so it scales to any size.

A glyph is written as strokes of points, each point two digits ``xy``: y = 2 is the baseline, 6 the height of small
letters, 8 that of capitals; x starts at 0. A stroke of one point is a dot. Designed for this project.
"""

from __future__ import annotations

import numpy as np

_GLYPHS = {
    "0": "180703122233372818",
    "1": "071812 0222",
    "2": "07182837360232",
    "3": "0718283736251525 2534332212 1203",
    "4": "22280434",
    "5": "38080525343322 2202",
    "6": "3728180703122233342515 1504",
    "7": "083812",
    "8": "180706152536372818 15040312223334 3425",
    "9": "0312223337281807061525 2536",
    "a": "3632 3526160503122233",
    "b": "0802 0516263533221203",
    "c": "3526160503122233",
    "d": "3832 3526160503122233",
    "e": "0434352616050312 122233",
    "f": "28 382817121217 0626",
    "g": "3631201001 3526160503122233",
    "h": "0802 0516263532",
    "i": "0602 08",
    "j": "161100 18",
    "k": "0802 360432",
    "l": "080312",
    "m": "0602 05162522 25364542",
    "n": "0602 0516263532",
    "o": "160503122233352616",
    "p": "0600 0516263533221203",
    "q": "3630 3526160503122233",
    "r": "0602 051626",
    "s": "35261605142433 33221203",
    "t": "181322 0626",
    "u": "060312223336 3632",
    "v": "062246",
    "w": "0612253246",
    "x": "0632 0236",
    "y": "0622 461000",
    "z": "06360232",
    "A": "022842 1434",
    "B": "02082837362505 2534332202",
    "C": "4738180703123243",
    "D": "02082846442202",
    "E": "38080232 0525",
    "F": "380802 0525",
    "G": "47381807031232434525",
    "H": "0802 4842 0545",
    "I": "0802",
    "J": "3833221203",
    "K": "0802 380532",
    "L": "080232",
    "M": "0208254842",
    "N": "02084248",
    "O": "180703123243473818",
    "P": "02082837362505",
    "Q": "180703123243473818 2442",
    "R": "02082837362505 1532",
    "S": "3728180706152534332212 1203",
    "T": "0848 2822",
    "U": "080312324348",
    "V": "082248",
    "W": "0812263248",
    "X": "0842 0248",
    "Y": "082548 2522",
    "Z": "08480242",
    ".": "02",
    ",": "0201",
    ":": "03 05",
    ";": "0201 05",
    "-": "0424",
    "+": "0444 2226",
    "(": "18070312",
    ")": "08171302",
    "[": "18080212",
    "]": "08181202",
    "{": "28171605141322",
    "}": "08171625141302",
    "/": "0238",
    "\\": "0832",
    "|": "0800",
    "%": "0248 07 43",
    "_": "0131",
    "=": "0333 0535",
    "'": "0807",
    '"': "0807 1817",
    "`": "0817",
    "!": "0804 02",
    "?": "07182837362524 22",
    "<": "360432",
    ">": "063402",
    "#": "1218 3238 0444 0646",
    "&": "42172837 37030312 122244",
    "*": "2428 0547 0745",
    "@": "362615142333 363443 434738180703 031242",
    "^": "062846",
    "~": "04153445",
    "$": "3728180706152534332212 1203 1901",
    " ": "",
}
_UNKNOWN = "0208383202"

CAP_HEIGHT = 6.0  # units from baseline to the top of capitals
GAP = 1.9  # units between characters
DIGIT_WIDTH = 3.0  # all digits take the same room, so that numbers line up

Strokes = list[np.ndarray]


def strokes(text: str) -> tuple[Strokes, float]:
    """The strokes of ``text``, each (points, 2) in units with the baseline at y = 0, and its width in units.

    >>> lines, width = strokes("1.5")
    >>> len(lines), width
    (5, 9.8)
    """
    lines: Strokes = []
    x = 0.0
    for character in text:
        parts = [_points(stroke) for stroke in _GLYPHS.get(character, _UNKNOWN).split()]
        lines += [part + np.array([x, -2.0]) for part in parts]
        width = max((float(part[:, 0].max()) for part in parts), default=2.0)
        x += (DIGIT_WIDTH if character.isdigit() else width) + GAP
    return lines, round(max(0.0, x - GAP), 6)


def _points(stroke: str) -> np.ndarray:
    return np.array([[int(x), int(y)] for x, y in zip(stroke[::2], stroke[1::2])], np.float64)
