"""What every tokenizer can do: the interface that data preparation, training and sampling use."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nanoeuler.errors import UserError

TokenArray = NDArray[np.unsignedinteger[Any]]  # uint16 or uint32, shape (tokens,)


class BaseTokenizer(ABC):
    """A vocabulary of byte strings, numbered from 0, and a way to cut text into them.

    Subclasses give ``encode`` and ``save``; decoding is the same for all: look up and join.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = list(token_bytes)

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary, special tokens included: valid ids are 0 to ``n_vocab - 1``."""
        return len(self._token_bytes)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Name of each special token, and its id."""
        return {}

    @property
    def eot_id(self) -> int | None:
        """The id of ``<|endoftext|>``, which ends a document; None if the vocabulary has none."""
        return self.special_tokens.get("<|endoftext|>")

    @abstractmethod
    def encode(self, text: str, allowed_special: Iterable[str] | Literal["all"] = frozenset()) -> list[int]:
        """Token ids of ``text``."""

    @abstractmethod
    def save(self, directory: str | Path) -> None:
        """Write the tokenizer into a folder, from which ``load_tokenizer`` reads it back."""

    def is_same(self, other: "BaseTokenizer") -> bool:
        """Whether both number the same tokens the same way."""
        mine, others = ((type(t), t.special_tokens, t._token_bytes) for t in (self, other))
        return mine == others

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The smallest type that token files use for ids: uint16 up to 65,536 entries, else uint32."""
        return np.dtype(np.uint16 if self.n_vocab <= 1 << 16 else np.uint32)

    def encode_array(self, text: str, allowed_special: Iterable[str] | Literal["all"] = frozenset()) -> TokenArray:
        """As ``encode``, but an array (tokens,) of :attr:`dtype`: a tenth of the memory."""
        return np.array(self.encode(text, allowed_special), dtype=self.dtype)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ``ids``, joined: exact, though not always whole characters.

        Raises UserError for an id outside the vocabulary, or what is no row of whole numbers.
        """
        try:
            return self._joined(ids.tolist() if isinstance(ids, np.ndarray) else list(ids))
        except TypeError:
            raise UserError("token ids must be a row of whole numbers, such as [15496, 995]") from None

    def _joined(self, ids: list[int]) -> bytes:
        if ids and not (min(ids) >= 0 and max(ids) < self.n_vocab):
            wrong = next(i for i in ids if not 0 <= i < self.n_vocab)
            raise UserError(
                f"token id {wrong} is outside this vocabulary of {self.n_vocab} (ids 0 to {self.n_vocab - 1}); "
                "decode with the tokenizer that the ids were made with"
            )
        return b"".join([self._token_bytes[i] for i in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``. Bytes that are not UTF-8 (half a character, say) become U+FFFD.

        Raises UserError for an id outside the vocabulary.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")
