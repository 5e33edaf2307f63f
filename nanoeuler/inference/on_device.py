"""Letting a device choose the tokens itself: none then waits for Python, and Python works on the text meanwhile.

A decoder with a method ``draw`` reads a token, chooses the next by the rules of :func:`sampling.sample_next` and reads
that, up to a limit, running ahead of the host. The host may stop listening at any token; what lies beyond is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nanoeuler.inference.batch import Batch, window_start
from nanoeuler.inference.writer import Writer


class OnDevice:
    """Draws of a batch, as long as its texts stay the same and need nothing but their next token."""

    def __init__(self, batch: Batch, n_valid: int) -> None:
        self._batch, self._n_valid = batch, n_valid
        self._draw: Any = getattr(batch.decoder, "draw", None)
        self._writers: list[Writer] = []
        self._ids: Iterator[np.ndarray] | None = None

    def advance(self, writers: Sequence[Writer]) -> list[str] | None:
        """One token of each text, chosen by the device; None if it is for the host to choose."""
        if self._draw is None:
            return None
        if self._ids is not None and (len(writers) != len(self._writers) or any(map(_differ, writers, self._writers))):
            self.close()
        if self._ids is None:
            self._ids, self._writers = self._start(writers), list(writers)
        ids = None if self._ids is None else next(self._ids, None)
        if ids is None:
            self.close()
            return None
        pieces = [writer.accept(int(id)) for writer, id in zip(writers, ids)]
        if any(writer.done for writer in writers):
            self.close()
        return pieces

    def close(self) -> None:
        """Stop the device: its slots then hold what the host has taken, but for the last token."""
        if self._ids is not None:
            self._ids.close()  # type: ignore[attr-defined]
        self._ids = None

    def _start(self, writers: Sequence[Writer]) -> Iterator[np.ndarray] | None:
        """Draws until a text must end or its window slide; None if a text has more than one token unread."""
        decoder, block_size = self._batch.decoder, self._batch.block_size
        limits = []
        for writer in writers:
            text, n = writer.text, len(writer.text.tokens)
            assert text.slot is not None
            if text.start != window_start(n, block_size) or decoder.lengths[text.slot] != n - text.start - 1:
                return None
            limits.append(min(writer.n_left, decoder.context - (n - text.start) + 1))
        eot = {writer.eot_id for writer in writers}
        return self._draw(
            [writer.text.slot for writer in writers],
            [writer.text.tokens[-1] for writer in writers],
            [writer.config for writer in writers],
            [writer.sample for writer in writers],
            [len(writer.generation.tokens) for writer in writers],
            self._n_valid,
            min(limits),
            eot.pop() if len(eot) == 1 else None,
        )


def _differ(a: Writer, b: Writer) -> bool:
    return a is not b
