"""Sums along rows and down columns, and attention."""

from __future__ import annotations

from collections.abc import Callable

from draw.picture import Picture


def softmax_passes() -> Picture:
    """How often a row travels, in four versions."""
    p = Picture(760, 330, "How often a row of logits travels between memory and the multiprocessor")
    p.text(20, 28, "One row of 50257 logits (100 KB in bf16): what travels", 15)
    versions = [
        ("three passes: 4 trips", [("read: maximum", "a"), ("read: sum of exp", "a"), ("read, write: gradient", "e")]),
        ("online: 3 trips", [("read: maximum and sum together", "a"), ("read, write: gradient", "e")]),
        ("row held on chip: 2 trips", [("read: all of it", "a"), ("write: gradient", "c")]),
    ]
    for i, (name, passes) in enumerate(versions):
        y = 52 + i * 66
        p.text(20, y + 24, name, 13)
        x = 220.0
        for words, style in passes:
            width = {"a": 150, "e": 200, "c": 120}[style] + (70 if "together" in words else 0)
            p.labelled(x, y, width, 40, words, style, 12)
            x += width + 8
    p.text(20, 262, "Online: with m the largest so far and l = sum of exp(z - m) so far, a new z makes", 13)
    p.text(40, 284, "m' = max(m, z)", 13, style="mono")
    p.text(240, 284, "l' = l exp(m - m') + exp(z - m')", 13, style="mono")
    p.text(
        20, 306, "so one reading gives both. Every thread keeps its own (m, l); they meet once, at the row's end.", 13
    )
    return p


def warp_sum() -> Picture:
    """A sum over eight lanes in three exchanges."""
    p = Picture(760, 330, "A sum over lanes by exchanges between registers")
    p.text(20, 28, "Eight lanes add up in three exchanges (a warp's 32 need five)", 15)
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    x = lambda i: 120 + i * 78  # noqa: E731
    y = 48
    for step in range(4):
        p.text(
            20,
            y + 20,
            ("each lane's own", "+ the lane 4 away", "+ the lane 2 away", "+ the lane 1 away")[step],
            12,
            style="dim",
        )
        for i, v in enumerate(values):
            p.labelled(x(i) + 20, y, 44, 30, str(v), ("a", "b", "d", "c")[step])
        if step < 3:
            far = 4 >> step
            for i in range(8):
                p.line(x(i) + 42, y + 31, x(i ^ far) + 42, y + 68)
                p.line(x(i) + 42, y + 31, x(i) + 42, y + 68)
            values = [v + values[i ^ far] for i, v in enumerate(values)]
        y += 70
    p.text(
        20,
        318,
        "No memory is touched: a shuffle hands a register to another lane. Warps then meet in shared memory.",
        12,
        style="dim",
    )
    return p


