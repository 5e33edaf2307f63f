"""Generation: the loop from prompt to text, on a tiny random model and on models whose next token is scripted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.inference.batch import window_start
from nanoeuler.inference.decoder import UncachedDecoder
from nanoeuler.inference.generator import SIDE_BY_SIDE, Generator
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.inference.stopping import StopStrings
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import CharTokenizer, Tokenizer
from nanoeuler.tokenizer.base import BaseTokenizer

BLOCK = 16


def tiny(tokenizer: BaseTokenizer, padding: int = 0) -> GPT:
    config = GPTConfig(tokenizer.n_vocab + padding, block_size=BLOCK, n_layer=2, n_head=2, n_embd=16)
    return GPT(config, device="reference", seed=5)


@pytest.fixture(scope="module")
def bytes_tokenizer() -> Tokenizer:
    """256 bytes and end-of-text (256): every character outside ASCII takes several tokens."""
    return Tokenizer([], {"<|endoftext|>": 256})


@pytest.fixture(scope="module")
def random_generator(bytes_tokenizer: Tokenizer) -> Generator:
    return Generator(tiny(bytes_tokenizer), bytes_tokenizer)


class Scripted(Generator):
    """Writes ``script`` whatever the prompt, and records what the model would have seen."""

    def __init__(self, tokenizer: BaseTokenizer, script: list[int], block_size: int = 1000) -> None:
        config = GPTConfig(tokenizer.n_vocab, block_size=block_size, n_layer=1, n_head=1, n_embd=1)
        super().__init__(GPT(config, device="reference"), tokenizer)
        self.script = script
        self.seen: list[list[int]] = []

    def open_decoder(self, n_slots: int, context: int) -> UncachedDecoder:
        return ScriptedDecoder(self, n_slots, context)


class ScriptedDecoder(UncachedDecoder):
    def __init__(self, generator: Scripted, n_slots: int, context: int) -> None:
        super().__init__(generator.model, n_slots, context)
        self.generator = generator

    def extend(self, slot: int, tokens: Sequence[int]) -> np.ndarray:
        begin = self._advance(slot, len(tokens)).start
        self._tokens[slot][begin:] = tokens
        script, step = self.generator.script, len(self.generator.seen)
        self.generator.seen.append(self._tokens[slot].copy())
        logits = np.zeros((len(tokens), self.model.config.vocab_size))
        logits[:, script[step % len(script)]] = 1e4
        return logits

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.extend(slot, [token]) for slot, token in zip(slots, tokens)])


def scripted(tokenizer: Tokenizer, text: str, **kwargs: Any) -> Scripted:
    return Scripted(tokenizer, tokenizer.encode(text, "all"), **kwargs)


# ---- the loop itself ----------------------------------------------------------------------------------
def test_equals_the_naive_loop(random_generator: Generator) -> None:
    config = SamplingConfig(temperature=0.9, top_k=50, seed=3)
    tokens = list(b"ab")
    ids = random_generator.tokenizer.encode("ab")
    new: list[int] = []
    for position in range(10):
        logits = random_generator.model.logits(np.array([ids + new], np.int32))[0, -1]
        new.append(sample_next(logits, ids + new, config, uniform(3, 0, position)))
    [out] = random_generator.generate("ab", max_new_tokens=10, temperature=0.9, top_k=50, seed=3)
    assert out.tokens == new
    assert (out.finish_reason, out.n_prompt, out.seed, out.notes) == ("length", len(tokens), 3, [])


def test_samples_do_not_depend_on_how_many_are_drawn(random_generator: Generator) -> None:
    n = SIDE_BY_SIDE + 3
    many = random_generator.generate("x", max_new_tokens=6, seed=1, num_samples=n)
    few = random_generator.generate("x", max_new_tokens=6, seed=1, num_samples=2)
    assert [out.tokens for out in many[:2]] == [out.tokens for out in few]
    assert len({tuple(out.tokens) for out in many}) == n
    stream = random_generator.stream("x", max_new_tokens=6, seed=1, sample=n - 1)
    assert "".join(stream) == many[-1].text
    assert stream.generation == many[-1]


def test_seeds(random_generator: Generator) -> None:
    def write(seed: int | None) -> Any:
        return random_generator.generate("x", max_new_tokens=8, seed=seed)[0]

    assert write(1).tokens == write(1).tokens != write(2).tokens
    unseeded = write(None)
    assert write(unseeded.seed).tokens == unseeded.tokens
    assert write(None).seed != unseeded.seed


def test_no_new_tokens(random_generator: Generator) -> None:
    [out] = random_generator.generate("x", max_new_tokens=0)
    assert (out.text, out.tokens, out.finish_reason) == ("", [], "length")
    assert list(random_generator.stream("x", max_new_tokens=0)) == []


def test_padded_entries_are_never_drawn(bytes_tokenizer: Tokenizer) -> None:
    generator = Generator(tiny(bytes_tokenizer, padding=2000), bytes_tokenizer)
    [out] = generator.generate("x", max_new_tokens=60, temperature=5.0, seed=0, stop_at_eot=False)
    assert len(out.tokens) == 60 and max(out.tokens) < bytes_tokenizer.n_vocab


# ---- where a text begins ------------------------------------------------------------------------------
def test_empty_prompt_starts_from_end_of_text(bytes_tokenizer: Tokenizer) -> None:
    generator = scripted(bytes_tokenizer, "Hi")
    [out] = generator.generate("", max_new_tokens=2)
    assert out.text == "Hi"
    assert generator.seen[0] == [256]


@pytest.mark.parametrize(("characters", "first"), [("ab\n", 2), ("abc", 0)])
def test_empty_prompt_in_a_character_vocabulary(characters: str, first: int) -> None:
    generator = Scripted(CharTokenizer(characters), [1])
    [out] = generator.generate("", max_new_tokens=2)
    assert out.text == "bb"
    assert generator.seen[0] == [first]


def test_special_tokens_in_the_prompt(bytes_tokenizer: Tokenizer) -> None:
    generator = scripted(bytes_tokenizer, "a")
    generator.generate("<|endoftext|>", max_new_tokens=1)
    generator.generate("<|endoftext|>", max_new_tokens=1, allow_special=True)
    assert len(generator.seen[0]) == 13  # plain text, a byte a token
    assert generator.seen[1] == [256]


# ---- where it ends ------------------------------------------------------------------------------------
def test_end_of_text_ends_it(bytes_tokenizer: Tokenizer) -> None:
    [out] = scripted(bytes_tokenizer, "The end.<|endoftext|>More").generate("x", max_new_tokens=50)
    assert (out.text, out.finish_reason) == ("The end.", "eot")
    assert out.tokens == bytes_tokenizer.encode("The end.")


def test_end_of_text_may_be_passed(bytes_tokenizer: Tokenizer) -> None:
    generator = scripted(bytes_tokenizer, "One.<|endoftext|>Two.")
    [out] = generator.generate("x", max_new_tokens=9, stop_at_eot=False)
    assert (out.text, out.finish_reason) == ("One.<|endoftext|>Two.", "length")


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("\n\n", "Once. Twice.\nx"),
        (["Twice", "ice"], "Once. "),  # both are complete at the same letter: the one that began first
        ("O", ""),
        ("never", "Once. Twice.\nx\n\nEnd"),
        ([], "Once. Twice.\nx\n\nEnd"),
    ],
)
def test_stop_strings(bytes_tokenizer: Tokenizer, stop: str | list[str], expected: str) -> None:
    text = "Once. Twice.\nx\n\nEnd"
    generator = scripted(bytes_tokenizer, text)
    stream = generator.stream("p", max_new_tokens=len(text), stop=stop)
    assert "".join(stream) == expected == stream.generation.text
    assert stream.generation.finish_reason == ("length" if expected == text else "stop")


def test_no_piece_holds_half_a_character(bytes_tokenizer: Tokenizer) -> None:
    text = "naïve 🙂 日本"
    generator = scripted(bytes_tokenizer, text)
    pieces = list(generator.stream("p", max_new_tokens=len(text.encode())))
    assert "".join(pieces) == text
    assert len(pieces) == len(text)


def test_a_character_left_unfinished_becomes_a_replacement(bytes_tokenizer: Tokenizer) -> None:
    generator = scripted(bytes_tokenizer, "a🙂")
    stream = generator.stream("p", max_new_tokens=3)  # a, and half of the four bytes
    assert "".join(stream) == "a\ufffd" == stream.generation.text


# ---- stop strings alone -------------------------------------------------------------------------------
@pytest.mark.parametrize("stops", [["ab"], ["aab", "b"], ["abc", "b"], ["aaa"], ["cab", "abcab"], ["x"]])
def test_stopping_does_not_depend_on_the_pieces(stops: list[str]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = "".join(rng.choice(list("abc"), 12))
        expected, reached = naive_stop(text, stops)
        cuts = sorted(rng.integers(0, 13, rng.integers(0, 12)))
        stop = StopStrings(stops)
        out = [stop.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, 12])]
        assert "".join(out) + stop.flush() == expected
        assert stop.reached == reached


def naive_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(len(text) + 1):
        done = [s for s in stops if text[:end].endswith(s)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


def test_stopping_holds_back_no_more_than_needed() -> None:
    stop = StopStrings("END")
    assert [stop.feed(c) for c in "xEEN."] == ["x", "", "E", "", "EN."]


def test_empty_stop_string() -> None:
    with pytest.raises(UserError, match="must not be empty"):
        StopStrings(["a", ""])


# ---- the context --------------------------------------------------------------------------------------
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 7, 16])
def test_window_is_never_too_long_and_never_nearly_empty(block_size: int) -> None:
    hop = max(1, block_size // 2)
    for n in range(1, 5 * block_size):
        start = window_start(n, block_size)
        assert 1 <= n - start <= block_size
        assert start % hop == 0
        if start:
            assert n - start > block_size - hop


def test_long_texts_slide_and_say_so(bytes_tokenizer: Tokenizer) -> None:
    generator = scripted(bytes_tokenizer, "abcdefghij", block_size=8)
    [out] = generator.generate("123456", max_new_tokens=10)
    assert out.text == "abcdefghij"
    everything = bytes_tokenizer.encode("123456abcdefghij")
    assert generator.seen == [everything[window_start(n, 8) : n] for n in range(6, 16)]
    assert len(out.notes) == 1 and "outgrew" in out.notes[0]


def test_long_prompts_keep_their_end_and_say_so(bytes_tokenizer: Tokenizer) -> None:
    generator = scripted(bytes_tokenizer, "z", block_size=8)
    stream = generator.stream("0123456789", max_new_tokens=3)
    assert "10 tokens" in stream.generation.notes[0] and "last 6" in stream.generation.notes[0]
    assert "".join(stream) == "zzz"
    assert generator.seen[0] == bytes_tokenizer.encode("456789")
    assert len(stream.generation.notes) == 1


def test_long_texts_may_be_refused(random_generator: Generator) -> None:
    random_generator.generate("x" * 10, max_new_tokens=7, overflow="refuse")  # the last one is never read
    with pytest.raises(UserError, match="10 tokens and 8 new ones do not fit into the context of 16"):
        random_generator.generate("x" * 10, max_new_tokens=8, overflow="refuse")


def test_the_real_model_runs_beyond_its_context(random_generator: Generator) -> None:
    [out] = random_generator.generate("x" * 50, max_new_tokens=20, stop_at_eot=False, seed=0)
    assert len(out.tokens) == 20


# ---- bad input ----------------------------------------------------------------------------------------
def test_wrong_tokenizer(bytes_tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="257 entries and the model only 3"):
        Generator(tiny(CharTokenizer("abc")), bytes_tokenizer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be"),
        ({"num_samples": 0}, "num_samples must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"stop": ""}, "must not be empty"),
        ({"stop": 3}, "stop strings must be text"),
        ({"stop": ["a", b"b"]}, "stop strings must be text"),
        ({"overflow": "ignore"}, "overflow must be"),
    ],
)
def test_bad_settings(random_generator: Generator, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        random_generator.generate("x", **settings)


def test_stream_refuses_at_once(random_generator: Generator) -> None:
    with pytest.raises(UserError, match="temperature"):
        random_generator.stream("x", temperature=-1)
    for sample in (-1, 1.5, 1 << 64):
        with pytest.raises(UserError, match="sample must be a whole number"):
            random_generator.stream("x", sample=sample)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [None, b"x", ["x", 3], 3])
def test_prompts_that_are_no_text(random_generator: Generator, prompt: Any) -> None:
    with pytest.raises(UserError, match="the prompt must be text, or a list of texts, not"):
        random_generator.generate(prompt)


def test_unknown_character_in_the_prompt() -> None:
    tokenizer = CharTokenizer("abc")
    with pytest.raises(UserError, match="'é'"):
        Generator(tiny(tokenizer), tokenizer).generate("aé")


def test_missing_model_folder(tmp_path: Any) -> None:
    with pytest.raises(UserError):
        Generator.from_pretrained(tmp_path / "nothing")


# ---- the package's front door -------------------------------------------------------------------------
def test_import_is_light() -> None:
    code = (
        "import nanoeuler, sys; print([m for m in ('numpy', 'numba', 'rich', 'click', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    import nanoeuler as ne

    assert ne.GPT is GPT and ne.Generator is Generator and ne.UserError is UserError
    assert set(ne.__all__) <= set(dir(ne))
    for name in ne.__all__:
        assert getattr(ne, name).__name__ == name
    with pytest.raises(AttributeError, match="Llama9"):
        ne.Llama9  # noqa: B018
