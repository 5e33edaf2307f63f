"""Ctrl-C that ends a run in good order: the first asks, the second kills."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While entered, SIGINT and SIGTERM only set :attr:`signal`; a second one acts as it did before.

    Python delivers signals to the main thread alone, so in any other this does nothing.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            # None: installed by a C program that embeds us; the default is the nearest we can restore
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
