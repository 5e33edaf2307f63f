"""Every kernel of a training step at a model's sizes, with its bytes and operations: what ``bench kernels`` times.

A case is one operation of the table as a step calls it, or one part of it: the backward pass of a linear layer is two
products, and the classifier is three products and a softmax. Its launches are what the engine makes of that call, with
operations ``fusing`` as in a step.

Counted are the *least* bytes: each input read and each output written once, scratch and small vectors left out. So a
kernel that reads something twice shows a smaller share of the bandwidth, as it should. Operations are those of the
matrix products and of attention (causal: half of each square).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nanoeuler.model.activations import RECOMPUTE, recompute_level, spare_bytes
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels.classifier import logits_stride
from nanoeuler.ops.gpu.kernels.spec import Launch
from nanoeuler.ops.gpu.runtime.memory import DeviceArray
from nanoeuler.ops.gpu.scratch import classifier_rows

MOST_PARAMETERS = 1 << 27  # AdamW and the norm are timed on so many at most: 2 GB


@dataclass(frozen=True)
class Case:
    """Launches that run one after another, the bytes they must move and the operations they must do.

    ``peer``: the same task for another library: what it is, and its sizes.
    """

    name: str
    launches: list[Launch]
    bytes: float
    flops: float = 0.0
    peer: dict[str, Any] = field(default_factory=dict)


class Source:
    """Makes arrays full of random numbers: zeros would be multiplied and moved faster than real data."""

    def __init__(self, ops: GpuOps, seed: int = 0) -> None:
        self.ops, self.rng = ops, np.random.default_rng(seed)
        some = self.rng.standard_normal(1 << 20, np.float32)
        self.pool = {name: ops.empty(some.shape, name) for name in dict.fromkeys((ops.dtype, ops.exact))}
        for name, array in self.pool.items():
            ops.upload(array, some if name == ops.dtype else np.abs(some))  # variances and moments are not negative

    def __call__(self, *shape: int, exact: bool = False) -> DeviceArray:
        array = self.ops.empty(shape, self.ops.exact if exact else self.ops.dtype)
        flat, pool = array.reshape(-1), self.pool[array.dtype]
        for first in range(0, flat.size, pool.size):
            part = flat[first : first + pool.size]
            self.ops.memory.copy(part, pool[: part.size])
        return array

    def ids(self, *shape: int, below: int) -> DeviceArray:
        """Random token ids."""
        array = self.ops.empty(shape, "i32")
        self.ops.upload(array, self.rng.integers(0, below, shape, dtype=np.int32))
        return array


@contextmanager
def recorded(ops: GpuOps) -> Iterator[list[Launch]]:
    """Inside, operations launch nothing; the list receives what they would have launched."""
    launcher, launches = ops.runtime.launch, []  # type: ignore[var-annotated]
    ops.runtime.launch = launches.append  # type: ignore[assignment]
    try:
        yield launches
    finally:
        ops.runtime.launch = launcher
        ops.keep_scratch()  # the launches have its address


def recomputed(ops: GpuOps) -> frozenset[str]:
    """What backward computes again if nobody says otherwise."""
    return RECOMPUTE[recompute_level("auto", ops.storage)]


def split(launches: list[Launch], *outputs: DeviceArray | None) -> tuple[list[Launch], list[Launch]]:
    """The launches up to the last one that has one of ``outputs`` among its arguments, and those after it."""
    ptrs = {array.ptr for array in outputs if array is not None}
    last = max(i for i, launch in enumerate(launches) if ptrs & {address(value) for value in launch.args.values()})
    return launches[: last + 1], launches[last + 1 :]


def address(value: Any) -> int | None:
    """Where an argument lies that is an array, or a descriptor of one."""
    return getattr(getattr(value, "array", value), "ptr", None)


Maker = Callable[[Source], list[Case]]


def makers(ops: GpuOps, config: GPTConfig, B: int, T: int) -> dict[str, Maker]:
    """Functions that make the cases of one part of the model each, on fresh arrays at every call."""
    C, N = config.n_embd, B * T
    layers = {"c_attn": (C, 3 * C), "attn c_proj": (C, C), "c_fc": (C, 4 * C), "mlp c_proj": (4 * C, C)}
    return {
        "embedding": lambda new: _embedding(new, ops, config, B, T),
        "layer norm": lambda new: _norms(new, ops, config, N),
        **{name: partial(_linear, ops=ops, name=name, N=N, inner=i, outer=o) for name, (i, o) in layers.items()},
        "weights": lambda new: _weights(new, ops, C, N),
        "attention": lambda new: _attention(new, ops, config, B, T),
        "classifier": lambda new: _classifier(new, ops, config, B, T),
        "update": lambda new: _update(new, ops, config),
    }


def _embedding(new: Source, ops: GpuOps, config: GPTConfig, B: int, T: int) -> list[Case]:
    C, V, b, e = config.n_embd, config.vocab_size, ops.storage.dtype_bytes, ops.storage.exact_bytes
    N, sizes = B * T, {"B": B, "T": T, "C": C, "V": V}
    idx, out, wte, wpe = new.ids(B, T, below=V), new(B, T, C), new(V, C), new(config.block_size, C)
    with recorded(ops) as forward:
        ops.embedding(out, idx, wte, wpe)
    dwte, dwpe = new(V, C, exact=True), new(config.block_size, C, exact=True)
    with recorded(ops) as backward:
        ops.embedding_backward(dwte, dwpe, out, idx)
    rows = V * (1 - (1 - 1 / V) ** N)  # of dwte that N random ids touch
    return [
        Case("embedding", forward, 2 * N * C * b, peer={"op": "embedding", **sizes}),
        Case("embedding backward", backward, 2 * N * C * b + 2 * rows * C * e + T * C * e,
             peer={"op": "embedding_backward", **sizes}),
    ]  # fmt: skip


def _norms(new: Source, ops: GpuOps, config: GPTConfig, N: int) -> list[Case]:
    C, b = config.n_embd, ops.storage.dtype_bytes
    x, delta, out, residual = (new(N, C) for _ in range(4))
    weight, bias, mean, rstd = new(C), new(C), new(N, exact=True), new(N, exact=True)
    with recorded(ops) as plain:
        ops.layernorm(out, mean, rstd, x, weight, bias)
    with recorded(ops) as added:
        ops.add_layernorm(out, mean, rstd, residual, x, delta, weight, bias)
    dweight, dbias, dx_sum = (new(C, exact=True) for _ in range(3))
    with recorded(ops) as backward:
        ops.layernorm_backward(delta, dweight, dbias, out, x, mean, rstd, weight, delta, dx_sum=dx_sum)
    row, sizes = N * C * b, {"N": N, "C": C}
    return [
        Case("layer norm", plain, 2 * row, peer={"op": "layernorm", **sizes}),
        Case("add + layer norm", added, 4 * row, peer={"op": "add_layernorm", **sizes}),
        Case("layer norm backward + add + bias sums", backward, 4 * row, peer={"op": "layernorm_backward", **sizes}),
    ]


def _linear(new: Source, ops: GpuOps, name: str, N: int, inner: int, outer: int) -> list[Case]:
    """A linear layer's product and the gradient of its input, with what a block does in their epilogues."""
    b = ops.storage.dtype_bytes
    into, out_of, added = name == "c_fc", name == "mlp c_proj", "c_proj" in name  # GELU, GELU, the residual stream
    x, weight, bias, out = new(N, inner), new(inner, outer), new(outer), new(N, outer)
    pre = new(N, outer) if into else new(N, inner) if out_of else None
    with recorded(ops) as forward, ops.fusing():
        ops.linear(out, x, weight, bias, pre_gelu=pre if into else None)
        if added:  # by the product, if the layer norm that follows wants the sum
            stream, normed, mean, rstd = new(N, outer), new(N, outer), new(N, exact=True), new(N, exact=True)
            ops.add_layernorm(normed, mean, rstd, new(N, outer), stream, out, bias, bias)
    if added:
        forward.pop()
    dx, dweight, dout = new(N, inner), new(inner, outer, exact=True), new(N, outer)
    dx_sum = new(inner, exact=True) if out_of else None
    again = out_of and "act" in recomputed(ops)
    with recorded(ops) as backward:
        ops.linear_backward(dx, dweight, None, dout, x, weight, pre if out_of else None, dx_sum=dx_sum, x_again=again)
    of_dx, _ = split(backward, dx, dx_sum)
    flops, sizes = 2.0 * N * inner * outer, {"N": N, "inner": inner, "outer": outer}
    moved = (N * inner + inner * outer + N * outer) * b
    extra = " + GELU" if into else " + residual" if added else ""
    more = " x GELU gradient + bias sums" + (" + GELU" if again else "") if out_of else ""
    return [
        Case(name + extra, forward, moved + N * outer * b * (into + added), flops, {"op": "linear", **sizes}),
        Case(f"{name} dx{more}", of_dx, moved + N * inner * b * (out_of + again), flops, {"op": "linear_dx", **sizes}),
    ]


