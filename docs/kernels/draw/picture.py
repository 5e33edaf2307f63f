"""A picture: SVG elements, collected. Nothing but Python's standard library."""

from __future__ import annotations

from collections.abc import Callable
from xml.sax.saxutils import escape

STYLE = """
  .bg { fill: #fbfbf9; stroke: #d8d8d2 }  text { fill: #22272e; font-family: system-ui, sans-serif }
  .dim { fill: #667077 }  .mono { font-family: ui-monospace, monospace }
  .line { stroke: #56606a; fill: none }  .box { fill: #eef0f2; stroke: #9aa3ab }
  .a { fill: #7fb3e6 }  .b { fill: #f2b46b }  .c { fill: #86c98a }  .d { fill: #c6a3e0 }  .e { fill: #e58a85 }
  .none { fill: #e3e6e9 }
  @media (prefers-color-scheme: dark) {
    .bg { fill: #171b20; stroke: #30363d }  text { fill: #dfe4ea }  .dim { fill: #98a2ac }
    .line { stroke: #8d97a1 }  .box { fill: #232a31; stroke: #57616b }
    .a { fill: #2f6ea8 }  .b { fill: #a86a1d }  .c { fill: #37803c }  .d { fill: #7a4fa0 }  .e { fill: #a5423c }
    .none { fill: #2b3138 }
  }
"""


class Picture:
    """SVG elements, collected. ``style``: names of the style sheet; positions in pixels from the upper left."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        self.parts = [f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
        self.parts.append('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"')
        self.parts.append(' orient="auto"><path d="M0,0 L8,4 L0,8" class="line"/></marker></defs>')
        self.rect(0.5, 0.5, width - 1, height - 1, "bg", radius=8)

    def rect(self, x: float, y: float, w: float, h: float, style: str, radius: float = 0, stroke: float = 1) -> None:
        r = f' rx="{radius:g}"' if radius else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"{r} class="{style}" stroke-width="{stroke:g}"/>'
        )

    def text(self, x: float, y: float, words: str, size: int = 13, at: str = "start", style: str = "") -> None:
        c = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}"{c}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, arrow: bool = False, dash: str = "") -> None:
        more = (' marker-end="url(#tip)"' if arrow else "") + (f' stroke-dasharray="{dash}"' if dash else "")
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="line"{more}/>')

    def labelled(self, x: float, y: float, w: float, h: float, words: str, style: str = "box", size: int = 13) -> None:
        """A box with one or more lines of text in its middle."""
        self.rect(x, y, w, h, style, radius=4)
        lines = words.split("\n")
        for i, each in enumerate(lines):
            self.text(
                x + w / 2, y + h / 2 + size * 0.35 + (i - (len(lines) - 1) / 2) * size * 1.3, each, size, "middle"
            )

    def grid(self, x: float, y: float, rows: int, columns: int, cell: float, style: Callable[[int, int], str]) -> None:
        for r in range(rows):
            for c in range(columns):
                self.rect(x + c * cell + 1, y + r * cell + 1, cell - 2, cell - 2, style(r, c), radius=1)

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
        return "\n".join([head + f'height="{self.height}">', *self.parts, "</svg>\n"])
