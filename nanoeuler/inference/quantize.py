"""Weights in 8 bits: a whole number from -127 to 127 for each, and a scale for every 64 that a product sums together.

``w ~ q * scale`` with ``scale = max |w| / 127`` of its group, so the rounding error of a weight is at most half a
scale: 0.4 % of the largest weight of its group. Groups run along the inputs of the product (for the tied head: the
channels), so a product can sum each group in whole numbers and scale the sum once. A scale is stored as bfloat16,
rounded *up*, before the weights are divided by it: then nothing is lost but a little range.

A folder written by :func:`save_int8` has for each matrix NAME (embedding of positions excepted) the tensor NAME, of the
same shape, as I8, and NAME_scale as BF16: (groups, out) beside (in, out), and (V, groups) beside the head's (V, C). All
else is F32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.model.config import GPTConfig

GROUP = 64


@dataclass
class Int8Weights:
    """A GPT-2 in 8 bits: ``q`` and ``scale`` (bfloat16 bits) of its matrices, ``rest`` in float32, by name."""

    config: GPTConfig
    q: dict[str, np.ndarray]
    scale: dict[str, np.ndarray]
    rest: dict[str, np.ndarray]

    def dequantize(self, name: str) -> np.ndarray:
        """The float32 matrix that the numbers stand for."""
        q, scale = self.q[name], from_bfloat16(self.scale[name])
        axis = group_axis(name)
        return q * np.repeat(scale, GROUP, axis)[tuple(slice(n) for n in q.shape)]

    def state(self) -> Iterator[tuple[str, np.ndarray]]:
        """All tensors in float32, one at a time."""
        for name in self.q:
            yield name, self.dequantize(name)
        yield from self.rest.items()


def is_quantized(name: str) -> bool:
    """Whether a parameter is one of the matrices that products read."""
    return name == "wte.weight" or name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def group_axis(name: str) -> int:
    """The axis of a matrix that groups run along: its inputs."""
    return 1 if name == "wte.weight" else 0


def quantize(config: GPTConfig, state: dict[str, np.ndarray]) -> Int8Weights:
    """A model's parameters in 8 bits.

    >>> w = np.array([[127.0, -1.0], [63.4, 0.5]], np.float32)
    >>> out = quantize(GPTConfig(), {"h.0.mlp.c_fc.weight": w})
    >>> out.q["h.0.mlp.c_fc.weight"], from_bfloat16(out.scale["h.0.mlp.c_fc.weight"])
    (array([[ 127, -126],
           [  63,   63]], dtype=int8), array([[1.        , 0.00793457]], dtype=float32))
    """
    out = Int8Weights(config, {}, {}, {})
    for name, w in state.items():
        if is_quantized(name):
            out.q[name], out.scale[name] = quantize_matrix(w, group_axis(name))
        else:
            out.rest[name] = np.array(w, np.float32)
    return out


def quantize_matrix(w: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(q int8, scale as bfloat16 bits) of a matrix, in groups along ``axis``."""
    n = w.shape[axis]
    largest = np.maximum.reduceat(np.abs(w), np.arange(0, n, GROUP), axis).astype(np.float32)
    scale = round_up(largest / np.float32(127))
    each = np.repeat(from_bfloat16(scale), GROUP, axis)[tuple(slice(n) for n in w.shape)]
    q = np.divide(w, each, out=np.zeros(w.shape, np.float32), where=each > 0)
    return np.clip(np.rint(q), -127, 127).astype(np.int8), scale


def round_up(x: np.ndarray) -> np.ndarray:
    """The smallest bfloat16 (as bits) that is at least ``x`` >= 0.

    >>> from_bfloat16(round_up(np.array([1.0, 1.001, 0.0], np.float32)))
    array([1.       , 1.0078125, 0.       ], dtype=float32)
    """
    bits = to_bfloat16(x)
    return np.where(from_bfloat16(bits) < x, bits + np.uint16(1), bits).astype("<u2")
