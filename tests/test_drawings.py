"""The pictures and tables of docs/kernels are what the scripts make of the measured numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "kernels"))
from draw.write import FOLDER, PICTURES
from ladder.tables import MEASURED, chapters, filled


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_as_drawn(name):
    text = PICTURES[name]().svg()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == text, "run docs/kernels/draw/write.py"
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(element.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height, element.attrib
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        length = 0.58 * float(element.attrib["font-size"]) * len(element.text or "")  # letters of a usual sans serif
        left = (
            float(element.attrib["x"])
            - {"start": 0.0, "middle": length / 2, "end": length}[element.attrib["text-anchor"]]
        )
        assert left >= 0 and left + length <= width, element.text


def test_no_picture_is_left_over():
    assert sorted(path.stem for path in FOLDER.glob("*.svg")) == sorted(PICTURES)


@pytest.mark.parametrize("chapter", chapters(), ids=lambda path: path.stem)
def test_tables_are_as_measured(chapter):
    text = chapter.read_text(encoding="utf-8")
    assert filled(text, json.loads(MEASURED.read_text(encoding="utf-8"))) == text, "run docs/kernels/ladder/tables.py"


@pytest.mark.parametrize("chapter", chapters(), ids=lambda path: path.stem)
def test_links_lead_somewhere(chapter):
    text = chapter.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)?(?:#([\w-]+))?\)", text):
        path = chapter.parent / target[0] if target[0] else chapter
        assert path.exists(), target
        if target[1]:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
            assert target[1] in slugs, (target, slugs)
