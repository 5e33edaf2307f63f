"""Decoding many sequences at once on a GPU, its kernels interpreted, against the reference engine."""

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import lively_models

from nanoeuler.errors import UserError
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.ops.gpu import batch_decode
from nanoeuler.ops.gpu.batch_decode import Cuts, Rows
from nanoeuler.ops.gpu.decode import GpuDecoder
from nanoeuler.ops.gpu.kernels import sampling as smp
from nanoeuler.ops.gpu.kernels.batch_decode import Cut
from nanoeuler.tokenizer import CharTokenizer

V = 65
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is masked out
CUTS = Cuts(Cut(16, 16), Cut(16, 16, 2), Cut(32, 32), Cut(16, 32, 3), Cut(32, 16), tile=4)


@pytest.fixture
def models(monkeypatch):
    return lively_models(monkeypatch, V)


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, V, n).astype(np.int32)


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def ready(gpu, n, splits=None, monkeypatch=None, **options):
    """A decoder of n slots whose steps are cut as small tests need."""
    one = GpuDecoder(gpu, n, programs=1)
    if splits:
        monkeypatch.setattr("nanoeuler.ops.gpu.kernels.batch_decode.attention_splits", lambda *a: splits)
    size = 1 << (n - 1).bit_length()
    one._rows[size] = Rows(one, size, CUTS, **options)
    return one


@pytest.mark.parametrize("C, H, n, splits", [(48, 3, 3, 1), (64, 1, 2, 4), (40, 2, 17, 2)])
def test_rows_of_different_lengths_get_the_logits_of_their_whole_texts(monkeypatch, models, C, H, n, splits):
    """Head sizes 16, 64 and 20; rows that fill no tile, and two tiles of slots; caches within and over one share."""
    gpu, reference = models(C, H, layers=1 if n > 8 else 2)
    many = ready(gpu, n, splits, monkeypatch)
    texts = [list(ids([1, 14, 23][i % 3], seed=i)) for i in range(n)]
    for slot, text in enumerate(texts):
        many.prefill(slot, text) if slot < 3 else many.copy(slot % 3, slot)
    texts = [list(texts[i % 3]) for i in range(n)]
    order = list(range(n))[::-1]
    for t in range(2 if n < 8 else 1):
        new = ids(n, seed=100 + t)
        got = many.step(order, new)
        assert got.shape == (n, V)
        for row, slot in enumerate(order):
            texts[slot].append(int(new[row]))
            if row < 3 or t or row == n - 1:
                want = reference.logits(np.array([texts[slot]], np.int32), last_only=True)[0]
                assert error(got[row], want) < 1e-5, (t, row)
    assert many.lengths == [len(text) for text in texts]


def test_some_slots_step_and_the_others_keep_what_they_hold(monkeypatch, models):
    gpu, _ = models(48, 3, layers=1)
    many, text = ready(gpu, 4), ids(5)
    for slot in range(4):
        many.prefill(slot, text)
    before = gpu.ops.download(many.cache)
    many._rows[2] = Rows(many, 2, CUTS)
    many.step([3, 1], [7, 8])
    after = gpu.ops.download(many.cache)
    assert (before[[0, 2]] == after[[0, 2]]).all() and many.lengths == [5, 6, 5, 6]
    assert (before[[1, 3], ..., :5, :] == after[[1, 3], ..., :5, :]).all()
    with pytest.raises(UserError, match="outside the model's vocabulary"):
        many.step([0, 1], [1, V])


@pytest.mark.parametrize("n, cut", [(3, {}), (2, {"top_k": 9}), (2, {"temperature": 0.0})])
def test_draws_are_the_hosts_choices(monkeypatch, models, n, cut):
    """Turn after turn, and as many as were asked for; then the slots go on from what the caller took."""
    gpu, _ = models(48, 3, layers=1)
    monkeypatch.setattr(smp, "BLOCK", 32)
    monkeypatch.setattr(batch_decode, "AT_ONCE", 2)
    many = ready(gpu, n)
    configs = [SamplingConfig(**{"temperature": 0.9, "seed": i, **cut}) for i in range(n)]
    for slot in range(n):
        many.prefill(slot, ids(3 + slot, slot))
    slots, last = list(range(n))[::-1], [5, 6, 7][:n]
    before = list(many.lengths)
    draws = many.draw(slots, last, configs, [2] * n, [9] * n, 60, 4)
    drawn = [next(draws) for _ in range(3)]
    draws.close()
    assert many.lengths == [length + 3 for length in before]
    for slot in slots:
        many.truncate(slot, before[slot])
    for turn, got in enumerate(drawn):
        rows = many.step(slots, last)
        last = [sample_next(row, [], c, uniform(c.seed, 2, 9 + turn), 60) for row, c in zip(rows, configs)]
        assert got.tolist() == last, turn


def test_penalties_are_left_to_the_host(models):
    many = ready(models(48, 3, layers=1)[0], 2)
    configs = [SamplingConfig(), SamplingConfig(repetition_penalty=1.2)]
    assert many.draw([0, 1], [1, 2], configs, [0, 0], [0, 0], V, 4) is None


def test_a_generators_texts_are_the_same_whoever_chooses(monkeypatch, models):
    """Four texts of two lengths, two at a time: chosen on the device, and with its draws taken away."""
    gpu, _ = models(40, 1, layers=1)
    monkeypatch.setattr(smp, "BLOCK", 32)
    monkeypatch.setattr(batch_decode, "AT_ONCE", 2)
    generator = Generator(gpu, CharTokenizer("".join(map(chr, range(48, 108)))))
    monkeypatch.setattr(generator, "open_decoder", lambda n, context: ready(gpu, n))
    true, texts, taken = GpuDecoder.draw, [], []

    def counting(self, slots, *rest):
        taken.append(len(slots))
        return true(self, slots, *rest)

    for draw in (counting, lambda *args: None):
        monkeypatch.setattr(GpuDecoder, "draw", draw)
        settings = {"max_new_tokens": 5, "num_samples": 2, "batch_size": 2, "temperature": 0.9, "seed": 5}
        texts.append([text.tokens for text in generator.generate(["abc", "0"], **settings)])
    assert texts[0] == texts[1] and taken == [2, 2]
