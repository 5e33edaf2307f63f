"""What two workers need who run kernels at the same time (``model/data_parallel.py``): threads and records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numba

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


class Recorder:
    """Calls kernels, and notes them while it is told to. ``threads``: how many each kernel runs on."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._calls: list[Call] | None = None

    def _run(self, kernel: Callable[..., Any], *arguments: Any) -> None:
        if self._calls is not None:
            self._calls.append((kernel, arguments))
        kernel(*arguments)

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Inside, every kernel that a training step calls is also noted, with its arguments, to be called again."""
        self._calls = []
        try:
            yield self._calls
        finally:
            self._calls = None

    @contextmanager
    def own_threads(self) -> Iterator[None]:
        """Inside, the calling thread's kernels run on as many threads as this engine has."""
        before = numba.get_num_threads()
        numba.set_num_threads(self.threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)

    @staticmethod
    def can_share(threads: int) -> bool:
        """Whether two threads may each have kernels run by ``threads`` threads at the same time.

        One thread runs kernels by itself. More come from Numba, whose simplest set of them obeys one master only.
        """
        return threads == 1 or numba.threading_layer() != "workqueue"
