"""Opening datasets, and batches as a pure function of the step."""

import math
import struct
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.data.dataset import Dataset, has_split
from nanoeuler.data.loader import Loader, eval_batches
from nanoeuler.data.permutation import Permutation, hash64
from nanoeuler.data.shards import TokenFile, write_nanogpt, write_shard
from nanoeuler.errors import UserError


def dataset_of(tmp_path, *lengths):
    """Shards whose tokens count up through all of them, so that a token names its own place."""
    start = 0
    for i, n in enumerate(lengths):
        write_shard(tmp_path / f"x_train_{i:06d}.bin", np.arange(start, start + n))
        start += n
    return Dataset.open(tmp_path)


# The permutation


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 63, 64, 65, 100, 1000, 1023, 1024, 1025, 4099, 70001])
def test_permutation_is_a_bijection(n):
    for epoch in range(3):
        assert np.array_equal(np.sort(Permutation(n, (1, epoch))(np.arange(n))), np.arange(n))


@pytest.mark.parametrize("n", [1, 5, 1024, 1025, 5000])
def test_permutation_by_index_is_the_same(n):
    p = Permutation(n, (3,))
    assert [p[i] for i in range(n)] == p(np.arange(n)).tolist()
    assert p[n - 1] == p(np.array([n - 1]))[0]


def test_permutation_of_a_huge_range_needs_no_memory():
    n = 10**12 + 39
    values = Permutation(n, (1,))(np.arange(n - 5000, n))
    assert len(set(values.tolist())) == 5000 and values.min() >= 0 and values.max() < n
    assert abs(values.mean() / n - 0.5) < 5 * math.sqrt(1 / 12 / 5000)


