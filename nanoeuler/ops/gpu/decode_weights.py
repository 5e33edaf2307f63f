"""A model's weights as the decoding kernel reads them: one stream of records, bfloat16 or int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nanoeuler.formats.safetensors_file import to_bfloat16
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels.decode_prepare import Product, pack
from nanoeuler.ops.gpu.kernels.decode_shape import Shape, Weights
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
GROUP = 64  # inputs that share a scale


def own_weights(model: GPT, shape: Shape) -> Weights:
    """The model's own, as the engine computes with them: products packed, the rest shared with it."""
    ops = model.ops
    assert isinstance(ops, GpuOps)
    vectors = model.params[model.layout.n_decay :]
    stream = packed(ops, shape, vectors, lambda name: (model.p[name], None))
    return Weights(stream, model.p["wte.weight"], model.p["wpe.weight"], vectors)


def int8_weights(ops: GpuOps, config: GPTConfig, source: Any, shape: Shape) -> Weights:
    """From an ``Int8Weights`` (``inference/quantize.py``)."""
    names = [f"h.{i}.{part}" for i in range(config.n_layer) for part in _VECTORS] + ["ln_f.weight", "ln_f.bias"]
    vectors = _uploaded(ops, "bf16", to_bfloat16(np.concatenate([source.rest[name] for name in names])))
    positions = _uploaded(ops, "bf16", to_bfloat16(source.rest["wpe.weight"]))

    def matrix(name: str) -> tuple[DeviceArray, DeviceArray]:
        return _uploaded(ops, "i8", source.q[name]), _uploaded(ops, "bf16", source.scale[name])

    embedding = matrix("wte.weight")
    stream = packed(ops, shape, vectors, lambda name: embedding if name == "wte.weight" else matrix(name))
    return Weights(stream, embedding[0], positions, vectors, embedding[1])


def packed(
    ops: GpuOps, shape: Shape, vectors: DeviceArray, matrix: Callable[[str], tuple[DeviceArray, DeviceArray | None]]
) -> DeviceArray:
    """The stream; ``matrix``: a parameter by name, and its scales."""
    C, part = shape.C, shape.part_bytes
    stream = ops.zeros((shape.programs * part,), "i8")

    def put(product: Product, index: int, offset: int) -> None:
        for launch in pack(stream, product, shape.records[index], offset, part, target=ops.target):
            ops.runtime.launch(launch)

    for layer in range(shape.layers):
        own = vectors[layer * 13 * C : (layer + 1) * 13 * C]
        norms = ((own[:C], own[C : 2 * C]), (None, None), (own[6 * C : 7 * C], own[7 * C : 8 * C]), (None, None))
        biases = (own[2 * C : 5 * C], own[5 * C : 6 * C], own[8 * C : 12 * C], own[12 * C :])
        offset = layer * shape.layer_bytes
        for i, (name, norm, bias) in enumerate(zip(MATRICES, norms, biases)):
            w, scales = matrix(f"h.{layer}.{name}.weight")
            put(Product(w, False, scales, *norm, bias), i, offset)
            offset += shape.records[i].size * shape.records[i].count
    last = vectors[shape.layers * 13 * C :]
    w, scales = matrix("wte.weight")
    put(Product(w, True, scales, last[:C], last[C : 2 * C]), 4, shape.layers * shape.layer_bytes)
    return stream


_VECTORS = (
    *("ln_1.weight", "ln_1.bias", "attn.c_attn.bias", "attn.c_proj.bias"),
    *("ln_2.weight", "ln_2.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"),
)


def _uploaded(ops: GpuOps, dtype: str, values: np.ndarray) -> DeviceArray:
    """A device array of the bytes of ``values`` (bfloat16 as uint16)."""
    array = ops.empty(values.shape, dtype)
    ops.upload(array.reshape(-1).view(np.uint8), np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    return array


def read_bytes(config: GPTConfig, int8: bool) -> int:
    """Bytes of weights that every token reads."""
    C = config.n_embd
    n = config.vocab_size * C + config.n_layer * 12 * C * C
    return n + 2 * (n // GROUP) if int8 else 2 * n
