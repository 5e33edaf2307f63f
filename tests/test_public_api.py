"""What people do with the Python API beside what the README shows: lists, NumPy's numbers, saving and loading."""

import json

import numpy as np
import pytest

import nanoeuler as ne


def test_only_what_is_promised_is_listed():
    assert {name for name in dir(ne) if not name.startswith("_")} == set(ne.__all__)


@pytest.fixture(scope="module")
def model():
    config = ne.GPTConfig(vocab_size=np.int64(11), block_size=np.int32(6), n_layer=1, n_head=2, n_embd=4)
    return ne.GPT(config, device="reference")


def test_numbers_of_numpy_serve_as_sizes(model):
    assert json.loads(json.dumps(model.config.to_dict()))["vocab_size"] == 11
    config = ne.TrainConfig.load("demo", steps=np.int64(300), lr=np.float32(0.5), data="d")
    assert (config.steps, config.lr) == (300, 0.5) and type(config.steps) is int and type(config.lr) is float


def test_lists_serve_as_tokens(model):
    x, y = [[1, 2, 3]], [[2, 3, -1]]
    arrays = np.array(x), np.array(y)
    assert np.array_equal(model.logits(x), model.logits(arrays[0]))
    assert model.loss(x, y) == model.loss(*arrays)
    assert model.loss_and_grad(x, y) == model.loss_and_grad(*arrays) == pytest.approx(model.loss(x, y))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_targets_that_are_no_whole_numbers_are_refused(device):
    model = ne.GPT(ne.GPTConfig(vocab_size=11, block_size=6, n_layer=1, n_head=2, n_embd=4), device=device)
    with pytest.raises(ne.UserError, match="whole numbers from -1 to 10"):
        model.loss([[1, 2]], [[1.0, 2.5]])


def test_settings_of_a_wrong_kind_are_refused():
    with pytest.raises(ne.UserError, match="dropout must be at least 0"):
        ne.GPTConfig(dropout="0.1")
    with pytest.raises(ne.UserError, match="n_layer must be a positive whole number"):
        ne.GPTConfig(n_layer=np.float64(2))


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_a_saved_generator_writes_the_same(tmp_path, kind):
    text = "the cat and the dog and the cat ran"
    tokenizer = ne.CharTokenizer.train(text) if kind == "characters" else ne.Tokenizer.train([text], 260)
    config = ne.GPTConfig(vocab_size=tokenizer.n_vocab, block_size=16, n_layer=1, n_head=2, n_embd=8)
    generator = ne.Generator(ne.GPT(config, device="reference", seed=3), tokenizer)
    generator.save_pretrained(tmp_path / "saved")
    again = ne.Generator.from_pretrained(tmp_path / "saved", device="reference")
    assert [again.generate("the", max_new_tokens=9, seed=s)[0].text for s in (1, 2)] == [
        generator.generate("the", max_new_tokens=9, seed=s)[0].text for s in (1, 2)
    ]


def test_weights_of_8_bits_are_saved_as_they_are(tmp_path):
    tokenizer = ne.CharTokenizer.train("abcdefgh")
    config = ne.GPTConfig(vocab_size=tokenizer.n_vocab, block_size=16, n_layer=1, n_head=2, n_embd=64)
    generator = ne.Generator(ne.GPT(config, seed=3), tokenizer)
    generator.save_pretrained(tmp_path / "float")
    small = ne.Generator.from_pretrained(tmp_path / "float", weights="int8")
    small.save_pretrained(tmp_path / "int8")
    again = ne.Generator.from_pretrained(tmp_path / "int8")
    assert (
        again.generate("abc", seed=1, max_new_tokens=9)[0].text
        == small.generate("abc", seed=1, max_new_tokens=9)[0].text
    )


def test_rows_of_unequal_length_are_refused(model):
    with pytest.raises(ne.UserError, match="must have the same length"):
        model.logits([[1, 2], [3]])


def test_a_folder_of_another_kind_keeps_its_model(tmp_path):
    kinds = ne.CharTokenizer.train("abcdefgh"), ne.Tokenizer.train(["abcdefgh"], 260)
    first, second = (
        ne.Generator(ne.GPT(ne.GPTConfig(vocab_size=t.n_vocab, n_layer=1, n_head=1, n_embd=8), "reference"), t)
        for t in kinds
    )
    first.save_pretrained(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    with pytest.raises(ne.UserError, match="another kind of tokenizer"):
        second.save_pretrained(tmp_path / "model")
    assert {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()} == before


def test_arguments_of_a_wrong_kind_are_refused_in_one_line(model):
    sizes, letters = model.config, ne.CharTokenizer("abc")
    model.loss_and_grad([[1]], [[2]])
    moments = model.moments()
    small = np.zeros(3)
    for match, call in [
        ("config must be a GPTConfig.*not str", lambda: ne.GPT("gpt2")),
        ("config must be a GPTConfig.*not dict", lambda: ne.GPT({"n_layer": 1})),
        ("unknown device '5'", lambda: ne.GPT(sizes, device=5)),
        ("seed must be a whole number, not 'x'", lambda: ne.GPT(sizes, "reference", seed="x")),
        ("seed must be a whole number, not 1.5", lambda: ne.GPT(sizes, "reference", seed=1.5)),
        (r"params must be \d+ numbers in one row", lambda: ne.GPT(sizes, "reference", params=small)),
        (r"params must be \d+ numbers in one row", lambda: ne.GPT(sizes, "reference", params="x")),
        ("no gradients to update with", lambda: ne.GPT(sizes, "reference").update(moments, 1, 0.1)),
        ("moments must be the pair", lambda: model.update(None, 1, 0.1)),
        ("moments must be the pair", lambda: model.update((small, small), 1, 0.1)),
        ("step must be a whole number, 1 or above, not 0", lambda: model.update(moments, 0, 0.1)),
        ("step must be a whole number, 1 or above, not 'x'", lambda: model.update(moments, "x", 0.1)),
        ("lr must be a number", lambda: model.update(moments, 1, "0.1")),
        ("beta1 and beta2 at least 0 and below 1", lambda: model.update(moments, 1, 0.1, beta2=2.0)),
        ("weights must be one of float32, bf16, int8, not 'x'", lambda: ne.Generator(model, letters, weights="x")),
        ("unknown device '7'", lambda: ne.Generator(model, letters, device=7)),
        ("a Generator takes a model and its tokenizer, not GPT and NoneType", lambda: ne.Generator(model, None)),
        ("a Generator takes a model and its tokenizer, not str", lambda: ne.Generator("gpt2", letters)),
        ("config must be a TrainConfig, not str", lambda: ne.train("runs/mine")),
    ]:
        with pytest.raises(ne.UserError, match=match):
            call()
