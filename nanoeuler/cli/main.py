"""The command line: ``nanoeuler COMMAND``. Each command is a file beside this one, imported when it is called.

Whatever goes wrong for a reason that the user can mend ends in one line on standard error and exit code 2; Ctrl-C in
130. A traceback means a bug of ours.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from nanoeuler import __version__
from nanoeuler.cli.console import configure_streams, discard_output
from nanoeuler.errors import UserError

COMMANDS = {
    "demo": "Make stories, train a tokenizer and a small GPT-2 on them, and let it write.",
    "data": "Prepare text for training; make or download some.",
    "tokenizer": "Train a tokenizer; encode and decode with it.",
    "train": "Train a GPT-2, from scratch or from another model.",
    "sample": "Let a model write.",
    "chat": "Write together with a model, in the terminal.",
    "quantize": "Write a model with weights in 8 bits, and measure what that costs.",
    "eval": "Measure how well a model predicts a text.",
    "check": "Check every gradient and every operation of this machine.",
    "plan": "Show how much memory a training run needs.",
    "bench": "Measure the speed of operations, training and writing.",
    "info": "Show versions, processor, threads, caches and the shipped model.",
}

MOST_THREADS = 4096  # each takes memory for its share of a matrix product


class ReaderGone(Exception):
    """Nobody reads our standard output any more."""


class Commands(click.Group):
    """The commands above. ``nanoeuler --help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"nanoeuler.cli.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # which click would make exit code 1
            raise ReaderGone from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="nanoeuler %(version)s")
def cli() -> None:
    """GPT-2 complete and from scratch in Python: tokenizer, training and sampling, on CPUs and NVIDIA GPUs.

    \b
    Begin with:
      nanoeuler demo                        stories, tokenizer, training and writing, in three minutes
      nanoeuler sample "Once upon a time"   the model that comes with the package
      nanoeuler COMMAND --help              what a command can do, with an example
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Entry point of ``nanoeuler`` and ``python -m nanoeuler``."""
    configure_streams()
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with warnings.catch_warnings(), _swallowed_interrupts() as swallowed:
        warnings.showwarning = _show_warning
        try:
            return _run(argv)
        except Exception:
            if not swallowed:
                raise
            click.echo("stopped", err=True)
            return 130


@contextmanager
def _swallowed_interrupts() -> Iterator[list[BaseException]]:
    """Collects what Ctrl-C raised where nothing can be raised: a compiler whose call back into Python is hit goes on
    without what it asked for, and fails for that a moment later."""
    swallowed: list[BaseException] = []
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            swallowed.append(unraisable.exc_value)
        else:
            others(unraisable)

    sys.unraisablehook = hook
    try:
        yield swallowed
    finally:
        sys.unraisablehook = others


def _run(argv: Sequence[str] | None) -> int:
    try:
        check_environment()
        code = cli.main(args=None if argv is None else list(argv), prog_name="nanoeuler", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(str(error))
    except click.ClickException as error:
        return _usage(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    except (ReaderGone, BrokenPipeError):  # the reader went away (`| head`): nothing to say, and no one to say it to
        discard_output()
        return 0
    except MemoryError as error:
        return _fail(
            f"not enough memory ({error}): choose a smaller batch_size, block_size or model; "
            "`nanoeuler plan` shows what fits"
        )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" while writing {error.filename}" if error.filename else ""
            return _fail(f"the disk is full{where}: free some space or choose another folder")
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}")


def check_environment() -> None:
    """Raise UserError for what libraries would meet with a traceback, much later."""
    threads = (os.environ.get("NUMBA_NUM_THREADS") or "1").strip()
    if not (threads.isascii() and threads.isdigit() and 1 <= int(threads) <= MOST_THREADS):
        raise UserError(f"NUMBA_NUM_THREADS must be a number from 1 to {MOST_THREADS}, not '{threads}': unset it")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder is no longer there: change to another (cd)") from None


def _fail(message: str) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return 2


def _usage(error: click.ClickException) -> int:
    """One line for a command line that cannot be understood; the help for one that stops at a group's name."""
    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and ctx is not None:
        click.echo(ctx.get_help())
        return 0
    hint = f" (see: {ctx.command_path} --help)" if ctx is not None else ""
    return _fail(error.format_message().rstrip(".") + hint)


def _show_warning(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    """Our own warnings as one line; those of libraries are for developers, and stay silent."""
    if issubclass(category, UserWarning):
        click.echo(f"note: {message}", err=True)
