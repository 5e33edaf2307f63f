"""The parameter table: every tensor's name and shape, as views into one flat buffer.

One buffer means one AdamW call, one norm, one file write and one upload for the whole model. The matrices
(two dimensions: weight decay applies to them) come first and the vectors (gains and biases: it does not)
after, so decay needs no mask, just a boundary: ``n_decay``.

Names and shapes are those of GPT-2's published checkpoints, with weights as (in, out).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.table import Array


@dataclass(frozen=True)
class TensorSpec:
    """One parameter: its name, shape and place in the flat buffer (in elements)."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def tensor_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a GPT-2, in the order in which the network uses them."""
    C = config.n_embd
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.vocab_size, C), "wpe.weight": (config.block_size, C)}
    for i in range(config.n_layer):
        block = {
            "ln_1.weight": (C,),
            "ln_1.bias": (C,),
            "attn.c_attn.weight": (C, 3 * C),
            "attn.c_attn.bias": (3 * C,),
            "attn.c_proj.weight": (C, C),
            "attn.c_proj.bias": (C,),
            "ln_2.weight": (C,),
            "ln_2.bias": (C,),
            "mlp.c_fc.weight": (C, 4 * C),
            "mlp.c_fc.bias": (4 * C,),
            "mlp.c_proj.weight": (4 * C, C),
            "mlp.c_proj.bias": (C,),
        }
        shapes.update({f"h.{i}.{name}": shape for name, shape in block.items()})
    shapes["ln_f.weight"] = (C,)
    shapes["ln_f.bias"] = (C,)
    return shapes


class Layout:
    """Where each tensor lies in the flat buffer: matrices first, then vectors.

    >>> layout = Layout(GPTConfig())
    >>> layout.n_params, layout.n_decay
    (124439808, 124318464)
    >>> layout["h.0.attn.c_attn.weight"].shape
    (768, 2304)
    """

    def __init__(self, config: GPTConfig) -> None:
        shapes = tensor_shapes(config)
        ordered = [n for n in shapes if len(shapes[n]) == 2] + [n for n in shapes if len(shapes[n]) == 1]
        self.specs: dict[str, TensorSpec] = {}
        offset = 0
        for name in ordered:
            self.specs[name] = TensorSpec(name, shapes[name], offset)
            offset += self.specs[name].size
        self.n_params = offset
        self.n_decay = sum(s.size for s in self.specs.values() if len(s.shape) == 2)

    def __getitem__(self, name: str) -> TensorSpec:
        return self.specs[name]

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.specs.values())

    def views(self, flat: Array) -> dict[str, Array]:
        """Named views into a flat buffer of ``n_params`` elements."""
        return {s.name: flat[s.offset : s.offset + s.size].reshape(s.shape) for s in self}


def init_parameters(config: GPTConfig, seed: int) -> np.ndarray:
    """A fresh GPT-2 as a flat float32 buffer (n_params,).

    Weights and embeddings are normal with standard deviation ``init_std`` (GPT-2's is 0.02); the two projections back
    into the residual stream are scaled by ``1/sqrt(2 n_layer)``, so that the sum of 2 n_layer branches keeps its
    variance (Radford et al. 2019, section 2.3). Gains are 1 and biases 0. Each tensor draws from a stream of its
    own, keyed by its name, so the numbers do not depend on the order of the tensors.
    """
    if not isinstance(seed, Integral):
        raise UserError(f"seed must be a whole number, not {seed!r}")
    layout = Layout(config)
    flat = np.zeros(layout.n_params, np.float32)
    for name, view in layout.views(flat).items():
        if view.ndim == 2:
            stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
            rng = np.random.Generator(np.random.Philox(key=[seed, stream]))
            std = config.init_std / (math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 1.0)
            view[...] = rng.standard_normal(view.shape, dtype=np.float32) * np.float32(std)
        elif name.endswith("weight"):
            view[...] = 1.0
    return flat


def as_parameters(values: np.ndarray, n: int) -> np.ndarray:
    """``values`` as the flat buffer of a model with ``n`` parameters. UserError if they are something else."""
    flat = np.asarray(values)
    if flat.shape != (n,) or flat.dtype.kind != "f":
        raise UserError(f"params must be {n} numbers in one row, not {flat.dtype} of shape {flat.shape}")
    return flat
