"""A small model's batch in two halves, each on cores of its own: data parallelism within a process.

Cut operation by operation, a step of a small model is some 150 short parallel regions. At each of them the quicker core
waits for the slower, and half of what a core reads it has to fetch from the other's cache. Here a worker takes half of
the sequences, and runs forward and backward over them without meeting the other one; only at the end are the two
gradients added. A worker goes through its half in micro-batches of about ROWS rows, so that what a layer passes on to
the next stays in the core's own cache (192 rows of a model 128 wide: 0.8 MB a layer), and adds up their gradients.

There are two workers whatever the number of threads: on one core they run one after the other, on eight they have four
each. So the bits of a gradient do not depend on the number of threads.

A micro-batch's operations are the same in every step, on the same arrays. They are recorded the first time and then
called again from the record, which leaves Python 1 us an operation in place of 12; the two workers hardly meet at the
interpreter's lock.

The price is a second gradient, so models above MAX_PARAMS parameters take a batch whole, as do batches that do not
divide evenly, and training with dropout.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.model.activations import Activations
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.storage import Storage

if TYPE_CHECKING:
    from nanoeuler.model.gpt import GPT

ROWS = 192
MAX_PARAMS = 4_000_000
PROGRAMS = 8  # records that a worker keeps: their number grows with sizes and scales that come in turns

_beside = ThreadPoolExecutor(1, "nanoeuler-worker")  # starts its thread when it is first used


def micro_batches(config: GPTConfig, B: int, T: int, storage: Storage) -> tuple[tuple[int, ...], ...]:
    """The sizes of each worker's micro-batches of a batch of B sequences; none if it is better taken whole.

    >>> from nanoeuler.ops.storage import STORAGE
    >>> micro_batches(GPTConfig(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128), 12, 64, STORAGE["cpu"])
    ((3, 3), (3, 3))
    """
    if not storage.workers or config.dropout or config.n_params > MAX_PARAMS or 10 * (-(-B // 2)) > 11 * B / 2:
        return ()
    halves = (-(-B // 2), B // 2)
    n = min(halves[1], max(1, round(halves[0] * T / ROWS)))
    return tuple(tuple(half // n + (i < half % n) for i in range(n)) for half in halves)


class DataParallel:
    """Computes gradients of ``model`` for batches of (B, T) with two workers; ``sizes`` from :func:`micro_batches`."""

    def __init__(self, model: GPT, T: int, sizes: tuple[tuple[int, ...], ...]) -> None:
        ops: Any = model.ops  # has more than the table asks for: sibling, recording, add and so on
        self.ops, self.T, self.sizes = ops, T, sizes
        each = max(1, ops.threads // 2)
        self.together = ops.threads > 1 and ops.can_share(each)
        self.grads = model.grads, ops.empty((model.layout.n_params,), ops.exact)
        engines = [ops.sibling(each if self.together else ops.threads) for _ in self.grads]
        self.workers = [Worker(model, own, grads, T) for own, grads in zip(engines, self.grads)]

    def loss_and_grad(self, x: np.ndarray, y: np.ndarray, scale: float, accumulate: bool) -> float:
        """Sum of the losses of ``y`` (B, T) after ``x`` (B, T), gradients of ``scale`` times it into the model's."""
        first, second = self.workers
        middle = sum(self.sizes[0])
        halves = (x[:middle], y[:middle], self.sizes[0]), (x[middle:], y[middle:], self.sizes[1])
        if self.together:
            other = _beside.submit(second.run, *halves[1], scale, False)
            try:
                loss = first.run(*halves[0], scale, accumulate)
            finally:  # an interrupt must not leave a worker behind that writes into the arrays of the next step
                loss_of_other = other.result()
        else:
            loss = first.run(*halves[0], scale, accumulate)
            loss_of_other = second.run(*halves[1], scale, False)
        self.ops.add(*self.grads)
        return loss + loss_of_other


class Worker:
    """Forward and backward over micro-batches, with activations, gradients and scratch of its own."""

    def __init__(self, model: GPT, ops: Any, grads: Any, T: int) -> None:
        self.model, self.ops, self.T = copy.copy(model), ops, T
        self.model.ops = ops
        self.model.grads, self.model.g = grads, model.layout.views(grads)
        self.activations: dict[int, Activations] = {}  # by the number of sequences
        self.programs: dict[tuple[int, float, bool], list[Any]] = {}

    def run(self, x: np.ndarray, y: np.ndarray, sizes: tuple[int, ...], scale: float, accumulate: bool) -> float:
        """Sum of the losses; the gradient of ``scale`` times it into (``accumulate``: added to) this worker's."""
        loss, at = 0.0, 0
        with self.ops.own_threads():
            for size in sizes:
                loss += self._micro_batch(x[at : at + size], y[at : at + size], scale, accumulate or at > 0)
                at += size
        return loss

    def _micro_batch(self, x: np.ndarray, y: np.ndarray, scale: float, accumulate: bool) -> float:
        size = len(x)
        if size not in self.activations:
            model = self.model
            self.activations[size] = Activations(self.ops, model.config, size, self.T, True, model.recompute)
        a = self.activations[size]
        self.ops.upload(a.idx, x)
        self.ops.upload(a.targets, y.reshape(-1))
        key = size, scale, accumulate
        if key not in self.programs:
            if len(self.programs) >= PROGRAMS:
                self.programs.clear()
            with self.ops.recording() as calls:
                self.model.forward(a)
                self.model.backward(a, scale, accumulate=accumulate)
            self.programs[key] = calls
        else:
            for kernel, arguments in self.programs[key]:
                kernel(*arguments)
        return float(a.losses.sum(dtype=np.float64))
