"""``nanoeuler data`` and ``nanoeuler tokenizer``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from command_line import Cli, shell


def test_data_stories(cli: Cli, tmp_path: Path) -> None:
    printed = cli("data", "stories", "-", "-n", 3)
    assert printed.out.count("<|endoftext|>") == 2
    assert cli("data", "stories", tmp_path / "s.txt", "-n", 3).code == 0
    written = (tmp_path / "s.txt").read_text(encoding="utf-8")
    assert written.removesuffix("\n<|endoftext|>\n") == printed.out.removesuffix("\n")


def test_data_prepare_says_what_it_made(cli: Cli, world: Path, tmp_path: Path) -> None:
    result = cli("data", "prepare", world / "stories.txt", "--tokenizer", "char", "-o", tmp_path / "c", "--val-docs", 2)
    assert result.code == 0
    assert "of 38 documents" in result.out and "of 2 documents" in result.out and "next: nanoeuler train" in result.out
    assert (tmp_path / "c" / "char_vocab.json").exists()


def test_data_fetch_lists_what_there_is(cli: Cli) -> None:
    assert "shakespeare" in cli("data", "fetch").out


def test_tokenizer_round_trip(cli: Cli) -> None:
    ids = cli("tokenizer", "encode", "Hello, world!").out
    assert ids == "15496 11 995 0\n"
    assert cli("tokenizer", "decode", *ids.split()).out == "Hello, world!\n"
    assert cli("tokenizer", "decode", "15496,11").out == "Hello,\n"
    assert cli("tokenizer", "encode", "<|endoftext|>", "--allow-special").out == "50256\n"
    assert cli("tokenizer", "encode", "Hi there", "--pieces").out == " 17250  'Hi'\n   612  ' there'\n"


def test_tokenizer_reads_standard_input() -> None:
    assert shell("tokenizer", "encode", "-", input="Hello").stdout == "15496\n"
    assert shell("tokenizer", "decode", "-", input="15496\n").stdout == "Hello\n"


def test_tokenizer_train_and_info(cli: Cli, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    assert "270 entries" in cli("tokenizer", "train", world / "stories.txt", "--vocab-size", 270, "-o", out).out
    assert "13" in cli("tokenizer", "info", out).out
    assert cli("tokenizer", "train", world / "stories.txt", "--char", "-o", tmp_path / "c").code == 0
    assert "kind            characters" in cli("tokenizer", "info", tmp_path / "c").out
    assert "vocabulary      300" in cli("tokenizer", "info", world / "run").out


def test_prepared_data_is_kept_unless_told(cli: Cli, refuses: Callable[..., None], world: Path, tmp_path: Path) -> None:
    stories, out = world / "stories.txt", tmp_path / "data"
    assert cli("data", "prepare", stories, "--tokenizer", "char", "--out", out).code == 0
    before = (out / "meta.json").read_bytes()
    refuses("holds prepared data already", "data", "prepare", stories, "--vocab-size", 300, "--out", out)
    assert (out / "meta.json").read_bytes() == before
    assert cli("data", "prepare", stories, "--vocab-size", 300, "--out", out, "--overwrite").code == 0
    assert not (out / "char_vocab.json").exists() and (out / "vocab.json").exists()
