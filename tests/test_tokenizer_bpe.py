"""Encoding and decoding: special tokens, ids out of range, the merge algorithm, the cache."""

import doctest
import pickle
import random
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import BaseTokenizer, Tokenizer
from nanoeuler.tokenizer.bpe import _PieceCache
from nanoeuler.tokenizer.byte_symbols import BYTE_ORDER, SYMBOLS, byte_ids, from_symbols, to_symbols
from nanoeuler.tokenizer.merge import merge, merge_by_heap, merge_by_scan


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.gpt2()


@pytest.fixture
def small() -> Tokenizer:
    """Two merges, and special tokens of which one begins another."""
    h, e, l = byte_ids(b"hel")  # noqa: E741
    return Tokenizer([(h, e), (256, l)], {"<|end|>": 258, "<|end|>more": 259, "<|endoftext|>": 260})


def test_byte_symbols_are_a_numbering_of_all_bytes():
    assert sorted(BYTE_ORDER) == list(range(256))
    assert len(set(SYMBOLS)) == 256 and all(symbol.isprintable() and symbol != " " for symbol in SYMBOLS)
    every = bytes(range(256))
    assert from_symbols(to_symbols(every)) == every
    assert [BYTE_ORDER[id] for id in byte_ids(every)] == list(every)


def test_typed_special_token_is_text_unless_allowed(gpt2):
    typed = "one<|endoftext|>two"
    as_text = gpt2.encode(typed)
    assert gpt2.eot_id not in as_text and gpt2.decode(as_text) == typed
    allowed = gpt2.encode(typed, allowed_special={"<|endoftext|>"})
    assert allowed == [*gpt2.encode("one"), gpt2.eot_id, *gpt2.encode("two")]
    assert gpt2.decode(allowed) == typed


def test_only_the_special_tokens_named_are_taken(small):
    text = "<|end|><|endoftext|>"
    assert small.encode(text, allowed_special="all") == [258, 260]
    some = small.encode(text, allowed_special=["<|end|>"])
    assert some[0] == 258 and 260 not in some and small.decode(some) == text


def test_of_two_special_tokens_the_longer_wins(small):
    assert small.encode("<|end|>more<|end|>mor", allowed_special="all")[:2] == [259, 258]


def test_unknown_special_token_is_refused(gpt2):
    with pytest.raises(UserError, match=r"'<\|pad\|>' is not a special token.*<\|endoftext\|>"):
        gpt2.encode("x", allowed_special={"<|pad|>"})
    with pytest.raises(UserError, match="set of those names"):
        gpt2.encode("x", allowed_special="<|endoftext|>")


@pytest.mark.parametrize("wrong", [-1, 50257, 50303, 10**12])
def test_ids_out_of_range_are_refused(gpt2, wrong):
    for ids in ([wrong], [0, wrong, 1], np.array([5, wrong])):
        with pytest.raises(UserError, match=rf"token id {wrong} is outside this vocabulary of 50257"):
            gpt2.decode(ids)


@pytest.mark.parametrize("wrong", [5, "15496", [1.0], ["1"], [None], np.zeros((2, 2), int), np.array([1.5])])
def test_what_is_no_row_of_ids_is_refused(gpt2, wrong):
    with pytest.raises(UserError, match="must be a row of whole numbers"):
        gpt2.decode(wrong)


def test_decode_takes_any_iterable_of_integers(gpt2):
    ids = gpt2.encode("any iterable")
    for same in (ids, tuple(ids), iter(ids), np.array(ids, np.uint16), list(np.array(ids, np.int64))):
        assert gpt2.decode(same) == "any iterable"
    assert gpt2.decode([]) == "" and gpt2.decode_bytes(np.array([], np.uint16)) == b""


def test_decode_of_half_a_character(gpt2):
    half = gpt2.encode("🤖")[:-1]
    assert gpt2.decode_bytes(half) == "🤖".encode()[: len(gpt2.decode_bytes(half))]
    assert gpt2.decode(half).endswith("\ufffd")


