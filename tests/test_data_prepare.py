"""Text to shards: exact tokens, exact splits, constant memory, nothing half-written."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.data import text as reading
from nanoeuler.data.dataset import Dataset
from nanoeuler.data.prepare import prepare, read_meta
from nanoeuler.data.shards import write_shard
from nanoeuler.data.text import SEPARATOR
from nanoeuler.errors import UserError
from nanoeuler.tokenizer import CharTokenizer, Tokenizer, load_tokenizer


def tokens_of(folder, split):
    return np.concatenate([file.tokens for file in Dataset.open(folder, split).files]).tolist()


def no_space(descriptor):
    raise OSError(28, "No space left on device")


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def gpt2():
    return Tokenizer.gpt2()


@pytest.fixture
def stories(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text(f"\n{SEPARATOR}\n".join(f"Story number {i}, the end." for i in range(200)), encoding="utf-8")
    return path


def test_shakespeare_characters_split_as_nanogpt(tmp_path):
    # nanoGPT's data/shakespeare_char/prepare.py in three lines, on a text with every kind of seam in it.
    data = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 1237 + "naïve"
    (tmp_path / "input.txt").write_bytes(data.encode())
    stoi = {ch: i for i, ch in enumerate(sorted(set(data)))}
    n = len(data)
    train, val = ([stoi[c] for c in part] for part in (data[: int(n * 0.9)], data[int(n * 0.9) :]))

    report = prepare([tmp_path / "input.txt"], tmp_path / "out", CharTokenizer.train(data))
    assert (report.split, report.n_documents) == ("characters", 1)
    assert tokens_of(tmp_path / "out", "train") == train and tokens_of(tmp_path / "out", "val") == val
    assert (report.train.tokens, report.val.tokens) == (len(train), len(val))
    assert report.train.bytes + report.val.bytes == len(data.encode()) == n + 1


@pytest.mark.parametrize("append_eot", [True, False])
def test_one_long_document_has_the_tokens_of_the_whole(tmp_path, gpt2, append_eot, monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 1000)
    text = "It was a dark night;  the wind\thowled -- 'twas 3,000 miles away...\n\n   No? Oh 日本語。\n" * 200
    (tmp_path / "a.txt").write_text(text, encoding="utf-8", newline="")
    report = prepare([tmp_path / "a.txt"], tmp_path / "out", gpt2, val_fraction=0, append_eot=append_eot)
    assert tokens_of(tmp_path / "out", "train") == gpt2.encode(text) + [50256] * append_eot
    assert report.val.tokens == 0 and report.train.bytes == len(text.encode())


def test_many_documents_split_whole(tmp_path, gpt2, stories):
    report = prepare([stories], tmp_path / "out", gpt2, val_fraction=0.1, seed=7)
    parts = {
        split: [bytes(t) for t in gpt2.decode_bytes(tokens_of(tmp_path / "out", split)).split(SEPARATOR.encode())]
        for split in ("train", "val")
    }
    assert all(part.pop() == b"" for part in parts.values())  # each document ends with the separator's token
    assert (report.split, report.train.documents, report.val.documents) == ("documents", 180, 20)
    assert (len(parts["train"]), len(parts["val"])) == (180, 20)
    assert set(parts["train"]) | set(parts["val"]) == {b"Story number %d, the end." % i for i in range(200)}
    assert report.val.bytes == sum(map(len, parts["val"]))

    again = prepare([stories], tmp_path / "again", gpt2, val_fraction=0.1, seed=7)
    assert files_of(tmp_path / "out")["val_000000.bin"] == files_of(tmp_path / "again")["val_000000.bin"]
    assert again.val == report.val
    prepare([stories], tmp_path / "other", gpt2, val_fraction=0.1, seed=8)
    assert files_of(tmp_path / "out")["val_000000.bin"] != files_of(tmp_path / "other")["val_000000.bin"]


@pytest.mark.parametrize("val_docs", [0, 1, 37, 199])
def test_an_exact_number_of_validation_documents(tmp_path, gpt2, stories, val_docs):
    report = prepare([stories], tmp_path / "out", gpt2, val_docs=val_docs)
    assert (report.train.documents, report.val.documents) == (200 - val_docs, val_docs)
    if val_docs:
        assert tokens_of(tmp_path / "out", "val").count(50256) == val_docs


def test_validation_files_of_their_own(tmp_path, gpt2):
    (tmp_path / "train.txt").write_text("one")
    (tmp_path / "valid.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n')
    report = prepare([tmp_path / "train.txt"], tmp_path / "out", gpt2, val_inputs=[tmp_path / "valid.jsonl"])
    assert report.split == "files"
    assert tokens_of(tmp_path / "out", "train") == [*gpt2.encode("one"), 50256]
    assert tokens_of(tmp_path / "out", "val") == [*gpt2.encode("two"), 50256, *gpt2.encode("three"), 50256]


def test_few_documents_are_cut_by_characters(tmp_path):
    text = "aaaa<|endoftext|>bbbbbb"  # ten characters, two documents
    (tmp_path / "a.txt").write_text(text)
    tokenizer = Tokenizer.train(["ab"], 257)
    a, b, eot = *tokenizer.encode("ab"), tokenizer.eot_id
    for fraction, train, val in [
        (0.2, [a] * 4 + [eot] + [b] * 4, [b] * 2 + [eot]),
        (0.6, [a] * 4 + [eot], [b] * 6 + [eot]),  # right between the two
        (0.7, [a] * 3, [a, eot] + [b] * 6 + [eot]),
    ]:
        report = prepare([tmp_path / "a.txt"], tmp_path / "out", tokenizer, val_fraction=fraction, overwrite=True)
        assert tokens_of(tmp_path / "out", "train") == train and tokens_of(tmp_path / "out", "val") == val
        assert (report.split, report.n_documents) == ("characters", 2)


def test_a_document_ends_where_its_text_went(tmp_path, monkeypatch):
    # The last piece of each document is empty here (a cut before its trailing line break): the end still follows it.
    monkeypatch.setattr(reading, "PIECE", 4)
    (tmp_path / "a.txt").write_text(f"\n\n{SEPARATOR}\n".join(["x" * 4] * 30))
    tokenizer = Tokenizer.train(["ab"], 257)
    x, eot = tokenizer.encode("x")[0], tokenizer.eot_id
    prepare([tmp_path / "a.txt"], tmp_path / "out", tokenizer, val_docs=3)
    assert tokens_of(tmp_path / "out", "train") == [x, x, x, x, eot] * 27
    assert tokens_of(tmp_path / "out", "val") == [x, x, x, x, eot] * 3


def test_what_a_prepared_folder_holds(tmp_path, gpt2, stories):
    calls = []
    report = prepare([stories], tmp_path / "out", gpt2, tokens_per_shard=500, progress=lambda *call: calls.append(call))
    meta = json.loads((tmp_path / "out" / "meta.json").read_text(encoding="utf-8"))
    assert (meta["n_vocab"], meta["eot_id"], meta["tokenizer"]) == (50257, 50256, "Tokenizer")
    assert (meta["train"]["tokens"], meta["val"]["bytes"]) == (report.train.tokens, report.val.bytes)
    assert len(report.train.shards) > 2
    assert sorted(meta["files"]) == sorted(files_of(tmp_path / "out"))
    assert set(report.train.shards + report.val.shards + ["meta.json"]) < set(meta["files"])
    assert load_tokenizer(tmp_path / "out").encode("the end") == gpt2.encode("the end")
    dataset = Dataset.open(tmp_path / "out")
    assert (dataset.n_tokens, dataset.n_bytes, dataset.n_vocab) == (report.train.tokens, report.train.bytes, 50257)
    assert dataset.folder == tmp_path / "out"
    for stage in ("read", "encode"):
        done = [d for s, d, total in calls if s == stage and total > 0]
        assert done == sorted(done) and calls[-1][1] == calls[-1][2]


def test_preparing_again_replaces_the_earlier_set_only(tmp_path, gpt2, stories):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.md").write_text("mine")
    prepare([stories], tmp_path / "out", gpt2, tokens_per_shard=200)
    (tmp_path / "small.txt").write_text("hello hello hello")
    before = files_of(tmp_path / "out")
    with pytest.raises(UserError, match=r"holds prepared data already: choose another folder, or .* --overwrite"):
        prepare([tmp_path / "small.txt"], tmp_path / "out", CharTokenizer.train("hello "))
    assert files_of(tmp_path / "out") == before
    prepare([tmp_path / "small.txt"], tmp_path / "out", CharTokenizer.train("hello "), overwrite=True)
    assert sorted(files_of(tmp_path / "out")) == [
        "char_vocab.json", "meta.json", "notes.md", "train_000000.bin", "val_000000.bin",
    ]  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
def test_failures_leave_everything_as_it_was(tmp_path, gpt2, stories, again, monkeypatch):
    out = tmp_path / "out"
    if again:
        prepare([stories], out, gpt2)
        before = files_of(out)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine so far\xff")
    with pytest.raises(UserError, match=r"bad\.txt is not UTF-8: byte 0xff at byte offset 11"):
        prepare([stories, bad], out, gpt2, overwrite=again)
    with pytest.raises(UserError, match=r"stories\.txt: character 'S'"):
        prepare([stories], tmp_path / "fresh", CharTokenizer.train("abc"))
    assert not (tmp_path / "fresh").exists()

    monkeypatch.setattr(gpt2, "save", lambda folder: None, raising=False)  # so that the shards meet the full disk
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(UserError, match="disk is full"):
        prepare([stories], out, gpt2, overwrite=again)
    assert (files_of(out) == before) if again else not out.exists()


def test_files_of_others_are_never_overwritten(tmp_path, gpt2, stories):
    for name in ("meta.json", "vocab.json", "train_000000.bin"):
        (tmp_path / name).mkdir()
        out = tmp_path / f"out-{name}"
        out.mkdir()
        (out / name).write_text("{}")
        with pytest.raises(UserError, match=f"{name} exists and is not part of a prepared set"):
            prepare([stories], out, gpt2)
        assert files_of(out) == {name: b"{}"}
    gpt2.save(tmp_path / "same")  # a tokenizer saved there before is the same file
    prepare([stories], tmp_path / "same", load_tokenizer(tmp_path / "same"))


KILLED_AFTER = """
import os, pathlib, sys
from nanoeuler.data.prepare import prepare
from nanoeuler.tokenizer import Tokenizer
left = int(sys.argv[3])
def counted(original):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return original(*args, **kwargs)
    return call
