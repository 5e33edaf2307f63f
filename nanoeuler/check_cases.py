"""Cases for comparing two engines, operation by operation: odd shapes, edge values, and every way to call each one.

A :class:`Case` holds one call of the table of operations: float32 inputs, what the output arrays hold beforehand (NaN,
so that an element left unwritten shows, or earlier values to accumulate onto) and the options. :func:`run_case` makes
that call on any engine; :func:`relative_error` compares two answers.

Where a case is large on purpose (logits of 100, scores at which exp overflows), its factors are integers, so that the
products are exact in float32 and the case tests how softmax copes, not how a large number is rounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.ops.reference import ReferenceOps
from nanoeuler.ops.reference.classifier import cross_entropy
from nanoeuler.ops.table import Ops

EXACT = frozenset(
    {
        "mean",
        "rstd",
        "lse",
        "losses",
        "dweight",
        "dbias",
        "dwte",
        "dwpe",
        "dx_sum",
        "dqkv_sum",
        "grad",
        "param",
        "m",
        "v",
        "result",
    }
)
"""Arguments that engines store in their ``exact`` dtype: statistics, parameters' gradients, the optimizer's numbers."""
BLOCK = 140  # rows of wpe: more than any T below
ROWS = [(1, 33), (7, 65), (63, 100), (130, 33)]  # (N, C)
LINEARS = [(1, 33, 100), (7, 65, 33), (63, 100, 257), (130, 33, 65), (65, 64, 192)]  # (N, I, O)
ATTENTIONS = [  # (B, T, n_head, head_dim)
    (1, 1, 1, 11),
    (2, 7, 3, 11),
    (1, 63, 4, 11),
    (2, 64, 4, 32),
    (2, 65, 3, 32),
    (1, 130, 1, 64),
    (1, 130, 4, 32),
]
CLASSIFIERS = [(1, 65, 33), (7, 257, 65), (63, 1000, 100), (130, 257, 33), (520, 65, 33)]  # (N, V, C)


@dataclass
class Case:
    """One call of one operation. ``outputs`` maps argument names to what the arrays hold before the call.

    ``same`` maps an input's name to the output it shares its array with: a call that works in place.
    """

    op: str
    label: str
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


def run_case(ops: Ops, case: Case) -> dict[str, np.ndarray]:
    """Call ``case.op`` on ``ops`` and return host copies of the outputs by name (``"result"``: what it returned)."""
    arrays = {name: _on_device(ops, name, host) for name, host in {**case.inputs, **case.outputs}.items()}
    arrays |= {name: arrays[output] for name, output in case.same.items()}
    before = {name: ops.download(arrays[name]) for name in case.inputs if not _made_again(case, name)}
    result = getattr(ops, case.op)(**arrays, **case.options)
    answers = {name: ops.download(arrays[name]) for name in case.outputs}
    if result is not None:
        answers["result"] = np.array([result])
    for name, host in before.items():
        if not np.array_equal(ops.download(arrays[name]), host):
            raise AssertionError(f"{case.op} ({case.label}) changed its input {name}")
    return answers


def prepare(ops: Ops, cases: Iterable[Case]) -> None:
    """Have ready what ``cases`` need. An engine that compiles a kernel when it first meets it does so one by one; with
    ``planning`` it first gathers all of them, and compiles them side by side."""
    if hasattr(ops, "planning"):
        with ops.planning():
            for case in cases:
                run_case(ops, case)


def rounded_case(case: Case) -> dict[str, np.ndarray]:
    """What the reference answers when all that lies in memory is rounded to bfloat16: the least it must cost.

    That is inputs and outputs, except what engines keep as ``exact`` (:data:`EXACT`), and between two steps of an
    operation the sum that is normalised, and the logits with their gradient.
    """

    def rounded(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: host if name in EXACT else _rounded(host) for name, host in arrays.items()}

    case = replace(case, inputs=rounded(case.inputs), outputs=rounded(case.outputs))
    if case.op == "classifier":
        return rounded(_rounded_classifier(case))
    if case.op == "add_layernorm":
        x = _rounded(case.inputs["x"] + case.inputs["delta"])
        inputs = {"x": x, "weight": case.inputs["weight"], "bias": case.inputs["bias"]}
        outputs = {name: host for name, host in case.outputs.items() if name != "residual"}
        return rounded(run_case(ReferenceOps(), Case("layernorm", "", inputs, outputs)) | {"residual": x})
    return rounded(run_case(ReferenceOps(), case))


def _rounded(host: np.ndarray) -> np.ndarray:
    return host if host.dtype == np.int32 else from_bfloat16(to_bfloat16(host))


def _rounded_classifier(case: Case) -> dict[str, np.ndarray]:
    """The classifier with its logits and their gradient rounded."""
    x, wte = (case.inputs[name].astype(np.float64) for name in ("x", "wte"))
    z = _rounded(x @ wte.T).astype(np.float64)
    losses, dz = cross_entropy(z, case.inputs["targets"], case.options.get("scale", 1.0))
    if "dx" not in case.outputs:
        return {"losses": losses}
    dz = _rounded(dz)
    before = case.outputs["dwte"] if case.options.get("accumulate") else 0.0
    return {"losses": losses, "dx": dz @ wte, "dwte": dz.T @ x + before}


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """``|got - want| / |want|`` in Euclidean norms; ``inf`` if ``got`` is not finite.

    >>> relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    """
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    size = float(np.linalg.norm(want))
    return float(np.linalg.norm(got.astype(np.float64) - want)) / (size if size > 0.0 else 1.0)


def all_cases(seed: int = 0) -> Iterator[Case]:
    """Every case, in the order of the table; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    for cases in (_embedding, _layernorm, _linear, _attention, _classifier, _dropout, _optimizer):
        yield from cases(rng)


