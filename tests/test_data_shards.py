"""Token files: the two layouts byte for byte, and a clear word about every file that is not one."""

import os
import struct
import sys

import numpy as np
import pytest

from nanoeuler.data import shards
from nanoeuler.data.shards import ShardWriter, TokenFile, write_nanogpt, write_shard
from nanoeuler.errors import UserError


def packed_llmc(tokens, n=None, magic=20240520, version=1):
    """An llm.c shard written by hand, from the layout's description alone."""
    n = len(tokens) if n is None else n
    return struct.pack("<256i", magic, version, n, *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens)


TOKENS = [0, 1, 255, 256, 50256, 65535, 7]


def test_llmc_layout_is_byte_for_byte(tmp_path):
    write_shard(tmp_path / "a.bin", np.array(TOKENS))
    assert (tmp_path / "a.bin").read_bytes() == packed_llmc(TOKENS)
    with ShardWriter(tmp_path, "train") as writer:
        for token in TOKENS:
            writer.write(np.array([token]))
    assert (tmp_path / "train_000000.bin").read_bytes() == packed_llmc(TOKENS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "train_000000.bin"]


def test_nanogpt_layout_is_byte_for_byte(tmp_path):
    write_nanogpt(tmp_path / "train.bin", np.array(TOKENS))
    assert (tmp_path / "train.bin").read_bytes() == struct.pack("<7H", *TOKENS)


@pytest.mark.parametrize("name", ["shard.bin", "no_suffix"])
def test_reads_llmc_by_its_magic(tmp_path, name):
    (tmp_path / name).write_bytes(packed_llmc(TOKENS))
    file = TokenFile.open(tmp_path / name)
    assert (file.layout, len(file), file.tokens.tolist()) == ("llm.c", 7, TOKENS)
    assert not file.tokens.flags.writeable


def test_reads_nanogpt(tmp_path):
    (tmp_path / "val.bin").write_bytes(struct.pack("<7H", *TOKENS))
    file = TokenFile.open(tmp_path / "val.bin")
    assert (file.layout, file.tokens.tolist()) == ("nanogpt", TOKENS)


def test_one_token_of_nanogpt(tmp_path):
    (tmp_path / "val.bin").write_bytes(b"\x05\x00")  # shorter than a magic number
    assert TokenFile.open(tmp_path / "val.bin").tokens.tolist() == [5]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (packed_llmc(TOKENS)[:-1], "truncated: its header says 7 tokens, so 1038 bytes, but it has 1037"),
        (packed_llmc(TOKENS)[:1000], "truncated: 1000 bytes, less than an llm.c header"),
        (packed_llmc(TOKENS) + b"\0\0", "damaged: its header says 7 tokens"),
        (packed_llmc(TOKENS, n=-3), "damaged"),
        (packed_llmc([]), "holds no tokens"),
        (packed_llmc(TOKENS, version=2), "version 2"),
        (packed_llmc(TOKENS, magic=20240326), "is an llm.c model"),
        (packed_llmc(TOKENS, magic=20240522), "HellaSwag"),
        (b"abc", "odd size"),
    ],
)
def test_refuses_what_is_no_token_file(tmp_path, content, message):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        TokenFile.open(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_refuses_text_and_names_the_command(tmp_path):
    (tmp_path / "book.txt").write_text("Once upon a time")
    with pytest.raises(UserError, match=r"nanoeuler data prepare .*book\.txt"):
        TokenFile.open(tmp_path / "book.txt")
    with pytest.raises(UserError, match="cannot read"):
        TokenFile.open(tmp_path / "missing.bin")


def test_ids_that_do_not_fit_are_refused(tmp_path):
    for bad in ([1, 65536], [-1, 3]):
        with pytest.raises(UserError, match="do not fit in 16 bits"):
            write_shard(tmp_path / "a.bin", np.array(bad))
    with pytest.raises(UserError, match="whole numbers, not float64"):
        write_shard(tmp_path / "a.bin", np.array([1.5, 2]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n, size, lengths", [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 100, [3]), (0, 4, [])])
def test_shards_hold_at_most_so_many_tokens(tmp_path, n, size, lengths):
    with ShardWriter(tmp_path, "val", tokens_per_shard=size) as writer:
        writer.write(np.arange(n))
    files = [TokenFile.open(path) for path in writer.paths]
    assert [path.name for path in writer.paths] == [f"val_{i:06d}.bin" for i in range(len(lengths))]
    assert [len(file) for file in files] == lengths and writer.n_tokens == n
    assert [token for file in files for token in file.tokens.tolist()] == list(range(n))


def test_a_failing_block_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path, "train", tokens_per_shard=4) as writer:
        writer.write(np.arange(10))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_full_disk_when_syncing(tmp_path, monkeypatch):
    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.os, "fsync", no_space)
    for write in (write_shard, write_nanogpt):
        with pytest.raises(UserError, match="disk is full while writing"):
            write(tmp_path / "a.bin", np.arange(10))
    with pytest.raises(UserError, match="disk is full"), ShardWriter(tmp_path, "train") as writer:
        writer.write(np.arange(10))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")  # noqa: PTH110
def test_full_disk_for_real(tmp_path):
    (tmp_path / "train_000000.bin.tmp").symlink_to("/dev/full")
    with pytest.raises(UserError, match="disk is full"), ShardWriter(tmp_path, "train") as writer:
        writer.write(np.zeros(2_000_000, np.uint16))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"cannot write .*Permission denied"):
        write_shard(tmp_path / "a.bin", np.arange(3))
