"""What a training run looks like: one line that lives, on a terminal; plain lines now and then, elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import columns, discard_output, human_time, is_live, kernel_table, rich_console
from nanoeuler.inference.pretrained import human_count
from nanoeuler.training import events

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

REDRAW_S = 0.25
PLAIN_EVERY_S = 10.0


class TrainingDisplay:
    """``with TrainingDisplay() as display: train(config, on_event=display)``."""

    def __init__(self, live: bool | None = None) -> None:
        self.live = is_live(sys.stdout) if live is None else live
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._steps = 0
        self._val = ""
        self._last: events.Step | None = None
        self._shown_at = float("-inf")

    def __enter__(self) -> TrainingDisplay:
        if self.live:
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: events.Event) -> None:
        try:
            self._show_event(event)
        except OSError:  # nobody reads any more (`| head`), or the log's disk is full: the training goes on
            discard_output()

    def _show_event(self, event: events.Event) -> None:
        match event:
            case events.Started():
                self._started(event)
            case events.Step():
                self._step(event)
            case events.Evaluating():
                self._status("evaluating")
            case events.Evaluated():
                self._evaluated(event)
            case events.Sampled():
                self.line(f"--- written at step {event.step}: {event.prompt}{event.text}\n---")
            case events.Profiled():
                self.line("\n" + "\n".join(columns(*kernel_table(event.kernels))))
                self.line(f"\npicture in {event.picture}")
            case events.Stopping():
                self.line("stopping after this step, then saving (a second Ctrl-C ends at once)")
            case events.Finished():
                self._finished()

    # ---- events ---------------------------------------------------------------------------------------
    def _started(self, event: events.Started) -> None:
        m, c = event.model, event.config
        going_on = f", going on from step {event.step:,}" if event.step else ""
        if not self._steps:  # not again when a run is taken up with other settings
            val = f", {event.val_tokens:,} to validate" if event.val_tokens else ", none to validate"
            sizes = f"layers {m.n_layer}, heads {m.n_head}, channels {m.n_embd}, context {m.block_size}"
            self.line(f"model  {human_count(m.n_params)} parameters: {sizes}, vocabulary {m.vocab_size}")
            self.line(f"data   {event.train_tokens:,} tokens{val}")
        epochs = f"{event.tokens_per_step:,} tokens ({event.epochs:.3g} epochs)"
        self.line(f"run    {c.steps:,} steps of {epochs} in {event.out}{going_on}")
        self._steps = c.steps
        if text := compile_cache.notice(c.device):
            self.line(text)
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task("", total=c.steps, completed=event.step, text="first step", left="")
            self._bar.refresh()

    def _step(self, event: events.Step) -> None:
        self._last = event
        if self._due():
            self._show(event)

    def _evaluated(self, event: events.Evaluated) -> None:
        self._val = f"val {event.val_loss:.3f}"
        bits = f"  {event.bits_per_byte:.3f} bits/byte" if event.bits_per_byte is not None else ""
        train = f"  loss {self._last.loss:.4f}" if self._last else ""
        self.line(f"step {event.step:>6,}{train}  val {event.val_loss:.4f}{bits}{'  best' if event.best else ''}")

    def _finished(self) -> None:
        if self._bar is not None and self._last is not None:
            self._show(self._last)

    # ---- drawing --------------------------------------------------------------------------------------
    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._shown_at < (REDRAW_S if self.live else PLAIN_EVERY_S):
            return False
        self._shown_at = now
        return True

    def _show(self, e: events.Step) -> None:
        left = f"{human_time(e.seconds_left)} left" if e.seconds_left else ""
        numbers = "  ".join(filter(None, (f"loss {e.loss:.3f}", self._val, _speed(e.tokens_per_s))))
        if self._bar is None:
            self.line(f"step {e.step:>6,}/{self._steps:,}  {numbers}  lr {e.lr:.1e}  {left}".rstrip())
        elif self._task is not None:
            self._bar.update(self._task, completed=e.step, text=f"{numbers}  lr {e.lr:.1e}", left=left)
            self._bar.refresh()

    def _status(self, text: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, left=text)
            self._bar.refresh()

    def line(self, text: str) -> None:
        """Print a line, above the living one if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            click.echo(text)
            sys.stdout.flush()


def _speed(tokens_per_s: float) -> str:
    return f"{human_count(round(tokens_per_s))} tokens/s"


def _bar() -> Progress:
    """The living line. It is redrawn by hand: a thread of its own would take time from the kernels."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
    )
    return Progress(*columns, console=rich_console(), auto_refresh=False)