def test_empty_text(gpt2):
    assert gpt2.encode("") == gpt2.encode("", allowed_special="all") == []
    assert gpt2.encode_array("").shape == (0,)


def test_encode_array_has_the_smallest_dtype(gpt2):
    assert gpt2.encode_array("hello").dtype == np.uint16
    specials = {f"<|{n}|>": 256 + n for n in range(2**16 - 256)}
    assert Tokenizer([], specials).encode_array("hello").dtype == np.uint16
    big = Tokenizer([], specials | {"<|one more|>": 2**16})
    assert big.encode_array("é<|one more|>", allowed_special={"<|one more|>"}).tolist()[-1] == 2**16
    assert big.encode_array("hello").dtype == np.uint32


def test_surrogates_become_what_utf8_can_hold(gpt2):
    assert gpt2.encode("a\ud800b") == gpt2.encode("a\ufffdb")
    assert gpt2.encode("\ud83d\ude00") == gpt2.encode("😀")


def test_vocabulary_with_holes_or_doubles_is_refused():
    with pytest.raises(UserError, match="ids 0 to 256, each once"):
        Tokenizer([], {"<|endoftext|>": 300})
    with pytest.raises(UserError, match="each once"):
        Tokenizer([], {"<|endoftext|>": 5})


@pytest.mark.parametrize("name", ["a", "Ġ", "he", ""])
def test_special_token_spelled_like_an_ordinary_one_is_refused(name):
    h, e = byte_ids(b"he")
    with pytest.raises(UserError, match="rename"):
        Tokenizer([(h, e)], {name: 257})


def test_special_token_that_is_no_text_is_refused():
    for make in (lambda: Tokenizer([], {"<\ud800>": 256}), lambda: Tokenizer.train(["abab"], 258, ["<\ud800>"])):
        with pytest.raises(UserError, match="half a surrogate pair"):
            make()


def test_eot_is_none_without_the_token():
    tokenizer = Tokenizer([], {})
    assert tokenizer.eot_id is None and tokenizer.n_vocab == 256
    assert isinstance(tokenizer, BaseTokenizer)


def test_merging_by_scan_and_by_heap_agree():
    chance = random.Random(7)
    for _ in range(300):
        alphabet = chance.randrange(1, 4)
        merges: dict[tuple[int, int], int] = {}
        known = list(range(alphabet))
        for _ in range(chance.randrange(0, 25)):
            pair = (chance.choice(known), chance.choice(known))
            if pair not in merges:
                merges[pair] = 256 + len(merges)
                known.append(merges[pair])
        tokens = [chance.randrange(alphabet) for _ in range(chance.randrange(0, 250))]
        expected = merge_one_at_a_time(tokens, merges)
        assert merge_by_scan(list(tokens), merges) == expected
        assert merge_by_heap(list(tokens), merges) == expected
        assert merge(list(tokens), merges) == expected


def merge_one_at_a_time(tokens, merges):
    """The definition: of all neighbours that have a merge, join the earliest learnt, leftmost first."""
    tokens = list(tokens)
    while True:
        found = [(merges[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in merges]
        if not found:
            return tokens
        merged, i = min(found)
        tokens[i : i + 2] = [merged]


def test_cache_stays_bounded(monkeypatch):
    monkeypatch.setattr(_PieceCache, "_MOST", 10)
    tokenizer = Tokenizer([], {})
    text = " ".join(f"w{'x' * n}" for n in range(300))
    for _ in range(2):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer._pieces) <= 10
    assert max(map(len, tokenizer._pieces)) <= _PieceCache._LONGEST


def test_pickles_for_worker_processes(gpt2):
    copy = pickle.loads(pickle.dumps(gpt2))
    assert copy.encode("a worker's copy 🤖") == gpt2.encode("a worker's copy 🤖")
    assert copy.special_tokens == gpt2.special_tokens


@pytest.mark.parametrize("name", ["bpe", "byte_symbols", "char", "files", "merge", "split", "stream", "train"])
def test_examples_in_docstrings(name):
    result = doctest.testmod(import_module(f"nanoeuler.tokenizer.{name}"))
    assert result.attempted > 0 and result.failed == 0
