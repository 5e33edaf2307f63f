"""A tiny data set and settings with which a run takes a fraction of a second, shared by the tests of training."""

import json
from pathlib import Path
from typing import Any

from nanoeuler.data.prepare import prepare
from nanoeuler.tokenizer import CharTokenizer
from nanoeuler.training.metrics import TIMING

TEXT = "".join(f"cat {i % 7} sat on mat {i * i % 5}.\n" for i in range(120))

TINY: dict[str, Any] = dict(
    device="reference", n_layer=2, n_head=2, n_embd=8, block_size=8, batch_size=3, steps=12, lr=1e-2, warmup=2,
    eval_every=5, eval_tokens=64, save_every=4,
)  # fmt: skip


def make_data(folder: Path, text: str = TEXT, val_fraction: float = 0.1) -> Path:
    """``text`` as tokens in ``folder/data``; returns that folder."""
    source = folder / "text.txt"
    source.write_text(text, encoding="utf-8", newline="\n")
    prepare([source], folder / "data", CharTokenizer("".join(sorted(set(text)))), val_fraction=val_fraction)
    return folder / "data"


def history(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics without what the clock says."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


def same_end(a: Path, b: Path) -> bool:
    """Whether two runs ended with the same history, the same parameters and the same moments, bit for bit."""
    files = ("last/model.safetensors", "last/optimizer.safetensors", "best/model.safetensors")
    return history(a) == history(b) and all((a / f).read_bytes() == (b / f).read_bytes() for f in files)
