"""What is written to the terminal: colours and bars where there is one, plain lines where there is not."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

    from nanoeuler.ops.gpu.runtime.profile import KernelTime

StageProgress = Callable[[str, int, int], None]
PLAIN_EVERY_S = 5.0  # between lines of progress where there is no terminal


def configure_streams() -> None:
    """Let no character that the terminal cannot show (cp1252, ASCII) end the program, nor a stream that is closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # started with it closed (`2>&-`), or without a console
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Send standard output nowhere from here on: its reader is gone, or its disk is full."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stand-in without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_live(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal on which lines may be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def can_show(text: str) -> bool:
    """Whether standard output's encoding knows these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def rich_console(stderr: bool = False) -> Console:
    """A rich console for a terminal; it honours NO_COLOR itself."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def say(text: str = "") -> None:
    """A line for the user, on standard error: standard output is for results."""
    click.echo(text, err=True)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print columns: the first to the left, the others to the right.

    >>> table([["wte", "1.0"], ["ln_f", "22.5"]], ["tensor", "error"])
    tensor  error
    wte       1.0
    ln_f     22.5
    """
    for line in columns(rows, header):
        click.echo(line)


def columns(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> list[str]:
    """The lines of :func:`table`."""
    lines = [*([list(header)] if header else []), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    ]


def kernel_table(kernels: Sequence[KernelTime]) -> tuple[list[list[str]], list[str]]:
    """Rows and header for the kernels of a step."""
    total = sum(k.milliseconds for k in kernels)
    rows = [[k.name, str(k.launches), f"{k.milliseconds:.3f}", f"{k.milliseconds / total:.1%}"] for k in kernels]
    launches = sum(k.launches for k in kernels)
    return [*rows, ["all", str(launches), f"{total:.3f}", "100.0%"]], ["kernel", "launches", "ms", "share"]


@contextmanager
def stages(units: str = "bytes") -> Iterator[StageProgress]:
    """Progress through stages, each of a known size: ``with stages() as progress: work(progress)``.

    Bars on a terminal; elsewhere a line when a stage ends, and now and then in a long one. On standard error.
    """
    if is_live(sys.stderr):
        with _bars(units) as progress:
            yield progress
    else:
        yield _lines()


@contextmanager
def _bars(units: str) -> Iterator[StageProgress]:
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if units == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description:>9}"), BarColumn(), count, TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=rich_console(stderr=True)) as bars:
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield progress


def _lines() -> StageProgress:
    last: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        begun = last.setdefault(stage, now)
        if done < total and now - begun >= PLAIN_EVERY_S:
            last[stage] = now
            say(f"{stage}: {100 * done // max(1, total)} %")

    return progress


def quoted(path: object) -> str:
    """A path as it can be pasted into a command line.

    >>> quoted("runs/mine"), quoted("my runs/mine").strip("'\\"")
    ('runs/mine', 'my runs/mine')
    """
    if os.name == "nt":
        return f'"{path}"' if " " in str(path) else str(path)
    return shlex.quote(str(path))


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "document"), counted(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def human_bytes(n: float) -> str:
    """A size for people.

    >>> human_bytes(900), human_bytes(2_300_000)
    ('900 B', '2.2 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def human_time(seconds: float) -> str:
    """A duration for people.

    >>> human_time(0.4), human_time(75), human_time(7500)
    ('0.4 s', '1:15 min', '2:05 h')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
