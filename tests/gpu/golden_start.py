"""The models and batches of the GPU's golden values, made anew from seeds: what is stored is only what PyTorch said."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass

import numpy as np

from nanoeuler.model.config import GPTConfig
from nanoeuler.model.parameters import Layout, init_parameters

SAMPLES = 200  # elements of each gradient that are compared


@dataclass(frozen=True)
class Golden:
    """A model, the size of its batches, and how many steps it trains."""

    config: GPTConfig
    B: int
    T: int
    steps: int
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0

    @functools.cache  # noqa: B019 - there are two of these in all
    def parameters(self) -> np.ndarray:
        """(n_params,) float32: far enough from GPT-2's start that every part of the network matters."""
        flat = init_parameters(self.config, seed=11)
        rng = np.random.default_rng(12)
        for view in Layout(self.config).views(flat).values():
            if view.ndim == 1:
                view += 0.1 * rng.standard_normal(view.shape, dtype=np.float32)
        return flat

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and targets (B, T) of step ``step``, from 1. Ids are uneven, as in a text, so there is to learn."""
        rng = np.random.default_rng([13, step])
        ids = (self.config.vocab_size * rng.random((self.B, self.T + 1)) ** 3).astype(np.int32)
        return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])

    def fingerprint(self) -> int:
        """Of all the numbers above: golden values belong to these only."""
        crc = zlib.crc32(self.parameters().tobytes())
        for step in range(1, self.steps + 1):
            for ids in self.batch(step):
                crc = zlib.crc32(ids.tobytes(), crc)
        return crc

    def sample(self, gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Some elements of each gradient, always the same, from those that are not zero by what they mean."""
        chosen = {}
        for name, g in gradients.items():
            rng = np.random.default_rng([14, zlib.crc32(name.encode())])
            if name == "wpe.weight":
                g = g[: self.T]
            if name == "wte.weight":
                g = g[np.unique(np.concatenate([ids.ravel() for ids in self.batch(1)]))]
            if name.endswith("c_attn.bias"):
                C = self.config.n_embd
                g = np.delete(g, np.s_[C : 2 * C])  # a bias on the keys has no gradient, only rounding
            at = rng.choice(g.size, min(SAMPLES, g.size), replace=False)
            chosen[name] = g.reshape(-1)[at]
        return chosen


GOLDENS = {
    "odd": Golden(GPTConfig(65, 1000, n_layer=3, n_head=3, n_embd=192, init_std=0.1), B=2, T=1000, steps=10),
    "gpt2": Golden(GPTConfig(init_std=0.05), B=1, T=1024, steps=1),
}
"""``odd``: nothing is a power of two. ``gpt2``: GPT-2 124M, one step."""
