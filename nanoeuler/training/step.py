"""One optimizer step: gradients summed over some batches, clipped, and AdamW.

Two ways to do it, with the same result: :class:`EagerStep` calls one operation after the other and has the loss at
once; a GPU's recorded step (``ops/gpu/step.py``) hands over the whole step, goes on, and tells the loss a step later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from nanoeuler.data.loader import Batch
from nanoeuler.data.permutation import hash64
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.table import Array
from nanoeuler.training.config import TrainConfig

Fetch = Callable[[int, Batch], object]  # (number of the batch, arrays to write it into)


class StepDone(NamedTuple):
    """What a step came to. ``step`` counts from 1; ``norm`` is the gradient's before clipping.

    Where loss or norm is not finite, the step has left the parameters as they were.
    """

    step: int
    loss: float
    norm: float
    lr: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Stepper(Protocol):
    """Runs steps in order."""

    def run(self, step: int, lr: float) -> list[StepDone]:
        """Run step number ``step`` (from 1); returns the steps, if any, that are done and not yet told."""

    def finish(self) -> list[StepDone]:
        """Wait for all steps; returns those not yet told."""


def new_stepper(model: GPT, moments: tuple[Array, Array], config: TrainConfig, T: int, fetch: Fetch) -> Stepper:
    """The stepper for ``model``'s engine. Batches have ``config.batch_size`` sequences of ``T`` tokens."""
    if config.device.startswith("gpu"):
        from nanoeuler.ops.gpu.step import RecordedStep

        return RecordedStep(model, moments, config, T, fetch)
    return EagerStep(model, moments, config, T, fetch)


class EagerStep:
    """A step as a row of calls, each done when it returns."""

    def __init__(self, model: GPT, moments: tuple[Array, Array], config: TrainConfig, T: int, fetch: Fetch) -> None:
        self.model, self.moments, self.config, self.fetch = model, moments, config, fetch
        shape = (config.batch_size, T)
        self.batch = np.empty(shape, np.int32), np.empty(shape, np.int32)

    def run(self, step: int, lr: float) -> list[StepDone]:
        c, model = self.config, self.model
        loss = 0.0
        for i in range(c.grad_accum):
            n = (step - 1) * c.grad_accum + i
            self.fetch(n, self.batch)
            seed = dropout_seed(c.seed, n)
            scale = 1.0 / c.grad_accum
            loss += model.loss_and_grad(*self.batch, seed=seed, scale=scale, accumulate=i > 0) / c.grad_accum
        norm = model.ops.global_norm(model.grads)
        done = StepDone(step, loss, norm, lr)
        if done.finite:
            clip = min(1.0, c.grad_clip / (norm + 1e-6)) if c.grad_clip else 1.0  # as torch's clip_grad_norm_
            model.update(self.moments, step, lr, c.beta1, c.beta2, c.eps, c.weight_decay, clip)
        return [done]

    def finish(self) -> list[StepDone]:
        return []


def dropout_seed(seed: int, n: int) -> int:
    """The seed (uint32) of the dropout masks of batch ``n``."""
    return hash64(seed, n) & 0xFFFFFFFF
