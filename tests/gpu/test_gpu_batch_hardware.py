"""On a real GPU: GPT-2 124M, many texts at once, and choices by chance."""

import numpy as np
import pytest

pytest.importorskip("triton")

from sampling_cases import device_choices, host_choices, logits, settings

from nanoeuler.inference.generator import Generator
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.decode import GpuDecoder
from nanoeuler.tokenizer import Tokenizer

pytestmark = pytest.mark.gpu
V = 50257
ROUNDING = 0.03  # as in test_gpu_decode_hardware.py


@pytest.fixture(scope="module")
def decoder():
    return GpuDecoder(GPT(GPTConfig.preset("gpt2"), device="gpu"), n_slots=100)


def whole(decoder, text):
    return decoder.model.logits(np.array([text], np.int32), last_only=True)[0]


@pytest.mark.parametrize("n", [2, 3, 16, 33, 64, 100])
def test_logits_of_texts_of_many_lengths(decoder, n):
    rng = np.random.default_rng(n)
    texts = [rng.integers(0, V, length).tolist() for length in rng.integers(1, 1023, n)]
    for slot, text in enumerate(texts):
        decoder.prefill(slot, text)
    for _ in range(2):
        new = rng.integers(0, V, n).tolist()
        got = decoder.step(range(n), new)
        for slot, token in enumerate(new):
            texts[slot].append(token)
        for slot in range(0, n, 1 + n // 6):
            want = whole(decoder, texts[slot])
            assert np.linalg.norm(got[slot] - want) < ROUNDING * np.linalg.norm(want), (slot, len(texts[slot]))


@pytest.mark.parametrize("kinds", [("plain", "greedy"), ("plain", "top_k"), ("top_p",), ("top_k", "top_p", "both")])
def test_ids_equal_the_hosts(decoder, kinds):
    """Thousands of rows over the whole vocabulary, all kinds of settings."""
    rng = np.random.default_rng(len(kinds))
    for _ in range(2):
        x, configs = logits(rng, 64, V), settings(rng, 64, kinds)
        keys = rng.integers(0, 1 << 63, 64).tolist(), rng.integers(0, 2000, 64).tolist()
        got = device_choices(decoder.ops, x, configs, *keys, 50257, turns=5)
        np.testing.assert_array_equal(got, host_choices(x, configs, *keys, 50257, turns=5))


@pytest.mark.parametrize("n", [1, 5, 64])
@pytest.mark.parametrize("cut", [{}, {"top_k": 40, "top_p": 0.9}, {"temperature": 0.0}])
def test_draws_are_the_hosts_choices_after_the_same_texts(decoder, n, cut):
    """Each id is the one that the host takes of the device's own logits, read anew step by step."""
    rng = np.random.default_rng(n)
    texts = [rng.integers(0, V, length).tolist() for length in rng.integers(2, 300, n)]
    configs = [SamplingConfig(**{"temperature": 0.8, "seed": i, **cut}) for i in range(n)]
    for slot, text in enumerate(texts):
        decoder.prefill(slot, text[:-1])
    lengths = list(decoder.lengths)
    slots, last = list(range(n)), [text[-1] for text in texts]
    drawn = list(decoder.draw(slots, last, configs, [7] * n, [3] * n, V, 20))
    assert len(drawn) == 20 and decoder.lengths[:n] == [length + 20 for length in lengths[:n]]
    for slot in slots:
        decoder.truncate(slot, lengths[slot])
    for turn, ids in enumerate(drawn):
        rows = decoder.step(slots, last)
        want = [sample_next(row, [], c, uniform(c.seed, 7, 3 + turn)) for row, c in zip(rows, configs)]
        assert ids.tolist() == want, turn
        last = want


def test_a_generators_texts_are_the_same_whoever_chooses(decoder, monkeypatch):
    """Texts of several lengths that come and go in four slots: chosen on the device, and with its draws taken away."""
    texts = []
    for draw in (GpuDecoder.draw, lambda *args: None):
        monkeypatch.setattr(GpuDecoder, "draw", draw)
        generator = Generator(decoder.model, Tokenizer.gpt2())
        prompts = ["Once upon a time there was", "One", "It was a dark and stormy night; the rain fell in torrents"]
        settings = {
            "max_new_tokens": 24,
            "num_samples": 3,
            "batch_size": 4,
            "temperature": 0.9,
            "top_k": 200,
            "seed": 5,
        }
        texts.append([text.tokens for text in generator.generate(prompts, **settings)])
        assert isinstance(generator.open_decoder(1, 64), GpuDecoder)
    assert texts[0] == texts[1] and len(texts[0]) == 9
