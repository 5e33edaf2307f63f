"""A flag for each setting of a run, made from :class:`TrainConfig`: name, type, default, and the comment beside it.

A new field of the dataclass is a new flag, with its help; nothing here needs to know about it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_args, get_type_hints

import click

from nanoeuler.training.config import TrainConfig
from nanoeuler.training.presets import PRESETS

F = TypeVar("F", bound=Callable[..., Any])
_FIELD = re.compile(r"^    (\w+): [^#]*# (.+)$|^    (\w+): .*$|^    # (.+)$")


def setting_help() -> dict[str, dict[str, str]]:
    """The settings' names and comments, under the comment lines that group them.

    >>> setting_help()["one step"]["batch_size"]
    'sequences in one forward and backward pass'
    """
    groups: dict[str, dict[str, str]] = {}
    group = ""
    names = {f.name for f in fields(TrainConfig)}
    for line in inspect.getsource(TrainConfig).splitlines():
        match = _FIELD.match(line)
        if not match:
            continue
        commented, text, bare, heading = match.groups()
        if heading:
            group = heading.replace(": None takes ", ", if not given: ")
        elif (name := commented or bare) in names:
            groups.setdefault(group, {})[name] = text or ""
    return groups


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """Only the settings that were given on the command line."""
    names = {f.name for f in fields(TrainConfig)}
    return {name: value for name, value in settings.items() if name in names and value is not None}


def load(preset: str | None, config: str | None, settings: dict[str, Any]) -> TrainConfig:
    """The run that ``--preset``, ``--config`` and the single flags describe, the later over the former."""
    return TrainConfig.load(preset, config, given(settings))


def config_options(function: F) -> F:
    """Add ``--preset``, ``--config`` and a flag for each setting to a command."""
    hints = get_type_hints(TrainConfig)
    defaults = {f.name: f.default for f in fields(TrainConfig)}
    texts = {name: text for group in setting_help().values() for name, text in group.items()}
    for name in reversed(list(texts)):
        kind = next(t for t in (int, float, str) if t is hints[name] or t in get_args(hints[name]))
        shown = "" if defaults[name] in (None, "") else f"  [{defaults[name]}]"
        text = re.sub(r"(; |^)None: (.*)", r"  [\2]", texts[name]) + shown
        option = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text.strip())
        function = option(function)
    function = click.option("--config", metavar="FILE", help="Settings from a TOML file.")(function)
    return click.option("--preset", metavar="NAME", help=f"Settings known by name: {', '.join(PRESETS)}.")(function)


class ConfigCommand(click.Command):
    """A command whose help shows the settings in their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {p.name: record for p in self.get_params(ctx) if (record := p.get_help_record(ctx)) is not None}
        groups = setting_help()
        settings = {name for group in groups.values() for name in group}
        with formatter.section("Options"):
            formatter.write_dl([record for name, record in records.items() if name not in settings])
        for heading, group in groups.items():
            with formatter.section(heading[0].upper() + heading[1:]):
                formatter.write_dl([records[name] for name in group if name in records])
