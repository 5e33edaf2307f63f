"""A split of tokens, wherever it lies: a prepared folder, llm.c's shards, or nanoGPT's ``train.bin``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.data.prepare import STAGING_NAME, read_meta
from nanoeuler.data.shards import TokenFile
from nanoeuler.errors import UserError

SPLITS = ("train", "val")
_BLOCK = 1 << 22  # tokens checked at a time


@dataclass(frozen=True)
class Dataset:
    """The tokens of one split, memory-mapped.

    ``n_bytes`` is the UTF-8 size of the text behind them (None where no one wrote it down), so that
    bits per byte = loss / ln 2 · n_tokens / n_bytes. ``meta`` is the folder's ``meta.json``, ``folder`` where the
    tokenizer's files lie; both are None for files of other programs.
    """

    files: tuple[TokenFile, ...]
    split: str
    n_bytes: int | None = None
    meta: dict[str, Any] | None = field(default=None, repr=False)
    folder: Path | None = None

    @cached_property
    def n_tokens(self) -> int:
        return sum(map(len, self.files))

    @property
    def n_vocab(self) -> int | None:
        """The size of the vocabulary that the ids were made with, where known."""
        return None if self.meta is None else int(self.meta["n_vocab"])

    @classmethod
    def open(cls, source: Path | str | Sequence[Path | str], split: str = "train") -> "Dataset":
        """Open a folder, a file, a glob pattern, or several files.

        A folder is either one that ``nanoeuler data prepare`` made, or holds ``*.bin`` files whose names say the
        split: ``train.bin`` (nanoGPT), ``fineweb_train_000001.bin`` or ``TinyStories_val.bin`` (llm.c).
        Raises UserError, naming the command to run, when there is nothing to open.

        >>> import tempfile
        >>> from nanoeuler.data.shards import write_nanogpt
        >>> with tempfile.TemporaryDirectory() as d:
        ...     write_nanogpt(Path(d, "train.bin"), np.arange(5))
        ...     dataset = Dataset.open(d)
        ...     print(dataset.n_tokens, dataset.files[0].tokens[1:3].tolist())
        ...     del dataset  # Windows removes no file that is still mapped
        5 [1, 2]
        """
        if split not in SPLITS:
            raise UserError(f"unknown split {split!r}: choose train or val")
        if not isinstance(source, (str, Path)):
            return cls(_open_all(list(map(Path, source))), split)
        path = Path(source)
        if path.is_dir():
            return cls._open_folder(path, split)
        if not path.exists() and any(c in path.name for c in "*?["):
            return cls(_open_all(sorted(path.parent.glob(path.name)), str(source)), split)
        if not path.exists():
            raise UserError(f"no data at {path}: make it with `nanoeuler data prepare FILE... --out {path}`")
        return cls((TokenFile.open(path),), split)

    @classmethod
    def _open_folder(cls, folder: Path, split: str) -> "Dataset":
        meta = read_meta(folder)
        if meta is not None:
            return cls._open_prepared(folder, split, meta)
        if (folder / STAGING_NAME).exists():
            raise UserError(f"preparing {folder} was interrupted: run `nanoeuler data prepare` again")
        paths = [path for path in sorted(folder.glob("*.bin")) if _split_of(path) == split]
        if not paths:
            others = sorted({found for path in folder.glob("*.bin") if (found := _split_of(path))})
            if others:
                raise UserError(f"{folder} holds {' and '.join(others)} tokens but none for {split!r}")
            raise UserError(
                f"no token files in {folder}: make them with `nanoeuler data prepare FILE... --out {folder}`"
            )
        return cls(_open_all(paths), split)

    @classmethod
    def _open_prepared(cls, folder: Path, split: str, meta: dict[str, Any]) -> "Dataset":
        part = meta[split]
        if not part["shards"]:
            raise UserError(
                f"{folder} was prepared without {split} data: run `nanoeuler data prepare` again, "
                "with --overwrite and a validation share above 0"
            )
        dataset = cls(_open_all([folder / name for name in part["shards"]]), split, part["bytes"], meta, folder)
        if dataset.n_tokens != part["tokens"]:
            raise UserError(
                f"{folder}: meta.json promises {part['tokens']} {split} tokens, the files hold "
                f"{dataset.n_tokens}: run `nanoeuler data prepare` again, with --overwrite"
            )
        return dataset

    def check_ids(self, n_vocab: int) -> None:
        """Raise UserError, naming the id and its place, unless every token id is below ``n_vocab``."""
        for file in self.files:
            for start in range(0, len(file), _BLOCK):
                block = file.tokens[start : start + _BLOCK]
                if block.max() >= n_vocab:
                    at = int(np.argmax(block >= n_vocab))
                    raise UserError(
                        f"{file.path}: token id {block[at]} at position {start + at} is outside the vocabulary "
                        f"(0 … {n_vocab - 1}): these tokens were made with another tokenizer"
                    )


def has_split(source: Path | str, split: str) -> bool:
    """Whether :meth:`Dataset.open` would find ``split`` in the folder ``source``."""
    folder = Path(source)
    meta = read_meta(folder)
    if meta is not None:
        return bool(meta[split]["shards"])
    return any(_split_of(path) == split for path in folder.glob("*.bin"))


def _open_all(paths: Sequence[Path], pattern: str = "") -> tuple[TokenFile, ...]:
    if not paths:
        raise UserError(f"no data matches {pattern}" if pattern else "no data: name at least one token file")
    return tuple(TokenFile.open(path) for path in paths)


def _split_of(path: Path) -> str | None:
    """The split that a token file's name says: ``train.bin``, ``train_000000.bin``, ``fineweb_val_000000.bin``."""
    match = re.fullmatch(r"(?:.*_)?(train|val)(?:_\d+)?\.bin", path.name)
    return match[1] if match else None
