"""Values that once broke a run: each is one clear line now, and what was written can be read again."""

import json

import pytest
from training_runs import TINY, make_data

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.plot import loss_curves


@pytest.mark.parametrize("text", ['ein Bär 🐻 sagt "hallo"\n\t\\ \x7f \x01', "日本語"])
def test_any_text_survives_the_config_file(tmp_path, text):
    config = TrainConfig(data="d", out="o", sample_prompt=text)
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8", newline="")
    assert TrainConfig.load(toml=tmp_path / "config.toml") == config


def test_a_config_saved_by_notepad_is_read(tmp_path):
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbfsteps = 7\n")
    assert TrainConfig.load(toml=tmp_path / "c.toml").steps == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("preset = ['demo']", "unknown preset"),
        (f"lr = {'9' * 400}", "finite number"),
        (f"steps = {'9' * 30}", "below 2\\^63"),
        (f"steps = {'9' * 5000}", "not TOML"),
        ("a = " + "[" * 3000, "nested too deeply|not TOML"),
    ],
)
def test_toml_that_is_none_of_ours(tmp_path, text, words):
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words) as error:
        TrainConfig.load(toml=tmp_path / "c.toml")
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(UserError, match="not UTF-8"):
        TrainConfig(out="run-\udcff")


@pytest.mark.parametrize("size", ["n_layer", "n_embd", "vocab_size", "block_size", "n_head"])
def test_sizes_beyond_any_machine_are_refused_at_once(size):
    with pytest.raises(UserError, match=f"{size} .* at most"):
        GPTConfig(**{size: 10**12})


def test_a_run_that_cannot_fit_says_what_would(tmp_path):
    from nanoeuler.training import train

    sizes = {**TINY, "batch_size": 10**9}
    config = TrainConfig(**sizes, data=str(make_data(tmp_path)), out=str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"needs .* GiB .*: batch_size \d+ fits"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_damaged_metrics_leave_the_rest_of_the_curve():
    lines = [
        '{"step": 1, "loss": 3.0}',
        '{"step": 2, "loss": "x"}',
        '{"step": null, "loss": 1}',
        '{"step": 3, "loss": 2}',
    ]
    (curve,) = loss_curves(json.loads(line) for line in lines)
    assert curve.y.tolist() == [3.0, 2.0]
