"""A profile as a picture (SVG): the step from left to right, launch by launch, and below a bar for each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nanoeuler.ops.gpu.runtime.profile import Span, by_kernel

FAMILIES = {
    "products": ("#3b6fb6", ("matmul", "stream", "weight_gradient")),
    "attention": ("#e07b39", ("attention", "query_gradient", "key_gradient")),
    "layer norm, sums": ("#4f9d69", ("layernorm", "sum_partials", "column_sums")),
    "cross-entropy": ("#b5508a", ("cross_entropy",)),
    "norm, AdamW": ("#8a6fc0", ("adamw", "square_sums", "norm_kernel")),
    "others": ("#8c8f96", ("",)),
}
"""Kernels of a kind: their colour, and what their names contain. The first that fits counts."""

WIDTH, MARGIN, ROW, LEFT = 960, 20, 22, 372
STRIP, STRIP_HEIGHT = 84, 46  # the timeline: where it begins, and how high it is
INK, GREY = "#262a33", "#6e7480"


def family_of(kernel: str) -> str:
    """The kind of a kernel.

    >>> family_of("layernorm_backward_kernel"), family_of("norm_kernel"), family_of("guard_kernel")
    ('layer norm, sums', 'norm, AdamW', 'others')
    """
    return next(name for name, (_, parts) in FAMILIES.items() if any(part in kernel for part in parts))


def picture(spans: Sequence[Span], title: str = "One training step") -> str:
    """An SVG of a step's launches.

    >>> svg = picture([Span("matmul_kernel", "8x8x8", 1.5), Span("adamw_kernel", "", 0.5)])
    >>> svg.count("<title>"), "adamw_kernel" in svg
    (2, True)
    """
    kernels = by_kernel(spans)
    total = sum(span.milliseconds for span in spans) or 1.0
    top = STRIP + STRIP_HEIGHT + 64
    height = top + ROW * len(kernels) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="30" font-size="16">{escape(title)}: {total:.2f} ms in {len(spans)} kernels</text>',
        *_legend(spans, total),
        *_strip(spans, total),
        *_bars(kernels, total, top),
        "</svg>\n",
    ]
    return "\n".join(lines)


def _legend(spans: Sequence[Span], total: float) -> Iterator[str]:
    """The kinds with their share, in one line."""
    x = float(MARGIN)
    for name, (color, _) in FAMILIES.items():
        share = sum(s.milliseconds for s in spans if family_of(s.name) == name) / total
        if share:
            label = f"{name} {share:.1%}"
            yield f'<rect x="{x:.0f}" y="48" width="11" height="11" fill="{color}"/>'
            yield f'<text x="{x + 16:.0f}" y="58">{label}</text>'
            x += 40 + 7 * len(label)  # wide enough for most fonts


def _strip(spans: Sequence[Span], total: float) -> Iterator[str]:
    """All launches in order, each as wide as it lasts, over an axis of milliseconds."""
    scale, at = (WIDTH - 2 * MARGIN) / total, 0.0
    for span in spans:
        color = FAMILIES[family_of(span.name)][0]
        what = f"{span.name} {span.sizes}".strip()
        yield (
            f'<rect x="{MARGIN + scale * at:.2f}" y="{STRIP}" width="{scale * span.milliseconds:.2f}" '
            f'height="{STRIP_HEIGHT}" fill="{color}" stroke="white" stroke-width="0.3">'
            f"<title>{escape(what)}: {span.milliseconds:.4f} ms</title></rect>"
        )
        at += span.milliseconds
    step = next(s for s in (10.0**p * f for p in range(-4, 6) for f in (1, 2, 5)) if total / s <= 10)
    floor = STRIP + STRIP_HEIGHT
    for i in range(int(total / step) + 1):
        x, label = MARGIN + scale * i * step, f"{i * step:g}"
        yield f'<path d="M{x:.1f} {floor}v6" stroke="{GREY}"/>'
        unit = " ms" if i == int(total / step) else ""
        yield f'<text x="{x:.1f}" y="{floor + 20}" fill="{GREY}" text-anchor="middle">{label}{unit}</text>'


def _bars(kernels: Sequence, total: float, top: int) -> Iterator[str]:
    """A row for each kernel: launches, name, a bar, milliseconds and share."""
    longest = kernels[0].milliseconds if kernels else 1.0
    room = WIDTH - LEFT - MARGIN - 120
    head = "launches, kernel, rows x columns x inner of a product"
    yield f'<text x="{MARGIN}" y="{top - 12}" fill="{GREY}">{head}</text>'
    for i, k in enumerate(kernels):
        y, width = top + ROW * i, max(1.0, room * k.milliseconds / (longest or 1.0))
        color = FAMILIES[family_of(k.name)][0]
        yield f'<text x="{MARGIN + 24}" y="{y + 13}" text-anchor="end" fill="{GREY}">{k.launches}</text>'
        yield f'<text x="{MARGIN + 34}" y="{y + 13}">{escape(k.name.replace("_kernel", ""))}</text>'
        yield f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{ROW - 7}" fill="{color}"/>'
        label = f"{k.milliseconds:.3f} ms, {k.milliseconds / total:.1%}"
        yield f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{label}</text>'