tokenizer = Tokenizer.gpt2()
for name in ("replace", "unlink", "mkdir", "rmdir"):
    setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))
prepare([sys.argv[1]], sys.argv[2], tokenizer, seed=2, overwrite=True)
"""


def test_killed_between_any_two_changes_of_the_folder(tmp_path, gpt2, stories):
    # Either set whole, or a word that it was interrupted; never a mixture, and preparing again mends it.
    def sets_in(folder):
        return [tokens_of(folder, split) for split in ("train", "val")]

    out = tmp_path / "out"
    prepare([stories], out, gpt2, tokens_per_shard=600)
    prepare([stories], tmp_path / "new", gpt2, seed=2)
    earlier, new = sets_in(out), sets_in(tmp_path / "new")
    seen = set()
    for changes in (0, 3, 6, 7, 8, 9, 11, 13, 15, 100):
        command = [sys.executable, "-c", KILLED_AFTER, str(stories), str(out), str(changes)]
        killed = subprocess.run(command).returncode == 9
        try:
            found = sets_in(out)
            assert found in (earlier, new)
            seen.add((killed, "earlier" if found == earlier else "new"))
        except UserError as error:
            assert killed and "interrupted" in str(error)
            seen.add((killed, "interrupted"))
        prepare([stories], out, gpt2, tokens_per_shard=600, overwrite=True)
        assert sets_in(out) == earlier
    assert seen >= {(True, "earlier"), (True, "interrupted"), (False, "new")}


def test_a_failure_while_files_change_places_leaves_its_sign(tmp_path, gpt2, stories, monkeypatch):
    out = tmp_path / "out"
    prepare([stories], out, gpt2)
    replace = Path.replace

    def held_open(self, target):
        if self.name == "val_000000.bin" and self.parent.name == ".preparing":
            raise PermissionError(13, "The process cannot access the file")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", held_open)
        with pytest.raises(UserError, match=r"cannot write .*cannot access the file"):
            prepare([stories], out, gpt2, seed=2, overwrite=True)
    with pytest.raises(UserError, match="was interrupted: run `nanoeuler data prepare` again"):
        Dataset.open(out)
    prepare([stories], out, gpt2, seed=2)
    assert Dataset.open(out, "val").n_tokens > 0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"files": ["../stories.txt"]}, "damaged"),
        ({"files": ["meta.json", 3]}, "damaged"),
        ({"train": {}}, "damaged"),
        ({"n_vocab": "many"}, "damaged"),
        ({"version": 2}, "another version"),
    ],
)
def test_a_damaged_description_is_refused(tmp_path, gpt2, stories, change, message):
    out = tmp_path / "out"
    prepare([stories], out, gpt2)
    meta = json.loads((out / "meta.json").read_text(encoding="utf-8"))
    (out / "meta.json").write_text(json.dumps(meta | change), encoding="utf-8")
    for use in (lambda: Dataset.open(out), lambda: prepare([stories], out, gpt2)):
        with pytest.raises(UserError, match=rf"meta\.json .*{message}"):
            use()
    assert stories.exists()


def test_a_shard_that_does_not_match_its_description(tmp_path, gpt2, stories):
    out = tmp_path / "out"
    report = prepare([stories], out, gpt2)
    write_shard(out / "train_000000.bin", np.arange(5))
    with pytest.raises(UserError, match=f"promises {report.train.tokens} train tokens, the files hold 5"):
        Dataset.open(out)
    (out / "train_000000.bin").unlink()
    with pytest.raises(UserError, match=r"cannot read the tokens in .*train_000000\.bin"):
        Dataset.open(out)
    prepare([stories], out, gpt2, val_fraction=0, overwrite=True)
    with pytest.raises(UserError, match="was prepared without val data"):
        Dataset.open(out, "val")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"val_fraction": 1.0}, "val_fraction must be"),
        ({"val_fraction": -0.1}, "val_fraction must be"),
        ({"val_docs": 200}, "val_docs must be 0 to 199 with 200 documents, got 200"),
        ({"tokens_per_shard": 0}, "a shard holds 1 to 2147483647 tokens, got 0"),
        ({"text_field": "x", "inputs": ["a.jsonl"]}, r"a\.jsonl, line 1: no field 'x'"),
        ({"inputs": ["empty.txt"]}, r"empty\.txt is empty"),
        ({"inputs": ["blank.txt"]}, r"blank\.txt is empty"),
        ({"inputs": ["one.txt"]}, "1 characters are too few to split"),
        ({"inputs": ["nope.txt"]}, r"no such file or folder: .*nope\.txt"),
        ({"out_dir": "one.txt"}, r"one\.txt is a file: name a folder"),
        ({"val_docs": 1, "val_inputs": ["one.txt"]}, "contradict"),
    ],
)
def test_bad_arguments(tmp_path, gpt2, stories, arguments, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in [("empty.txt", ""), ("blank.txt", " \n"), ("one.txt", "x"), ("a.jsonl", '{"text": "a"}')]:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        prepare(**{"inputs": [stories], "out_dir": tmp_path / "out", "tokenizer": gpt2} | arguments)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_vocabulary_too_large_for_16_bits(tmp_path, stories):
    class Huge(CharTokenizer):
        n_vocab = 65537

    with pytest.raises(UserError, match="65537 does not fit in 16-bit tokens"):
        prepare([stories], tmp_path / "out", Huge("ab"))


@pytest.mark.parametrize("separators", [True, False])
def test_memory_does_not_grow_with_the_text(tmp_path, separators):
    class Bytes(CharTokenizer):
        """As cheap as a tokenizer can be: the test is about memory, not about encoding."""

        def encode_array(self, text, *args):
            return np.frombuffer(text.encode("ascii"), np.uint8).astype(np.uint16)

    line = "Once there was a cat. It sat on a mat, and the mat was flat.\n"
    unit = line * 20 + (f"{SEPARATOR}\n" if separators else "")
    path = tmp_path / "big.txt"
    path.write_text(unit * (20_000_000 // len(unit)), newline="")
    tracemalloc.start()
    report = prepare([path], tmp_path / "out", Bytes("ab"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.train.tokens > 17_000_000 and report.split == ("documents" if separators else "characters")
    assert peak < 8_000_000, f"{peak / 1e6:.1f} MB"


def test_one_path_need_not_be_a_list(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("to be or not to be", encoding="utf-8")
    for inputs in (path, str(path)):
        report = prepare(inputs, tmp_path / "out", CharTokenizer("abenort "), val_fraction=0, overwrite=True)
        assert report.train.tokens == 18


def test_meta_of_nonsense_is_not_ours(tmp_path):
    (tmp_path / "meta.json").write_text("[" * 200_000, encoding="utf-8")
    assert read_meta(tmp_path) is None


def test_one_writer_at_a_time(tmp_path):
    path, out = tmp_path / "a.txt", tmp_path / "out"
    path.write_text("to be or not to be", encoding="utf-8")
    refused = []

    def another(stage, done, total):
        if stage == "encode":
            with pytest.raises(UserError, match="is in use: another process is preparing") as error:
                prepare(path, out, CharTokenizer("abenort "))
            refused.append(error)

    prepare(path, out, CharTokenizer("abenort "), val_fraction=0, progress=another)
    assert refused and Dataset.open(out).n_tokens == 18 and not (out / ".preparing").exists()
    assert prepare(path, out, CharTokenizer("abenort "), val_fraction=0, overwrite=True).train.tokens == 18
