"""On a real GPU: every operation, at odd shapes and at those of GPT-2.

In bfloat16 an error may be twice what rounding inputs and outputs alone costs, the criterion of FlashAttention's tests
(:func:`nanoeuler.check_cases.rounded_case`); in float32 it must be below 1e-5.
"""

import numpy as np
import pytest

pytest.importorskip("triton")

from real_cases import FAMILIES, SIZES, real_cases

from nanoeuler.check import ENGINE_LIMIT, engine_check
from nanoeuler.check_cases import prepare, relative_error, rounded_case, run_case
from nanoeuler.ops import get_engine
from nanoeuler.ops.reference import ReferenceOps

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("device", ["gpu-fp32", "gpu"])
def test_every_operation_at_odd_shapes(device):
    wrong = [check for check in engine_check(device) if not check.ok]
    assert not wrong, "\n".join(f"{c.name}: {c.error:.2e} of {c.limit:.2e} in {c.worst}" for c in wrong)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("sizes", SIZES)
def test_every_operation_at_real_shapes(sizes, family):
    reference, n, wrong, cases = ReferenceOps(), 0, [], list(real_cases(SIZES[sizes], family))
    for device in ("gpu", "gpu-fp32"):
        prepare(get_engine(device), cases)
    for case in cases:
        want, least = run_case(reference, case), rounded_case(case)
        for device in ("gpu", "gpu-fp32"):
            got = run_case(get_engine(device), case)
            for name in want:
                error, limit = relative_error(got[name], want[name]), ENGINE_LIMIT
                if device == "gpu":
                    limit = max(limit, 2 * relative_error(least[name], want[name]))
                n += 1
                if not error <= limit:
                    wrong.append(f"{device} {case.op} {case.label} {name}: {error:.2e} of {limit:.2e}")
    assert n and not wrong, "\n".join(wrong)


def test_what_is_checked_can_fail():
    """An element that is not written, or one written wrongly by a twentieth, shows."""
    [case] = [c for c in real_cases(SIZES["odd"], FAMILIES[1]) if c.op == "linear" and c.label == "192 to 192"]
    ops = get_engine("gpu")
    want, got = run_case(ReferenceOps(), case)["out"], run_case(ops, case)["out"]
    limit = 2 * relative_error(rounded_case(case)["out"], want)
    assert relative_error(got, want) <= limit
    assert relative_error(np.where(np.arange(got.size).reshape(got.shape) == 5, np.nan, got), want) > limit
    got[::100] *= 1.05
    assert relative_error(got, want) > limit
