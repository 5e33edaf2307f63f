"""How fast training goes, without what is not training."""

from __future__ import annotations

from time import perf_counter


class Speed:
    """Seconds a step, smoothed. The first step of a session compiles kernels, so it counts only until the second."""

    def __init__(self, weight: float = 0.1) -> None:
        self.weight = weight  # of the newest step in the running mean
        self.steps = 0
        self.seconds_per_step = 0.0
        self.restart()

    def restart(self) -> None:
        """The next step begins now: call it after an evaluation or a checkpoint."""
        self._began = perf_counter()

    def step(self) -> None:
        """A step ends now, and the next begins."""
        now = perf_counter()
        took, self._began = now - self._began, now
        self.steps += 1
        weight = self.weight if self.steps > 2 else 1.0
        self.seconds_per_step += weight * (took - self.seconds_per_step)

    def seconds_for(self, steps: int) -> float | None:
        """How long ``steps`` more will take; None while that is not known."""
        return steps * self.seconds_per_step if self.steps > 1 else None