def column_sums() -> Picture:
    """A sum over rows, shared by many programs."""
    p = Picture(760, 320, "Sums down columns in two kernels")
    p.text(20, 28, "The gradient of a bias: 16384 rows, 3072 columns, down to 3072 numbers", 15)
    for r in range(8):
        for c in range(6):
            p.rect(30 + c * 40, 52 + r * 24, 38, 22, ("a", "b", "c", "d")[r // 2])
    p.text(30, 268, "first kernel: a block of rows and", 12, style="dim")
    p.text(30, 285, "256 columns a program, in order", 12, style="dim")
    p.line(276, 148, 340, 148, arrow=True)
    for r in range(4):
        for c in range(6):
            p.rect(350 + c * 30, 100 + r * 24, 28, 22, ("a", "b", "c", "d")[r])
    p.text(350, 90, "partial sums, fp32", 12)
    p.text(350, 222, "1/119 of the bytes", 12, style="dim")
    p.line(536, 148, 580, 148, arrow=True)
    for c in range(6):
        p.rect(590 + c * 24, 137, 22, 22, "e")
    p.text(590, 180, "second kernel: a few", 12, style="dim")
    p.text(590, 197, "columns a program,", 12, style="dim")
    p.text(590, 214, "top to bottom", 12, style="dim")
    p.text(
        20,
        308,
        "Every number is added by one program, in one order: the same bits each time, which atomics would not give.",
        12,
        style="dim",
    )
    return p


def attention_tiles() -> Picture:
    """The triangle of scores, in tiles, and who walks where."""
    p = Picture(760, 400, "The causal triangle in tiles")
    p.text(20, 28, "Scores of one head, T = 1024: 16 x 16 tiles of 64 x 64", 15)
    cell = 15
    for side, title in enumerate(("forward and dq: a program, a row of tiles", "dk and dv: a program, a column")):
        x, y = 60 + side * 370, 80
        p.text(x - 30, 58, title, 13)
        mine = (lambda r, c: r == 11) if side == 0 else (lambda r, c: c == 4)

        def style(r: int, c: int, mine: Callable[[int, int], bool] = mine) -> str:
            if c > r:
                return "none"
            return ("b" if c == r else "c") if mine(r, c) else "d" if c == r else "a"

        p.grid(x, y, 16, 16, cell, style)
        p.text(x + 8 * cell, y - 6, "keys", 11, "middle", "dim")
        p.text(x - 6, y + 8 * cell, "queries", 11, "end", style="dim")
        if side == 0:
            p.line(x + 4, y + 11.5 * cell, x + 11.6 * cell, y + 11.5 * cell, arrow=True)
        else:
            p.line(x + 4.5 * cell, y + 4.4 * cell, x + 4.5 * cell, y + 15.8 * cell, arrow=True)
    p.text(
        20,
        350,
        "Grey: the future, never touched. Blue: seen in full, no mask. Purple, orange: on the diagonal, masked.",
        12,
        style="dim",
    )
    p.text(
        20,
        368,
        "136 of 256 tiles are worked on; 16 of them need the mask. Programs with the longest walks start first.",
        12,
        style="dim",
    )
    p.text(20, 386, "(The engine's backward kernels cut finer along their walk: 32 keys, 32 queries.)", 12, style="dim")
    return p


def attention_flow() -> Picture:
    """What is where while a program walks over keys."""
    p = Picture(760, 360, "Flash attention: what lies where")
    p.text(20, 28, "One program: 64 queries of one head, walking over keys 64 at a time", 15)
    p.text(20, 62, "device memory", 12, style="dim")
    p.text(20, 150, "shared memory", 12, style="dim")
    p.text(20, 250, "registers", 12, style="dim")
    for i in range(6):
        p.labelled(140 + i * 70, 46, 62, 30, f"k{i} v{i}", "a" if i == 3 else "box", 12)
    p.text(580, 66, "rows of the packed qkv", 12, style="dim")
    p.labelled(300, 128, 70, 36, "k, 8 KB", "a", 12)
    p.labelled(380, 128, 70, 36, "v, 8 KB", "a", 12)
    p.labelled(140, 128, 80, 36, "q, 8 KB", "d", 12)
    p.text(470, 150, "a ring of them: the next are on their way", 12, style="dim")
    p.line(376, 78, 340, 126, arrow=True)
    p.line(384, 78, 412, 126, arrow=True)
    p.labelled(140, 216, 130, 44, "s = q k^T\n64 x 64, fp32", "b", 12)
    p.labelled(300, 216, 130, 44, "p = exp2(s - m)\n64 x 64, bf16", "b", 12)
    p.labelled(460, 216, 130, 44, "acc = acc fade + p v\n64 x 64, fp32", "c", 12)
    p.labelled(620, 216, 110, 44, "m, l\n64 each", "e", 12)
    p.line(180, 165, 190, 214, arrow=True)
    p.line(330, 165, 240, 214, arrow=True)
    p.line(271, 238, 297, 238, arrow=True)
    p.line(431, 238, 457, 238, arrow=True)
    p.line(420, 165, 500, 214, arrow=True)
    p.line(618, 238, 593, 238, arrow=True)
    p.labelled(460, 300, 130, 34, "out = acc / l", "c", 12)
    p.labelled(620, 300, 110, 34, "lse = m + log l", "e", 12)
    p.line(525, 262, 525, 298, arrow=True)
    p.line(675, 262, 675, 298, arrow=True)
    p.text(20, 310, "at the end, to memory:", 12, style="dim")
    p.text(20, 328, "64 rows of out, 64 numbers lse", 12, style="dim")
    return p


def attention_backward() -> Picture:
    """The five products of backward, and who owns which sum."""
    p = Picture(760, 300, "Backward of attention: products and owners")
    p.text(20, 28, "A tile of scores feeds three sums, over two directions", 15)
    p.labelled(30, 60, 150, 40, "S = q k^T (again)\nP = exp(S - lse)", "b", 12)
    p.labelled(30, 130, 150, 40, "dP = dout v^T", "b", 12)
    p.labelled(240, 95, 170, 40, "dS = P (dP - rowdot)", "e", 12)
    p.line(182, 85, 238, 105, arrow=True)
    p.line(182, 150, 238, 125, arrow=True)
    p.labelled(500, 46, 200, 38, "dv += P^T dout: over queries", "c", 12)
    p.labelled(500, 96, 200, 38, "dk += dS^T q: over queries", "c", 12)
    p.labelled(500, 146, 200, 38, "dq += dS k: over keys", "d", 12)
    p.line(182, 68, 498, 62, arrow=True)
    p.line(412, 112, 498, 114, arrow=True)
    p.line(412, 122, 498, 160, arrow=True)
    p.text(20, 222, "One walk can keep green or purple in registers, not both.", 13)
    p.text(20, 246, "Atomics: 5 products, and every tile adds its 64 x 64 share of dq to memory, in any order.", 13)
    p.text(
        20, 270, "Two kernels: S and dP made twice, 7 products, but each sum stays in registers and has one owner.", 13
    )
    return p
