"""A model's weights as the decoding kernels read them: products (out, in), a row after the other, bfloat16 or int8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanoeuler.formats.safetensors_file import to_bfloat16
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels.decode import Weights
from nanoeuler.ops.gpu.kernels.decode_prepare import transpose
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
GROUP = 64  # inputs that share a scale


def rows_of(config: GPTConfig) -> list[tuple[int, int]]:
    """(out, in) of the four products of a layer."""
    C = config.n_embd
    return [(3 * C, C), (C, C), (4 * C, C), (C, 4 * C)]


def own_weights(model: GPT) -> Weights:
    """The model's own, as the engine computes with them: its four products turned over, the rest shared with it."""
    ops, config = model.ops, model.config
    assert isinstance(ops, GpuOps)
    products: list[Any] = []
    for name, shape in zip(MATRICES, rows_of(config)):
        turned = ops.empty((config.n_layer, *shape))
        for i in range(config.n_layer):
            for launch in transpose(turned[i], model.p[f"h.{i}.{name}.weight"], target=ops.target):
                ops.runtime.launch(launch)
        products.append(turned)
    vectors = model.params[model.layout.n_decay :]
    qkv, out, fc, back = products
    return Weights(qkv, out, fc, back, model.p["wte.weight"], model.p["wpe.weight"], vectors)


def int8_weights(ops: GpuOps, config: GPTConfig, source: Any) -> Weights:
    """From an ``Int8Weights`` (``inference/quantize.py``)."""

    def matrix(name: str) -> tuple[np.ndarray, np.ndarray]:
        q, scale = source.q[name], source.scale[name]
        return (q, scale) if name == "wte.weight" else (q.T, scale.T)

    products: list[Any] = []
    scales: list[Any] = []
    for name, (rows, inner) in zip(MATRICES, rows_of(config)):
        layers = [matrix(f"h.{i}.{name}.weight") for i in range(config.n_layer)]
        products.append(_uploaded(ops, (config.n_layer, rows, inner), "i8", [q for q, _ in layers]))
        scales.append(_uploaded(ops, (config.n_layer, rows, -(-inner // GROUP)), "bf16", [s for _, s in layers]))
    q, scale = matrix("wte.weight")
    wte = _uploaded(ops, (1, *q.shape), "i8", [q]).reshape(q.shape)
    scales.append(_uploaded(ops, (1, *scale.shape), "bf16", [scale]).reshape(scale.shape))
    names = [f"h.{i}.{part}" for i in range(config.n_layer) for part in _VECTORS] + ["ln_f.weight", "ln_f.bias"]
    flat = np.concatenate([source.rest[name] for name in names])
    vectors = _uploaded(ops, (1, flat.size), "bf16", [to_bfloat16(flat)]).reshape(-1)
    positions = source.rest["wpe.weight"]
    wpe = _uploaded(ops, (1, *positions.shape), "bf16", [to_bfloat16(positions)]).reshape(positions.shape)
    qkv, out, fc, back = products
    return Weights(qkv, out, fc, back, wte, wpe, vectors, tuple(scales))


_VECTORS = (
    *("ln_1.weight", "ln_1.bias", "attn.c_attn.bias", "attn.c_proj.bias"),
    *("ln_2.weight", "ln_2.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"),
)


def _uploaded(ops: GpuOps, shape: tuple[int, ...], dtype: str, parts: Sequence[np.ndarray]) -> DeviceArray:
    """A device array whose i-th part is the bytes of ``parts[i]`` (bfloat16 as uint16)."""
    array = ops.empty(shape, dtype)
    for i in range(shape[0]):
        raw = np.ascontiguousarray(parts[i])
        target = array[i].reshape(-1).view(np.uint8)
        ops.upload(target, raw.reshape(-1).view(np.uint8))
    return array


def read_bytes(config: GPTConfig, int8: bool) -> int:
    """Bytes of weights that every token reads."""
    C = config.n_embd
    n = config.vocab_size * C + config.n_layer * 12 * C * C
    return n + 2 * (n // GROUP) if int8 else 2 * n
