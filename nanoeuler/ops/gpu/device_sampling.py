"""What the kernels of ``kernels/sampling.py`` need besides logits: each row's settings, and scratch memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernels import sampling as smp
from nanoeuler.ops.gpu.kernels.spec import Launch
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

RING = 64  # turns whose ids are kept on the device
ROUNDING = 1e-12  # as in ``sampling.top_p``


def can_choose(configs: Sequence[SamplingConfig]) -> bool:
    """Whether the device can choose by these settings: a penalty on what was there before is for the host."""
    return all(config.repetition_penalty == 1 for config in configs)


class Sampler:
    """Chooses tokens for up to ``n`` rows of logits over ``n_vocab`` ids. ``drawn`` (RING, n): ids by turns."""

    def __init__(self, ops: GpuOps, n: int, n_vocab: int) -> None:
        self.ops, self.n, self.n_vocab = ops, n, n_vocab
        self.settings, self.choice = ops.zeros((2, n), "fp64"), ops.zeros((smp.CHOICES, n), "i32")
        self.drawn = ops.zeros((RING, n), "i32")
        self.scratch = {name: ops.zeros(*spec) for name, spec in smp.scratch_shapes(n, n_vocab).items()}

    def set(self, configs: Sequence[SamplingConfig], samples: Sequence[int], positions: Sequence[int]) -> None:
        """The rows' settings and the keys of their random numbers; the next turn is number 0. Other rows are greedy."""
        settings, choice = np.zeros((2, self.n)), np.zeros((smp.CHOICES, self.n), np.int32)
        words = choice.view(np.uint32)
        for i, (config, sample, position) in enumerate(zip(configs, samples, positions)):
            settings[smp.INVERSE, i] = min(1 / config.temperature, 1e300) if config.temperature else 0.0
            settings[smp.TOP_P, i] = config.top_p - ROUNDING if config.top_p < 1 else np.inf
            choice[smp.TOP_K, i] = min(config.top_k or smp.ALL, smp.ALL)
            for row, key in ((smp.SEED, config.seed), (smp.SAMPLE, sample)):
                words[row, i], words[row + 1, i] = key & 0xFFFFFFFF, key >> 32
            choice[smp.FIRST, i] = position
        self.ops.upload(self.settings, settings)
        self.ops.upload(self.choice, choice)

    def launches(
        self, tokens: DeviceArray, positions: DeviceArray, logits: DeviceArray, rows: int, n_valid: int,
        configs: Sequence[SamplingConfig], epochs: DeviceArray | None = None,
    ) -> list[Launch]:  # fmt: skip
        """Choose the next token of the first ``rows``; which kernels that takes depends on ``configs``."""
        return smp.sample(
            tokens, positions, self.drawn, logits, self.settings, self.choice, self.scratch, rows, n_valid,
            self.n_vocab, *cuts(configs), epochs, target=self.ops.target,
        )  # fmt: skip


def cuts(configs: Sequence[SamplingConfig]) -> tuple[bool, bool]:
    """(whether any row takes only the k most probable, whether any only a share p of the mass)."""
    chance = [config for config in configs if config.temperature]
    return any(config.top_k for config in chance), any(config.top_p < 1 for config in chance)
