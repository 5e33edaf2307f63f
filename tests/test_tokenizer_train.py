"""Training: against a trainer that recounts everything, against Hugging Face's, and its promises."""

import json
import random
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.byte_symbols import byte_ids
from nanoeuler.tokenizer.split import split
from nanoeuler.tokenizer.train import learn_merges

GOLDEN = Path(__file__).resolve().parent / "golden"
EXCERPT = (GOLDEN / "shakespeare_20k.txt").read_text(encoding="utf-8")


def recounting_trainer(pieces: Counter[str], wanted: int) -> list[tuple[int, int]]:
    """The algorithm as the paper has it: count all pairs, join the most frequent, begin again."""
    words = [(byte_ids(piece.encode()), count) for piece, count in pieces.items()]
    merges: list[tuple[int, int]] = []
    while len(merges) < wanted:
        counts: Counter[tuple[int, int]] = Counter()
        for tokens, count in words:
            for pair in pairwise(tokens):
                counts[pair] += count
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < 2:
            break
        for tokens, _ in words:
            i = 0
            while i < len(tokens) - 1:
                if (tokens[i], tokens[i + 1]) == best:
                    tokens[i : i + 2] = [256 + len(merges)]
                i += 1
        merges.append(best)
    return merges


def test_merges_equal_those_of_a_trainer_that_recounts():
    chance = random.Random(11)
    for _ in range(60):
        letters = "abcé"[: chance.randrange(1, 5)]
        words = ["".join(chance.choice(letters) for _ in range(chance.randrange(1, 15))) for _ in range(30)]
        pieces = Counter(chance.choice(words) for _ in range(100))
        wanted = chance.randrange(1, 60)
        assert learn_merges(pieces, wanted) == recounting_trainer(pieces, wanted)


def test_merges_of_shakespeare_equal_those_of_a_trainer_that_recounts():
    trained = Tokenizer.train([EXCERPT], vocab_size=400)
    assert trained.merges == recounting_trainer(Counter(split(EXCERPT)), 400 - 257)


def test_merges_equal_hugging_faces():
    trained = Tokenizer.train([EXCERPT], vocab_size=600, special_tokens=())
    entries = {id: entry for entry, id in trained.vocab().items()}
    written = [f"{entries[left]} {entries[right]}" for left, right in trained.merges]
    expected = json.loads((GOLDEN / "tokenizer.json").read_text(encoding="utf-8"))["trained_merges"]
    assert written == expected


def test_ids_are_bytes_then_merges_then_special_tokens():
    trained = Tokenizer.train([EXCERPT], 300, special_tokens=("<|endoftext|>", "<|user|>"))
    assert trained.n_vocab == 300 and len(trained.merges) == 42
    assert trained.special_tokens == {"<|endoftext|>": 298, "<|user|>": 299} and trained.eot_id == 298
    assert trained.decode_bytes(range(256)) == Tokenizer.gpt2().decode_bytes(range(256))
    assert all(len(trained.decode_bytes([id])) > 1 for id in range(256, 298))


def test_the_order_of_texts_and_their_division_change_nothing():
    lines = EXCERPT.splitlines(keepends=True)
    whole = Tokenizer.train(lines, 500)
    assert Tokenizer.train(reversed(lines), 500).merges == whole.merges
    assert Tokenizer.train((line for line in lines), 500).merges == whole.merges


def test_one_string_is_one_text():
    assert Tokenizer.train(EXCERPT, 350).merges == Tokenizer.train([EXCERPT], 350).merges


def test_trained_vocabulary_is_shorter_and_decodes_any_text():
    trained = Tokenizer.train([EXCERPT], 800)
    assert len(trained.encode(EXCERPT)) < 0.5 * len(EXCERPT)
    unseen = "日本語 🤖 \0 naïve <|endoftext|>"
    assert trained.decode(trained.encode(unseen)) == unseen
    assert trained.decode(trained.encode(unseen, allowed_special="all")) == unseen


def test_special_tokens_separate_documents_and_are_not_learnt():
    joined = Tokenizer.train(["ab<|endoftext|>ab<|endoftext|>" * 50], 258)
    assert joined.decode([256]) == "ab"
    with pytest.warns(UserWarning, match="too small"):
        # With the name taken for text, its letters would be the most frequent pairs.
        learnt = Tokenizer.train(["<|endoftext|>xy" * 50], 300)
    assert [learnt.decode([id]) for id in range(256, learnt.n_vocab)] == ["xy", "<|endoftext|>"]


def test_nothing_is_merged_across_texts():
    with pytest.warns(UserWarning):
        assert Tokenizer.train(["a", "b"] * 100, 300).n_vocab == 257


def test_text_too_small_gives_a_smaller_vocabulary_and_says_so():
    with pytest.warns(UserWarning, match="1 merges, so it has 258 entries") as caught:
        trained = Tokenizer.train(["abc ab"], 1000)
    assert (trained.n_vocab, trained.eot_id) == (258, 257)
    assert caught[0].filename == __file__


def test_no_merges_wanted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Tokenizer.train(["abab"], 257).merges == []


def test_progress_counts_merges():
    calls = []
    Tokenizer.train([EXCERPT], 300, progress=lambda done, wanted: calls.append((done, wanted)))
    assert calls == [(done, 43) for done in range(1, 44)]


@pytest.mark.parametrize("size", [-1, 0, 256])
def test_size_too_small_is_refused(size):
    with pytest.raises(UserError, match=f"vocab_size {size} is too small.*at least 257"):
        Tokenizer.train([EXCERPT], size)


@pytest.mark.parametrize("texts", ["", [], ["", ""], ["<|endoftext|>"]])
def test_no_text_is_refused(texts):
    with pytest.raises(UserError, match="no text"):
        Tokenizer.train(texts, 300)


@pytest.mark.parametrize("names", [("<|a|>", "<|a|>"), ("a",), ("",)])
def test_special_tokens_that_cannot_be_told_apart_are_refused(names):
    with pytest.raises(UserError, match="special tokens must differ"):
        Tokenizer.train([EXCERPT], 300, special_tokens=names)


def test_a_very_long_word_is_no_disaster():
    trained = Tokenizer.train(["a" * 200_000], 256 + 17, special_tokens=())
    assert len(trained.decode([272])) == 2**17
