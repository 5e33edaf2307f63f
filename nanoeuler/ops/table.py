"""The table of operations: everything GPT-2 computes, forward and backward, as one interface.

The network (``model/gpt.py``) is written once as calls to this table, and an *engine* fills the table in:
``reference`` (float64 NumPy, the specification), ``cpu`` (float32 Numba) and ``gpu`` (bfloat16 Triton).

Conventions, the same for every engine:

- Outputs come first and are written in place into arrays the caller owns; nothing is allocated in a step.
- ``N = B*T`` rows: an operation that treats all positions alike sees ``(N, C)``.
- Weights are ``(in, out)``, the layout of GPT-2's published checkpoints: ``y = x @ W + b``.
- A gradient carries the name of what it belongs to, with a ``d`` in front: ``dx = dL/dx``.
- Gradients of *parameters* are added to what is there when ``accumulate`` is true and overwrite it
  otherwise. That saves a pass of zeros over all parameters in each step.
- Gradients of *activations* overwrite.
- Integers (``idx``, ``targets``) are int32. A target of ``-1`` is ignored: no loss, no gradient.
- Random masks are counter-based: the mask is a pure function of ``(seed, element index)``, see
  :func:`keep_mask`, so backward recomputes it instead of storing it and all engines agree bit for bit.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from nanoeuler.ops.storage import Storage

Array = Any  # np.ndarray on reference and cpu; a device array on gpu
Seed = Any  # a whole number; on gpu also one that lies in device memory. A whole number can be added to either.


class Ops(Protocol):
    """One engine's column of the table. ``dtype`` and ``exact`` are those of its ``storage``."""

    name: str
    storage: Storage
    dtype: Any
    exact: Any

    # ---- memory -------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        """An uninitialised array on this engine's device (``dtype`` None: the engine's own)."""

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        """A zeroed array on this engine's device."""

    def upload(self, dst: Array, src: np.ndarray) -> None:
        """Copy a host array into ``dst``, converting to its dtype."""

    def download(self, src: Array) -> np.ndarray:
        """A host copy of ``src`` (never a view)."""

    def convert(self, dst: Array, src: Array) -> None:
        """``dst = src``, rounded to the dtype of ``dst``; both flat, of the same size."""

    # ---- embedding ----------------------------------------------------------------------------------
    def embedding(self, out: Array, idx: Array, wte: Array, wpe: Array) -> None:
        """``out[b,t] = wte[idx[b,t]] + wpe[t]``: idx (B,T), wte (V,C), wpe (>=T,C) -> out (B,T,C)."""

    def embedding_backward(self, dwte: Array, dwpe: Array, dout: Array, idx: Array, accumulate: bool = False) -> None:
        """``dwte[v] += sum of dout where idx == v``; ``dwpe[t] (+)= sum over b of dout[b,t]``.

        ``dwte`` is always added to: with tied weights the classifier has written its share before.
        Without ``accumulate`` the rows of ``dwpe`` from T on become zero.
        """

    # ---- layer norm ---------------------------------------------------------------------------------
    def layernorm(self, out: Array, mean: Array, rstd: Array, x: Array, weight: Array, bias: Array) -> None:
        """``out = (x - mean) * rstd * weight + bias`` over the last axis; x, out (N,C); mean, rstd (N,).

        ``rstd = 1/sqrt(var + 1e-5)`` with the population variance (divided by C).
        """

    def add_layernorm(
        self,
        out: Array,
        mean: Array,
        rstd: Array,
        residual: Array,
        x: Array,
        delta: Array,
        weight: Array,
        bias: Array,
    ) -> None:
        """``residual = x + delta``, then ``out = layernorm(residual)``, in one pass. All (N,C)."""

    def layernorm_backward(
        self,
        dx: Array,
        dweight: Array,
        dbias: Array,
        dout: Array,
        x: Array,
        mean: Array,
        rstd: Array,
        weight: Array,
        dresidual: Array | None = None,
        accumulate: bool = False,
        *,
        dx_sum: Array | None = None,
    ) -> None:
        """Gradients of layer norm. With ``dresidual`` (may be ``dx`` itself), ``dx = dresidual + ...``:
        the gradient that flows past the norm along the residual stream is added in the same pass.

        With ``dx_sum`` (C,), also ``dx_sum (+)= sum of dx over rows``, taken while dx is at hand: if a linear layer
        wrote x's last summand, this is the gradient of its bias. Likewise below.
        """

    # ---- linear -------------------------------------------------------------------------------------
    def linear(self, out: Array, x: Array, weight: Array, bias: Array, pre_gelu: Array | None = None) -> None:
        """``out = x @ weight + bias``: x (N,I), weight (I,O) -> (N,O).

        With ``pre_gelu`` (N,O): ``pre_gelu = x @ weight + bias`` is kept for backward, ``out = gelu(pre_gelu)``.
        """

    def linear_backward(
        self,
        dx: Array,
        dweight: Array,
        dbias: Array | None,
        dout: Array,
        x: Array,
        weight: Array,
        pre_gelu: Array | None = None,
        accumulate: bool = False,
        *,
        dx_sum: Array | None = None,
        x_again: bool = False,
    ) -> None:
        """``dx = dout @ weight.T``, ``dweight (+)= x.T @ dout``, ``dbias (+)= sum of dout over rows`` unless None.

        With ``pre_gelu`` (N,I), the layer's input was ``x = gelu(pre_gelu)`` and ``dx`` becomes the gradient
        of ``pre_gelu``: ``dx = (dout @ weight.T) * gelu'(pre_gelu)``. With ``x_again``, ``x`` no longer holds
        ``gelu(pre_gelu)``: that is written into it first. With ``dx_sum`` (I,), ``dx_sum (+)= sum of dx over rows``.
        """

    # ---- attention ----------------------------------------------------------------------------------
    def attention(self, out: Array, lse: Array, qkv: Array, n_head: int, dropout: float = 0.0, seed: Seed = 0) -> None:
        """Causal multi-head attention. qkv (B,T,3C) packed q|k|v, each n_head x head_dim -> out (B,T,C).

        ``out = dropout(softmax(q k^T / sqrt(head_dim), causal)) v`` without ever holding a (T,T) matrix;
        ``lse`` (B, n_head, T) keeps the log-sum-exp of each row of scores for backward. In the dropout mask, the
        weight of query i for key j in head h of sequence b has index ``((b*n_head + h)*T + i)*T + j``.
        """

    def attention_backward(
        self,
        dqkv: Array,
        dout: Array,
        out: Array,
        lse: Array,
        qkv: Array,
        n_head: int,
        dropout: float = 0.0,
        seed: Seed = 0,
        accumulate: bool = False,
        *,
        dqkv_sum: Array | None = None,
    ) -> None:
        """Gradient of :meth:`attention`: ``dqkv`` (B,T,3C) from ``dout`` (B,T,C); ``out`` and ``lse`` as saved.

        With ``dqkv_sum`` (3C,), ``dqkv_sum (+)= sum of dqkv over rows``.
        """

    # ---- classifier ---------------------------------------------------------------------------------
    def classifier(
        self,
        losses: Array,
        x: Array,
        wte: Array,
        targets: Array,
        dx: Array | None = None,
        dwte: Array | None = None,
        scale: float = 1.0,
        accumulate: bool = False,
        spare: Array | None = None,
    ) -> None:
        """Tied head, softmax and cross-entropy, with gradients in the same pass, in chunks of rows.

        ``losses[n] = logsumexp(x[n] @ wte.T) - (x[n] @ wte.T)[targets[n]]``, 0 where the target is -1.
        x (N,C), wte (V,C), targets (N,) -> losses (N,). With ``dx`` (N,C) and ``dwte`` (V,C), also the
        gradients of ``scale * sum(losses)``. The full logits (N,V) are never stored. ``spare``: bytes that may be
        overwritten, such as with a chunk of logits.
        """

    def logits(self, out: Array, x: Array, wte: Array) -> None:
        """``out = x @ wte.T`` (N,V): for sampling and for looking inside."""

    # ---- dropout ------------------------------------------------------------------------------------
    def dropout(self, out: Array, x: Array, p: float, seed: Seed) -> None:
        """``out = x * keep / (1-p)``; may work in place. Its own backward: apply it to the gradient."""

    # ---- optimizer ----------------------------------------------------------------------------------
    def global_norm(self, grad: Array) -> float:
        """Euclidean norm of a flat buffer."""

    def adamw(
        self,
        param: Array,
        grad: Array,
        m: Array,
        v: Array,
        n_decay: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
        rounded: Array | None = None,
    ) -> None:
        """One AdamW step (Loshchilov & Hutter 2019) over flat buffers, in place.

        ``g = grad * grad_scale``; ``m = beta1 m + (1-beta1) g``; ``v = beta2 v + (1-beta2) g^2``;
        ``param -= lr * (m/(1-beta1^step) / (sqrt(v/(1-beta2^step)) + eps) + decay * param)``, where ``decay`` is
        ``weight_decay`` for the first ``n_decay`` elements (the matrices) and 0 for the rest. ``step`` starts at 1.
        ``rounded``, where given, receives the new ``param`` in its own dtype.
        """


