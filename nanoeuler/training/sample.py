"""A text written in the middle of training, to see with one's own eyes what the numbers mean."""

from __future__ import annotations

import copy

from nanoeuler.inference.generator import Generator
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import BaseTokenizer


def write_sample(model: GPT, tokenizer: BaseTokenizer, prompt: str, n_tokens: int, seed: int) -> str:
    """What ``model`` writes after ``prompt``: at most ``n_tokens`` tokens, less where it ends the text."""
    # A twin with the same parameters but buffers of its own: writing must not cost training its buffers.
    twin = copy.copy(model)
    twin._acts = None
    return Generator(twin, tokenizer).generate(prompt, max_new_tokens=n_tokens, seed=seed)[0].text
