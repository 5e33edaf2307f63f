"""The learning rate as a function of the step: no state, so a resumed run needs nothing but the step number."""

import math

from nanoeuler.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of step ``step``, counted from 0.

    All schedules rise linearly over ``warmup`` steps, ``lr * (step+1)/(warmup+1)``, so that no step is wasted at
    zero. Then, with ``t`` the share of the remaining steps that is done:

    - ``cosine``: ``min_lr + (lr - min_lr) * (1 + cos(pi t))/2`` (Loshchilov & Hutter 2017, "SGDR", one period);
    - ``linear``: a straight line from ``lr`` to ``min_lr``;
    - ``constant``: ``lr``;
    - ``wsd`` (warmup, stable, decay; Hu et al. 2024, "MiniCPM"): ``lr``, then a straight line to ``min_lr`` over the
      last ``decay_fraction`` of all steps. Only the end depends on the length of the run, so it can be moved.
      Where warmup and decay overlap, in a run cut short, warmup comes first.

    >>> config = TrainConfig(lr=1.0, min_lr=0.0, warmup=3, steps=11)
    >>> [round(learning_rate(config, s), 3) for s in (0, 1, 2, 3, 7, 11)]
    [0.25, 0.5, 0.75, 1.0, 0.5, 0.0]
    """
    low, warmup = config.final_lr, config.warmup_steps
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.lr
    start = warmup
    if config.schedule == "wsd":
        start = config.steps - round(config.decay_fraction * config.steps)
    if step <= start:
        return config.lr
    t = min(1.0, (step - start) / (config.steps - start)) if config.steps > start else 1.0
    share = 0.5 * (1.0 + math.cos(math.pi * t)) if config.schedule == "cosine" else 1.0 - t
    return low + share * (config.lr - low)