def _weights(new: Source, ops: GpuOps, C: int, N: int) -> list[Case]:
    """The gradients of weights, which a step makes two at a time, where ``fusing`` lets the first wait."""
    b, e, cases = ops.storage.dtype_bytes, ops.storage.exact_bytes, []
    for names, shapes in (
        ("mlp c_proj dW and c_fc dW", ((4 * C, C), (C, 4 * C))),
        ("attn c_proj dW and c_attn dW", ((C, C), (C, 3 * C))),
    ):
        inputs = []
        with recorded(ops) as launches, ops.fusing():
            for inner, outer in shapes:
                dx, x, dout, weight = new(N, inner), new(N, inner), new(N, outer), new(inner, outer)
                ops.linear_backward(dx, new(inner, outer, exact=True), None, dout, x, weight)
                inputs.append(dx)
        weights = sum(inner * outer for inner, outer in shapes)
        rows = sum(inner + outer for inner, outer in shapes)
        peer = {"op": "linear_dw", "N": N, "shapes": shapes}
        cases.append(Case(names, split(launches, *inputs)[1], N * rows * b + weights * e, 2.0 * N * weights, peer))
    return cases


def _attention(new: Source, ops: GpuOps, config: GPTConfig, B: int, T: int) -> list[Case]:
    C, H, b = config.n_embd, config.n_head, ops.storage.dtype_bytes
    qkv, out, lse = new(B, T, 3 * C), new(B, T, C), new(B, H, T, exact=True)
    dqkv, dout, sums = new(B, T, 3 * C), new(B, T, C), new(3 * C, exact=True)
    ops.attention(out, lse, qkv, H)  # backward reads what forward leaves
    with recorded(ops) as forward:
        ops.attention(out, lse, qkv, H)
    with recorded(ops) as backward:
        ops.attention_backward(dqkv, dout, out, lse, qkv, H, dqkv_sum=sums)
    flops, sizes = 2.0 * B * T * T * C, {"B": B, "T": T, "H": H, "D": config.head_dim}  # two products, half a square
    return [
        Case("attention", forward, 4 * B * T * C * b, flops, {"op": "attention", **sizes}),
        Case("attention backward + bias sums", backward, 8 * B * T * C * b, 2.5 * flops,
             {"op": "attention_backward", **sizes}),
    ]  # fmt: skip


