"""Settings: how they are laid over each other, written, and refused."""

import pytest

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.presets import PRESETS


def test_later_layers_win(tmp_path):
    toml = tmp_path / "run.toml"
    toml.write_text('preset = "shakespeare-char"\nlr = 5e-4\nseed = 3\n', encoding="utf-8")
    config = TrainConfig.load(toml=toml, overrides={"seed": 4}, batch_size=2)
    assert (config.n_layer, config.lr, config.seed, config.batch_size) == (4, 5e-4, 4, 2)


def test_nanogpt_preset_is_nanogpts_run():
    c = TrainConfig.load("shakespeare-char")
    assert (c.n_layer, c.n_head, c.n_embd, c.block_size, c.batch_size, c.steps) == (4, 4, 128, 64, 12, 2000)
    assert (c.lr, c.final_lr, c.warmup_steps, c.beta1, c.beta2) == (1e-3, 1e-4, 100, 0.9, 0.99)
    assert (c.weight_decay, c.grad_clip, c.dropout, c.schedule) == (0.1, 1.0, 0.0, "cosine")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_survives_toml(name, tmp_path):
    config = TrainConfig.load(name, data="d", out="o")
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert TrainConfig.load(toml=path) == config


def test_toml_keeps_every_value(tmp_path):
    path = tmp_path / "config.toml"
    config = TrainConfig(
        data='d"\\é\n', out="o", lr=1 / 3, eps=1e-16, weight_decay=0.0, sample_prompt="\t\u2028 'a' # no comment \x7f"
    )
    path.write_text(config.to_toml(), encoding="utf-8")
    assert TrainConfig.load(toml=path) == config


def test_what_follows_from_other_settings_follows_a_change():
    assert TrainConfig.load("shakespeare-char", lr=5e-5).final_lr == pytest.approx(5e-6)
    assert TrainConfig.load("shakespeare-char", steps=20).warmup_steps == 2
    assert TrainConfig.load("shakespeare-char", lr=5e-5, min_lr=1e-5).final_lr == 1e-5
    assert TrainConfig(steps=5000).warmup_steps == 100


def test_resolved_leaves_nothing_open():
    config = TrainConfig.load("baby").resolved(GPTConfig.preset("baby", vocab_size=65))
    assert None not in config.to_dict().values()
    assert (config.vocab_size, config.seq_len, config.tokens_per_step) == (65, 256, 64 * 256)


def test_types_are_converted_where_nothing_is_lost(tmp_path):
    config = TrainConfig(out=tmp_path, lr=1, steps=2e3)
    assert (config.out, config.lr, config.steps) == (str(tmp_path), 1.0, 2000)
    assert isinstance(config.lr, float) and isinstance(config.steps, int)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bath_size": 3}, "unknown setting 'bath_size' (did you mean 'batch_size'?)"),
        ({"grad-accum": 3}, "did you mean 'grad_accum'?"),
        ({"xyzzy": 3}, "unknown setting 'xyzzy'"),
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": True}, "lr must be a number"),
        ({"steps": 2.5}, "steps must be a whole number, not 2.5"),
        ({"steps": None}, "steps must be a whole number, not None"),
        ({"data": 3}, "data must be text, not 3"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"lr": float("inf")}, "lr must be a finite number"),
        ({"lr": 0.0}, "above 0"),
        ({"eps": 0.0}, "above 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"grad_accum": 0}, "grad_accum must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": 1 << 63}, "seed must be below 2^63"),
        ({"grad_clip": -1.0}, "grad_clip must not be negative"),
        ({"eval_every": -1}, "eval_every must not be negative"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin' (did you mean 'cosine'?)"),
        ({"min_lr": 1.0, "lr": 0.1}, "min_lr 1.0 is above lr 0.1"),
        ({"beta1": 1.0}, "beta1 must be at least 0 and below 1"),
        ({"beta2": -0.1}, "beta2 must be at least 0 and below 1"),
        ({"warmup": 11, "steps": 10}, "warmup 11 is longer than the run of 10 steps"),
        ({"schedule": "wsd", "decay_fraction": 0.0}, "decay_fraction must be above 0"),
        ({"seq_len": 9, "block_size": 8}, "seq_len 9 is longer than block_size 8"),
        ({"n_embd": 10, "n_head": 3}, "not divisible"),
        ({"n_layer": 0}, "n_layer must be a positive"),
        ({"vocab_size": 0}, "vocab_size must be a positive"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
    ],
)
def test_bad_settings_are_one_clear_line(settings, words):
    with pytest.raises(UserError) as error:
        TrainConfig.load(overrides=settings)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"lr = 1e-3\nlrr = 2\n", "unknown setting 'lrr' in"),
        (b"lr 1e-3", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b'preset = "gpt3"', "unknown preset 'gpt3'"),
        (b"[model]\nn_layer = 2\n", "unknown setting 'model'"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path, content, words):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        TrainConfig.load(toml=path)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_missing_file_and_preset():
    with pytest.raises(UserError, match="cannot read the config"):
        TrainConfig.load(toml="no/such/file.toml")
    with pytest.raises(UserError, match=r"unknown preset 'demos' \(did you mean 'demo'\?\)"):
        TrainConfig.load("demos")


def test_vocabulary_must_hold_the_tokenizer():
    config = TrainConfig(n_layer=1, n_head=1, n_embd=4, block_size=4, vocab_size=64)
    assert config.model_config(60).vocab_size == 64  # padded
    with pytest.raises(UserError, match="vocab_size 64 is less than the 65 entries"):
        config.model_config(65)
