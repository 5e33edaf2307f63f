"""Sampling: exact candidate sets, exact probabilities, and draws that follow them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import (
    SamplingConfig,
    draw,
    penalize,
    sample_next,
    softmax,
    top_k,
    top_p,
    uniform,
)

GREEDY = SamplingConfig(temperature=0)


def chi_square(logits: np.ndarray, config: SamplingConfig, expected: np.ndarray, n: int = 20_000) -> float:
    """Chi-square of ``n`` draws against ``expected`` probabilities; draws outside their support fail at once."""
    counts = np.zeros(len(logits))
    for i in range(n):
        counts[sample_next(logits, [], config, uniform(11, 0, i))] += 1
    assert counts[expected == 0].sum() == 0
    inside = expected > 0
    return float(((counts - n * expected)[inside] ** 2 / (n * expected)[inside]).sum())


# Upper 0.1 % points of the chi-square distribution (Abramowitz and Stegun, table 26.8), by degrees of freedom.
CRITICAL = {2: 13.816, 3: 16.266, 4: 18.467, 5: 20.515, 7: 24.322}


# ---- distributions ------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_softmax(temperature: float) -> None:
    p = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
    assert chi_square(np.log(p), SamplingConfig(temperature=temperature), expected) < CRITICAL[5]


def test_draws_follow_top_k() -> None:
    p = np.array([0.1, 0.4, 0.15, 0.3, 0.05])
    expected = np.array([0, 0.4, 0.15, 0.3, 0]) / 0.85
    assert chi_square(np.log(p), SamplingConfig(temperature=1, top_k=3), expected) < CRITICAL[2]


def test_draws_follow_top_p() -> None:
    p = np.array([0.1, 0.4, 0.15, 0.3, 0.05])
    expected = np.array([0.1, 0.4, 0.15, 0.3, 0]) / 0.95  # 0.4 + 0.3 + 0.15 = 0.85 < 0.9
    assert chi_square(np.log(p), SamplingConfig(temperature=1, top_p=0.9), expected) < CRITICAL[3]


def test_top_p_sees_the_probabilities_that_top_k_leaves() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    # Of the best two, 0.4 / 0.7 = 0.571 reaches 0.5 alone; of all four it would not.
    config = SamplingConfig(temperature=1, top_k=2, top_p=0.5)
    assert {sample_next(np.log(p), [], config, u) for u in np.linspace(0, 0.999, 200)} == {0}
    assert {sample_next(np.log(p), [], SamplingConfig(temperature=1, top_p=0.5), u) for u in (0.0, 0.99)} == {0, 1}


def test_temperature_comes_before_top_p() -> None:
    p = np.array([0.5, 0.3, 0.2])
    hot = SamplingConfig(temperature=4.0, top_p=0.6)  # flattened to 0.376, 0.331, 0.293: two reach 0.6
    assert {sample_next(np.log(p), [], hot, u) for u in (0.0, 0.999)} == {0, 1}
    cold = SamplingConfig(temperature=0.5, top_p=0.6)  # sharpened to 0.658, ...: one does
    assert {sample_next(np.log(p), [], cold, u) for u in (0.0, 0.999)} == {0}


# ---- exact sets ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, [1]), (2, [1, 3]), (3, [1, 3, 4]), (4, [0, 1, 3, 4]), (5, [0, 1, 2, 3, 4]), (99, [0, 1, 2, 3, 4])],
)
def test_top_k_set_with_ties(k: int, expected: list[int]) -> None:
    assert top_k(np.array([0.1, 0.25, 0.1, 0.25, 0.25]), k).tolist() == expected


def test_top_k_equals_sorting() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 17, 1000):
        probs = np.round(rng.dirichlet(np.ones(n)), 3)  # rounding makes many ties
        for k in {1, max(1, n // 2), n}:
            by_sorting = sorted(sorted(range(n), key=lambda i: (-probs[i], i))[:k])
            assert top_k(probs, k).tolist() == by_sorting


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (1e-9, [1]),  # at least one
        (1e-300, [1]),
        (0.4, [1]),
        (0.41, [1, 3]),
        (0.7, [1, 3]),
        (0.85, [1, 2, 3]),
        (0.86, [0, 1, 2, 3]),
        (0.96, [0, 1, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_set(p: float, expected: list[int]) -> None:
    assert top_p(np.array([0.1, 0.4, 0.15, 0.3, 0.05]), p).tolist() == expected


def test_top_p_ties_take_the_lowest_ids() -> None:
    assert top_p(np.full(8, 0.125), 0.375).tolist() == [0, 1, 2]
    assert top_p(np.full(10, 0.1), 0.3).tolist() == [0, 1, 2]  # 0.1 + 0.1 + 0.1 is not 0.3 in binary


def test_top_p_is_the_smallest_set() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        probs = rng.dirichlet(np.full(30, 0.3))
        p = rng.uniform(0.01, 0.99)
        kept = top_p(probs, p)
        assert probs[kept].sum() >= p - 1e-9
        assert probs[kept].sum() - probs[kept].min() < p  # without its last member it does not reach p


# ---- temperature 0 and extremes -----------------------------------------------------------------------
def test_greedy_is_argmax_with_ties_to_the_lowest_id() -> None:
    assert sample_next(np.array([1.0, 3.0, 2.0, 3.0]), [], GREEDY, 0.99) == 1


def test_greedy_respects_padding_bans_and_penalty() -> None:
    logits = np.array([1.0, 3.0, 2.0, 9.0])
    assert sample_next(logits, [], GREEDY, 0, n_valid=3) == 1
    assert sample_next(logits, [], GREEDY, 0, n_valid=3, banned={1}) == 2
    assert sample_next(logits, [1], SamplingConfig(temperature=0, repetition_penalty=2), 0, n_valid=3) == 2


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-3])
def test_tiny_temperature_is_argmax_without_warnings(temperature: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        assert sample_next(np.array([1.0, 5.0, 4.0]), [], SamplingConfig(temperature=temperature), 0.999) == 1


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([1e300, 1e300, -1e300])
    assert {sample_next(logits, [], SamplingConfig(), u) for u in (0.1, 0.9)} == {0, 1}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes(dtype: type) -> None:
    assert sample_next(np.array([0, 4, 1], dtype), [], GREEDY, 0.0) == 1


def test_one_token_vocabulary() -> None:
    assert sample_next(np.array([-3.0]), [], SamplingConfig(top_k=5, top_p=0.1), 0.7) == 0


# ---- padding and bans ---------------------------------------------------------------------------------
def test_padded_and_banned_entries_are_never_drawn() -> None:
    logits = np.zeros(8)
    logits[5:] = 50  # the padding looks most attractive
    drawn = {sample_next(logits, [], SamplingConfig(), u, n_valid=5, banned=[0, 3]) for u in np.linspace(0, 0.999, 500)}
    assert drawn == {1, 2, 4}


def test_padding_may_hold_anything() -> None:
    assert sample_next(np.array([0.0, 1.0, np.nan, np.inf]), [], GREEDY, 0, n_valid=2) == 1


def test_nothing_left() -> None:
    with pytest.raises(UserError, match="no token is left"):
        sample_next(np.zeros(2), [], SamplingConfig(), 0, banned=[0, 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(bad: float) -> None:
    with pytest.raises(UserError, match="logit for token 2 is"):
        sample_next(np.array([0.0, 1.0, bad]), [], GREEDY, 0)


# ---- repetition penalty -------------------------------------------------------------------------------
def test_penalty_lowers_both_signs_and_only_what_was_seen() -> None:
    scores = np.array([2.0, -2.0, 3.0, -3.0, 0.0])
    out = penalize(np.arange(5), scores, [0, 1, 4, 0], 1.25)
    np.testing.assert_allclose(out, [1.6, -2.5, 3.0, -3.0, 0.0])
    assert scores.tolist() == [2.0, -2.0, 3.0, -3.0, 0.0]


def test_penalty_uses_ids_not_positions() -> None:
    # With id 0 banned, the candidates shift by one: id 2 must be the one that is penalised.
    config = SamplingConfig(temperature=0, repetition_penalty=10)
    assert sample_next(np.array([9.0, 1.0, 2.0]), [2], config, 0, banned=[0]) == 1


def test_no_penalty_changes_nothing() -> None:
    scores = np.array([2.0, -2.0])
    assert penalize(np.arange(2), scores, [0, 1], 1.0) is scores


# ---- random numbers -----------------------------------------------------------------------------------
def test_uniform_is_uniform_and_independent_over_each_key() -> None:
    for keys in ([(i, 0, 0) for i in range(4000)], [(0, i, 0) for i in range(4000)], [(0, 0, i) for i in range(4000)]):
        us = np.array([uniform(*key) for key in keys])
        counts = np.histogram(us, bins=8, range=(0, 1))[0]
        assert ((counts - 500) ** 2 / 500).sum() < CRITICAL[7]
        assert abs(np.corrcoef(us[:-1], us[1:])[0, 1]) < 4 / math.sqrt(len(us))


def test_uniform_is_fixed_for_ever() -> None:
    # A text must come out the same on another machine and with another NumPy.
    assert uniform(0, 0, 0) == 0.011546754286331562
    assert uniform(2**64 - 1, 3, 10) == 0.9053585906349103


def test_draw_never_lands_on_zero_probability() -> None:
    probs = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert {draw(probs, u) for u in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53)} == {1, 3}


def test_softmax_is_shift_invariant() -> None:
    x = np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(softmax(x + 700, 0.7), softmax(x, 0.7), rtol=1e-12)


# ---- settings -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1),
        ("repetition_penalty", math.inf),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 0.5),
    ],
)
def test_bad_settings_name_themselves(setting: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{setting} must be .* not "):
        SamplingConfig(**{setting: value})  # type: ignore[arg-type]


def test_numpy_numbers_are_numbers() -> None:
    config = SamplingConfig(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(7))  # type: ignore[arg-type]
    assert config == SamplingConfig(temperature=0.5, top_k=3, seed=7)
