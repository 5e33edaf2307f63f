"""Ending a text at a string, while it streams."""

from __future__ import annotations

from collections.abc import Sequence

from nanoeuler.errors import UserError


class StopStrings:
    """Passes text through until one of ``stops`` is complete, and never shows any part of one.

    Text that may turn out to be the beginning of a stop string is held back until it is clear. What comes out
    does not depend on how the text is cut into pieces: the stop string that is complete first ends the text.

    >>> stop = StopStrings(["END"])
    >>> [stop.feed(piece) for piece in ("The E", "go. EN", "D. More")], stop.reached
    (['The ', 'Ego. ', ''], True)
    """

    def __init__(self, stops: str | Sequence[str] | None) -> None:
        self.stops = [stops] if isinstance(stops, str) else list(_as_sequence(stops))
        if not all(isinstance(stop, str) for stop in self.stops):
            raise UserError(f"stop strings must be text, not {stops!r}")
        if "" in self.stops:
            raise UserError("a stop string must not be empty: it would end every text before its first letter")
        self.reached = False
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is now certain to be no part of a stop string."""
        if self.reached:
            return ""
        text = self._held + piece
        ends = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if ends:
            self.reached, self._held = True, ""
            return text[: min(ends)[1]]
        n_held = max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """End the text: what was held back is no stop string after all."""
        held, self._held = self._held, ""
        return held


def _as_sequence(stops: Sequence[str] | None) -> Sequence[str]:
    if stops is None or isinstance(stops, Sequence):
        return stops or ()
    raise UserError(f"stop strings must be text, not {stops!r}")


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` that is a beginning of ``stop``, the whole of it excepted."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
