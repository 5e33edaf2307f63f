"""The reference engine against formulas written a second time, as plain loops, and against central differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from nanoeuler.ops.reference import ReferenceOps
from nanoeuler.ops.table import hash32, keep_mask

OPS = ReferenceOps()
EXACT = dict(rtol=1e-12, atol=1e-12)


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan)


def numeric_gradient(f: Callable[[], float], x: np.ndarray) -> np.ndarray:
    """df/dx by fourth-order central differences, one element at a time; ``f`` reads ``x`` itself."""
    h, gradient = 1e-3, np.empty_like(x)
    for i in np.ndindex(x.shape):
        start, values = x[i], {}
        for k in (-2, -1, 1, 2):
            x[i] = start + k * h
            values[k] = f()
        x[i] = start
        gradient[i] = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)
    return gradient


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


# ---- embedding ----------------------------------------------------------------------------------------------------
def test_embedding() -> None:
    B, T, V, C = 2, 3, 5, 4
    idx, wte, wpe, out = np.array([[4, 0, 4], [1, 4, 0]], np.int32), rand(V, C), rand(6, C), nan(B, T, C)
    OPS.embedding(out, idx, wte, wpe)
    for b in range(B):
        for t in range(T):
            for c in range(C):
                assert out[b, t, c] == wte[idx[b, t], c] + wpe[t, c]


@pytest.mark.parametrize("accumulate", [False, True])
def test_embedding_backward(accumulate: bool) -> None:
    B, T, V, C = 2, 3, 5, 4
    idx, wte, wpe, out = np.array([[4, 0, 4], [1, 4, 0]], np.int32), rand(V, C), rand(6, C), nan(B, T, C)
    dout, before_wte = rand(B, T, C, seed=1), rand(V, C, seed=2)
    before_wpe = rand(6, C, seed=3) if accumulate else nan(6, C)

    def f() -> float:
        OPS.embedding(out, idx, wte, wpe)
        return float((dout * out).sum())

    dwte, dwpe = before_wte.copy(), before_wpe.copy()
    OPS.embedding_backward(dwte, dwpe, dout, idx, accumulate)
    close(dwte - before_wte, numeric_gradient(f, wte))  # always added to
    close(dwpe - (before_wpe if accumulate else 0.0), numeric_gradient(f, wpe))


# ---- layer norm ---------------------------------------------------------------------------------------------------
def test_layernorm() -> None:
    N, C = 3, 5
    x, weight, bias, out, mean, rstd = rand(N, C), rand(C), rand(C, seed=1), nan(N, C), nan(N), nan(N)
    x[1] = 7.0  # a constant row: variance 0
    OPS.layernorm(out, mean, rstd, x, weight, bias)
    for n in range(N):
        row = [float(value) for value in x[n]]
        mu = sum(row) / C
        sigma = math.sqrt(sum((value - mu) ** 2 for value in row) / C + 1e-5)
        np.testing.assert_allclose([mean[n], rstd[n]], [mu, 1 / sigma], **EXACT)
        for c in range(C):
            assert out[n, c] == pytest.approx((row[c] - mu) / sigma * weight[c] + bias[c], abs=1e-12)
    assert np.array_equal(out[1], bias)


def test_add_layernorm_is_the_sum_then_the_norm() -> None:
    N, C = 3, 5
    x, delta, weight, bias = rand(N, C), rand(N, C, seed=1), rand(C), rand(C, seed=2)
    residual, out, want, mean, rstd = nan(N, C), nan(N, C), nan(N, C), nan(N), nan(N)
    OPS.add_layernorm(out, mean, rstd, residual, x, delta, weight, bias)
    assert np.array_equal(residual, x + delta)
    OPS.layernorm(want, mean, rstd, x + delta, weight, bias)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("past", ["absent", "apart", "in place"])
def test_layernorm_backward(accumulate: bool, past: str) -> None:
    N, C = 3, 5
    x, weight, bias, out, mean, rstd = rand(N, C), rand(C), rand(C, seed=1), nan(N, C), nan(N), nan(N)
    dout, dpast = rand(N, C, seed=2), rand(N, C, seed=3)

    def f() -> float:
        OPS.layernorm(out, mean, rstd, x, weight, bias)
        return float((dout * out).sum())

    want = [numeric_gradient(f, p) for p in (x, weight, bias)]
    f()
    before = rand(C, seed=4) if accumulate else nan(C)
    dx, dweight, dbias = dpast.copy() if past == "in place" else nan(N, C), before.copy(), before.copy()
    dresidual = {"absent": None, "apart": dpast, "in place": dx}[past]
    OPS.layernorm_backward(dx, dweight, dbias, dout, x, mean, rstd, weight, dresidual, accumulate)
    close(dx, want[0] + (0.0 if past == "absent" else dpast))
    close(dweight, want[1] + (before if accumulate else 0.0))
    close(dbias, want[2] + (before if accumulate else 0.0))


# ---- linear -------------------------------------------------------------------------------------------------------
def gelu_loop(x: float) -> float:
    return 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


@pytest.mark.parametrize("with_gelu", [False, True])
def test_linear(with_gelu: bool) -> None:
    N, I, O = 3, 4, 5  # noqa: E741
    x, weight, bias, out, pre = 3 * rand(N, I), rand(I, O), rand(O), nan(N, O), nan(N, O)
    OPS.linear(out, x, weight, bias, pre if with_gelu else None)
    for n in range(N):
        for o in range(O):
            total = float(bias[o]) + sum(float(x[n, i]) * float(weight[i, o]) for i in range(I))
            assert out[n, o] == pytest.approx(gelu_loop(total) if with_gelu else total, abs=1e-12)
            assert not with_gelu or pre[n, o] == pytest.approx(total, abs=1e-12)


def test_gelu_is_near_the_exact_one() -> None:
    """The tanh form approximates x Phi(x) to within 5e-4 everywhere."""
    x = np.linspace(-6, 6, 241)[:, None]
    out, pre = nan(241, 1), nan(241, 1)
    OPS.linear(out, x, np.ones((1, 1)), np.zeros(1), pre)
    exact = [0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x[:, 0]]
    np.testing.assert_allclose(out[:, 0], exact, atol=5e-4)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("with_gelu", [False, True])
def test_linear_backward(accumulate: bool, with_gelu: bool) -> None:
    N, I, O = 3, 4, 5  # noqa: E741
    start, weight, bias, dout, out = 2 * rand(N, I), rand(I, O), rand(O), rand(N, O, seed=1), nan(N, O)

    def activation() -> np.ndarray:  # the layer's input, as a function of ``start``
        return np.vectorize(gelu_loop)(start) if with_gelu else start

    def f() -> float:
        OPS.linear(out, activation(), weight, bias)
        return float((dout * out).sum())

    before, before_b = (rand(I, O, seed=2), rand(O, seed=2)) if accumulate else (nan(I, O), nan(O))
    dx, dweight, dbias = nan(N, I), before.copy(), before_b.copy()
    OPS.linear_backward(dx, dweight, dbias, dout, activation(), weight, start if with_gelu else None, accumulate)
    close(dx, numeric_gradient(f, start))
    close(dweight, numeric_gradient(f, weight) + (before if accumulate else 0.0))
    close(dbias, numeric_gradient(f, bias) + (before_b if accumulate else 0.0))


# ---- attention ----------------------------------------------------------------------------------------------------
def attention_loops(qkv: np.ndarray, n_head: int, p: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    B, T, C3 = qkv.shape
    C, D = C3 // 3, C3 // 3 // n_head
    out, lse = np.zeros((B, T, C)), np.zeros((B, n_head, T))
    keep = keep_mask(B * n_head * T * T, p, seed)
    for b in range(B):
        for h in range(n_head):
            for i in range(T):
                q = qkv[b, i, h * D : (h + 1) * D]
                scores = [float(q @ qkv[b, j, C + h * D : C + (h + 1) * D]) / math.sqrt(D) for j in range(i + 1)]
                top = max(scores)
                total = sum(math.exp(s - top) for s in scores)
                lse[b, h, i] = top + math.log(total)
                for j in range(i + 1):
                    if keep[((b * n_head + h) * T + i) * T + j]:
                        weight = math.exp(scores[j] - top) / total / (1 - p)
                        out[b, i, h * D : (h + 1) * D] += weight * qkv[b, j, 2 * C + h * D : 2 * C + (h + 1) * D]
    return out, lse


@pytest.mark.parametrize("n_head", [1, 3])
@pytest.mark.parametrize(("p", "size"), [(0.0, 1.0), (0.4, 1.0), (0.0, 50.0)])
def test_attention(n_head: int, p: float, size: float) -> None:
    B, T, C = 2, 5, 6
    qkv, out, lse = size * rand(B, T, 3 * C), nan(B, T, C), nan(B, n_head, T)
    OPS.attention(out, lse, qkv, n_head, p, seed=11)
    want_out, want_lse = attention_loops(qkv, n_head, p, seed=11)
    np.testing.assert_allclose(out, want_out, **EXACT)
    np.testing.assert_allclose(lse, want_lse, **EXACT)


@pytest.mark.parametrize("n_head", [1, 3])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_attention_backward(n_head: int, p: float) -> None:
    B, T, C = 2, 4, 6
    qkv, dout, out, lse = rand(B, T, 3 * C), rand(B, T, C), nan(B, T, C), nan(B, n_head, T)

    def f() -> float:
        OPS.attention(out, lse, qkv, n_head, p, seed=11)
        return float((dout * out).sum())

    want, dqkv = numeric_gradient(f, qkv), nan(B, T, 3 * C)
    f()
    OPS.attention_backward(dqkv, dout, out, lse, qkv, n_head, p, seed=11)
    close(dqkv, want)


# ---- classifier ---------------------------------------------------------------------------------------------------
def test_classifier_losses_and_logits() -> None:
    N, V, C = 4, 6, 3
    x, wte, targets = 30 * rand(N, C), rand(V, C), np.array([5, -1, 0, 2], np.int32)
    losses, z = nan(N), nan(N, V)
    OPS.classifier(losses, x, wte, targets)
    OPS.logits(z, x, wte)
    for n in range(N):
        row = [sum(float(x[n, c]) * float(wte[v, c]) for c in range(C)) for v in range(V)]
        np.testing.assert_allclose(z[n], row, **EXACT)
        top = max(row)
        lse = top + math.log(sum(math.exp(value - top) for value in row))
        assert losses[n] == pytest.approx(0.0 if targets[n] == -1 else lse - row[targets[n]], abs=1e-11)


@pytest.mark.parametrize("accumulate", [False, True])
def test_classifier_gradients(accumulate: bool) -> None:
    N, V, C, scale = 4, 6, 3, 0.7
    x, wte, targets, losses = rand(N, C), rand(V, C), np.array([5, -1, 0, 2], np.int32), nan(N)

    def f() -> float:
        OPS.classifier(losses, x, wte, targets)
        return scale * float(losses.sum())

    before = rand(V, C, seed=5) if accumulate else nan(V, C)
    dx, dwte = nan(N, C), before.copy()
    OPS.classifier(losses, x, wte, targets, dx, dwte, scale, accumulate)
    close(dx, numeric_gradient(f, x))
    close(dwte, numeric_gradient(f, wte) + (before if accumulate else 0.0))
    assert np.array_equal(dx[1], np.zeros(C))  # exactly nothing where the target is ignored


# ---- dropout ------------------------------------------------------------------------------------------------------
def test_hash32_is_lowbias32() -> None:
    """The mixing function once more, in Python's whole numbers."""
    for value in (0, 1, 2, 0xDEADBEEF, 2**32 - 1):
        x = value
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        x ^= x >> 16
        assert int(hash32(np.array([value], np.uint32))[0]) == x


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout(p: float) -> None:
    x, out = rand(100, 300), nan(100, 300)
    OPS.dropout(out, x, p, seed=9)
    kept = out != 0.0
    np.testing.assert_allclose(out[kept], x[kept] / (1 - p), **EXACT)
    assert abs(kept.mean() - (1 - p)) < 4 * math.sqrt(p * (1 - p) / x.size) + 1e-9
    again = x.copy()
    OPS.dropout(again, again, p, seed=9)
    assert np.array_equal(again, out)
    if p:
        OPS.dropout(again, x, p, seed=10)
        assert not np.array_equal(again, out)