def test_permutation_looks_random():
    # Of 24 orders of 4 things, each comes about equally often: chi squared of 23 degrees, 99.99 % below 56.
    counts: dict[tuple, int] = {}
    for seed in range(4800):
        order = tuple(Permutation(4, (seed, 0))(np.arange(4)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24 and sum((c - 200) ** 2 / 200 for c in counts.values()) < 56
    # Neighbours do not stay neighbours: the mean distance of a random pair is n/3.
    n = 10_000
    steps = np.abs(np.diff(Permutation(n, (5, 0))(np.arange(n))))
    assert abs(steps.mean() / n - 1 / 3) < 0.02


def test_hash_is_splitmix64():
    # The reference generator's first outputs from the seed 0 (Vigna, splitmix64.c): a state that gains 2^64/φ a draw.
    golden = 0x9E3779B97F4A7C15
    assert hash64(0) == 0xE220A8397B1DCDAF
    assert hash64(golden) == 0x6E789E6AA1B965F4
    assert hash64(2 * golden) == 0x06C45D188009454F
    assert hash64(-1) == hash64(2**64 - 1)


# Batches


@pytest.mark.parametrize("lengths", [(100,), (97, 64, 203), (5, 6, 7, 8, 9, 11, 12), (300, 3, 41)])
@pytest.mark.parametrize("B, T", [(1, 1), (3, 5), (4, 7), (7, 2), (100, 5)])
def test_each_window_comes_once_an_epoch(tmp_path, lengths, B, T):
    loader = Loader(dataset_of(tmp_path, *lengths), B, T, seed=3)
    W = loader.windows_per_epoch
    epochs = 3
    rows = [(x, y) for step in range(-(-epochs * W // B)) for x, y in zip(*loader.batch(step))]
    ends = np.cumsum(lengths)
    for epoch in range(epochs):
        seen = rows[epoch * W : (epoch + 1) * W]
        for x, y in seen:
            assert np.array_equal(x, np.arange(x[0], x[0] + T)) and np.array_equal(y, x + 1)
            assert np.searchsorted(ends, x[0], "right") == np.searchsorted(ends, y[-1], "right"), "crosses files"
        starts = sorted(int(x[0]) for x, _ in seen)
        for first, end in zip(ends - lengths, ends):
            of_file = [s for s in starts if first <= s < end]
            assert len(set(of_file)) == len(of_file) and all(b - a == T for a, b in pairwise(of_file))
            assert len(of_file) >= (end - first - T) // T and bool(of_file) == (end - first > T)


def test_order_and_offset_change_with_epoch_and_seed(tmp_path):
    dataset = dataset_of(tmp_path, 5000)

    def first_tokens(seed, epoch, T=10):
        loader = Loader(dataset, 1, T, seed)
        n = loader.windows_per_epoch
        return [int(loader.batch(epoch * n + i)[0][0, 0]) for i in range(n)]

    runs = {(seed, epoch): first_tokens(seed, epoch) for seed in (0, 1) for epoch in range(6)}
    assert len({tuple(order) for order in runs.values()}) == 12
    assert len({tuple(t // 10 for t in order) for order in runs.values()}) == 12  # the order, offset aside
    assert len({order[0] % 10 for order in runs.values()}) >= 4
    assert runs[0, 0] == first_tokens(0, 0)
    plain = Loader(dataset, 1, 10, seed=0, shuffle=False)
    assert [int(plain.batch(i)[0][0, 0]) for i in (0, 1, 2, plain.windows_per_epoch)] == [0, 10, 20, 0]


def test_all_offsets_come(tmp_path):
    # A file that holds two windows at every offset, and one that holds a window at two offsets only.
    for lengths, offsets in [((24,), set(range(8))), ((10,), {0, 1})]:
        loader = Loader(dataset_of(tmp_path, *lengths), 1, 8, seed=0)
        starts = {int(loader.batch(step)[0][0, 0]) % 8 for step in range(200)}
        assert starts == offsets


def test_a_batch_depends_on_its_step_alone(tmp_path):
    # What makes resuming exact: a fresh loader that starts at step k gives what the first one gave.
    dataset = dataset_of(tmp_path, 700, 900)
    loader = Loader(dataset, 6, 16, seed=9)
    run = [tuple(map(np.copy, loader.batch(step))) for step in range(60)]
    for k in (0, 1, 15, 16, 17, 59, 3):
        fresh = Loader(Dataset.open(tmp_path), 6, 16, seed=9)
        for step in [k, min(k + 1, 59), k]:
            assert all(np.array_equal(a, b) for a, b in zip(fresh.batch(step), run[step]))
    for (x, y), (x0, y0) in zip(loader, run):
        assert np.array_equal(x, x0) and np.array_equal(y, y0)
    assert loader.epoch(loader.windows_per_epoch) == 6 and loader.tokens_per_batch == 96


def test_batches_go_into_the_given_buffers(tmp_path):
    loader = Loader(dataset_of(tmp_path, 1000), 4, 8, seed=1)
    out = (np.full((4, 8), -7, np.int32), np.full((4, 8), -7, np.int32))
    x, y = loader.batch(5, out=out)
    assert x is out[0] and y is out[1]
    fresh = loader.batch(5)
    assert fresh[0] is not x and np.array_equal(fresh[0], x) and np.array_equal(fresh[1], y)
    assert x.dtype == y.dtype == np.int32


def test_the_data_is_shuffled_not_drawn_from_a_neighbourhood(tmp_path):
    loader = Loader(dataset_of(tmp_path, 60_000), 12, 16, seed=1)
    x = np.array([loader.batch(step)[0][:, 0].mean() for step in range(100)])
    assert abs(x.mean() - 30_000) < 2500 and x.std() < 1.5 * 60_000 / math.sqrt(12 * 12)


def test_a_batch_is_quick(tmp_path):
    write_nanogpt(tmp_path / "train.bin", np.arange(1_000_000) % 60_000)
    loader = Loader(Dataset.open(tmp_path), 12, 64, seed=1)
    out = loader.batch(0)
    times = []
    for step in range(200):
        start = time.perf_counter()
        loader.batch(step, out)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 300e-6  # 15 µs where it was written; the margin is for busy machines


@pytest.mark.parametrize("T, works", [(9, True), (10, False)])
def test_sequence_longer_than_the_data(tmp_path, T, works):
    dataset = dataset_of(tmp_path, 10, 4)
    if works:
        assert Loader(dataset, 2, T, seed=0).windows_per_epoch == 1
        return
    with pytest.raises(UserError, match=r"block_size 10 needs 11 tokens .* longest has 10; a block_size of at most 9"):
        Loader(dataset, 2, T, seed=0)


def test_bad_batch_shapes(tmp_path):
    dataset = dataset_of(tmp_path, 10)
    for B, T in [(0, 4), (4, 0)]:
        with pytest.raises(UserError, match="at least 1"):
            Loader(dataset, B, T, seed=0)


# Evaluation


@pytest.mark.parametrize("lengths", [(100,), (97, 2, 203), (1, 5)])
@pytest.mark.parametrize("B, T", [(1, 1), (3, 7), (50, 8), (2, 300)])
def test_evaluation_predicts_each_token_once(tmp_path, lengths, B, T):
    batches = list(eval_batches(dataset_of(tmp_path, *lengths), B, T))
    assert all(x.shape == y.shape == (B, T) and x.dtype == y.dtype == np.int32 for x, y in batches)
    x, y = (np.concatenate([batch[i].ravel() for batch in batches]) for i in (0, 1))
    counted = y != -1
    assert np.array_equal(x[counted] + 1, y[counted]) and not x[~counted].any()
    firsts = np.cumsum(lengths) - lengths
    assert y[counted].tolist() == sorted(set(range(sum(lengths))) - set(firsts.tolist()))


def test_evaluation_of_a_part(tmp_path):
    dataset = dataset_of(tmp_path, 1000)
    for max_tokens, targets in [(1, 8), (8, 8), (100, 96), (10**9, 999)]:
        assert sum((y >= 0).sum() for _, y in eval_batches(dataset, 4, 8, max_tokens)) == targets
    write_nanogpt(tmp_path / "val.bin", np.array([3]))
    with pytest.raises(UserError, match=r"val data .* too short: .* add more text"):
        next(eval_batches(Dataset.open(tmp_path / "val.bin", "val"), 4, 8))


# Opening


def test_folders_of_others(tmp_path):
    for folder, names in {
        "nanogpt": ["train.bin", "val.bin"],
        "llmc": ["fineweb_train_000001.bin", "fineweb_train_000002.bin", "fineweb_val_000000.bin"],
        "tiny": ["tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"],
        "plain": ["train_000000.bin", "val_000000.bin"],
    }.items():
        (tmp_path / folder).mkdir()
        for i, name in enumerate(names):
            write = write_nanogpt if folder == "nanogpt" else write_shard
            write(tmp_path / folder / name, np.full(10 + i, i))
        (tmp_path / folder / "model_train_best.bin").write_bytes(b"not one of them")
        train, val = Dataset.open(tmp_path / folder), Dataset.open(str(tmp_path / folder), split="val")
        assert [file.path.name for file in train.files] == [name for name in names if "train" in name]
        assert (val.n_tokens, val.split) == (9 + len(names), "val")
        assert val.n_bytes is val.n_vocab is val.meta is None
        assert has_split(tmp_path / folder, "val")
    (tmp_path / "llmc" / "fineweb_val_000000.bin").unlink()
    assert not has_split(tmp_path / "llmc", "val")
    with pytest.raises(UserError, match="holds train tokens but none for 'val'"):
        Dataset.open(tmp_path / "llmc", "val")


def test_files_and_patterns(tmp_path):
    for i in (2, 1, 3):
        write_shard(tmp_path / f"part{i}.bin", np.full(i, i))
    write_nanogpt(tmp_path / "raw.bin", np.arange(4))
    assert Dataset.open(tmp_path / "part2.bin").n_tokens == 2
    assert [len(file) for file in Dataset.open(str(tmp_path / "part*.bin")).files] == [1, 2, 3]
    both = Dataset.open([tmp_path / "raw.bin", str(tmp_path / "part3.bin")])
    assert [file.layout for file in both.files] == ["nanogpt", "llm.c"]
    (tmp_path / "odd[1].bin").write_bytes(struct.pack("<3H", 1, 2, 3))
    assert Dataset.open(tmp_path / "odd[1].bin").n_tokens == 3  # a name, though it looks like a pattern


def test_nothing_to_open_names_the_command(tmp_path):
    (tmp_path / "empty").mkdir()
    for source in ("missing", "empty"):
        with pytest.raises(UserError, match=f"nanoeuler data prepare FILE... --out .*{source}"):
            Dataset.open(tmp_path / source)
    with pytest.raises(UserError, match=r"no data matches .*x\*\.bin"):
        Dataset.open(str(tmp_path / "x*.bin"))
    with pytest.raises(UserError, match="name at least one token file"):
        Dataset.open([])
    with pytest.raises(UserError, match="unknown split 'test'"):
        Dataset.open(tmp_path, "test")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"nanoeuler data prepare .*a\.txt"):
        Dataset.open(tmp_path / "a.txt")


def test_ids_are_checked_against_the_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setattr("nanoeuler.data.dataset._BLOCK", 16)
    dataset = dataset_of(tmp_path, 50, 30)
    dataset.check_ids(80)
    with pytest.raises(UserError, match=r"x_train_000001\.bin: token id 79 at position 29 .*\(0 … 78\)"):
        dataset.check_ids(79)
    with pytest.raises(UserError, match=r"x_train_000000\.bin: token id 20 at position 20 "):
        dataset.check_ids(20)


def test_windows_can_begin_where_documents_do():
    """With a separator, each window starts at one, right after one, or at the file's start, whenever it can."""
    rng = np.random.default_rng(3)
    T, eot = 16, 9
    tokens = np.concatenate([np.append(rng.integers(0, 9, rng.integers(3, 14)), eot) for _ in range(200)])
    dataset = Dataset((TokenFile(Path("documents.bin"), tokens.astype(np.uint16), "nanogpt"),), "train")
    separators = {int(s) for s in np.flatnonzero(tokens == eot)}
    starts = {0, *separators, *(s + 1 for s in separators)}
    loader = Loader(dataset, B=3, T=T, seed=5, separator=eot)
    seen = set()
    for step in range(60):
        x, y = loader.batch(step)
        for row, target in zip(x, y):
            places = [s for s in range(len(tokens) - T) if (tokens[s : s + T] == row).all()]
            assert any(s in starts and (tokens[s + 1 : s + T + 1] == target).all() for s in places)
            seen.update(places)
    assert len(seen & separators) > 40 and len(seen & starts - separators) > 40  # both kinds, and many of them
