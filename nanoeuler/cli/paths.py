"""Names of files and folders on the command line."""

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
