"""Draw what ``loss_curves_gpu.py`` measured, as SVG: the losses, and below how far each run is from PyTorch's mean.

python benchmarks/loss_picture.py benchmarks/results/loss_curves_gpu-lr0.0002-2026-12-01.json docs/loss-curves.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanoeuler.training.plot.curves import tick_labels, ticks

WIDTH, LEFT, RIGHT = 900, 64, 20
INK, GREY, GRID = "#262a33", "#6e7480", "#e4e7ec"
STYLES = {  # by the beginning of a run's name: colour, width
    "PyTorch float32": ("#228b54", 1.2),
    "PyTorch rounded": ("#9650aa", 1.2),
    "PyTorch": ("#e07b39", 1.2),
    "ours": ("#1f6abe", 1.2),
}


def style_of(run: str) -> tuple[str, float]:
    return next(style for name, style in STYLES.items() if run.startswith(name))


def panel(curves: dict[str, np.ndarray], top: int, height: int, title: str, low: float, high: float) -> Iterator[str]:
    """Axes and lines; a curve is (steps,), its first value that of step 1."""
    n = len(next(iter(curves.values())))

    def x(step: float) -> float:
        return LEFT + step / n * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * height

    yield f'<text x="{LEFT}" y="{top - 12}" font-size="14">{escape(title)}</text>'
    values = ticks(low, high, 6)
    for value, label in zip(values, tick_labels(values)):
        yield f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" fill="{GREY}" text-anchor="end">{label}</text>'
    for step in range(0, n + 1, max(1, n // 10)):
        text = "step" if step == n else step
        yield f'<path d="M{x(step):.1f} {top + height}v5" stroke="{GREY}"/>'
        yield f'<text x="{x(step):.1f}" y="{top + height + 18}" fill="{GREY}" text-anchor="middle">{text}</text>'
    yield f'<path d="M{LEFT} {top + height}H{WIDTH - RIGHT}" stroke="{GREY}"/>'
    for name, curve in curves.items():
        color, width = style_of(name)
        points = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(np.clip(curve, low, high)))
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" stroke-opacity="0.85"/>'


def draw(record: dict) -> str:
    losses = {name: np.array(values) for name, values in record["losses"].items()}
    peers = [name for name in losses if style_of(name) == STYLES["PyTorch"]]
    middle = np.mean([losses[name] for name in peers], 0)
    apart = {name: values - middle for name, values in reversed(losses.items())}
    reach = 1.1 * max(float(np.abs(values).max()) for values in apart.values())
    upper = {name: losses[name] for name in ("PyTorch float32", "PyTorch", "ours")}
    lowest, highest = (f(f(v) for v in upper.values()) for f in (min, max))
    title = f"GPT-2 124M from one start on tiny Shakespeare, {record['batch_size']} x {record['seq_len']} tokens a step"
    ours = sum(name.startswith("ours") for name in losses)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="720" viewBox="0 0 {WIDTH} 720" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
        *panel(upper, 50, 270, f"{title}: loss", lowest - 0.2, highest + 0.2),
        *panel(apart, 400, 250, "all runs, less the mean of PyTorch's by autocast", -reach, reach),
    ]
    labels = {
        "ours": f"NanoEuler, bfloat16 (below: {ours} runs)",
        "PyTorch": f"PyTorch, bfloat16 by autocast (below: {len(peers)} runs)",
        "PyTorch float32": "PyTorch, float32 with TF32 products",
    }
    if any(name.startswith("PyTorch rounded") for name in losses):
        labels["PyTorch rounded"] = "PyTorch, all activations bfloat16 (below)"
    for i, (name, label) in enumerate(labels.items()):
        lines.append(f'<path d="M540 {82 + 22 * i}h26" stroke="{style_of(name)[0]}" stroke-width="2.5"/>')
        lines.append(f'<text x="574" y="{86 + 22 * i}">{label}</text>')
    note = "Runs of one kind differ in the order of a batch's sequences only: the same arithmetic, rounded otherwise."
    lines.append(f'<text x="{LEFT}" y="704" fill="{GREY}">{note}</text>')
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    result, picture = map(Path, sys.argv[1:3])
    picture.write_text(draw(json.loads(result.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{picture}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
