"""The matrix product, its order of tiles, its pipeline; the classifier around it."""

from __future__ import annotations

from draw.picture import Picture


def matmul_tile() -> Picture:
    """A tile of C, the strips of A and B it needs, and one step of K."""
    p = Picture(760, 400, "One program makes one tile of C from strips of A and B")
    p.text(20, 28, "C = A B: one program, one tile of C, K in steps", 15)
    p.rect(300, 50, 240, 120, "box")  # B, K x N
    p.rect(80, 200, 180, 160, "box")  # A, M x K
    p.rect(300, 200, 240, 160, "box")  # C
    p.rect(380, 50, 80, 120, "b")
    p.rect(80, 250, 180, 50, "a")
    p.rect(380, 250, 80, 50, "c")
    p.rect(380, 90, 80, 26, "e")
    p.rect(140, 250, 36, 50, "e")
    p.text(310, 68, "B (K, N)", 13)
    p.text(90, 220, "A (M, K)", 13)
    p.text(310, 220, "C (M, N)", 13)
    p.text(420, 108, "64", 11, "middle")
    p.text(158, 280, "64", 11, "middle")
    p.text(420, 280, "128 x 256", 11, "middle")
    p.line(180, 275, 376, 275, arrow=True)
    p.line(420, 118, 420, 247, arrow=True)
    notes = """
        red: one step of K|in shared memory|(128 + 256) x 64 numbers,|48 KB, used for
        2 x 128 x 256 x 64 = 4.2 M|operations: 85 a byte||green: the sum so far
        in registers, fp32:|128 x 256 x 4 = 128 KB,|half of a multiprocessor's"""
    for i, words in enumerate(notes.replace("\n", "|").split("|")[1:]):
        p.text(556, 80 + i * 21, words.strip(), 13, style="dim")
    p.text(
        20,
        386,
        "Each number of A that has come in is used 256 times, each of B 128 times, before it is dropped.",
        12,
        style="dim",
    )
    return p


def matmul_order() -> Picture:
    """Which strips 16 programs that run together need, in two orders."""
    p = Picture(760, 330, "Tiles row by row, and in groups of rows")
    p.text(20, 28, "16 programs that run at the same time, of 16 x 16 tiles", 15)
    for side, (title, mine) in enumerate(
        (
            ("row by row: 1 strip of A, 16 of B = 17", lambda r, c: r == 0),
            ("groups of 4 rows: 4 + 4 = 8", lambda r, c: r < 4 and c < 4),
        )
    ):
        x, y, cell = 70 + side * 370, 90, 13
        p.text(x - 40, 56, title, 13)
        p.grid(x, y, 16, 16, cell, lambda r, c, mine=mine: "c" if mine(r, c) else "none")
        for c in range(16):
            needed = any(mine(r, c) for r in range(16))
            p.rect(x + c * cell + 1, y - 20, cell - 2, 14, "b" if needed else "none")
        for r in range(16):
            needed = any(mine(r, c) for c in range(16))
            p.rect(x - 22, y + r * cell + 1, 16, cell - 2, "a" if needed else "none")
    p.text(
        20,
        318,
        "Blue: strips of A in use, orange: strips of B. What one program has loaded, the others find in L2.",
        12,
        style="dim",
    )
    return p


def matmul_pipeline() -> Picture:
    """What the copy engine and the tensor cores do over time, in four versions."""
    p = Picture(760, 470, "Loads, products and epilogues over time")
    p.text(20, 28, "One multiprocessor over time: loads (blue), products (green), epilogues (orange)", 15)

    def lane(y: float, name: str, pieces: list[tuple[float, float, str]]) -> None:
        p.text(20, y + 13, name, 12)
        for start, length, style in pieces:
            p.rect(130 + start * 15, y, length * 15 - 1.5, 18, style, radius=1)

    p.text(20, 62, "1. One buffer: load, wait, multiply", 13)
    lane(
        72,
        "loads",
        [(i * 3, 1.5, "a") for i in range(8)] + [(28, 1.5, "a"), (31, 1.5, "a"), (34, 1.5, "a"), (37, 1.5, "a")],
    )
    lane(
        94,
        "tensor cores",
        [(i * 3 + 1.5, 1.5, "c") for i in range(8)] + [(24, 4, "b")] + [(29.5 + 3 * i, 1.5, "c") for i in range(4)],
    )
    p.text(20, 142, "2. A ring of buffers: loads run ahead", 13)
    loads = [(i * 1.5, 1.45, "a") for i in range(8)]
    lane(
        152,
        "loads",
        loads + [(17.5 + i * 1.5, 1.45, "a") for i in range(8)] + [(35 + i * 1.5, 1.45, "a") for i in range(3)],
    )
    products = [(1.5 + i * 1.5, 1.45, "c") for i in range(8)]
    lane(
        174,
        "tensor cores",
        products
        + [(13.5, 4, "b")]
        + [(19 + i * 1.5, 1.45, "c") for i in range(8)]
        + [(31, 4, "b")]
        + [(36.5 + 1.5 * i, 1.45, "c") for i in range(2)],
    )
    p.text(20, 222, "3. Persistent, loops made one: the next tile's first loads run during the epilogue", 13)
    lane(
        232,
        "loads",
        [(i * 1.5, 1.45, "a") for i in range(11)]
        + [(17.5 + i * 1.5, 1.45, "a") for i in range(8)]
        + [(33.5 + i * 1.5, 1.45, "a") for i in range(4)],
    )
    lane(
        254,
        "tensor cores",
        products
        + [(13.5, 4, "b")]
        + [(17.5 + i * 1.5, 1.45, "c") for i in range(8)]
        + [(29.5, 4, "b")]
        + [(33.5 + 1.5 * i, 1.45, "c") for i in range(4)],
    )
    p.text(
        20,
        302,
        "4. Roles: one warp loads, two groups of four multiply in turns and hide each other's epilogue",
        13,
    )
    lane(312, "producer", [(i * 1.5, 1.45, "a") for i in range(26)])
    lane(
        334,
        "consumer 1",
        [(1.5 + i * 1.5, 1.45, "c") for i in range(8)]
        + [(13.5, 4, "b")]
        + [(25.5 + i * 1.5, 1.45, "c") for i in range(8)]
        + [(37.5, 3, "b")],
    )
    lane(
        356,
        "consumer 2",
        [(13.5 + i * 1.5, 1.45, "c") for i in range(8)] + [(25.5, 4, "b")] + [(37.5, 1.45, "c"), (39, 1.45, "c")],
    )
    p.line(130, 392, 740, 392, arrow=True)
    p.text(735, 410, "time", 12, "end", "dim")
    p.text(
        20,
        440,
        "Gaps in the green are what each version still loses. (A drawing of the idea, not to scale.)",
        12,
        style="dim",
    )
    return p


