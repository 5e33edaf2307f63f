"""The cpu engine against the reference: every operation, at the shapes and edge values of ``check_cases.py``."""

from __future__ import annotations

import numpy as np
import pytest

from nanoeuler.check_cases import Case, all_cases, relative_error, run_case
from nanoeuler.ops.cpu import CpuOps
from nanoeuler.ops.reference import ReferenceOps
from nanoeuler.ops.table import keep_mask

LIMIT = 1e-5
CASES = list(all_cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{case.op}-{case.label}" for case in CASES])
def test_agrees_with_the_reference(case: Case) -> None:
    got, want = run_case(CpuOps(), case), run_case(ReferenceOps(), case)
    errors = {name: relative_error(got[name], want[name]) for name in want}
    assert max(errors.values()) < LIMIT, errors


def test_every_operation_has_cases() -> None:
    memory = {"empty", "zeros", "upload", "download", "convert"}
    memory |= {"cache_shapes", "embedding_at", "write_cache", "attention_cached", "copy_cache"}  # test_decoder.py
    plain = {"name", "storage", "dtype", "exact"}
    operations = {name for name in vars(ReferenceOps) if not name.startswith("_")} - memory - plain
    assert {case.op for case in CASES} == operations


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 0x9E3779B1, 2**32 - 1])
def test_dropout_mask_is_the_tables(p: float, seed: int) -> None:
    x = _ones((63, 101))
    got = run_case(CpuOps(), Case("dropout", "", {"x": x}, {"out": x}, {"p": p, "seed": seed}))
    assert np.array_equal(got["out"].ravel() != 0.0, keep_mask(63 * 101, p, seed))


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("T", [7, 65, 130])
def test_attention_mask_is_the_tables(p: float, T: int) -> None:
    """With zero scores and values that are unit vectors, the output is the matrix of weights itself."""
    B, n_head, D, seed = 2, 3, 65, 12345
    keep = keep_mask(B * n_head * T * T, p, seed).reshape(B, n_head, T, T)
    for first in range(0, T, D):  # D columns of the matrix at a time
        qkv = np.zeros((B, T, 3, n_head, D), np.float32)
        for j in range(first, min(T, first + D)):
            qkv[:, j, 2, :, j - first] = 1.0
        outputs = {"out": _ones((B, T, n_head * D)), "lse": _ones((B, n_head, T))}
        options = {"n_head": n_head, "dropout": p, "seed": seed}
        out = run_case(CpuOps(), Case("attention", "", {"qkv": qkv.reshape(B, T, -1)}, outputs, options))["out"]
        weights = out.reshape(B, T, n_head, D).swapaxes(1, 2)[..., : T - first]
        assert np.array_equal(weights != 0.0, np.tril(keep)[..., first : first + D])


def test_logits_take_rows_that_lie_apart() -> None:
    """The last token of each sequence, as the model passes it: a view with gaps between its rows."""
    rng = np.random.default_rng(0)
    x, wte = rng.standard_normal((3, 7, 33), np.float32), rng.standard_normal((65, 33), np.float32)
    out = np.full((3, 65), np.nan, np.float32)
    CpuOps().logits(out, x[:, -1, :], wte)
    assert relative_error(out, x[:, -1, :].astype(np.float64) @ wte.T.astype(np.float64)) < LIMIT


def test_the_same_call_gives_the_same_bits() -> None:
    for case in CASES:
        first, second = run_case(CpuOps(), case), run_case(CpuOps(), case)
        for name in first:
            assert np.array_equal(first[name], second[name]), (case.op, case.label, name)


def _ones(shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape, np.float32)
