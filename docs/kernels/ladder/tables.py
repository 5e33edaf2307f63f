"""Write the measured tables into the chapters: ``python docs/kernels/ladder/tables.py``.

Between ``<!-- measured: NAME -->`` and ``<!-- end -->`` stands the ladder NAME of the newest result file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

CHAPTERS = Path(__file__).parents[1]
MEASURED = max((CHAPTERS.parents[1] / "benchmarks" / "results").glob("kernel_ladder-*.json"))


def table(measured: dict[str, Any], name: str) -> str:
    """One ladder in Markdown."""
    rungs = measured["ladders"][name]
    products = any(r["operations"] for r in rungs)
    head = ["step", "us", "against the first", "TFLOP/s" if products else "TB/s"]
    rows = [head, ["---"] + ["---:"] * 3]
    for r in rungs:
        rate = r["operations" if products else "bytes"] / r["us"] / 1e6
        us = f"{r['us']:.0f}" if r["us"] >= 1000 else f"{r['us']:.1f}"
        times = rungs[0]["us"] / r["us"]
        digits = 0 if times >= 100 else 1 if times >= 10 else 2
        rows.append([r["title"], us, f"{times:.{digits}f} x", f"{rate:.{0 if rate >= 10 else 2}f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def filled(text: str, measured: dict[str, Any]) -> str:
    """A chapter with its tables as measured."""

    def put(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{table(measured, match[2])}\n\n<!-- end -->"

    return re.sub(r"(<!-- measured: ([\w -]+) -->).*?<!-- end -->", put, text, flags=re.DOTALL)


def chapters() -> list[Path]:
    return sorted(CHAPTERS.glob("*.md"))


if __name__ == "__main__":
    results = json.loads(MEASURED.read_text(encoding="utf-8"))
    for chapter in chapters():
        chapter.write_text(filled(chapter.read_text(encoding="utf-8"), results), encoding="utf-8")