def matmul_stream() -> Picture:
    """54 tiles on 132 multiprocessors, three ways."""
    p = Picture(760, 330, "A weight gradient's 54 tiles on 132 multiprocessors")
    p.text(20, 28, "dW of qkv, 768 x 2304: 54 tiles, each 256 steps of K long, for 132 multiprocessors", 14)
    scale = 700 / 132

    p.text(20, 62, "whole tiles: 54 busy for 256 steps, 78 idle", 13)
    for i in range(132):
        p.rect(20 + i * scale, 72, scale - 0.8, 60, "c" if i < 54 else "none")
    p.text(20, 160, "K in 7 parts of 37 steps: 378 pieces, 3 rounds, the last of 114: 111 steps", 13)
    for i in range(132):
        for r in range(3):
            p.rect(20 + i * scale, 170 + r * 8.7, scale - 0.8, 7.9, ("c", "a", "d")[r] if r < 2 or i < 114 else "none")
    p.text(20, 224, "equal shares of all 54 x 256 steps: 105 steps each", 13)
    shades = ("c", "a", "d")
    total, share = 54 * 256, 105
    for i in range(132):
        start, end = i * share, min((i + 1) * share, total)
        first = start // 256
        cut = min(end, (first + 1) * 256) - start
        p.rect(20 + i * scale, 234, scale - 0.8, 24.6 * cut / share, shades[first % 3])
        if end > (first + 1) * 256:
            p.rect(
                20 + i * scale, 234 + 24.6 * cut / share, scale - 0.8, 24.6 * (1 - cut / share), shades[(first + 1) % 3]
            )
    p.text(
        20,
        292,
        "Height is time. Colours below: neighbouring tiles; a program's share may begin in one and end in the next.",
        12,
        style="dim",
    )
    p.text(20, 312, "Split tiles leave partial sums, which a second kernel adds up in a fixed order.", 12, style="dim")
    return p


def classifier() -> Picture:
    """A chunk of logits and its way round."""
    p = Picture(760, 330, "The classifier in chunks")
    p.text(20, 28, "16384 rows in chunks: one buffer of logits, used again and again", 15)
    p.text(30, 56, "x (16384, 768)", 12)
    for i in range(3):
        p.labelled(30, 66 + i * 66, 84, 62, f"chunk {i + 1}", "a" if i == 1 else "box", 12)
    p.line(116, 163, 168, 163, arrow=True)
    p.text(120, 152, "x wte^T", 11, style="dim")
    p.labelled(
        172,
        120,
        250,
        84,
        "z (5504, 50257) in bf16: 0.52 GiB\n\nsoftmax, then in place\ndz = scale (softmax(z) - onehot)",
        "b",
        12,
    )
    p.labelled(172, 48, 250, 30, "wte (50257, 768): 77 MB", "d", 12)
    p.line(297, 80, 297, 117, arrow=True)
    p.labelled(520, 72, 210, 40, "losses: one number a row", "c", 12)
    p.labelled(520, 138, 210, 40, "dx = dz wte: this chunk's rows", "c", 12)
    p.labelled(520, 204, 210, 40, "dwte += dz^T x: all of it", "e", 12)
    p.line(424, 140, 517, 95, arrow=True)
    p.line(424, 160, 517, 158, arrow=True)
    p.line(424, 182, 517, 220, arrow=True)
    p.text(
        20, 290, "Whole: 1.6 GB of logits in bf16, 4.9 GB with fp32 logits and a gradient beside them.", 12, style="dim"
    )
    p.text(
        20,
        310,
        "Price of a chunk: once more over dwte (154 MB in fp32, read and written by the copy engine's addition).",
        12,
        style="dim",
    )
    return p
