"""What is written after a command: names of files and folders, and how many of something."""

from __future__ import annotations

from typing import Any

import click


class Place(click.ParamType):
    """A name that is not empty: ``Path("")`` would be the current folder, which nobody means by an unset ``"$OUT"``."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("it is empty (is a shell variable not set?)", param, ctx)
        return str(value)


PLACE = Place()


class Count(click.ParamType):
    """A whole number up to ``most``: so that a slip of the keyboard is one clear line, not an hour of work.

    Its lower end is checked where the number is used, for Python's callers too.
    """

    name = "integer"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = click.INT.convert(value, param, ctx)
        if number > self.most:
            digits = len(str(number))
            what = f"{number:,}" if digits < 20 else f"a number of {digits} digits"
            self.fail(f"{what} is too large: at most {self.most:,}", param, ctx)
        return number


COUNT, TOKENS = Count(10**6), Count(10**12)
