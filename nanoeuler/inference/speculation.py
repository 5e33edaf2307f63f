"""Guessing several tokens at once, and reading them all in one pass: the same text, sooner.

A step reads all weights for one token; reading them for five costs hardly more. So a cheap *draft* guesses what comes
next, the model reads the guesses side by side, and tells after each what it would have written. As far as the guesses
are what it writes, they stand: several tokens for one reading of the weights. From the first that differs on they are
forgotten, and the model's own token takes the place.

What the model writes at a place is a function of its logits there and of the random number of that place
(``sampling.uniform``), so speculation does not merely keep the distribution, as rejection sampling does (Leviathan et
al. 2023, "Fast Inference from Transformers via Speculative Decoding"): it keeps every token. A draft that knows the
random number guesses better: the draft model draws with it too. For a draft that is sure of itself, as the look-up is,
the share of guesses that stand is the same as theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nanoeuler.errors import UserError
from nanoeuler.inference.batch import Batch, Text, window_start
from nanoeuler.inference.decoder import Decoder
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform

MOST = 8  # tokens guessed at a time, at most


class Draft(Protocol):
    """Guesses how a text goes on."""

    def guess(self, tokens: Sequence[int], k: int, config: SamplingConfig, sample: int, n_new: int) -> list[int]:
        """At most ``k`` tokens to follow ``tokens``, of which ``n_new`` were written by sample ``sample``."""


class LookUp:
    """What followed the last few tokens when they stood in the text before: needs no model, and suits repetitive texts.

    >>> LookUp(longest=2).guess([5, 6, 7, 8, 5, 6], 3, SamplingConfig(), 0, 0)
    [7, 8, 5]
    >>> LookUp().guess([4, 1, 2, 1, 2], 5, SamplingConfig(), 0, 0)
    [1, 2, 1, 2, 1]
    """

    def __init__(self, longest: int = 3) -> None:
        self.longest = longest

    def guess(self, tokens: Sequence[int], k: int, config: SamplingConfig, sample: int, n_new: int) -> list[int]:
        tokens, known = list(tokens), len(tokens)
        for n in range(min(self.longest, known - 1), 0, -1):
            end = tokens[-n:]
            for at in range(known - n - 1, -1, -1):
                if tokens[at : at + n] == end:
                    for i in range(k):  # where the text catches up with itself, it goes round in a circle
                        tokens.append(tokens[at + n + i])
                    return tokens[known:]
        return []


class ModelDraft:
    """What a smaller model with the same vocabulary would write, drawing with the same random numbers."""

    def __init__(self, decoder: Decoder, block_size: int, n_vocab: int) -> None:
        self._batch, self._n_vocab = Batch(decoder, block_size), n_vocab
        self._text = Text([])
        self._batch.place(self._text)

    def guess(self, tokens: Sequence[int], k: int, config: SamplingConfig, sample: int, n_new: int) -> list[int]:
        self._return_to(tokens)
        out: list[int] = []
        for i in range(k):
            logits = self._batch.next_logits([self._text])[0]
            u = uniform(config.seed, sample, n_new + i)
            out.append(sample_next(logits, self._text.tokens, config, u, n_valid=self._n_vocab))
            self._text.tokens.append(out[-1])
        return out

    def _return_to(self, tokens: Sequence[int]) -> None:
        """Forget what was read beyond the beginning that the text now shares with what was guessed before."""
        text, decoder = self._text, self._batch.decoder
        pairs = enumerate(zip(text.tokens, tokens))
        same = next((i for i, (a, b) in pairs if a != b), min(len(text.tokens), len(tokens)))
        assert text.slot is not None
        if text.start >= 0:
            keep = min(same, len(tokens) - 1) - text.start
            if keep > 0:
                decoder.truncate(text.slot, min(decoder.lengths[text.slot], keep))
            else:
                text.start = -1  # read anew
        text.tokens = list(tokens)


def room(tokens: Sequence[int], block_size: int, k: int) -> int:
    """How many tokens may be guessed, of ``k``, without the window having to slide under them."""
    return max(0, min(k, block_size - (len(tokens) - window_start(len(tokens), block_size))))


def check_draft(name: str) -> None:
    """UserError unless ``name`` is a draft that needs no model."""
    if name != "lookup":
        raise UserError(f"draft must be 'lookup' or a Generator with a smaller model, not {name!r}")
