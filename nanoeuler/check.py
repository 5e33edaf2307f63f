"""Is the mathematics right? Two checks, as data; ``nanoeuler check`` prints them.

:func:`gradient_check` holds the derivation of every backward pass against the definition of a derivative: central
differences of the loss, in float64, for every parameter tensor of a small model. :func:`engine_check` then holds
another engine against the reference, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nanoeuler.check_cases import all_cases, prepare, relative_error, rounded_case, run_case
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.model.parameters import Layout
from nanoeuler.ops import get_engine
from nanoeuler.ops.reference import ReferenceOps

GRADIENT_LIMIT = 1e-6
ENGINE_LIMIT = 1e-5
SMALL = GPTConfig(vocab_size=37, block_size=12, n_layer=2, n_head=3, n_embd=24)
STEP = 1e-3  # with fourth-order differences: truncation and rounding are both near 1e-11 here


@dataclass(frozen=True)
class TensorCheck:
    """One parameter tensor: the largest relative error of its gradient in any direction tried."""

    name: str
    error: float
    limit: float = GRADIENT_LIMIT

    @property
    def ok(self) -> bool:
        return self.error < self.limit


@dataclass(frozen=True)
class OpCheck:
    """One operation: the relative error that comes nearest to its ``limit``, and which output in which case had it."""

    name: str
    error: float
    worst: str
    n_outputs: int
    limit: float = ENGINE_LIMIT

    @property
    def ok(self) -> bool:
        return self.error < self.limit


def gradient_check(
    config: GPTConfig = SMALL,
    B: int = 2,
    T: int = 9,
    dropout: float = 0.0,
    samples_per_tensor: int = 3,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[TensorCheck]:
    """Compare every tensor's gradient with differences of the loss, on the reference engine.

    Each tensor is moved along one random direction, which an error in any element would show in, and along
    ``samples_per_tensor`` single elements. Along a unit vector d, the derivative is ``g . d``, and

        (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h

    approximates it with an error of order h^4. Their difference counts relative to ``g . d``, or to the root mean
    square of g where that is larger: some elements have no gradient at all (a bias on the keys moves all scores of a
    row alike, which softmax does not see). ``progress`` is called with each tensor's name.

    >>> checks = gradient_check(GPTConfig(vocab_size=7, block_size=3, n_layer=1, n_head=1, n_embd=4), B=1, T=3)
    >>> len(checks), all(check.ok for check in checks)
    (16, True)
    """
    rng = np.random.default_rng(seed)
    config = GPTConfig(**{**config.to_dict(), "dropout": dropout})
    model = GPT(config, device="reference", params=lively_parameters(config, seed))
    x = rng.integers(0, config.vocab_size, (B, T)).astype(np.int32)
    y = rng.integers(0, config.vocab_size, (B, T)).astype(np.int32)
    y.reshape(-1)[1::5] = -1  # not scored

    def loss() -> float:
        return model.loss_and_grad(x, y, seed=seed)

    loss()
    assert model.grads is not None
    gradients = model.layout.views(model.grads.copy())
    checks = []
    for name, g in gradients.items():
        if progress is not None:
            progress(name)
        directions = [rng.standard_normal(g.shape)]
        for element in rng.choice(g.size, min(samples_per_tensor, g.size), replace=False):
            directions.append(np.zeros(g.shape))
            directions[-1].flat[element] = 1.0
        checks.append(TensorCheck(name, max(_direction_error(loss, model.p[name], g, d) for d in directions)))
    return checks


def _direction_error(loss: Callable[[], float], param: np.ndarray, g: np.ndarray, d: np.ndarray) -> float:
    d = d / np.linalg.norm(d)
    start = param.copy()

    def loss_at(step: float) -> float:
        param[...] = start + step * d
        value = loss()
        param[...] = start
        return value

    h = STEP
    numeric = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h)
    analytic = float((g * d).sum())
    rms = float(np.linalg.norm(g)) / np.sqrt(g.size)
    return float(abs(numeric - analytic) / max(abs(analytic), abs(numeric), rms))


def lively_parameters(config: GPTConfig, seed: int) -> np.ndarray:
    """Parameters (n_params,) float64 of the size that training ends with rather than begins with.

    At initialisation every branch is nearly zero, attention nearly even and every bias without effect; a wrong
    gradient could hide there.
    """
    rng = np.random.default_rng([seed, 1])
    layout = Layout(config)
    flat = np.empty(layout.n_params)
    for name, view in layout.views(flat).items():
        values = rng.standard_normal(view.shape)
        if view.ndim == 2:
            view[...] = 0.5 * values if "wte" in name or "wpe" in name else values / np.sqrt(view.shape[0])
        else:
            view[...] = 0.3 * values + (1.0 if name.endswith("weight") else 0.0)
    return flat


def engine_check(device: str = "cpu", progress: Callable[[str], None] | None = None) -> list[OpCheck]:
    """Compare an engine with the reference, each operation over all its cases (``check_cases.py``).

    An error is the norm of the difference over the norm of the reference's answer, which gets the same float32 inputs.
    An engine that computes in bfloat16 may be off by twice as much as the reference itself when its inputs and outputs
    are rounded to bfloat16: the criterion of FlashAttention's tests (Dao et al. 2022).
    """
    ops, reference = get_engine(device), ReferenceOps()
    checks: dict[str, list[OpCheck]] = {}  # by operation, the worst output of each case
    prepare(ops, all_cases())
    for case in all_cases():
        if progress is not None and case.op not in checks:
            progress(case.op)
        got, want = run_case(ops, case), run_case(reference, case)
        rounded = rounded_case(case) if ops.storage.rounds else want
        for name in want:
            limit = max(ENGINE_LIMIT, 2 * relative_error(rounded[name], want[name]))
            check = OpCheck(case.op, relative_error(got[name], want[name]), f"{name}, {case.label}", 0, limit)
            checks.setdefault(case.op, []).append(check)
    return [
        replace(max(each, key=lambda check: check.error / check.limit), n_outputs=len(each)) for each in checks.values()
    ]
