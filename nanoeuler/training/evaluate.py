"""How well a model predicts a text: mean loss, perplexity and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nanoeuler.data.dataset import Dataset
from nanoeuler.data.loader import eval_batches


class Predictor(Protocol):
    """A GPT, or whatever else knows how badly it predicts."""

    def losses(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Cross-entropy of each target in ``y`` (B, T) after ``x`` (B, T), 0 where it is -1."""


@dataclass(frozen=True)
class EvalResult:
    """``loss`` in nats a token; ``bits_per_byte`` is None where the text's size in bytes is not known."""

    loss: float
    tokens: int
    bits_per_byte: float | None

    @property
    def perplexity(self) -> float:
        """``exp(loss)``: the model is as unsure as among that many equally likely tokens."""
        return math.exp(min(self.loss, 700.0))


def evaluate(
    model: Predictor,
    dataset: Dataset,
    batch_size: int,
    seq_len: int,
    max_tokens: int | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> EvalResult:
    """Mean cross-entropy over the split, each token predicted once, in windows of ``seq_len`` without overlap.

    ``max_tokens`` looks at the first so many only; always the same ones, so that numbers compare. Bits per byte,
    ``loss / ln 2 * tokens / bytes``, does not depend on the tokenizer, so it compares across vocabularies.
    ``on_batch`` is called with the number of tokens done after each batch.

    Raises UserError when there is nothing to predict, or an id is outside the model's vocabulary.
    """
    total, n_tokens = 0.0, 0
    for x, y in eval_batches(dataset, batch_size, seq_len, max_tokens):
        total += float(model.losses(x, y).sum(dtype=np.float64))
        n_tokens += int(np.count_nonzero(y != -1))
        if on_batch:
            on_batch(n_tokens)
    loss = total / n_tokens
    return EvalResult(loss, n_tokens, bits_per_byte(loss, dataset))


def bits_per_byte(loss: float, dataset: Dataset) -> float | None:
    """A loss in nats a token as bits a byte of the text behind ``dataset``."""
    return loss / math.log(2) * dataset.n_tokens / dataset.n_bytes if dataset.n_bytes else None
