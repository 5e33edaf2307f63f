"""Writing text with a model: from prompts to tokens to text, on any device, several texts side by side."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Literal

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.batch import Batch, Text, window_start
from nanoeuler.inference.decoder import Decoder, open_decoder
from nanoeuler.inference.pretrained import find_model_folder, tokenizer_of
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.inference.stopping import StopStrings
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import BaseTokenizer, StreamDecoder

FinishReason = Literal["length", "eot", "stop"]
SIDE_BY_SIDE = 8  # texts that run in one batch, unless told otherwise


@dataclass
class Generation:
    """One text that a model wrote.

    ``text`` is what came after the prompt, without the stop string. ``tokens`` are the ids drawn, without the
    end-of-text token. ``finish_reason`` is ``"length"`` (max_new_tokens), ``"eot"`` (the model ended the text) or
    ``"stop"`` (a stop string came). ``notes`` are sentences the user should read, such as that the prompt was cut.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    n_prompt: int = 0
    seed: int = 0
    notes: list[str] = field(default_factory=list)


class TextStream(Iterator[str]):
    """Pieces of text as they are written; afterwards (or when closed) ``generation`` holds the whole."""

    def __init__(self, pieces: Iterator[str], generation: Generation) -> None:
        self._pieces = pieces
        self.generation = generation

    def __next__(self) -> str:
        return next(self._pieces)


