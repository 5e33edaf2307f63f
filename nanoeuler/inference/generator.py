"""Writing text with a model: from prompts to tokens to text, on any device, several texts side by side."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Literal

from nanoeuler.errors import UserError
from nanoeuler.formats.int8_folder import save_int8
from nanoeuler.inference.batch import Batch
from nanoeuler.inference.decoder import Decoder, Source, check_weights, open_decoder, prepare
from nanoeuler.inference.on_device import OnDevice
from nanoeuler.inference.pretrained import find_model_folder, load_model, tokenizer_of
from nanoeuler.inference.quantize import Int8Weights
from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.inference.speculation import MOST, Draft, LookUp, ModelDraft, check_draft, room
from nanoeuler.inference.writer import Generation, Writer
from nanoeuler.model.gpt import GPT
from nanoeuler.ops import check_device
from nanoeuler.tokenizer import BaseTokenizer

SIDE_BY_SIDE = 8  # texts that run in one batch, unless told otherwise


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
    >>> from nanoeuler.model.gpt import GPT
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

    def __init__(
        self, model: Source, tokenizer: BaseTokenizer, weights: str | None = None, device: str = "cpu"
    ) -> None:
        check_weights(weights)
        check_device(device)
        if not isinstance(tokenizer, BaseTokenizer) or not hasattr(model, "config"):
            raise UserError(
                f"a Generator takes a model and its tokenizer, not {type(model).__name__} and "
                f"{type(tokenizer).__name__}; Generator.from_pretrained loads a folder"
            )
        if tokenizer.n_vocab > model.config.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.n_vocab} entries and the model only {model.config.vocab_size}: "
                "this is not the tokenizer that the model was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.weights, self.device = weights, device
        self._prepared: Source | None = None
        self._idle: Decoder | None = None  # kept from call to call

    @classmethod
    def from_pretrained(
        cls, path: str | Path | None = None, device: str = "cpu", weights: str | None = None
    ) -> Generator:
        """Load model and tokenizer from a folder (or the best checkpoint of a run); None is the shipped model.

        ``weights``: "float32", "bf16" or "int8", for speed against a little precision; None is the device's own, and
        int8 for a folder that `nanoeuler quantize` wrote.

        Raises UserError if there is no model, or it cannot be read.
        """
        check_weights(weights)
        folder = find_model_folder(path)
        model = load_model(folder, device, weights)
        return cls(model, tokenizer_of(folder, model.config), weights, device)

    def save_pretrained(self, folder: str | Path, dtype: str = "float32") -> None:
        """Save model and tokenizer to a folder that :meth:`from_pretrained` and ``transformers`` load.

        ``dtype`` as in :meth:`GPT.save_pretrained`; weights of 8 bits stay so, and `transformers` does not read them.
        Raises UserError if the folder cannot be written.
        """
        self.tokenizer.save(folder)  # first: it refuses a folder that holds another kind
        if isinstance(self.model, Int8Weights):
            save_int8(Path(folder), self.model, self.tokenizer.eot_id)
        elif isinstance(self.model, GPT):
            self.model.save_pretrained(folder, dtype, self.tokenizer.eot_id)

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
        draft: str | Generator | None = None,
    ) -> list[Generation]:
        """Write ``num_samples`` texts that continue ``prompt``; of several prompts, those of the first come first.

        At most ``batch_size`` texts run side by side; when one ends, the next takes its place. A prompt is read once
        for all its samples that are on their way together. What is written beside a text does not change it; on a GPU
        only as far as bfloat16 goes, since its kernels for more texts round in another order.

        For the choice of each token see :class:`SamplingConfig`; without a ``seed`` one is drawn, and
        ``Generation.seed`` tells it. ``stop``: strings that end the text, and are no part of it. ``stop_at_eot``:
        end where the model ends the text. ``allow_special``: take ``<|endoftext|>`` in the prompt for the token,
        not for text. ``overflow``: what to do when prompt and new text may not fit into the context, slide the
        window (see the top of this file) or refuse. An empty prompt starts from the end-of-text token, after which
        a new text begins; from a newline in a character vocabulary. ``draft``: let "lookup", or a Generator with a
        smaller model of the same vocabulary, guess tokens that are then read side by side: the same text, sooner.

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
            writers += [
                Writer(self.tokenizer, self.model.config.block_size, ids, config, i, max_new_tokens, stop, stop_at_eot)
                for i in range(num_samples)
            ]
        waiting = [writer for writer in writers if not writer.done]
        if waiting:
            with self._batch(waiting, int(batch_size)) as batch:
                _write(batch, waiting, self._drafts(draft, waiting), OnDevice(batch, self.tokenizer.n_vocab))
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
        draft: str | Generator | None = None,
    ) -> TextStream:
        """Write sample number ``sample`` of :meth:`generate` and yield its text piece by piece.

        No piece holds half a character or a part of a stop string; joined they are ``Generation.text``. Errors
        are raised at once, not with the first piece.
        """
        config = _sampling(temperature, top_k, top_p, repetition_penalty, seed)
        if not isinstance(sample, Integral) or not 0 <= sample < 1 << 63:
            raise UserError(f"sample must be a whole number, 0 or above, not {sample!r}")
        ids = self._prompt_ids(prompt, max_new_tokens, allow_special, overflow)
        writer = Writer(
            self.tokenizer, self.model.config.block_size, ids, config, sample, max_new_tokens, stop, stop_at_eot
        )
        return TextStream(self._pieces(writer, self._drafts(draft, [writer])), writer.generation)

    # ---- the loop -----------------------------------------------------------------------------------
    def _pieces(self, writer: Writer, drafts: dict[Writer, Draft]) -> Iterator[str]:
        if writer.done:
            return
        with self._batch([writer], 1) as batch:
            batch.place(writer.text)
            device = OnDevice(batch, self.tokenizer.n_vocab)
            try:
                while not writer.done:
                    if piece := _advance(batch, [writer], drafts, device)[0]:
                        yield piece
            finally:
                device.close()

    def _drafts(self, draft: str | Generator | None, writers: list[Writer]) -> dict[Writer, Draft]:
        """Someone to guess for each text, if a draft is wanted."""
        if draft is None:
            return {}
        if not isinstance(draft, Generator):
            check_draft(draft)
            return {writer: LookUp() for writer in writers}
        if draft.tokenizer.n_vocab != self.tokenizer.n_vocab:
            raise UserError(
                f"the draft's tokenizer has {draft.tokenizer.n_vocab} entries and the model's "
                f"{self.tokenizer.n_vocab}: both models must have the same vocabulary"
            )
        if not draft.tokenizer.is_same(self.tokenizer):
            raise UserError("the draft's tokenizer numbers other tokens than the model's: train both with the same one")
        block_size = draft.model.config.block_size
        n_vocab = draft.tokenizer.n_vocab
        return {writer: ModelDraft(draft.open_decoder(1, block_size), block_size, n_vocab) for writer in writers}

    @contextmanager
    def _batch(self, writers: list[Writer], most: int) -> Iterator[Batch]:
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
        if self._prepared is None:
            self._prepared = prepare(self.model, self.weights, self.device)
        return open_decoder(self._prepared, n_slots, context, self.weights, self.device)

    def _prompt_ids(self, prompt: str, max_new_tokens: int, allow_special: bool, overflow: str) -> list[int]:
        if not isinstance(max_new_tokens, Integral) or max_new_tokens < 0:
            raise UserError(f"max_new_tokens must be a whole number, 0 or above, not {max_new_tokens!r}")
        if overflow not in ("slide", "refuse"):
            raise UserError(f"overflow must be 'slide' or 'refuse', not {overflow!r}")
        if not isinstance(prompt, str):
            raise UserError(f"the prompt must be text, or a list of texts, not {type(prompt).__name__}")
        ids = self.tokenizer.encode(prompt, "all" if allow_special else ()) or [self.first_token()]
        # The last token drawn is never read, so one more than the context fits.
        if overflow == "refuse" and len(ids) + max_new_tokens - 1 > self.model.config.block_size:
            raise UserError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones do not fit into the context of "
                f"{self.model.config.block_size}: shorten the prompt or ask for fewer"
            )
        return ids

    def first_token(self) -> int:
        """Where a text without a prompt begins."""
        if self.tokenizer.eot_id is not None:
            return self.tokenizer.eot_id
        try:
            return self.tokenizer.encode("\n")[0]
        except UserError:
            return 0  # a character vocabulary without newlines


