"""A text that a person and a model write in turns. What was read stays in the cache: a turn costs only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.batch import Batch
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.inference.writer import Generation, Writer


class Conversation:
    """One text in one slot of a decoder.

    >>> talk = Conversation(Generator.from_pretrained(), SamplingConfig(temperature=0))
    >>> talk.add("Once upon a time")
    >>> answer = "".join(talk.answer(max_new_tokens=3))
    >>> talk.text == "Once upon a time" + answer
    True
    """

    def __init__(self, generator: Generator, config: SamplingConfig) -> None:
        self.generator, self.config = generator, config
        self.saved: set[Path] = set()  # files that hold the text, and may be overwritten with it
        block_size = generator.model.config.block_size
        self._batch = Batch(generator.open_decoder(1, block_size), block_size)
        self.reset()

    def reset(self) -> None:
        """Begin a new text."""
        self.tokens: list[int] = []
        self._unwritten = 0  # tokens before the text: where a text without a beginning begins
        self._slot: Writer | None = None
        self.turns = 0
        self._before: list[int] = []  # tokens there were before each of the person's turns

    @property
    def text(self) -> str:
        """All that was written so far."""
        return self.generator.tokenizer.decode(self.tokens[self._unwritten :])

    def add(self, text: str) -> None:
        """The person's turn. Raises UserError for characters that the vocabulary does not know."""
        tokens = self.generator.tokenizer.encode(text)
        self._before.append(len(self.tokens))
        self.tokens = self.tokens + tokens

    def undo(self) -> str:
        """Take the person's last turn back, with all that followed; the text that is left.

        What is written next draws other random numbers than what was taken back. Raises UserError at the beginning.
        """
        if not self._before:
            raise UserError("there is nothing to take back")
        n = self._before.pop()
        self.tokens = self.tokens[:n]
        self._unwritten = min(self._unwritten, n)
        if self._slot is not None:
            text = self._slot.text
            if n > text.start >= 0:
                self._batch.keep(text, n)
            else:
                text.start = -1  # the window lay behind the end: read anew
            text.tokens = self.tokens
        return self.text

    def answer(self, max_new_tokens: int = 256, stop: str | Sequence[str] | None = None) -> Iterator[str]:
        """The model's turn, piece by piece. If the caller stops listening, what was written by then stays.

        ``self.last`` tells afterwards how the turn ended.
        """
        if not self.tokens:
            self.tokens, self._unwritten = [self.generator.first_token()], 1
        tokens = self.tokens
        config = replace(self.config, seed=(self.config.seed + self.turns) % (1 << 64))
        writer = Writer(
            self.generator.tokenizer, self._batch.block_size, tokens, config, 0, max_new_tokens, stop, stop_at_eot=True
        )
        if self._slot is not None:  # the slot holds the text as far as it was read
            writer.text.slot, writer.text.start = self._slot.text.slot, self._slot.text.start
        else:
            self._batch.restart(writer.text)
        self._slot, self.last = writer, writer.generation
        self.turns += 1
        try:
            while not writer.done:
                piece = writer.take(self._next_logits(writer))
                self.tokens = writer.text.tokens
                if piece:
                    yield piece
        finally:
            self.tokens = writer.text.tokens
            self.last = self._kept(writer)

    def _next_logits(self, writer: Writer) -> np.ndarray:
        """The batch's; when stopped in the middle, the cache holds nobody knows what: next time all is read anew."""
        try:
            logits: np.ndarray = self._batch.next_logits([writer.text])[0]
            return logits
        except BaseException:
            writer.text.start = -1
            raise

    def _kept(self, writer: Writer) -> Generation:
        """The turn's outcome. A stop string is no part of the text: what was drawn of it is taken back."""
        out = writer.generation
        if out.finish_reason == "stop":
            self.tokens = self.tokens[: out.n_prompt] + self.generator.tokenizer.encode(out.text)
            same = next(
                (i for i, (a, b) in enumerate(zip(self.tokens, writer.text.tokens)) if a != b), len(self.tokens)
            )
            if same > writer.text.start >= 0:
                self._batch.keep(writer.text, same)
            writer.text.tokens = self.tokens
        return out