class CachedOps(Ops, Protocol):
    """What decoding with a KV cache needs beside that: attention when a text grows token by token.

    Row n is a token that sequence ``slots[n]`` has at ``positions[n]`` (both (N,) int32). A product of few rows with a
    matrix is :meth:`linear` and :meth:`logits` as ever: an engine may use other kernels for few rows. An engine without
    these operations writes without a cache.
    """

    def cache_shapes(
        self, n_slots: int, n_head: int, context: int, head_dim: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of one layer's ``keys`` and ``values``, in whatever order suits the engine."""

    def embedding_at(self, out: Array, idx: Array, positions: Array, wte: Array, wpe: Array) -> None:
        """``out[n] = wte[idx[n]] + wpe[positions[n]]``: idx, positions (N,) -> out (N,C)."""

    def write_cache(self, keys: Array, values: Array, qkv: Array, slots: Array, positions: Array, n_head: int) -> None:
        """Keep the keys and values of ``qkv`` (N,3C), packed q|k|v, at the rows' places."""

    def attention_cached(
        self, out: Array, qkv: Array, keys: Array, values: Array, slots: Array, positions: Array, n_head: int
    ) -> None:
        """Attention of the queries in ``qkv`` (N,3C) to what their sequences hold up to their own position, which
        :meth:`write_cache` has written: out (N,C)."""

    def copy_cache(self, keys: Array, values: Array, src: int, dst: int, length: int) -> None:
        """Give sequence ``dst`` the first ``length`` positions of sequence ``src``."""


def keep_mask(n: int, p: float, seed: int) -> np.ndarray:
    """Which of ``n`` elements dropout keeps: bool (n,), a pure function of ``(seed, index)``.

    Element ``i`` is kept when ``hash32(i ^ hash32(seed)) >= floor(p * 2^32)``, with the 32-bit mixing function
    "lowbias32" (Chris Wellons, "Prospecting for Hash Functions", 2018). Indices wrap at 2^32.

    >>> keep_mask(8, 0.0, 1).all()
    np.True_
    >>> float(keep_mask(100_000, 0.2, 7).mean().round(2))
    0.8
    """
    start = hash32(np.array([seed & 0xFFFFFFFF], np.uint32))
    return hash32(np.arange(n, dtype=np.uint64).astype(np.uint32) ^ start) >= np.uint32(min(int(p * 2**32), 2**32 - 1))


def hash32(x: np.ndarray) -> np.ndarray:
    """The mixing function of :func:`keep_mask`, elementwise on uint32."""
    x = x.astype(np.uint32, copy=True)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x
