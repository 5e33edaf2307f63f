"""The four schedules against numbers worked out by hand, and nanoGPT's formula."""

import math

import pytest

from nanoeuler.training.config import TrainConfig
from nanoeuler.training.schedule import learning_rate


def rates(at, **settings):
    config = TrainConfig(**{"lr": 1.0, "min_lr": 0.2, "warmup": 4, "steps": 12, **settings})
    return [round(learning_rate(config, step), 12) for step in at]


WARMUP = [0.2, 0.4, 0.6, 0.8]


def test_linear():
    assert rates(range(13), schedule="linear") == [*WARMUP, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]


def test_constant():
    assert rates(range(12), schedule="constant") == WARMUP + [1.0] * 8


def test_wsd_decays_over_the_last_part():
    got = rates(range(13), schedule="wsd", decay_fraction=1 / 3)
    assert got == WARMUP + [1.0] * 5 + [0.8, 0.6, 0.4, 0.2]


def test_cosine_at_its_quarters():
    root = math.sqrt(0.5)
    assert rates([4, 6, 8, 10, 12]) == [1.0, round(0.6 + 0.4 * root, 12), 0.6, round(0.6 - 0.4 * root, 12), 0.2]


def test_cosine_is_nanogpts():
    """For nanoGPT's small run: rise over 100 of 2000 steps to 1e-3, cosine to 1e-4 (its README and train.py)."""
    config = TrainConfig.load("shakespeare-char")
    rise = [1e-3 * n / 101 for n in range(1, 101)]
    fall = [1e-4 + 9e-4 * math.cos(math.pi / 2 * n / 1900) ** 2 for n in range(1901)]
    got = [learning_rate(config, step) for step in range(2001)]
    assert got == pytest.approx(rise + fall, rel=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_never_above_lr_nor_below_min_lr_after_warmup(schedule):
    config = TrainConfig(lr=1.0, min_lr=0.3, warmup=0, steps=7, schedule=schedule)
    values = [learning_rate(config, s) for s in range(20)]
    assert values[0] == 1.0 and values[-1] == pytest.approx(0.3)
    assert values == sorted(values, reverse=True) and min(values) > 0.3 - 1e-12


def test_warmup_may_be_the_whole_run():
    assert rates(range(4), schedule="cosine", steps=4) == WARMUP
    assert rates([4], schedule="cosine", steps=4) == [1.0]


def test_where_warmup_and_decay_overlap_warmup_comes_first():
    """A run cut short keeps its warmup; what is left decays from where it is on the line, to min_lr at the end."""
    config = TrainConfig(lr=1.0, min_lr=0.0, warmup=5, steps=8, schedule="wsd", decay_fraction=0.75)
    rates = [learning_rate(config, s) for s in range(9)]
    assert rates[:5] == [(s + 1) / 6 for s in range(5)]
    assert rates[5:] == pytest.approx([0.5, 1 / 3, 1 / 6, 0.0])