def _classifier(new: Source, ops: GpuOps, config: GPTConfig, B: int, T: int) -> list[Case]:
    """One chunk of rows, as many as a step would take; dwte is added to, as by all chunks but the first."""
    C, V, b, e = config.n_embd, config.vocab_size, ops.storage.dtype_bytes, ops.storage.exact_bytes
    spare = spare_bytes(config, B, T, True, ops.storage, recomputed(ops))[1]
    R = classifier_rows(B * T, C, V, b, ops.target, spare)[0]
    x, wte, targets, losses = new(R, C), new(V, C), new.ids(R, below=V), new(R, exact=True)
    dx, dwte, room = new(R, C), new(V, C, exact=True), ops.empty((R * logits_stride(V) * b,), "u8")
    with recorded(ops) as launches:
        ops.classifier(losses, x, wte, targets, dx, dwte, 1.0 / R, True, room)
    logits, rest = split(launches, losses)
    softmax = [logits.pop()]
    of_dx, of_dw = split(rest, dx)
    flops, z, sizes = 2.0 * R * C * V, R * V * b, {"N": R, "C": C, "V": V}
    moved = (R * C + V * C) * b + z
    return [
        Case(f"logits, {R} rows", logits, moved, flops, {"op": "logits", **sizes}),
        Case("cross-entropy and its gradient", softmax, 2 * z, 0, {"op": "cross_entropy", **sizes}),
        Case("logits dx", of_dx, moved, flops, {"op": "logits_dx", **sizes}),
        Case("logits dW, added", of_dw, R * C * b + z + 2 * V * C * e, flops, {"op": "logits_dw", **sizes}),
    ]


def _update(new: Source, ops: GpuOps, config: GPTConfig) -> list[Case]:
    e, b = ops.storage.exact_bytes, ops.storage.dtype_bytes if ops.storage.rounds else 0
    n = min(config.n_params, MOST_PARAMETERS)
    master, grad, m, v = (new(n, exact=True) for _ in range(4))
    rounded, norm = new(n) if ops.storage.rounds else None, new(2, exact=True)
    with recorded(ops) as measure:
        ops.norm_and_clip(norm, grad, 1.0)
    with recorded(ops) as step:
        ops.adamw(master, grad, m, v, n // 2, 10, 1e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, rounded)
    return [
        Case("global norm", measure, n * e, peer={"op": "norm", "n": n}),
        Case("AdamW", step, n * (7 * e + b), peer={"op": "adamw", "n": n}),
    ]