class Generator:
    """A model with its tokenizer, ready to write.

    >>> from nanoeuler.model.config import GPTConfig
    >>> from nanoeuler.tokenizer import CharTokenizer
    >>> tokenizer = CharTokenizer("\\n abcdefgh")
    >>> model = GPT(GPTConfig(tokenizer.n_vocab, block_size=8, n_layer=1, n_head=1, n_embd=8), device="reference")
    >>> generator = Generator(model, tokenizer)
    >>> [text] = generator.generate("abc", max_new_tokens=5, seed=1)
    >>> len(text.text), text.finish_reason
    (5, 'length')
    >>> "".join(generator.stream("abc", max_new_tokens=5, seed=1)) == text.text
    True
    """

    def __init__(self, model: GPT, tokenizer: BaseTokenizer, weights: str | None = None) -> None:
        if tokenizer.n_vocab > model.config.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.n_vocab} entries and the model only {model.config.vocab_size}: "
                "this is not the tokenizer that the model was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.weights = weights
        self._idle: Decoder | None = None  # kept from call to call

    @classmethod
    def from_pretrained(
        cls, path: str | Path | None = None, device: str = "cpu", weights: str | None = None
    ) -> Generator:
        """Load model and tokenizer from a folder (or the best checkpoint of a run); None is the shipped model.

        Raises UserError if there is no model, or it cannot be read.
        """
        folder = find_model_folder(path)
        model = GPT.from_pretrained(folder, device=device)
        return cls(model, tokenizer_of(folder, model.config), weights)

    def save_pretrained(self, folder: str | Path, dtype: str = "float32") -> None:
        """Save model and tokenizer to a folder that :meth:`from_pretrained` and ``transformers`` load.

        ``dtype`` as in :meth:`GPT.save_pretrained`. Raises UserError if the folder cannot be written.
        """
        self.model.save_pretrained(folder, dtype, self.tokenizer.eot_id)
        self.tokenizer.save(folder)

    # ---- what callers use ---------------------------------------------------------------------------
    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        max_new_tokens: int = 256,
        temperature: float = SamplingConfig.temperature,
        top_k: int | None = SamplingConfig.top_k,
        top_p: float = SamplingConfig.top_p,
        repetition_penalty: float = SamplingConfig.repetition_penalty,
        seed: int | None = None,
        num_samples: int = 1,
        stop: str | Sequence[str] | None = None,
        stop_at_eot: bool = True,
        allow_special: bool = False,
        overflow: Literal["slide", "refuse"] = "slide",
        batch_size: int = SIDE_BY_SIDE,
    ) -> list[Generation]:
        """Write ``num_samples`` texts that continue ``prompt``; of several prompts, those of the first come first.

        At most ``batch_size`` texts run side by side; when one ends, the next takes its place. A prompt is read once
        for all its samples that are on their way together. What is written beside a text does not change it.

        For the choice of each token see :class:`SamplingConfig`; without a ``seed`` one is drawn, and
        ``Generation.seed`` tells it. ``stop``: strings that end the text, and are no part of it. ``stop_at_eot``:
        end where the model ends the text. ``allow_special``: take ``<|endoftext|>`` in the prompt for the token,
        not for text. ``overflow``: what to do when prompt and new text may not fit into the context, slide the
        window (see the top of this file) or refuse. An empty prompt starts from the end-of-text token, after which
        a new text begins; from a newline in a character vocabulary.

        Raises UserError for settings out of range, and if the prompt holds characters unknown to the vocabulary.
        """
        config = _sampling(temperature, top_k, top_p, repetition_penalty, seed)
        if not isinstance(num_samples, Integral) or num_samples < 1:
            raise UserError(f"num_samples must be a whole number, 1 or above, not {num_samples!r}")
        if not isinstance(batch_size, Integral) or batch_size < 1:
            raise UserError(f"batch_size must be a whole number, 1 or above, not {batch_size!r}")
        prompts = [prompt] if isinstance(prompt, str) or not isinstance(prompt, Sequence) else prompt
        writers = []
        for ids in [self._prompt_ids(one, max_new_tokens, allow_special, overflow) for one in prompts]:
            writers += [_Writer(self, ids, config, i, max_new_tokens, stop, stop_at_eot) for i in range(num_samples)]
        waiting = [writer for writer in writers if not writer.done]
        if waiting:
            with self._batch(waiting, int(batch_size)) as batch:
                _write(batch, waiting)
        return [writer.generation for writer in writers]

    def stream(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 256,
        temperature: float = SamplingConfig.temperature,
        top_k: int | None = SamplingConfig.top_k,
        top_p: float = SamplingConfig.top_p,
        repetition_penalty: float = SamplingConfig.repetition_penalty,
        seed: int | None = None,
        sample: int = 0,
        stop: str | Sequence[str] | None = None,
        stop_at_eot: bool = True,
        allow_special: bool = False,
        overflow: Literal["slide", "refuse"] = "slide",
    ) -> TextStream:
        """Write sample number ``sample`` of :meth:`generate` and yield its text piece by piece.

        No piece holds half a character or a part of a stop string; joined they are ``Generation.text``. Errors
        are raised at once, not with the first piece.
        """
        config = _sampling(temperature, top_k, top_p, repetition_penalty, seed)
        if not isinstance(sample, Integral) or not 0 <= sample < 1 << 63:
            raise UserError(f"sample must be a whole number, 0 or above, not {sample!r}")
        ids = self._prompt_ids(prompt, max_new_tokens, allow_special, overflow)
        writer = _Writer(self, ids, config, sample, max_new_tokens, stop, stop_at_eot)
        return TextStream(self._pieces(writer), writer.generation)

    # ---- the loop -----------------------------------------------------------------------------------
    def _pieces(self, writer: _Writer) -> Iterator[str]:
        if writer.done:
            return
        with self._batch([writer], 1) as batch:
            batch.place(writer.text)
            while not writer.done:
                if piece := writer.take(batch.next_logits([writer.text])[0]):
                    yield piece

    @contextmanager
    def _batch(self, writers: list[_Writer], most: int) -> Iterator[Batch]:
        """Slots for these texts, or for as many as may run side by side: those of the last call if they are enough."""
        block_size = self.model.config.block_size
        context = min(block_size, max(writer.longest for writer in writers))
        n_slots, decoder = min(most, len(writers)), self._idle
        self._idle = None  # another call while this one is under way must use its own
        if decoder is None or decoder.n_slots < n_slots or decoder.context < context:
            decoder = None  # given back before the new one is made
            context = min(block_size, -(-context // 64) * 64)
            decoder = self.open_decoder(n_slots, context)
        try:
            yield Batch(decoder, block_size)
        finally:
            self._idle = decoder

    def open_decoder(self, n_slots: int, context: int) -> Decoder:
        """A decoder for this model with room for ``n_slots`` texts of ``context`` tokens."""
        return open_decoder(self.model, n_slots, context, self.weights)

    def _prompt_ids(self, prompt: str, max_new_tokens: int, allow_special: bool, overflow: str) -> list[int]:
        if not isinstance(max_new_tokens, Integral) or max_new_tokens < 0:
            raise UserError(f"max_new_tokens must be a whole number, 0 or above, not {max_new_tokens!r}")
        if overflow not in ("slide", "refuse"):
            raise UserError(f"overflow must be 'slide' or 'refuse', not {overflow!r}")
        if not isinstance(prompt, str):
            raise UserError(f"the prompt must be text, or a list of texts, not {type(prompt).__name__}")
        ids = self.tokenizer.encode(prompt, "all" if allow_special else ()) or [self._first_token()]
        # The last token drawn is never read, so one more than the context fits.
        if overflow == "refuse" and len(ids) + max_new_tokens - 1 > self.model.config.block_size:
            raise UserError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones do not fit into the context of "
                f"{self.model.config.block_size}: shorten the prompt or ask for fewer"
            )
        return ids

    def _first_token(self) -> int:
        """Where a text without a prompt begins."""
        if self.tokenizer.eot_id is not None:
            return self.tokenizer.eot_id
        try:
            return self.tokenizer.encode("\n")[0]
        except UserError:
            return 0  # a character vocabulary without newlines


def _write(batch: Batch, waiting: list[_Writer]) -> None:
    """Write all texts, as many side by side as the batch has slots for."""
    waiting, live = waiting[::-1], list[_Writer]()
    while waiting or live:
        while waiting and batch.place(waiting[-1].text):
            live.append(waiting.pop())
        for writer, logits in zip(live, batch.next_logits([writer.text for writer in live])):
            writer.take(logits)
            if writer.done:
                batch.release(writer.text)
        live = [writer for writer in live if not writer.done]


class _Writer:
    """One sample in the making: its tokens, and the text that is certain so far."""

    def __init__(
        self,
        generator: Generator,
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
        self._config, self._sample, self._max_new_tokens = config, sample, max_new_tokens
        self._block_size = generator.model.config.block_size
        self._n_vocab = generator.tokenizer.n_vocab
        self._eot_id = generator.tokenizer.eot_id if stop_at_eot else None
        self._decoder = StreamDecoder(generator.tokenizer)
        self._stop = StopStrings(stop)
        start = window_start(len(prompt_ids), self._block_size)
        if start:
            self.generation.notes.append(
                f"the prompt has {len(prompt_ids)} tokens, more than the model's context of {self._block_size}: "
                f"only the last {len(prompt_ids) - start} count"
            )

    def take(self, logits: np.ndarray) -> str:
        """Draw the next token from ``logits`` (V,); return the text that it makes certain."""
        out = self.generation
        u = uniform(self._config.seed, self._sample, len(out.tokens))
        id = sample_next(logits, self.text.tokens, self._config, u, n_valid=self._n_vocab)
        if id == self._eot_id:
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


def _sampling(
    temperature: float, top_k: int | None, top_p: float, repetition_penalty: float, seed: int | None
) -> SamplingConfig:
    return SamplingConfig(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=secrets.randbits(32) if seed is None else seed,
    )
