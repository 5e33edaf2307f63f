"""One token a character, as in nanoGPT's Shakespeare experiment."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.base import BaseTokenizer, TokenArray
from nanoeuler.tokenizer.files import (
    CHAR_FILE,
    MERGES_FILE,
    SINGLE_FILE,
    VOCAB_FILE,
    damaged,
    read_json,
    refuse_beside,
    write_texts,
)
from nanoeuler.tokenizer.split import replace_surrogates


class CharTokenizer(BaseTokenizer):
    """A vocabulary of single characters: tiny, and it knows no character outside the text it was made from.

    >>> tokenizer = CharTokenizer.train("hello")
    >>> tokenizer.characters, tokenizer.encode("hole")
    ('ehlo', [1, 3, 2, 0])
    """

    def __init__(self, characters: str) -> None:
        """``characters[id]`` is the character of token ``id``."""
        characters = replace_surrogates(characters)
        if not characters or len(set(characters)) < len(characters):
            raise UserError("a character vocabulary needs at least one character, and each only once")
        super().__init__([character.encode("utf-8") for character in characters])
        self.characters = characters
        self._id_of = {character: id for id, character in enumerate(characters)}

    @staticmethod
    def train(texts: str | Iterable[str]) -> "CharTokenizer":
        """The sorted characters of a text, or of several. Raises UserError if there are none."""
        seen: set[str] = set()
        for text in [texts] if isinstance(texts, str) else texts:
            seen.update(replace_surrogates(text))
        if not seen:
            raise UserError("there is no text to take characters from; give at least one text that is not empty")
        return CharTokenizer("".join(sorted(seen)))

    def encode(
        self,
        text: str,
        allowed_special: Iterable[str] | Literal["all"] = frozenset(),
        errors: Literal["strict", "skip"] = "strict",
    ) -> list[int]:
        """Ids of the characters of ``text``. There are no special tokens: ``allowed_special`` changes nothing.

        Raises UserError for a character outside the vocabulary, unless ``errors="skip"`` leaves it out.

        >>> CharTokenizer.train("hello").encode("hey", errors="skip")
        [1, 0]
        """
        if errors not in ("strict", "skip"):
            raise UserError(f"errors must be 'strict' or 'skip', not {errors!r}")
        text = replace_surrogates(text)
        ids = [self._id_of.get(character) for character in text]
        if errors == "strict" and None in ids:
            at = ids.index(None)
            raise UserError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}, position {at}) is not among the {self.n_vocab} "
                "this model was trained on; leave it out of the text, or encode with errors='skip'"
            )
        return [id for id in ids if id is not None]

    def encode_array(
        self,
        text: str,
        allowed_special: Iterable[str] | Literal["all"] = frozenset(),
        errors: Literal["strict", "skip"] = "strict",
    ) -> TokenArray:
        return np.array(self.encode(text, allowed_special, errors), dtype=self.dtype)  # (tokens,)

    def save(self, directory: str | Path) -> None:
        """Write ``char_vocab.json``: an object whose ``characters`` are listed in the order of their ids.

        Raises UserError if a BPE tokenizer lies there, or the folder cannot be written.
        """
        refuse_beside(Path(directory), [VOCAB_FILE, MERGES_FILE, SINGLE_FILE])
        content = json.dumps({"characters": list(self.characters)}, ensure_ascii=False) + "\n"
        write_texts(Path(directory), {CHAR_FILE: content})

    @staticmethod
    def load(directory: str | Path) -> "CharTokenizer":
        """Read what :meth:`save` wrote. Raises UserError if the file is missing or damaged."""
        path = Path(directory) / CHAR_FILE
        characters = read_json(path).get("characters")
        if not isinstance(characters, list) or not all(isinstance(c, str) and len(c) == 1 for c in characters):
            raise damaged(path, "it holds a list of single 'characters'")
        return CharTokenizer("".join(characters))
