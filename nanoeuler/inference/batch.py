"""Several texts in the slots of one decoder: who is where, what each has read, and what comes next.

The context. A model sees at most ``block_size`` tokens. Longer texts slide: when the window is full, its older half
is dropped, and it fills up again (:func:`window_start`). The window's place depends on the number of tokens alone,
so it does not matter where the prompt ends and the new text begins; and as it moves only now and then, what was
computed for it is kept in between. When it moves, every token has another position, so the window is read anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler.inference.decoder import Decoder


@dataclass
class Text:
    """A text's tokens. ``slot`` holds those from ``start`` on, as far as they were read."""

    tokens: list[int]
    slot: int | None = None
    start: int = 0


class Batch:
    """Texts in a decoder's slots.

    >>> from nanoeuler.inference.decoder import UncachedDecoder
    >>> from nanoeuler.model.config import GPTConfig
    >>> from nanoeuler.model.gpt import GPT
    >>> model = GPT(GPTConfig(10, block_size=8, n_layer=1, n_head=1, n_embd=4), device="reference")
    >>> batch = Batch(UncachedDecoder(model, n_slots=2, context=8), block_size=8)
    >>> texts = [Text([1, 2, 3]), Text([4])]
    >>> batch.place(texts[0]), batch.place(texts[1])
    (True, True)
    >>> [logits.shape for logits in batch.next_logits(texts)]
    [(10,), (10,)]
    """

    def __init__(self, decoder: Decoder, block_size: int) -> None:
        self.decoder, self.block_size = decoder, block_size
        self._free = list(range(decoder.n_slots))[::-1]
        # windows that a slot's content begins with, and the logits after them: for samples of the same prompt
        self._known: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}

    def place(self, text: Text) -> bool:
        """Give the text a slot, if one is free."""
        if not self._free:
            return False
        text.slot, text.start = self._free.pop(), -1
        return True

    def restart(self, text: Text) -> None:
        """Give the text the first slot, whoever had it."""
        text.slot, text.start = 0, -1

    def release(self, text: Text) -> None:
        """Take the slot back. What it holds may still serve another sample of the same prompt."""
        assert text.slot is not None
        self._free.insert(0, text.slot)
        text.slot = None

    def next_logits(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """Logits (V,) of the token after each text, reading what has not been read."""
        out: dict[int, np.ndarray] = {}
        one_each = []
        for i, text in enumerate(texts):
            assert text.slot is not None
            start = window_start(len(text.tokens), self.block_size)
            unread = text.tokens[text.start + self.decoder.lengths[text.slot] :] if text.start == start else []
            if not unread:
                out[i] = self._prefill(text.slot, tuple(text.tokens[start:]))
                text.start = start
            elif len(unread) == 1:
                one_each.append((i, text.slot, unread[0]))
            else:
                out[i] = self.decoder.extend(text.slot, unread)[-1]
        if one_each:
            rows = self.decoder.step([slot for _, slot, _ in one_each], [token for *_, token in one_each])
            out |= {i: row for (i, _, _), row in zip(one_each, rows)}
        return [out[i] for i in range(len(texts))]

    def logits_after_each(self, text: Text, more: Sequence[int]) -> np.ndarray:
        """Logits (1 + n, V) after the text and after each of ``more`` (n,) tokens, which are read as if they followed.

        The caller adds those to the text that stand, and then calls :meth:`keep`. They must fit into the window.
        """
        assert text.slot is not None
        held = text.start + self.decoder.lengths[text.slot]
        if text.start != window_start(len(text.tokens), self.block_size) or held >= len(text.tokens):
            first = self.next_logits([text])[0]
            if not more:
                return first[None]
            return np.concatenate([first[None], self.decoder.extend(text.slot, more)])
        unread = text.tokens[held:]
        return self.decoder.extend(text.slot, [*unread, *more])[len(unread) - 1 :]

    def keep(self, text: Text, n_tokens: int) -> None:
        """Forget what was read of ``text`` beyond its first ``n_tokens``."""
        assert text.slot is not None
        self.decoder.truncate(text.slot, min(self.decoder.lengths[text.slot], n_tokens - text.start))

    def _prefill(self, slot: int, window: tuple[int, ...]) -> np.ndarray:
        if window in self._known:
            src, logits = self._known[window]
            if src != slot:
                self._forget(slot)
                self.decoder.copy(src, slot)
            self.decoder.truncate(slot, len(window))
            return logits
        self._forget(slot)
        logits = self.decoder.prefill(slot, window)
        self._known[window] = slot, logits
        return logits

    def _forget(self, slot: int) -> None:
        self._known = {window: place for window, place in self._known.items() if place[0] != slot}


def window_start(n_tokens: int, block_size: int) -> int:
    """Index of the first of ``n_tokens`` tokens that the model sees.

    0 while all fit; from then on it moves by half a context whenever the window is full.

    >>> [window_start(n, 4) for n in range(3, 10)]
    [0, 0, 2, 2, 4, 4, 6]
    """
    hop = max(1, block_size // 2)
    return max(0, -(-(n_tokens - block_size) // hop)) * hop
