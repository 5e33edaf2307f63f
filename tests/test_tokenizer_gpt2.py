"""GPT-2's vocabulary and splitter against tiktoken's ids, kept by ``tools/make_tokenizer_golden.py``."""

import json
from itertools import chain
from pathlib import Path

import pytest
import tokenizer_cases as cases

from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.byte_symbols import byte_ids
from nanoeuler.tokenizer.merge import merge_by_heap, merge_by_scan
from nanoeuler.tokenizer.split import replace_surrogates, split, split_chunks

HERE = Path(__file__).resolve().parent
GOLDEN = json.loads((HERE / "golden" / "tokenizer.json").read_text(encoding="utf-8"))
SHAKESPEARE = HERE.parent.parent / "shared" / "data" / "text" / "tinyshakespeare.txt"


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.gpt2()


def test_the_strings_are_those_the_golden_values_were_made_from():
    assert cases.digest_of_strings() == GOLDEN["strings"]


def test_vocabulary(gpt2):
    assert gpt2.n_vocab == 50257
    assert gpt2.eot_id == 50256
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}
    assert gpt2.decode_bytes([0, 187, 188, 220, 198]) == b"!\xff\x00 \n"
    assert gpt2.decode([256, 50255, 50256]) == " t gazed<|endoftext|>"
    assert Tokenizer.gpt2() is gpt2


def test_excerpt_of_shakespeare(gpt2):
    text = (HERE / "golden" / "shakespeare_20k.txt").read_text(encoding="utf-8")
    ids = gpt2.encode(text)
    assert ids[:100] == GOLDEN["excerpt_ids"]
    assert {"tokens": len(ids), "digest": cases.digest(ids)} == GOLDEN["excerpt"]
    assert gpt2.decode(ids) == text


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="tiny Shakespeare is not on this machine")
def test_all_of_tiny_shakespeare(gpt2):
    text = SHAKESPEARE.read_text(encoding="utf-8")
    ids = gpt2.encode_array(text)
    assert {"tokens": len(ids), "digest": cases.digest(ids)} == GOLDEN["shakespeare"]
    assert gpt2.decode(ids) == text


def test_nasty_strings(gpt2):
    for text, expected in zip(cases.nasty_strings(), GOLDEN["nasty"], strict=True):
        ids = gpt2.encode(text)
        assert ids == expected, ascii(text)
        assert gpt2.encode_array(text).tolist() == expected, ascii(text)
        assert gpt2.decode(ids) == replace_surrogates(text), ascii(text)


def test_strings_with_the_special_token_allowed(gpt2):
    for text, expected in zip(cases.special_strings(), GOLDEN["nasty_special"], strict=True):
        assert gpt2.encode(text, allowed_special="all") == expected, text
        assert gpt2.encode_array(text, allowed_special={"<|endoftext|>"}).tolist() == expected, text
        assert gpt2.decode(expected) == text


def test_very_long_words(gpt2):
    for text, expected in zip(cases.long_strings(), GOLDEN["long"], strict=True):
        ids = gpt2.encode(text)
        assert cases.digest(ids) == expected, text[:20]
        assert gpt2.decode(ids) == text


def test_every_code_point_alone_and_between_letters_digits_and_spaces(gpt2):
    alone, in_context = GOLDEN["code_points_alone"], GOLDEN["code_points_in_context"]
    wrong = []
    for number, block in enumerate(cases.code_point_blocks()):
        ids = chain.from_iterable([*gpt2.encode(character), cases.BETWEEN] for character in block)
        if cases.digest(ids) != alone[number]:
            wrong.append(f"alone, U+{number * cases.BLOCK:04X} and on")
        if cases.digest(gpt2.encode_array(cases.in_context(block))) != in_context[number]:
            wrong.append(f"in context, U+{number * cases.BLOCK:04X} and on")
    assert not wrong
    assert number == len(alone) - 1 == len(in_context) - 1


def test_every_token_is_what_its_own_bytes_merge_to(gpt2):
    """Else finding merges by their two parts (as here) and by their joined bytes (tiktoken) could differ."""
    merges = {pair: 256 + rank for rank, pair in enumerate(gpt2.merges)}
    for id in range(gpt2.n_vocab - 1):
        spelled = byte_ids(gpt2.decode_bytes([id]))
        assert merge_by_scan(spelled, merges) == [id]
        assert merge_by_heap(spelled, merges) == [id]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 13, 1000])
def test_chunks_are_cut_where_no_piece_is_split(chunk):
    for text in cases.nasty_strings():
        assert list(chain.from_iterable(split_chunks(text, chunk))) == split(text), ascii(text)


def test_pieces_join_to_the_text():
    for text in cases.nasty_strings() + cases.long_strings():
        assert "".join(split(text)) == replace_surrogates(text)
