"""Choosing tokens on a GPU, interpreted, must give the very ids that the host's ``sample_next`` gives."""

import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import interpreted_engine
from sampling_cases import device_choices, host_choices, logits, settings

from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.ops.gpu.kernels import sampling as smp

CASES = [
    (("plain", "greedy"), 24, 3),
    (("plain", "top_k"), 6, 1),
    (("plain", "top_p", "greedy"), 6, 1),
    (("plain", "top_k", "top_p", "both", "greedy"), 8, 1),
]

# float32 overflow and 0 * infinity happen in what is masked out
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 32 logits, so that a small vocabulary has several."""
    monkeypatch.setattr(smp, "BLOCK", 32)


@pytest.mark.parametrize("kinds, n, turns", CASES)
def test_ids_equal_the_hosts(kinds, n, turns):
    rng = np.random.default_rng(len(kinds))
    V, n_valid = 101, 97
    x, configs = logits(rng, n, V), settings(rng, n, kinds)
    samples = rng.integers(0, 1 << 63, n).tolist()
    positions = rng.integers(0, 2000, n).tolist()
    got = device_choices(interpreted_engine(), x, configs, samples, positions, n_valid, turns)
    np.testing.assert_array_equal(got, host_choices(x, configs, samples, positions, n_valid, turns))


@pytest.mark.parametrize("cut", [{"top_p": 0.3}, {"top_k": 2}])
def test_equal_logits_are_taken_from_the_lowest_id_on(cut):
    """Probabilities of exactly a tenth each; 0.3 of the mass are three of them, though their sum is a hair less."""
    x = np.zeros((3, 70), np.float32)
    x[:, 10:] = -1e30
    x[:, 0] = -0.0
    configs = [SamplingConfig(temperature=1, seed=i, **cut) for i in range(3)]
    got = device_choices(interpreted_engine(), x, configs, [0] * 3, [0] * 3, 70)
    np.testing.assert_array_equal(got, host_choices(x, configs, [0] * 3, [0] * 3, 70))
    assert set(got.ravel()) <= set(range(cut.get("top_k", 3)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_no_number_is_told(bad):
    x = np.zeros((3, 70), np.float32)
    x[1, 69] = bad
    configs = [SamplingConfig(temperature=1, seed=i) for i in range(3)]
    got = device_choices(interpreted_engine(), x, configs, [0] * 3, [0] * 3, 70)[0]
    assert got[1] == -1 and (got[[0, 2]] >= 0).all()
    assert (device_choices(interpreted_engine(), x, configs, [0] * 3, [0] * 3, 69) >= 0).all()
