"""The checks themselves: they pass where the mathematics is right and fail where it is made wrong."""

from __future__ import annotations

import numpy as np
import pytest

from nanoeuler.check import SMALL, engine_check, gradient_check
from nanoeuler.check_cases import Case, relative_error, run_case
from nanoeuler.model.parameters import Layout
from nanoeuler.ops.reference import ReferenceOps


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_every_gradient_is_right(dropout: float) -> None:
    checks = gradient_check(dropout=dropout)
    assert [check.name for check in checks] == [spec.name for spec in Layout(SMALL)]
    for check in checks:
        assert check.ok and check.error < 1e-9, check


@pytest.mark.parametrize(
    ("operation", "output", "tensors"),
    [
        ("attention_backward", 0, {"h.1.attn.c_attn.weight", "h.0.ln_1.bias", "wpe.weight"}),
        ("attention_backward", "dqkv_sum", {"h.0.attn.c_attn.bias", "h.1.attn.c_attn.bias"}),
        ("layernorm_backward", 1, {"h.0.ln_1.weight", "h.1.ln_2.weight", "ln_f.weight"}),
        ("layernorm_backward", "dx_sum", {"h.0.attn.c_proj.bias", "h.1.mlp.c_proj.bias"}),
        ("linear_backward", 1, {"h.0.attn.c_attn.weight", "h.1.mlp.c_fc.weight"}),
        ("linear_backward", "dx_sum", {"h.0.mlp.c_fc.bias", "h.1.mlp.c_fc.bias"}),
        ("embedding_backward", 1, {"wpe.weight"}),
        ("classifier", 5, {"wte.weight"}),
    ],
)
def test_a_wrong_gradient_is_found(
    monkeypatch: pytest.MonkeyPatch, operation: str, output: int | str, tensors: set[str]
) -> None:
    """One part in a hundred thousand added to an operation's gradient must show in the tensors it feeds."""
    right = getattr(ReferenceOps, operation)

    def wrong(*args: object, **kwargs: object) -> None:
        right(*args, **kwargs)
        array = kwargs.get(output) if isinstance(output, str) else args[output]
        if array is not None:
            assert isinstance(array, np.ndarray)
            array *= 1.00001

    monkeypatch.setattr(ReferenceOps, operation, staticmethod(wrong))
    failed = {check.name for check in gradient_check() if not check.ok}
    assert tensors <= failed


def test_an_engine_agrees_with_itself() -> None:
    checks = engine_check("reference")
    assert all(check.ok and check.error == 0.0 and check.n_outputs >= 4 for check in checks)


def test_errors_that_must_count() -> None:
    want = np.array([3.0, 4.0])
    assert relative_error(np.array([3.0, np.nan]), want) == float("inf")
    assert relative_error(np.array([3.0]), want) == float("inf")
    assert relative_error(want, want) == 0.0
    assert relative_error(want, np.zeros(2)) == 5.0


def test_an_operation_that_changes_its_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(out: np.ndarray, x: np.ndarray, p: float, seed: int) -> None:
        x *= 2.0
        out[...] = x

    monkeypatch.setattr(ReferenceOps, "dropout", staticmethod(careless))
    case = Case("dropout", "x", {"x": np.ones(3, np.float32)}, {"out": np.ones(3, np.float32)}, {"p": 0.0, "seed": 0})
    with pytest.raises(AssertionError, match="changed its input x"):
        run_case(ReferenceOps(), case)
