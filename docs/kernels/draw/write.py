"""Draw the pictures of these chapters: plain SVG, each shape from numbers.

    python docs/kernels/draw/write.py        writes all of them into docs/kernels/drawings/

Colours come from a small style sheet in each file that follows the reader's light or dark setting; every picture
brings its own background, so it can be read anywhere. ``tests/test_drawings.py`` holds the files to this script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from draw import machine, measured, products, rows, writing
from draw.picture import Picture

FOLDER = Path(__file__).parents[1] / "drawings"

PICTURES: dict[str, Callable[[], Picture]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        *(machine.memory, machine.coalescing, machine.journey, measured.roofline),
        *(products.matmul_tile, products.matmul_order, products.matmul_pipeline, products.matmul_stream),
        *(rows.softmax_passes, rows.warp_sum, rows.column_sums),
        *(rows.attention_tiles, rows.attention_flow, rows.attention_backward, products.classifier),
        writing.decode_layer,
    )
}
PICTURES |= {
    f"measured-{name.replace(' ', '-')}": partial(measured.bars, name)
    for name in (
        *("matmul", "order of tiles", "epilogue", "weight gradient", "copy", "layer norm", "column sums"),
        *("cross-entropy", "attention", "attention backward", "classifier"),
    )
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(make().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
