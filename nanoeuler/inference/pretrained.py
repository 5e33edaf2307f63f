"""Finding a model: the one shipped in the package, a model folder, or the best checkpoint of a run."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.tokenizer import BaseTokenizer, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from nanoeuler.inference.decoder import Source


def shipped_model() -> Path:
    """The folder of the small model that comes with the package.

    Raises UserError if this copy of the package has none.
    """
    folder = Path(str(files("nanoeuler"))) / "pretrained"
    if not (folder / "config.json").is_file():
        raise UserError(
            "this copy of nanoeuler has no model in it: name a model folder, or train one with: nanoeuler demo"
        )
    return folder


def find_model_folder(path: str | Path | None) -> Path:
    """The folder with the model's files: ``path`` itself, or its best checkpoint if it is a run; None: the shipped one.

    Raises UserError if there is none, or the checkpoint is damaged.
    """
    from nanoeuler.training.runfolder import find_model

    return find_model(shipped_model() if path is None else path).folder


def load_model(folder: Path, device: str = "cpu", weights: str | None = None) -> Source:
    """The model in ``folder``, for writing: one in 8 bits as it is, where the device can use it so."""
    from nanoeuler.formats.int8_folder import is_int8, load_int8
    from nanoeuler.model.gpt import GPT

    if is_int8(folder) and device in ("cpu", "gpu") and weights in (None, "int8"):
        return load_int8(folder)
    return GPT.from_pretrained(folder, device=device)


def tokenizer_of(folder: Path, config: GPTConfig) -> BaseTokenizer:
    """The tokenizer saved with a model; GPT-2's own if there is none and the vocabulary's size is GPT-2's.

    Raises UserError if there is none and the size is another.
    """
    if any((folder / name).exists() for name in ("vocab.json", "merges.txt", "char_vocab.json", "tokenizer.json")):
        return load_tokenizer(folder)
    if config.vocab_size in (50257, 50304):  # 50304: padded to a multiple of 128, as nanoGPT and llm.c do
        return Tokenizer.gpt2()
    raise UserError(
        f"{folder} has no tokenizer (vocab.json and merges.txt, or char_vocab.json): "
        "copy the one that the model was trained with into it"
    )


def describe(folder: Path, config: GPTConfig) -> str:
    """One line on a model: where it lies, its size, and how much it was trained, which explains how well it writes."""
    head = f"{folder} (GPT-2, {human_count(config.n_params)} parameters, context {config.block_size}"
    try:
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        trained = f"trained {state['step']:,} steps on {human_count(state['tokens'])} tokens"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"{head}; how it was trained is not written down)"
    loss = state.get("val_loss")
    return f"{head}; {trained}{f', validation loss {loss:.3f}' if isinstance(loss, float) else ''})"


def human_count(n: int) -> str:
    """A count for people.

    >>> human_count(950), human_count(1_234_567), human_count(124_439_808)
    ('950', '1.2M', '124M')
    """
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.1f}{unit}" if n < 100 * size else f"{n / size:.0f}{unit}"
    return str(n)
