"""Naming a tokenizer on the command line: ``gpt2``, or a folder with one in it."""

from __future__ import annotations

from pathlib import Path

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import BaseTokenizer, Tokenizer, load_tokenizer


def open_tokenizer(name: str) -> BaseTokenizer:
    """GPT-2's tokenizer for ``gpt2``; else the one in the folder: a tokenizer's, a model's, a run's or prepared data.

    Raises UserError if there is none.
    """
    folder = Path(name)
    if name == "gpt2" and not folder.is_dir():
        return Tokenizer.gpt2()
    if not folder.is_dir():
        raise UserError(f"no tokenizer '{name}': give gpt2, or the folder of a tokenizer, model or run")
    for place in (folder, folder / "best", folder / "last"):
        if any((place / file).exists() for file in ("vocab.json", "char_vocab.json", "tokenizer.json")):
            return load_tokenizer(place)
    return load_tokenizer(folder)