def _write(batch: Batch, waiting: list[Writer], drafts: dict[Writer, Draft], device: OnDevice) -> None:
    """Write all texts, as many side by side as the batch has slots for."""
    waiting, live = waiting[::-1], list[Writer]()
    while waiting or live:
        while waiting and batch.place(waiting[-1].text):
            live.append(waiting.pop())
        _advance(batch, live, drafts, device)
        for writer in live:
            if writer.done:
                batch.release(writer.text)
                drafts.pop(writer, None)
        live = [writer for writer in live if not writer.done]


def _advance(batch: Batch, live: list[Writer], drafts: dict[Writer, Draft], device: OnDevice) -> list[str]:
    """Write one token of each text, with a draft perhaps several; what text that makes certain."""
    if not drafts:
        if (pieces := device.advance(live)) is not None:
            return pieces
        return [writer.take(row) for writer, row in zip(live, batch.next_logits([writer.text for writer in live]))]
    return [_advance_guessing(batch, writer, drafts[writer]) for writer in live]


def _advance_guessing(batch: Batch, writer: Writer, draft: Draft) -> str:
    """Let ``draft`` guess, read its guesses side by side, and keep what the model itself would have written."""
    tokens, out = writer.text.tokens, writer.generation
    n, k = len(tokens), room(tokens, batch.block_size, min(MOST, writer.n_left - 1))
    guesses = draft.guess(tokens, k, writer.config, writer.sample, len(out.tokens)) if k > 0 else []
    text, right = "", 0
    for row, guess in zip(batch.logits_after_each(writer.text, guesses), [*guesses, None]):
        text += writer.take(row)
        if writer.done or tokens[-1] != guess:
            break
        right += 1
    batch.keep(writer.text, n + right)
    out.guessed += len(guesses)
    out.accepted += right
    return text


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
