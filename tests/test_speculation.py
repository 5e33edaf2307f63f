"""Speculation: the same text as without, fewer passes, and the same distribution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.inference.speculation import LookUp, room
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import CharTokenizer

LETTERS = "\nabcdefgh"


def generator(seed: int, device: str = "cpu", n_embd: int = 32, block_size: int = 48, std: float = 0.4) -> Generator:
    tokenizer = CharTokenizer(LETTERS)
    config = GPTConfig(tokenizer.n_vocab, block_size=block_size, n_layer=2, n_head=2, n_embd=n_embd, init_std=std)
    return Generator(GPT(config, device, seed=seed), tokenizer)


@pytest.mark.parametrize(
    ("device", "draft"), [("cpu", "lookup"), ("cpu", "model"), ("cpu", "itself"), ("reference", "lookup")]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_same(device: str, draft: str, temperature: float) -> None:
    """Beyond the context too, for prompts of any length, with stop strings, and when drafts are wrong."""
    big = generator(1, device)
    guesser: Any = {"lookup": "lookup", "model": generator(2, n_embd=16, block_size=32), "itself": big}[draft]
    for prompt, settings in [
        ("", {}),
        ("abc", {"num_samples": 2, "batch_size": 2}),
        ("ab" * 60, {"stop": "hh"}),
        (["a", "abcabcabc"], {"max_new_tokens": 7}),
        ("hg", {"max_new_tokens": 1}),
    ]:
        settings = {"max_new_tokens": 50, "temperature": temperature, "seed": 4, **settings}
        plain = big.generate(prompt, **settings)
        guessed = big.generate(prompt, draft=guesser, **settings)
        assert [text.tokens for text in guessed] == [text.tokens for text in plain]
        assert [text.text for text in guessed] == [text.text for text in plain]
        assert [text.finish_reason for text in guessed] == [text.finish_reason for text in plain]
        assert all(0 <= text.accepted <= text.guessed for text in guessed)
        if draft == "itself" and settings["max_new_tokens"] > 7:
            assert all(text.accepted == text.guessed > 0 for text in guessed if text.finish_reason != "stop")


def test_fewer_passes() -> None:
    """A model that repeats itself: most guesses stand, and the model is asked far less than once a token."""
    big, passes = generator(3, std=0.1), Counter[str]()
    inner = big.open_decoder

    def counting(n_slots: int, context: int) -> Any:
        decoder = inner(n_slots, context)
        for name in ("prefill", "extend", "step"):
            method = getattr(decoder, name)

            def call(*args: Any, _name: str = name, _method: Any = method) -> Any:
                passes[_name] += 1
                return _method(*args)

            setattr(decoder, name, call)
        return decoder

    big.open_decoder = counting  # type: ignore[method-assign]
    [text] = big.generate("ab" * 5, max_new_tokens=30, temperature=0, draft="lookup")
    assert text.accepted > 15
    assert sum(passes.values()) <= 31 - text.accepted  # the prompt is read by itself


def test_the_distribution_is_the_models() -> None:
    """Chi-squared of the second token drawn, with a draft that is often wrong, against the exact probabilities."""
    big, small = generator(1, std=0.6), generator(7, n_embd=16, std=0.6)
    V, n = big.tokenizer.n_vocab, 1500
    ids = big.tokenizer.encode("abc")

    def probabilities(tokens: list[int]) -> np.ndarray:
        z = big.model.logits(np.array([tokens], np.int32), last_only=True)[0].astype(np.float64)  # type: ignore[attr-defined]
        return np.exp(z - z.max()) / np.exp(z - z.max()).sum()

    first = probabilities(ids)
    second = sum(first[a] * probabilities([*ids, a]) for a in range(V))
    texts = big.generate("abc", num_samples=n, max_new_tokens=3, temperature=1, seed=11, draft=small, batch_size=1)
    counts = np.bincount([text.tokens[1] for text in texts], minlength=V)
    rate = sum(text.accepted for text in texts) / sum(text.guessed for text in texts)
    assert 0.02 < rate < 0.98
    expected = n * np.asarray(second)
    common = expected >= 5
    chi2 = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)  # four standard deviations above the mean


def test_look_up() -> None:
    config = SamplingConfig()
    assert LookUp().guess([1, 2, 3, 9, 2, 3], 2, config, 0, 0) == [9, 2]
    assert LookUp().guess([1, 2, 3], 4, config, 0, 0) == []
    assert LookUp().guess([4], 4, config, 0, 0) == []
    assert LookUp().guess([7, 7, 7], 4, config, 0, 0) == [7, 7, 7, 7]


def test_room_never_lets_the_window_slide() -> None:
    assert [room([0] * n, 8, 3) for n in (1, 5, 6, 7, 8, 9)] == [3, 3, 2, 1, 0, 3]


def test_wrong_drafts() -> None:
    big = generator(1)
    other = Generator(GPT(GPTConfig(4, block_size=8, n_layer=1, n_head=1, n_embd=8)), CharTokenizer("abc"))
    with pytest.raises(UserError, match="draft must be"):
        big.generate("a", draft="magic")
    with pytest.raises(UserError, match="same vocabulary"):
        big.generate("a", draft=other)
    mixed = Generator(GPT(GPTConfig(9, block_size=8, n_layer=1, n_head=1, n_embd=8)), CharTokenizer("\nabcdefgx"))
    assert mixed.tokenizer.n_vocab == big.tokenizer.n_vocab
    with pytest.raises(UserError, match="numbers other tokens"):
        big.generate("a", draft=mixed)
