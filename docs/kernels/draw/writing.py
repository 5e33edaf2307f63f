"""A token of text: the chain of a layer's steps beside the stream of its weights."""

from __future__ import annotations

from draw.picture import Picture

# Cycles of a layer at position 64, means over 132 programs and eleven layers (docs/performance-log.md).
LAYER = [
    ("wait: x", 1825, "none"), ("qkv", 1122, "a"), ("attention, and the wait for its shares", 4843, "d"),
    ("out", 1275, "a"), ("wait: x", 1444, "none"), ("fc", 1282, "a"), ("wait", 1469, "none"), ("back", 1302, "a"),
]  # fmt: skip
RECORDS = [("qkv", 28), ("out", 9), ("fc", 37), ("back", 37)]  # KB a program


def decode_layer() -> Picture:
    """One layer, as a program lives it: what it waits for, what it computes, and what streams in meanwhile."""
    p = Picture(760, 290, "A layer of GPT-2 124M in the decoding kernel: the chain and the stream")
    p.text(20, 28, "One multiprocessor, one layer, one token: 14,600 cycles", 15)
    scale = 720 / sum(cycles for _, cycles, _ in LAYER)
    x = 20.0
    for words, cycles, style in LAYER:
        width = cycles * scale
        p.rect(x + 1, 50, width - 2, 46, style, radius=3)
        p.text(x + width / 2, 70, words, 11, "middle")
        p.text(x + width / 2, 86, f"{cycles}", 10, "middle", "dim")
        x += width
    p.text(20, 116, "Grey: words of other programs are under way. Blue: a product of 6 to 24 rows.", 12, style="dim")
    p.text(20, 152, "Meanwhile the copy engine fills a ring of slots in shared memory, four records ahead:", 13)
    x = 20.0
    for turn in range(2):
        for name, size in RECORDS:
            width = size * 3.2
            p.labelled(x, 164, width - 3, 34, name if size < 20 else f"{name}, {size} KB", "c" if turn else "b", 11)
            x += width
    p.text(20, 218, "Orange: this layer's records. Green: the next layer's. Out: 9 KB.", 12, style="dim")
    p.text(20, 250, "The stream needs 58 us a token, the chain 129. A program never waits for weights: it waits", 13)
    p.text(20, 270, "for the slowest of 128 others, and for two trips through L2, five times a layer.", 13)
    return p
