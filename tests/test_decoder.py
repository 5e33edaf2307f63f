"""Decoding with a KV cache: its operations against full attention, and the same tokens, to the bit, as without one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.inference.decoder import Decoder, TableDecoder, UncachedDecoder, open_decoder
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.pretrained import shipped_model
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops import get_engine
from nanoeuler.tokenizer import Tokenizer

SHAPES = [(1, 1, 1, 11), (2, 7, 3, 11), (3, 33, 2, 16), (2, 65, 3, 32), (1, 130, 4, 64), (1, 300, 2, 80)]
MODELS = {
    "shipped": None,
    "char": GPTConfig(65, block_size=600, n_layer=4, n_head=4, n_embd=128, init_std=0.1),
    "gpt2": GPTConfig(n_layer=2, init_std=0.05),  # the 124M's width and vocabulary
    "odd": GPTConfig(101, block_size=600, n_layer=2, n_head=3, n_embd=33, init_std=0.2),
}


@cache
def model(name: str, device: str = "cpu") -> GPT:
    config = MODELS[name]
    return GPT.from_pretrained(shipped_model(), device) if config is None else GPT(config, device, seed=3)


# ---- operations ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("B", "T", "n_head", "D"), SHAPES)
def test_cached_attention_is_a_row_of_attention(device: str, B: int, T: int, n_head: int, D: int) -> None:
    ops, rng, C = get_engine(device), np.random.default_rng(T), n_head * D
    qkv = ops.empty((B, T, 3 * C))
    ops.upload(qkv, 2 * rng.standard_normal((B, T, 3 * C), np.float32))
    want, lse = ops.empty((B, T, C)), ops.empty((B, n_head, T))
    ops.attention(want, lse, qkv, n_head)

    keys, values = (ops.empty(shape) for shape in ops.cache_shapes(B + 1, n_head, T + 3, D))
    keys[...], values[...] = np.nan, np.nan  # what was not written must not be read
    order = rng.permutation(B * T)  # rows in any order
    slots, positions = (order // T + 1).astype(np.int32), (order % T).astype(np.int32)
    rows = np.ascontiguousarray(qkv.reshape(-1, 3 * C)[order])
    got = ops.empty((B * T, C))
    got[...] = np.nan
    ops.write_cache(keys, values, rows, slots, positions, n_head)
    ops.attention_cached(got, rows, keys, values, slots, positions, n_head)
    expected = want.reshape(-1, C)[order]
    if device == "cpu":
        assert np.array_equal(got, expected)  # the same additions in the same order
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)

    ops.copy_cache(keys, values, 1, 0, T)
    again = ops.empty((B * T, C))
    ops.attention_cached(again, rows, keys, values, np.where(slots == 1, 0, slots).astype(np.int32), positions, n_head)
    assert np.array_equal(again, got)


@pytest.mark.parametrize(("N", "V", "C"), [(1, 1, 1), (1, 257, 33), (3, 6, 16), (5, 259, 100), (9, 1003, 64)])
def test_logits_of_a_row_do_not_depend_on_the_others(N: int, V: int, C: int) -> None:
    ops, rng = get_engine("cpu"), np.random.default_rng(C)
    x, wte = rng.standard_normal((N, C), np.float32), rng.standard_normal((V, C), np.float32)
    together, alone = ops.empty((N, V)), ops.empty((1, V))
    ops.logits(together, x, wte)
    np.testing.assert_allclose(together, x.astype(np.float64) @ wte.T, rtol=1e-5, atol=1e-4)
    for n in range(N):
        ops.logits(alone, x[n : n + 1], wte)
        assert np.array_equal(alone[0], together[n])


def test_embedding_at_positions() -> None:
    for device in ("reference", "cpu"):
        ops, rng = get_engine(device), np.random.default_rng(0)
        wte, wpe = ops.empty((9, 5)), ops.empty((7, 5))
        ops.upload(wte, rng.standard_normal((9, 5), np.float32))
        ops.upload(wpe, rng.standard_normal((7, 5), np.float32))
        out = ops.empty((3, 5))
        ops.embedding_at(out, np.array([8, 0, 8], np.int32), np.array([6, 2, 0], np.int32), wte, wpe)
        assert np.array_equal(out, np.stack([wte[8] + wpe[6], wte[0] + wpe[2], wte[8] + wpe[0]]))


# ---- the same text with and without a cache -----------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
def test_512_greedy_tokens_equal_those_without_a_cache(name: str) -> None:
    """Bits, not only tokens. One pass over the finished text gives the logits after each of its prefixes."""
    net = model(name)
    tokens = [1, 2, 3]
    n = min(515, net.config.block_size)
    decoder = open_decoder(net, 1, n)
    assert not isinstance(decoder, UncachedDecoder)
    rows = [decoder.prefill(0, tokens)]
    while len(tokens) < n:
        tokens.append(int(rows[-1].argmax()))
        rows.append(decoder.step([0], tokens[-1:])[0])
    whole = net.logits(np.array([tokens], np.int32))[0]
    for t in (3, 4, 33, n // 2, n - 1):  # that a prefix's logits do not depend on what follows, to the bit
        assert np.array_equal(net.logits(np.array([tokens[:t]], np.int32), last_only=True)[0], whole[t - 1])
    assert np.array_equal(np.stack(rows), whole[2:])


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("n_new", [30, 75])
def test_generator_writes_the_same_with_and_without_a_cache(device: str, n_new: int) -> None:
    tokenizer = Tokenizer([], {"<|endoftext|>": 256})
    config = GPTConfig(257, block_size=40, n_layer=2, n_head=2, n_embd=24, init_std=0.2)
    cached = Generator(GPT(config, device), tokenizer)
    uncached = Generator(cached.model, tokenizer)
    uncached.open_decoder = lambda n, context: UncachedDecoder(cached.model, n, context)  # type: ignore[method-assign]
    prompts = ["a", "", "Once upon a time", "b" * 90]
    settings = dict(max_new_tokens=n_new, num_samples=2, seed=2, stop_at_eot=False, batch_size=5)
    for temperature in (0.0, 1.0):
        texts = cached.generate(prompts, temperature=temperature, **settings)  # type: ignore[arg-type]
        assert texts == uncached.generate(prompts, temperature=temperature, **settings)  # type: ignore[arg-type]
        for i, prompt in enumerate(prompts[:2]):
            alone = cached.generate(prompt, temperature=temperature, **settings)  # type: ignore[arg-type]
            assert alone == texts[2 * i : 2 * i + 2]


# ---- slots --------------------------------------------------------------------------------------------
def decoders(device: str = "cpu") -> list[Decoder]:
    net = model("odd", device)
    return [kind(net, 3, 50) for kind in (TableDecoder, UncachedDecoder)]


@pytest.mark.parametrize("decoder", [*decoders("reference"), *decoders(), open_decoder(model("odd"), 3, 50)])
def test_slots_are_independent(decoder: Decoder) -> None:
    """Prefill, steps side by side, copies, truncation and extension: always the logits of the tokens held."""
    net = decoder.model  # type: ignore[attr-defined]
    rng, held = np.random.default_rng(1), {slot: list[int]() for slot in range(3)}

    def expect(slot: int, got: np.ndarray, n: int = 1) -> None:
        want = net.logits(np.array([held[slot]], np.int32))[0, -n:]
        np.testing.assert_array_equal(
            got.reshape(n, -1), want
        ) if net.ops.name == "cpu" else np.testing.assert_allclose(got.reshape(n, -1), want, rtol=1e-9, atol=1e-9)
        assert decoder.lengths[slot] == len(held[slot])

    for slot in range(3):
        held[slot] = rng.integers(0, 101, 5 + 3 * slot).tolist()
        expect(slot, decoder.prefill(slot, held[slot]))
    for _ in range(40):
        a, b = rng.permutation(3)[:2]
        kind = rng.integers(5)
        if kind == 0 and len(held[a]) < 45:
            new = rng.integers(0, 101, int(rng.integers(1, 6))).tolist()
            held[a] += new
            expect(a, decoder.extend(a, new), len(new))
        elif kind == 1:
            decoder.copy(a, b)
            held[b] = held[a].copy()
        elif kind == 2:
            held[a] = held[a][: int(rng.integers(1, len(held[a]) + 1))]
            decoder.truncate(a, len(held[a]))
        elif max(len(held[a]), len(held[b])) < 50:
            new = rng.integers(0, 101, 2).tolist()
            held[a].append(new[0])
            held[b].append(new[1])
            rows = decoder.step([a, b], new)
            expect(a, rows[0])
            expect(b, rows[1])
    with pytest.raises(UserError, match="do not fit into a context of 50"):
        decoder.extend(0, [1] * 51)


def test_samples_share_one_prefill() -> None:
    prefills = []

    class Counting(TableDecoder):
        def prefill(self, slot: int, tokens: list[int]) -> np.ndarray:  # type: ignore[override]
            prefills.append(len(tokens))
            return super().prefill(slot, tokens)

    generator = Generator.from_pretrained()
    generator.open_decoder = lambda n, context: Counting(generator.model, n, context)  # type: ignore[method-assign]
    prompts = ["Once upon a time", "Lily"]
    texts = generator.generate(prompts, num_samples=6, max_new_tokens=5, seed=1, batch_size=4)
    assert len(texts) == 12 and len({tuple(text.tokens) for text in texts}) > 6
    lengths = [text.n_prompt for text in texts[::6]]
    assert sorted(prefills) == sorted(lengths)


def test_two_streams_at_once() -> None:
    generator = Generator.from_pretrained()
    want = [generator.generate("Once", seed=seed, max_new_tokens=12)[0].text for seed in (1, 2)]
    streams = [generator.stream("Once", seed=seed, max_new_tokens=12) for seed in (1, 2)]
    got = ["", ""]
    for _ in range(20):
        for i, stream in enumerate(streams):
            got[i] += next(stream, "")
    assert got == want