# ---- optimizer ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_global_norm(dtype: type) -> None:
    grad = rand(1001).astype(dtype)
    assert OPS.global_norm(grad) == pytest.approx(math.sqrt(math.fsum(float(g) ** 2 for g in grad)), rel=1e-13)


def test_adamw_over_five_steps() -> None:
    n, n_decay, beta1, beta2, eps, weight_decay, scale = 6, 4, 0.9, 0.95, 1e-8, 0.1, 0.5
    param, m, v = rand(n), np.zeros(n), np.zeros(n)
    p_want, m_want, v_want = [float(value) for value in param], [0.0] * n, [0.0] * n
    for step in range(1, 6):
        grad, lr = rand(n, seed=step), 0.1 / step
        OPS.adamw(param, grad, m, v, n_decay, step, lr, beta1, beta2, eps, weight_decay, scale)
        for i in range(n):
            g = float(grad[i]) * scale
            m_want[i] += (1 - beta1) * (g - m_want[i])
            v_want[i] += (1 - beta2) * (g * g - v_want[i])
            update = m_want[i] / (1 - beta1**step) / (math.sqrt(v_want[i] / (1 - beta2**step)) + eps)
            p_want[i] = p_want[i] * (1 - lr * weight_decay * (i < n_decay)) - lr * update
        np.testing.assert_allclose(param, p_want, **EXACT)
        np.testing.assert_allclose(m, m_want, **EXACT)
        np.testing.assert_allclose(v, v_want, **EXACT)


def test_adamw_takes_float32() -> None:
    exact, rounded = [rand(50, seed=s) for s in range(3)], [rand(50, seed=s).astype(np.float32) for s in range(3)]
    for param, grad, m in (exact, rounded):
        OPS.adamw(param, grad, m, np.ones_like(m), 20, 3, 0.1, 0.9, 0.95, 1e-8, 0.1, 1.0)
    assert rounded[0].dtype == np.float32
    np.testing.assert_allclose(rounded[0], exact[0], rtol=1e-6, atol=1e-6)
