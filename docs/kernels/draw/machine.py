"""The machine: its memory, a warp's reads, a kernel's way to it."""

from __future__ import annotations

from draw.picture import Picture


def memory() -> Picture:
    """The levels of an H200's memory, each with its size and rate."""
    p = Picture(760, 300, "The memory of an H200: registers, shared memory, L2, HBM")
    p.text(20, 28, "Closer is faster and smaller (H200: 132 multiprocessors)", 15)
    levels = [
        ("registers", "256 KB a multiprocessor, 33 MB in all", "an operand a cycle: next to free", 260, "c"),
        (
            "shared memory and L1",
            "256 KB a multiprocessor, 33 MB in all",
            "128 bytes a cycle each: about 30 TB/s",
            330,
            "a",
        ),
        ("L2", "60 MB for all", "128 x 256 tiles ask 8.7 TB/s of it", 400, "b"),
        ("HBM, the device's memory", "141 GB", "4.27 TB/s measured (read and written)", 560, "d"),
    ]
    for i, (name, size, rate, width, style) in enumerate(levels):
        y = 50 + i * 60
        p.rect(20, y, width, 44, style, radius=4)
        p.text(30, y + 19, name, 14)
        p.text(30, y + 36, size, 11)
        p.text(max(290, 30 + width), y + 27, rate, 12, style="dim") if width < 500 else p.text(
            590, y + 27, "4.27 TB/s measured", 12, style="dim"
        )
    return p


def coalescing() -> Picture:
    """32 threads of a warp reading: side by side, and a row apart."""
    p = Picture(760, 250, "A warp's reads, side by side and a row apart")
    p.text(20, 28, "One load of one warp: 32 threads, 2 bytes each", 15)
    for row, (words, step) in enumerate(
        (("side by side: 64 bytes, 2 pieces of 32", 0), ("a row apart: 64 bytes, 32 pieces of 32", 1))
    ):
        y = 62 + row * 92
        p.text(20, y - 8, words, 13)
        for t in range(32):
            p.rect(20 + t * 22.5, y, 18, 14, "a", radius=2)
            if step:
                p.rect(20 + t * 22.5, y + 36, 18, 20, "none", radius=1)
                p.rect(20 + t * 22.5, y + 36, 3, 20, "b")
                p.line(29 + t * 22.5, y + 15, 22 + t * 22.5, y + 35)
            else:
                x = 290 + t * 5.2
                p.rect(x, y + 36, 4.6, 20, "b")
                p.line(29 + t * 22.5, y + 15, x + 2, y + 35)
    p.text(
        20,
        232,
        "Memory delivers pieces of 32 bytes. Grey is what nobody asked for: 15 of 16 bytes below.",
        12,
        style="dim",
    )
    return p


def journey() -> Picture:
    """From a kernel's text to a launch."""
    p = Picture(760, 330, "How a kernel travels: text, cubin, launch")
    p.text(20, 28, "On the host, once for each combination of types, constants and GPU generation", 14)
    steps = [
        ("Python text\n@triton.jit", "a"), ("Triton IR\ntiles", "box"), ("GPU IR\nlayouts, pipeline", "box"),
        ("LLVM IR\nthreads", "box"), ("PTX", "box"), ("cubin\nmachine code", "c"),
    ]  # fmt: skip
    for i, (words, style) in enumerate(steps):
        p.labelled(20 + i * 124, 44, 104, 48, words, style, 12)
        if i:
            p.line(20 + i * 124 - 19, 68, 20 + i * 124 - 3, 68, arrow=True)
    p.labelled(640, 128, 104, 50, "cache on disk\nby SHA-256", "b", 12)
    p.line(692, 93, 692, 126, arrow=True)
    p.text(20, 132, "On the GPU's driver, once a process", 14)
    p.labelled(330, 146, 150, 48, "cuModuleLoadData\ncuModuleGetFunction", "box", 12)
    p.line(638, 156, 483, 168, arrow=True)
    p.text(20, 226, "For each call", 14)
    calls = [
        "plan: shapes to\nLaunch(grid, args)",
        "slots: 8 bytes\nan argument",
        "cuLaunchKernel\ninto the stream",
        "captured into\na CUDA graph",
        "cuGraphLaunch\nonce a step",
    ]
    for i, words in enumerate(calls):
        p.labelled(20 + i * 149, 244, 126, 48, words, "d" if i == 3 else "box", 12)
        if i:
            p.line(20 + i * 149 - 22, 268, 20 + i * 149 - 3, 268, arrow=True)
    p.line(405, 195, 390, 242, arrow=True)
    return p
