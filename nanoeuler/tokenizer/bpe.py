"""Byte-level byte-pair encoding: the tokenizer of GPT-2."""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.base import BaseTokenizer, TokenArray
from nanoeuler.tokenizer.byte_symbols import BYTE_ORDER, byte_ids, from_symbols, is_symbols, to_symbols
from nanoeuler.tokenizer.merge import Merges, merge
from nanoeuler.tokenizer.split import replace_surrogates, split_chunks

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(BaseTokenizer):
    """Byte-level BPE as in GPT-2: any text encodes, and decodes to itself.

    Text is split into pieces (words, roughly), a piece is turned into its UTF-8 bytes, and the merges join
    bytes into tokens. Special tokens such as ``<|endoftext|>`` stand beside this: :meth:`encode` takes their
    names for ordinary text unless the caller allows them, so that nobody can smuggle one in by typing it.

    >>> tokenizer = Tokenizer.gpt2()
    >>> tokenizer.encode("Hello, world!")
    [15496, 11, 995, 0]
    >>> tokenizer.decode([15496, 11, 995, 0])
    'Hello, world!'
    >>> tokenizer.n_vocab, tokenizer.eot_id
    (50257, 50256)

    :param merges: pairs of tokens in the order they were learnt. Tokens are counted as in ``merge.py``: 0 to
        255 are the bytes in GPT-2's order, and 256 + i is what the i-th merge makes.
    :param special_tokens: name and id of each.
    :param ids: the id of each token so counted, where it is not the number itself.
    """

    def __init__(
        self,
        merges: Sequence[tuple[int, int]],
        special_tokens: Mapping[str, int],
        ids: Sequence[int] | None = None,
    ) -> None:
        spelled = [bytes([byte]) for byte in BYTE_ORDER]
        for left, right in merges:
            spelled.append(spelled[left] + spelled[right])
        if broken := [name for name in special_tokens if replace_surrogates(name) != name]:
            raise UserError(f"special token {broken[0]!r} holds half a surrogate pair, which is no character")
        ids = range(len(spelled)) if ids is None else ids
        entries = dict(zip(ids, spelled)) | {id: name.encode() for name, id in special_tokens.items()}
        size = len(spelled) + len(special_tokens)
        if sorted(entries) != list(range(size)):
            raise UserError(f"the vocabulary's {size} entries must have the ids 0 to {size - 1}, each once")
        if clash := _spelled_like(special_tokens, spelled):
            raise UserError(f"special token {clash[0]!r} is spelled like an ordinary one in vocab.json; rename it")
        super().__init__([entries[id] for id in range(size)])
        self._merges = list(merges)
        self._special_tokens = dict(special_tokens)
        self._pieces = _PieceCache({pair: 256 + rank for rank, pair in enumerate(merges)}, ids)

    @staticmethod
    @cache
    def gpt2() -> "Tokenizer":
        """OpenAI's GPT-2 vocabulary: 50,257 entries. Read once; later calls return the same object."""
        from nanoeuler.tokenizer.files import parse_merges

        data = files(__package__).joinpath("gpt2/merges.txt.gz").read_bytes()
        merges = parse_merges(gzip.decompress(data).decode("utf-8"))
        return Tokenizer(merges, {END_OF_TEXT: 256 + len(merges)})

    @staticmethod
    def train(
        texts: Iterable[str],
        vocab_size: int,
        special_tokens: Sequence[str] = (END_OF_TEXT,),
        progress: Callable[[int, int], None] | None = None,
    ) -> "Tokenizer":
        """Learn a vocabulary of ``vocab_size`` entries from ``texts``: see :func:`train.train`."""
        from nanoeuler.tokenizer.train import train

        return train(texts, vocab_size, special_tokens, progress)

    @staticmethod
    def load(directory: str | Path) -> "Tokenizer":
        """Read a folder that :meth:`save` or ``transformers`` wrote: see :func:`files.load_bpe`."""
        from nanoeuler.tokenizer.files import load_bpe

        return load_bpe(Path(directory))

    def save(self, directory: str | Path) -> None:
        """Write ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``: see :func:`files.save_bpe`."""
        from nanoeuler.tokenizer.files import save_bpe

        save_bpe(self, Path(directory))

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self._special_tokens)

    @property
    def merges(self) -> list[tuple[int, int]]:
        """The merges in the order they were learnt, tokens counted as in the constructor."""
        return list(self._merges)

    def vocab(self) -> dict[str, int]:
        """Every entry and its id, the bytes written in GPT-2's visible characters, as in ``vocab.json``."""
        names = {id: name for name, id in self._special_tokens.items()}
        return {names.get(id) or to_symbols(token): id for id, token in enumerate(self._token_bytes)}

    def encode(self, text: str, allowed_special: Iterable[str] | Literal["all"] = frozenset()) -> list[int]:
        """Token ids of ``text``.

        Names of special tokens in ``text`` are ordinary text, except those in ``allowed_special`` (``"all"``
        allows every one). Lone surrogates are encoded as U+FFFD. Raises UserError if ``allowed_special``
        names a token that the vocabulary does not have.

        >>> Tokenizer.gpt2().encode("<|endoftext|>")
        [27, 91, 437, 1659, 5239, 91, 29]
        >>> Tokenizer.gpt2().encode("<|endoftext|>", allowed_special="all")
        [50256]
        """
        return list(chain.from_iterable(self._ids_of_pieces(text, allowed_special)))

    def encode_array(self, text: str, allowed_special: Iterable[str] | Literal["all"] = frozenset()) -> TokenArray:
        pieces = self._ids_of_pieces(text, allowed_special)
        return np.fromiter(chain.from_iterable(pieces), dtype=self.dtype)  # (tokens,)

    def _ids_of_pieces(self, text: str, allowed_special: Iterable[str] | Literal["all"]) -> Iterator[Sequence[int]]:
        """The ids of each piece of ``text``, and of each special token in it, in turn."""
        if allowed_special:
            return self._ids_with_special(text, allowed_special)
        pieces = chain.from_iterable(split_chunks(text))
        return map(self._pieces.__getitem__, pieces)

    def _ids_with_special(self, text: str, allowed_special: Iterable[str] | Literal["all"]) -> Iterator[Sequence[int]]:
        names = set(self._special_tokens) if allowed_special == "all" else set(allowed_special)
        if unknown := names - set(self._special_tokens):
            known = ", ".join(self._special_tokens) or "none"
            raise UserError(
                f"{min(unknown)!r} is not a special token of this vocabulary (it has: {known}); "
                "pass allowed_special a set of those names, or 'all'"
            )
        for part in re.split(special_pattern(names), text) if names else [text]:
            if part in names:
                yield (self._special_tokens[part],)
            else:
                yield from self._ids_of_pieces(part, allowed_special=())


def _spelled_like(names: Iterable[str], tokens: Iterable[bytes]) -> list[str]:
    """Those ``names`` that ``vocab.json`` could not tell from one of ``tokens``, or from nothing."""
    entries = {b"", *tokens}
    return [name for name in names if is_symbols(name) and from_symbols(name) in entries]


def special_pattern(names: Iterable[str]) -> str:
    """A regular expression that finds any of ``names`` (the longest, where one begins another) as a group."""
    return "(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")"


class _PieceCache(dict[str, tuple[int, ...]]):
    """The ids of every piece met so far: most of a text is words that came before."""

    _MOST = 1 << 17  # entries; about 30 MB
    _LONGEST = 200  # characters; longer pieces are hardly ever met twice

    def __init__(self, merges: Merges, ids: Sequence[int]) -> None:
        self._merges = merges
        self._ids = ids

    def __missing__(self, piece: str) -> tuple[int, ...]:
        tokens = merge(byte_ids(piece.encode("utf-8")), self._merges)
        ids = tuple([self._ids[token] for token in tokens])
        if len(self) >= self._MOST:
            self.clear()
        if len(piece) <= self._LONGEST:
            self[piece] = ids
        return ids
