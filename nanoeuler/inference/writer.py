"""One text in the making: which token comes next, what text that makes certain, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nanoeuler.inference.batch import Text, window_start
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.inference.stopping import StopStrings
from nanoeuler.tokenizer import BaseTokenizer, StreamDecoder

FinishReason = Literal["length", "eot", "stop"]


@dataclass
class Generation:
    """One text that a model wrote.

    ``text`` is what came after the prompt, without the stop string. ``tokens`` are the ids drawn, without the
    end-of-text token. ``finish_reason`` is ``"length"`` (max_new_tokens), ``"eot"`` (the model ended the text) or
    ``"stop"`` (a stop string came). ``notes`` are sentences the user should read, such as that the prompt was cut.
    With a draft, ``guessed`` counts its guesses, and ``accepted`` those that the model would have written.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    n_prompt: int = 0
    seed: int = 0
    notes: list[str] = field(default_factory=list)
    guessed: int = 0
    accepted: int = 0


class Writer:
    """One sample in the making: its tokens, and the text that is certain so far."""

    def __init__(
        self,
        tokenizer: BaseTokenizer,
        block_size: int,
        prompt_ids: list[int],
        config: SamplingConfig,
        sample: int,
        max_new_tokens: int,
        stop: str | Sequence[str] | None,
        stop_at_eot: bool,
    ) -> None:
        self.text = Text(list(prompt_ids))
        self.longest = len(prompt_ids) + max_new_tokens
        self.generation = Generation(n_prompt=len(prompt_ids), seed=config.seed)
        self.done = max_new_tokens == 0
        self.config, self.sample, self._max_new_tokens = config, sample, max_new_tokens
        self._block_size = block_size
        self._n_vocab = tokenizer.n_vocab
        self.eot_id = tokenizer.eot_id if stop_at_eot else None
        self._decoder = StreamDecoder(tokenizer)
        self._stop = StopStrings(stop)
        start = window_start(len(prompt_ids), self._block_size)
        if start:
            self.generation.notes.append(
                f"the prompt has {len(prompt_ids)} tokens, more than the model's context of {self._block_size}: "
                f"only the last {len(prompt_ids) - start} count"
            )

    def take(self, logits: np.ndarray) -> str:
        """Draw the next token from ``logits`` (V,); return the text that it makes certain."""
        u = uniform(self.config.seed, self.sample, len(self.generation.tokens))
        return self.accept(sample_next(logits, self.text.tokens, self.config, u, n_valid=self._n_vocab))

    def accept(self, id: int) -> str:
        """Take ``id`` for the next token; return the text that it makes certain."""
        out = self.generation
        if id == self.eot_id:
            return self._finish("eot")
        self.text.tokens.append(id)
        out.tokens.append(id)
        piece = self._stop.feed(self._decoder.feed(id))
        out.text += piece
        if self._stop.reached:
            self.done, out.finish_reason = True, "stop"
        elif len(out.tokens) == self._max_new_tokens:
            piece += self._finish("length")
        elif not out.notes and len(self.text.tokens) > self._block_size:
            out.notes.append(
                f"the text outgrew the model's context of {self._block_size} tokens: "
                f"its beginning was forgotten on the way"
            )
        return piece

    def _finish(self, reason: FinishReason) -> str:
        """End the text; return what the decoder and the search for stop strings held back."""
        out = self.generation
        rest = self._stop.feed(self._decoder.flush())
        if self._stop.reached:  # a stop string may end in U+FFFD, of a character left unfinished
            reason = "stop"
        rest += self._stop.flush()
        out.text += rest
        self.done, out.finish_reason = True, reason
        return rest

    @property
    def n_left(self) -> int:
        """How many tokens it may still write."""
        return self._max_new_tokens - len(self.generation.tokens)
