"""Streaming decode: whole characters only, and joined exactly what decode gives."""

import random

import pytest
import tokenizer_cases as cases

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import CharTokenizer, StreamDecoder, Tokenizer
from nanoeuler.tokenizer.byte_symbols import byte_ids
from nanoeuler.tokenizer.stream import unfinished


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.gpt2()


def stream(tokenizer, ids) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*(decoder.feed(id) for id in ids), decoder.flush()]


def test_text_comes_in_whole_characters(gpt2):
    for text in filter(cases.is_utf8, cases.nasty_strings()):
        shown = stream(gpt2, gpt2.encode(text))
        assert "".join(shown) == text
        assert shown[-1] == "", ascii(text)
        if "\ufffd" not in text:
            assert not any("\ufffd" in part for part in shown), ascii(text)


def test_character_is_held_back_until_its_last_byte(gpt2):
    decoder = StreamDecoder(gpt2)
    assert [decoder.feed(id) for id in byte_ids("a🤖é".encode())] == ["a", "", "", "", "🤖", "", "é"]


def test_joined_is_decode_for_any_ids(gpt2):
    chance = random.Random(3)
    broken = byte_ids(bytes(range(0x7E, 0x100)))
    for _ in range(3000):
        pool = broken if chance.random() < 0.7 else range(gpt2.n_vocab)
        ids = [chance.choice(pool) for _ in range(chance.randrange(20))]
        assert "".join(stream(gpt2, ids)) == gpt2.decode(ids), ids


def test_bytes_that_cannot_be_completed_show_at_once(gpt2):
    lone, start = byte_ids(b"\x80\xe2")
    assert stream(gpt2, [lone]) == ["\ufffd", ""]
    assert stream(gpt2, [start, start]) == ["", "\ufffd", "\ufffd"]
    assert stream(gpt2, byte_ids(b"\xed\xa0")) == ["", "\ufffd\ufffd", ""]  # would be a surrogate
    assert stream(gpt2, byte_ids(b"\xf4\x90")) == ["", "\ufffd\ufffd", ""]  # would be beyond U+10FFFF
    assert stream(gpt2, byte_ids(b"\xe2\x82")) == ["", "", "\ufffd"]


def test_unfinished_is_every_beginning_of_every_character_and_nothing_else():
    scalars = (point for point in range(cases.CODE_POINTS) if not 0xD800 <= point <= 0xDFFF)
    characters = (chr(point).encode() for point in scalars)
    beginnings = {text[:n] for text in characters for n in range(1, len(text))}
    for first in range(256):
        for second in range(256):
            two = bytes([first, second])
            assert unfinished(two) == expected_unfinished(two, beginnings), two
    chance = random.Random(5)
    for _ in range(50_000):
        text = bytes(
            chance.choice((0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC1, 0xC3, 0xE0, 0xED, 0xF0, 0xF4, 0xF5))
            for _ in range(chance.randrange(6))
        )
        assert unfinished(text) == expected_unfinished(text, beginnings), text


def expected_unfinished(text, beginnings):
    return max((n for n in range(1, 4) if text[-n:] in beginnings and n <= len(text)), default=0)


def test_flush_starts_anew(gpt2):
    decoder = StreamDecoder(gpt2)
    decoder.feed(byte_ids(b"\xe2")[0])
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""
    assert decoder.feed(gpt2.encode("new")[0]) == "new"


def test_id_out_of_range_leaves_the_stream_as_it_was(gpt2):
    decoder = StreamDecoder(gpt2)
    first, *rest = byte_ids("é".encode())
    decoder.feed(first)
    with pytest.raises(UserError, match="50300"):
        decoder.feed(50300)
    assert [decoder.feed(id) for id in rest] == ["é"]


def test_characters_stream_too():
    tokenizer = CharTokenizer.train("héllo 🤖")
    assert stream(tokenizer, tokenizer.encode("hé🤖")) == ["h", "é", "🤖", ""]