# ---- the cases, one function a family -----------------------------------------------------------------------------
def _embedding(rng: np.random.Generator) -> Iterator[Case]:
    for B, T, V, C in [(1, 1, 65, 33), (2, 7, 65, 65), (3, 63, 257, 100), (2, 130, 1000, 33)]:
        label = f"B={B} T={T} V={V} C={C}"
        idx = rng.integers(0, V, (B, T)).astype(np.int32)
        idx[:, T // 2 :] = idx[0, 0]  # one id many times over, in all sequences
        inputs = {"idx": idx, "wte": _normal(rng, V, C), "wpe": _normal(rng, BLOCK, C)}
        yield Case("embedding", label, inputs, {"out": _nan(B, T, C)})
        for accumulate in (False, True):
            outputs = {"dwte": _normal(rng, V, C), "dwpe": _before(rng, accumulate, BLOCK, C)}
            inputs = {"dout": _normal(rng, B, T, C), "idx": idx}
            options = {"accumulate": accumulate}
            yield Case("embedding_backward", f"{label} accumulate={accumulate}", inputs, outputs, options)


def _layernorm(rng: np.random.Generator) -> Iterator[Case]:
    shaped = [(f"N={N} C={C}", _normal(rng, N, C)) for N, C in ROWS]
    constant = _normal(rng, 7, 65)
    constant[::2] = np.arange(4, dtype=np.float32)[:, None]
    large = _normal(rng, 7, 65) * np.float32(1e4)
    small = _normal(rng, 7, 65) * np.float32(1e-3)  # variance below eps
    for label, x in [*shaped, ("constant rows", constant), ("large", large), ("small", small)]:
        N, C = x.shape
        norm = {"weight": _normal(rng, C), "bias": _normal(rng, C)}
        outputs = {"out": _nan(N, C), "mean": _nan(N), "rstd": _nan(N)}
        yield Case("layernorm", label, {"x": x, **norm}, outputs)
        delta = _normal(rng, N, C) * x.std()
        yield Case("add_layernorm", label, {"x": x, "delta": delta, **norm}, {**outputs, "residual": _nan(N, C)})

        saved = _reference("layernorm", label, {"x": x, **norm}, outputs)
        inputs = {"dout": _normal(rng, N, C), "x": x, "weight": norm["weight"]}
        inputs |= {name: saved[name] for name in ("mean", "rstd")}
        for accumulate, past in itertools.product((False, True), ("absent", "apart", "in place")):
            how = f"{label} accumulate={accumulate} dresidual {past}"
            dx = _normal(rng, N, C) if past == "in place" else _nan(N, C)
            outputs_b = {"dx": dx, "dweight": _before(rng, accumulate, C), "dbias": _before(rng, accumulate, C)}
            extra = {"dresidual": _normal(rng, N, C)} if past == "apart" else {}
            if past != "absent":
                outputs_b["dx_sum"] = _before(rng, accumulate, C)
            same = {"dresidual": "dx"} if past == "in place" else {}
            yield Case("layernorm_backward", how, inputs | extra, outputs_b, {"accumulate": accumulate}, same)


def _linear(rng: np.random.Generator) -> Iterator[Case]:
    for N, I, O in LINEARS:  # noqa: E741
        weight, bias = _normal(rng, I, O) / np.float32(np.sqrt(I)), _normal(rng, O)
        for gelu in ("no gelu", "gelu", "gelu, large"):
            label = f"N={N} I={I} O={O} {gelu}"
            size = np.float32(30.0 if gelu == "gelu, large" else 1.0)
            outputs = {"out": _nan(N, O)} | ({} if gelu == "no gelu" else {"pre_gelu": _nan(N, O)})
            yield Case("linear", label, {"x": _normal(rng, N, I) * size, "weight": weight, "bias": bias}, outputs)

            inputs = {"dout": _normal(rng, N, O), "x": _normal(rng, N, I), "weight": weight}
            if gelu != "no gelu":
                identity = {"x": _normal(rng, N, I) * size, "weight": np.eye(I, dtype=np.float32), "bias": _zeros(I)}
                saved = _reference("linear", label, identity, {"out": _nan(N, I), "pre_gelu": _nan(N, I)})
                inputs |= {"x": saved["out"], "pre_gelu": saved["pre_gelu"]}
            for accumulate in (False, True):
                before = {"dweight": _before(rng, accumulate, I, O), "dbias": _before(rng, accumulate, O)}
                how = f"{label} accumulate={accumulate}"
                if gelu == "gelu":
                    before["dx_sum"] = _before(rng, accumulate, I)
                yield Case("linear_backward", how, inputs, {"dx": _nan(N, I), **before}, {"accumulate": accumulate})
                if gelu != "no gelu":
                    options = {"accumulate": accumulate, "x_again": True}
                    again = inputs | {"x": _nan(N, I)}
                    yield Case("linear_backward", f"{how} x again", again, {"dx": _nan(N, I), **before}, options)


def _attention(rng: np.random.Generator) -> Iterator[Case]:
    def both(label: str, qkv: np.ndarray, n_head: int, dropout: float, seed: int) -> Iterator[Case]:
        B, T, C = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        options = {"n_head": n_head, "dropout": dropout, "seed": seed}
        outputs = {"out": _nan(B, T, C), "lse": _nan(B, n_head, T)}
        yield Case("attention", label, {"qkv": qkv}, outputs, options)
        saved = _reference("attention", label, {"qkv": qkv}, outputs, options)
        inputs = {"dout": _normal(rng, B, T, C), "out": saved["out"], "lse": saved["lse"], "qkv": qkv}
        yield Case("attention_backward", label, inputs, {"dqkv": _nan(B, T, 3 * C)}, options)
        for accumulate in (False, True) if dropout == 0.0 else ():
            outputs = {"dqkv": _nan(B, T, 3 * C), "dqkv_sum": _before(rng, accumulate, 3 * C)}
            how = f"{label} accumulate={accumulate}"
            yield Case("attention_backward", how, inputs, outputs, {**options, "accumulate": accumulate})

    for (B, T, n_head, D), dropout in itertools.product(ATTENTIONS, (0.0, 0.1, 0.5)):
        label = f"B={B} T={T} n_head={n_head} head_dim={D} dropout={dropout}"
        yield from both(label, _normal(rng, B, T, 3 * n_head * D), n_head, dropout, int(rng.integers(2**32)))
    for T, n_head in [(65, 1), (130, 3)]:
        qkv = _normal(rng, 1, T, 3 * n_head * 64)
        queries_keys = qkv[..., : 2 * n_head * 64]
        queries_keys[...] = rng.integers(-16, 17, queries_keys.shape)  # scores of several hundred; 1/sqrt(64) is exact
        yield from both(f"T={T} n_head={n_head} scores beyond exp", qkv, n_head, 0.0, 0)


def _classifier(rng: np.random.Generator) -> Iterator[Case]:
    def every(label: str, x: np.ndarray, wte: np.ndarray, targets: np.ndarray) -> Iterator[Case]:
        N, C, V = *x.shape, wte.shape[0]
        inputs = {"x": x, "wte": wte, "targets": targets.astype(np.int32)}
        yield Case("logits", label, {"x": x, "wte": wte}, {"out": _nan(N, V)})
        yield Case("classifier", f"{label} losses only", inputs, {"losses": _nan(N)})
        for accumulate in (False, True):
            outputs = {"losses": _nan(N), "dx": _nan(N, C), "dwte": _before(rng, accumulate, V, C)}
            options = {"scale": 1.0 / N if accumulate else 1.5, "accumulate": accumulate}
            yield Case("classifier", f"{label} accumulate={accumulate}", inputs, outputs, options)

    for N, V, C in CLASSIFIERS:
        targets = rng.integers(0, V, N)
        targets[1::3] = -1  # not scored
        yield from every(f"N={N} V={V} C={C}", _normal(rng, N, C), _normal(rng, V, C) * np.float32(0.3), targets)
    yield from every("nothing scored", _normal(rng, 7, 33), _normal(rng, 65, 33), np.full(7, -1))
    x, wte = _zeros(63, 33), _zeros(257, 33)
    x[:, :2] = rng.integers(-10, 11, (63, 2))  # logits from -100 to 100, each exact in float32
    wte[:, 0] = rng.integers(-10, 11, 257)
    x[:, 1], wte[:, 1] = 1.0, rng.integers(-8, 9, 257) / 16
    yield from every("logits of 100", x, wte, rng.integers(0, 257, 63))


def _dropout(rng: np.random.Generator) -> Iterator[Case]:
    for shape, p, seed in [((1, 33), 0.1, 0), ((7, 65), 0.5, 1), ((2, 63, 100), 0.1, 2**32 - 1), ((130, 33), 0.0, 3)]:
        x, label = _normal(rng, *shape), f"shape={shape} p={p}"
        yield Case("dropout", label, {"x": x}, {"out": _nan(*shape)}, {"p": p, "seed": seed})
        yield Case("dropout", f"{label} in place", {}, {"out": x}, {"p": p, "seed": seed}, {"x": "out"})


def _optimizer(rng: np.random.Generator) -> Iterator[Case]:
    for n in (1, 33, 1000, 300_007):
        yield Case("global_norm", f"n={n}", {"grad": _normal(rng, n)})
    for n, n_decay, step, lr in [(1, 0, 1, 0.1), (33, 33, 2, 0.1), (1000, 257, 10, 3e-4), (100_003, 65_537, 1000, 0.1)]:
        outputs = {"param": _normal(rng, n), "m": _normal(rng, n), "v": _normal(rng, n) ** 2}
        options = {"n_decay": n_decay, "step": step, "lr": lr, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
        options |= {"weight_decay": 0.1, "grad_scale": 0.3}
        label = f"n={n} n_decay={n_decay} step={step} lr={lr}"
        yield Case("adamw", label, {"grad": _normal(rng, n)}, outputs, options)


# ---- small helpers ------------------------------------------------------------------------------------------------
def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _before(rng: np.random.Generator, accumulate: bool, *shape: int) -> np.ndarray:
    """What a parameter's gradient holds before the call: earlier gradients, or NaN that must be overwritten."""
    return _normal(rng, *shape) if accumulate else _nan(*shape)


def _reference(
    op: str,
    label: str,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
    options: dict[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """What the forward pass saves for backward: the reference's numbers, rounded to float32."""
    answers = run_case(ReferenceOps(), Case(op, label, inputs, outputs, options or {}))
    return {name: answer.astype(np.float32) for name, answer in answers.items()}


def _made_again(case: Case, name: str) -> bool:
    """Whether the operation writes this input again, because it was not kept: GELU's output."""
    return name == "x" and bool(case.options.get("x_again"))


def _on_device(ops: Ops, name: str, host: np.ndarray) -> Any:
    array = ops.empty(host.shape, np.int32 if host.dtype == np.int32 else ops.exact if name in EXACT else None)
    ops.upload(array, host)
    return array
