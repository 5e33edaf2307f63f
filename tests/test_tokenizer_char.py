"""The character tokenizer: round trips, unseen characters, files."""

import json

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import CharTokenizer, Tokenizer, load_tokenizer


def test_vocabulary_is_the_sorted_characters():
    tokenizer = CharTokenizer.train("banana split\n")
    assert tokenizer.characters == "\n abilnpst"
    assert (tokenizer.n_vocab, tokenizer.eot_id, tokenizer.special_tokens) == (10, None, {})
    assert CharTokenizer.train(iter(["ban", "ana ", "split\n"])).characters == tokenizer.characters


def test_round_trip_beyond_ascii():
    text = "naïve 🤖\r\n漢字\0"
    tokenizer = CharTokenizer.train(text)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    array = tokenizer.encode_array(text)
    assert array.dtype == np.uint16 and array.tolist() == ids


def test_unseen_character_is_named():
    tokenizer = CharTokenizer.train("hello")
    with pytest.raises(UserError, match=r"'é' \(U\+00E9, position 2\).*the 4 .*errors='skip'"):
        tokenizer.encode("heéllo")
    assert tokenizer.decode(tokenizer.encode("heéllo!", errors="skip")) == "hello"
    assert tokenizer.encode_array("heéllo!", errors="skip").tolist() == tokenizer.encode("hello")


def test_ids_out_of_range_are_refused():
    with pytest.raises(UserError, match="token id 4 is outside this vocabulary of 4"):
        CharTokenizer.train("hello").decode([0, 4])


def test_surrogates_become_what_utf8_can_hold():
    assert CharTokenizer.train("a\ud800\ud83d\ude00").characters == "a\ufffd😀"
    assert CharTokenizer.train("a\ufffd").encode("\udc00a") == [1, 0]


@pytest.mark.parametrize("nothing", ["", [], ["", ""]])
def test_no_text_is_refused(nothing):
    with pytest.raises(UserError, match="no text"):
        CharTokenizer.train(nothing)


def test_save_and_load(tmp_path):
    tokenizer = CharTokenizer.train('naïve 🤖\r\n\\"\u2028\0')
    tokenizer.save(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["char_vocab.json"]
    for loaded in (CharTokenizer.load(tmp_path / "new"), load_tokenizer(str(tmp_path / "new"))):
        assert isinstance(loaded, CharTokenizer) and loaded.characters == tokenizer.characters


DAMAGED = ["", "{", "[]", "{}", '{"characters": "abc"}', '{"characters": ["a", 1]}', '{"characters": ["ab"]}',
           '{"characters": []}', '{"characters": ["a", "a"]}']  # fmt: skip


@pytest.mark.parametrize("content", [*map(str.encode, DAMAGED), b"\xe9"])
def test_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "char_vocab.json").write_bytes(content)
    with pytest.raises(UserError) as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"char_vocab\.json is missing"):
        CharTokenizer.load(tmp_path)


def test_two_kinds_in_one_folder_are_refused(tmp_path):
    characters, pieces = CharTokenizer.train("hello"), Tokenizer([], {})
    characters.save(tmp_path / "a")
    with pytest.raises(UserError, match="another kind"):
        pieces.save(tmp_path / "a")
    pieces.save(tmp_path / "b")
    with pytest.raises(UserError, match="another kind"):
        characters.save(tmp_path / "b")
    (tmp_path / "b" / "char_vocab.json").write_text(json.dumps({"characters": ["a"]}), encoding="utf-8")
    with pytest.raises(UserError, match="delete"):
        load_tokenizer(tmp_path / "b")
