"""Tokenizers on disk: round trips, Hugging Face's layouts, and every way a file can be wrong."""

import json
import os
import shutil
from pathlib import Path

import pytest
import tokenizer_cases as cases

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer, load_tokenizer
from nanoeuler.tokenizer.files import write_texts

GOLDEN = Path(__file__).resolve().parent / "golden"
VALUES = json.loads((GOLDEN / "tokenizer.json").read_text(encoding="utf-8"))
EXCERPT = (GOLDEN / "shakespeare_20k.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return Tokenizer.train([EXCERPT], vocab_size=600)


@pytest.fixture
def folder(tmp_path, trained) -> Path:
    trained.save(tmp_path / "saved")
    return tmp_path / "saved"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_same(loaded: Tokenizer, original: Tokenizer) -> None:
    assert loaded.vocab() == original.vocab()
    assert loaded.merges == original.merges
    assert loaded.special_tokens == original.special_tokens
    for text in cases.nasty_strings():
        assert loaded.encode(text, allowed_special="all") == original.encode(text, allowed_special="all")


def test_save_and_load(folder, trained):
    assert names_in(folder) == ["merges.txt", "tokenizer_config.json", "vocab.json"]
    assert_same(Tokenizer.load(str(folder)), trained)
    assert_same(load_tokenizer(folder), trained)


def test_save_and_load_gpt2(tmp_path):
    Tokenizer.gpt2().save(tmp_path)
    assert_same(Tokenizer.load(tmp_path), Tokenizer.gpt2())
    lines = (tmp_path / "merges.txt").read_bytes().decode("utf-8").split("\n")
    assert lines[:3] == ["#version: 0.2", "Ġ t", "Ġ a"] and len(lines) == 50_002


@pytest.mark.parametrize("special", [(), ("<|endoftext|>", "<|user|>", "<|ümlaut 🤖|>")])
def test_special_tokens_survive(tmp_path, special):
    original = Tokenizer.train([EXCERPT], 300, special_tokens=special)
    original.save(tmp_path)
    assert_same(Tokenizer.load(tmp_path), original)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    listed = {token["content"]: int(id) for id, token in config["added_tokens_decoder"].items()}
    assert listed == original.special_tokens


def test_transformers_gives_the_same_ids_with_our_folder(trained):
    texts = filter(cases.is_utf8, cases.nasty_strings())
    for text, expected in zip(texts, VALUES["transformers_reading_ours"], strict=True):
        assert trained.encode(text, allowed_special="all") == expected, ascii(text)


@pytest.mark.parametrize("layout", ["pair", "single"])
def test_folder_saved_by_hugging_face(layout):
    loaded = load_tokenizer(GOLDEN / "tokenizer_hf" / layout)
    assert loaded.special_tokens == {"<pad>": 0, "<|endoftext|>": 1}
    assert (loaded.n_vocab, loaded.eot_id) == (300, 1)
    for text, expected in zip(cases.nasty_strings(), VALUES["saved_by_hugging_face"]):
        assert loaded.encode(text, allowed_special="all") == expected, ascii(text)
        assert loaded.decode(expected) == text


def test_foreign_numbering_survives_our_own_files(tmp_path):
    original = load_tokenizer(GOLDEN / "tokenizer_hf" / "pair")
    original.save(tmp_path)
    assert_same(Tokenizer.load(tmp_path), original)


def test_tokens_that_transformers_added_are_special(folder, trained):
    (folder / "tokenizer_config.json").unlink()
    (folder / "added_tokens.json").write_text('{"<|user|>": 600}', encoding="utf-8")
    assert Tokenizer.load(folder).special_tokens == {"<|endoftext|>": 599, "<|user|>": 600}


def test_files_of_an_earlier_tokenizer_do_not_outlive_it(tmp_path, trained):
    shutil.copytree(GOLDEN / "tokenizer_hf" / "single", tmp_path / "used")
    (tmp_path / "used" / "added_tokens.json").write_text('{"<|old|>": 300}', encoding="utf-8")
    trained.save(tmp_path / "used")
    assert names_in(tmp_path / "used") == ["merges.txt", "tokenizer_config.json", "vocab.json"]
    assert_same(load_tokenizer(tmp_path / "used"), trained)


def test_windows_line_ends_are_read(folder, trained):
    path = folder / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert_same(Tokenizer.load(folder), trained)


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_files_are_named(folder, tmp_path):
    assert "not a folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no tokenizer in" in refusal(tmp_path / "empty")
    shutil.copytree(folder, tmp_path / "half")
    (tmp_path / "half" / "merges.txt").unlink()
    assert "merges.txt is missing" in refusal(tmp_path / "half")
    (folder / "vocab.json").unlink()
    assert "vocab.json is missing" in refusal(folder)


@pytest.mark.parametrize("name", ["vocab.json", "tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b'{"a": 1', b"[1, 2]", b"\x00" * 100, b"null", b"[" * 200_000, b"9" * 5000],
    ids=["empty", "UTF-16", "cut short", "list", "zeros", "null", "nested", "long number"],
)
def test_damaged_json_is_named(folder, name, content):
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_files_cut_short_anywhere_are_refused(folder, name):
    whole = (folder / name).read_bytes()
    for size in range(0, len(whole) - 1, max(1, len(whole) // 50)):
        (folder / name).write_bytes(whole[:size])
        refusal(folder)


def test_merges_cut_short_after_a_whole_line_are_refused(folder):
    path = folder / "merges.txt"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-3]), encoding="utf-8")
    assert "3 tokens that its merges do not make" in refusal(folder)


def test_special_tokens_are_known_by_their_brackets_where_nothing_lists_them(folder, trained):
    (folder / "tokenizer_config.json").unlink()
    assert_same(Tokenizer.load(folder), trained)


@pytest.mark.parametrize("line", ["x", "a b c", "a  b", "ab c", "\u3042 a"])
def test_damaged_merge_is_named_by_its_number(folder, line):
    path = folder / "merges.txt"
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[5] = line
    path.write_text("\n".join(lines), encoding="utf-8")
    assert "damaged at merge 5" in refusal(folder)


def test_files_of_two_tokenizers_do_not_load(folder, tmp_path):
    Tokenizer.train(["other words, other merges " * 3], 270).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "vocab.json", folder)
    assert "do not belong together" in refusal(folder)


@pytest.mark.parametrize("id", ["5", 5.0, -1, 3, 1000, None, True])
def test_vocabulary_with_a_wrong_id_is_refused(folder, id):
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    vocab["a"] = id
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "WordPiece", "vocab": {}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {}}},
        {"model": {"type": "BPE", "vocab": {}, "merges": [["a", {}], 3]}},
        {"model": None},
        {"model": [1]},
        {"pre_tokenizer": 1.5},
        {"added_tokens": [{"id": float("inf"), "content": "<x>"}]},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}},
        {"normalizer": {"type": "NFC"}},
        {"added_tokens": [{"id": 1}]},
    ],
)
def test_tokenizer_json_of_another_kind_is_refused(tmp_path, change):
    path = GOLDEN / "tokenizer_hf" / "single" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8")) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert "tokenizer.json" in refusal(tmp_path)


def test_a_failed_save_leaves_the_old_files(folder, trained, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        Tokenizer.gpt2().save(folder)
    assert names_in(folder) == ["merges.txt", "tokenizer_config.json", "vocab.json"]
    assert_same(Tokenizer.load(folder), trained)


def test_a_file_in_the_folders_place_is_refused(tmp_path, trained):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write"):
        trained.save(tmp_path / "file")
    with pytest.raises(UserError, match="not a folder"):
        Tokenizer.load(tmp_path / "file")


def test_write_texts_writes_the_bytes_given(tmp_path):
    write_texts(tmp_path, {"a.txt": "é\n\r\n"})
    assert (tmp_path / "a.txt").read_bytes() == "é\n\r\n".encode()
