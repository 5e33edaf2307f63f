"""A GPT-2 in 8 bits as a folder: ``config.json`` that says so, and ``model.safetensors`` with numbers and scales.

Beside each matrix NAME (I8) lies NAME_scale (BF16), see :mod:`nanoeuler.inference.quantize`; all else is F32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from nanoeuler.durable import write_errors, write_text
from nanoeuler.errors import UserError
from nanoeuler.formats.huggingface import CONFIG, MODEL, PREFIX, config_json, int8_group, read_config
from nanoeuler.formats.safetensors_file import TensorFile, to_bfloat16, write_tensors
from nanoeuler.inference.quantize import GROUP, Int8Weights, group_axis, is_quantized
from nanoeuler.model.parameters import Layout

SCALE = "_scale"
QUANTIZATION = {"quant_method": "nanoeuler", "bits": 8, "group_size": GROUP}


def is_int8(folder: Path) -> bool:
    """Whether the folder holds a model in 8 bits."""
    return int8_group(folder) is not None


def save_int8(folder: Path, weights: Int8Weights, eos_token_id: int | None = None) -> None:
    """Write the folder; each file whole or not at all. Raises UserError if it cannot be written."""
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for spec in Layout(weights.config):
        name = PREFIX + spec.name
        if spec.name in weights.q:
            tensors |= {name: weights.q[spec.name], name + SCALE: weights.scale[spec.name]}
        else:
            tensors[name] = weights.rest[spec.name]
    write_tensors(folder / MODEL, tensors)
    config = config_json(weights.config, eos_token_id=eos_token_id) | {"quantization_config": QUANTIZATION}
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def load_int8(folder: Path) -> Int8Weights:
    """Read the folder. Raises UserError, naming the file, if something is missing, damaged or of another shape."""
    group = int8_group(folder)
    if group is None:
        raise UserError(f"{folder} holds no model in 8 bits: make one with: nanoeuler quantize")
    if group != GROUP:
        raise UserError(f"{folder / CONFIG}: groups of {group} weights are not supported: only {GROUP}")
    out = Int8Weights(read_config(folder), {}, {}, {})
    with TensorFile(folder / MODEL) as file:
        for spec in Layout(out.config):
            name = PREFIX + spec.name
            if not is_quantized(spec.name):
                out.rest[spec.name] = _read(file, name, spec.shape, "F32", np.float32)
                continue
            out.q[spec.name] = _read(file, name, spec.shape, "I8", np.int8)
            shape = list(spec.shape)
            axis = group_axis(spec.name)
            shape[axis] = -(-shape[axis] // GROUP)
            scale = _read(file, name + SCALE, tuple(shape), "BF16", np.float32)
            if (scale < 0).any():
                raise UserError(f"{file.path}: {name + SCALE} has negative numbers: the file is damaged")
            out.scale[spec.name] = to_bfloat16(scale)
        expected = {PREFIX + n for n in (*out.rest, *out.q)} | {PREFIX + n + SCALE for n in out.scale}
        if more := sorted(set(file.tensors) - expected):
            raise UserError(f"{file.path}: {CONFIG} knows nothing of the tensor {more[0]}: they do not belong together")
    return out


def _read(file: TensorFile, name: str, shape: tuple[int, ...], stored: str, dtype: type) -> np.ndarray:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise UserError(f"{file.path}: the tensor {name} is missing: make the folder again with: nanoeuler quantize")
    if tensor.shape != shape or tensor.dtype != stored:
        raise UserError(
            f"{file.path}: {name} is {tensor.dtype} {tensor.shape}, but {CONFIG} asks for {stored} {shape}: "
            "make the folder again with: nanoeuler quantize"
        )
    out: np.ndarray = np.empty(shape, dtype)
    file.read(name, out)
    if dtype is np.float32 and not np.isfinite(out).all():
        raise UserError(f"{file.path}: {name} has numbers that are not finite: the file is damaged")
    return out
