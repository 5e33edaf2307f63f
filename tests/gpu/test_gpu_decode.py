"""Decoding on a GPU, its kernels interpreted with one program, against the reference engine and against itself."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton")

from gluon_interpreter import interpreting_gluon
from gpu_interpreter import array, empty, run
from interpreted import lively_models

from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.gpu.decode import GpuDecoder
from nanoeuler.ops.gpu.decode_weights import MATRICES, packed
from nanoeuler.ops.gpu.kernels import decode as dec
from nanoeuler.ops.gpu.kernels import decode_attention, decode_exchange, decode_ring, decode_steps
from nanoeuler.ops.gpu.kernels import decode_prepare as prep
from nanoeuler.ops.gpu.kernels.spec import Target

ROUNDING = 6e-3  # the hidden layer and attention's output travel as bfloat16, everything else as float32
# (channels, heads, splits): head sizes below, at and above a power of two; one share a program, and several
SHAPES = [(48, 2, 3), (72, 3, 1)]


@pytest.fixture
def models(monkeypatch):
    with interpreting_gluon(dec, decode_attention, decode_exchange, decode_ring, decode_steps):
        yield lively_models(monkeypatch, 67)


def decoder(monkeypatch, model, splits=2, slots=1, **options):
    monkeypatch.setattr(dec.Shape, "splits", property(lambda self: splits))
    return GpuDecoder(model, slots, **{"programs": 1, "block": 4, **options})


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 67, n).astype(np.int32)


@pytest.mark.parametrize("C, H, splits", SHAPES)
def test_logits_after_every_token_are_those_of_the_whole_text(monkeypatch, models, C, H, splits):
    gpu, reference = models(C, H, layers=1 if C > 100 else 2)
    one, text = decoder(monkeypatch, gpu, splits), ids(20)
    want = reference.logits(text[None])[0]
    for begin, end in ((3, 5), (17, 18)):  # into the second block of 4 positions, and beyond a tile of 16
        assert error(one.prefill(0, text[:begin]), want[begin - 1]) < 1e-5
        for t in range(begin, end):
            assert error(one.step([0], [text[t]])[0], want[t]) < ROUNDING, t


def test_int8_weights_compute_what_they_stand_for(monkeypatch, models):
    """Weights that int8 holds exactly: the logits are the float model's, but for how the hidden layer is rounded."""
    gpu, _ = models(72, 3, layers=1)
    text, one, weights = ids(3), decoder(monkeypatch, gpu), {}
    for name in ("wte", *(f"h.0.{part}" for part in MATRICES)):
        w, axis = gpu.ops.download(gpu.p[f"{name}.weight"]), int(name == "wte")
        scale = np.random.default_rng(1).integers(
            1, 4, [-(-n // 64) if i == axis else n for i, n in enumerate(w.shape)]
        )
        wide = np.repeat(scale / 128, 64, axis)[tuple(slice(n) for n in w.shape)]
        q = np.clip(np.round(w / wide), -127, 127)
        gpu.ops.upload(gpu.p[f"{name}.weight"], (q * wide).astype(np.float32))  # what the float kernel computes with
        weights[f"{name}.weight"] = array(q, "i8"), array(scale / 128, "fp16")  # (bfloat16 on a GPU)
    plain = decoder(monkeypatch, gpu)
    one.shape = replace(one.shape, bits=8)
    vectors = plain.weights.vectors
    stream = packed(gpu.ops, one.shape, vectors, lambda name: weights[name])
    wte, scales = weights["wte.weight"]
    one.weights = dec.Weights(stream, wte, plain.weights.wpe, vectors, scales)
    for t in range(3):
        assert error(one.step([0], [text[t]])[0], plain.step([0], [text[t]])[0]) < ROUNDING, t


def test_greedy_loop_equals_choosing_on_the_host(monkeypatch, models):
    gpu, reference = models(48, 2)
    one, text = decoder(monkeypatch, gpu, splits=3, slots=2), list(ids(12))
    one.prefill(0, text)
    one.copy(0, 1)
    greedy = SamplingConfig(temperature=0)
    got = [int(id) for [id] in one.draw([1], [5], [greedy], [0], [0], 60, 4)]
    text.append(5)
    for id in got:
        logits = reference.logits(np.array([text], np.int32), last_only=True)[0, :60]
        assert logits[id] >= logits.max() - 0.05 * logits.std()  # the largest, but for rounding
        text.append(id)
    assert len(got) == 4 and one.lengths == [12, 16]


def test_greedy_loop_ends_after_the_stop_id_and_at_the_context(monkeypatch, models):
    one = decoder(monkeypatch, models(40, 1, layers=1)[0], splits=1, context=8)
    one.prefill(0, ids(3))
    free = list(one.greedy(0, 7, 12, 67))
    assert len(free) == 5 and one.lengths == [8]
    with pytest.raises(UserError, match="do not fit"):
        one.step([0], [1])
    one.truncate(0, 3)
    stopped = list(one.greedy(0, 7, 12, 67, stop=free[2]))
    assert stopped == free[: free.index(free[2]) + 1] and one.lengths == [3 + len(stopped)]


def test_forgotten_tokens_leave_no_trace(monkeypatch, models):
    one, text = decoder(monkeypatch, models(48, 2, layers=1)[0]), ids(10)
    one.prefill(0, text[:6])
    first = one.extend(0, text[6:8])
    one.extend(0, text[8:])
    one.truncate(0, 6)
    assert (one.extend(0, text[6:8]) == first).all()


def test_ids_outside_the_vocabulary_are_refused(monkeypatch, models):
    one = decoder(monkeypatch, models(48, 2)[0])
    with pytest.raises(UserError, match="outside the model's vocabulary"):
        one.prefill(0, [1, 67])
    with pytest.raises(UserError, match="outside"):
        one.step([0], [-1])


def test_draws_by_chance_are_the_hosts_choices(monkeypatch, models):
    one, last = decoder(monkeypatch, models(48, 2, layers=1)[0]), 5
    config = SamplingConfig(temperature=0.9, seed=3)
    one.prefill(0, ids(4))
    drawn = [int(id) for [id] in one.draw([0], [last], [config], [2], [9], 60, 3)]
    assert one.lengths == [7] and len(drawn) == 3
    one.truncate(0, 4)
    for turn, id in enumerate(drawn):
        logits = one.step([0], [last])[0]
        last = sample_next(logits, [], config, uniform(3, 2, 9 + turn), 60)
        assert id == last, turn


# ---- how a model is cut -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
@pytest.mark.parametrize("bits", [16, 8])
def test_records_fit_and_hold_every_row(name, bits):
    c = GPTConfig.preset(name)
    shape = dec.Shape(c.n_layer, c.n_embd, c.n_head, c.vocab_size, c.block_size, 132, bits)
    rows = (3 * c.n_embd, c.n_embd, 4 * c.n_embd, c.n_embd, c.vocab_size)
    for n, r in zip(rows, shape.records):
        assert r.rows * r.count * 132 >= n and r.rows <= 32 and r.rows % 2 == 0
    slot, slots, at, size = shape.memory(Target(90).shared_memory)
    assert slots >= 3 and at + slots * slot <= size <= Target(90).shared_memory
    assert all(r.size <= slot and r.size % 128 == 0 for r in shape.records)


def test_row():
    x = np.random.default_rng(0).standard_normal((70, 131))
    one = empty(1, 131)
    run(prep.row(one, array(x), array([69], "i32"), target=Target()))
    np.testing.assert_array_equal(one.host[0], x[69].astype(np.float32))
