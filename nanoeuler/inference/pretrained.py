"""Finding a model: the one shipped in the package, a model folder, or the best checkpoint of a run."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.tokenizer import BaseTokenizer, Tokenizer, load_tokenizer


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
    """The folder with the model's files: ``path`` itself, the best checkpoint if it is a run; None: the shipped one.

    Raises UserError if there is none.
    """
    if path is None:
        return shipped_model()
    folder = Path(path)
    if folder.is_dir() and (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        return folder
    from nanoeuler.training.checkpoint import find_model

    return find_model(folder)


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
