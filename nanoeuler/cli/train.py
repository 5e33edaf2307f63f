"""``nanoeuler train``: from prepared data to a trained model."""

from __future__ import annotations

import shutil
from typing import Any

import click

from nanoeuler.cli.config_options import ConfigCommand, config_options, given, load
from nanoeuler.cli.console import can_show, human_time, quoted
from nanoeuler.cli.training_display import TrainingDisplay
from nanoeuler.cli.values import PLACE
from nanoeuler.errors import UserError
from nanoeuler.training.events import TrainResult


@click.command(cls=ConfigCommand)
@click.option("--resume", type=PLACE, metavar="RUN", help="Go on with the run in this folder.")
@click.option(
    "--profile", is_flag=True, help="On a GPU: in the end, time each kernel of a step; RUN/profile.svg shows it."
)
@config_options
def command(resume: str | None, profile: bool, preset: str | None, config: str | None, **settings: Any) -> None:
    """Train a GPT-2, from scratch or from another model.

    Settings are laid over each other: defaults (in brackets), --preset, --config FILE, single flags. Ctrl-C saves and
    says how to go on; a run that goes on gives the same numbers as one that never stopped.

    Presets: demo (a million parameters, minutes), shakespeare-char and baby (nanoGPT's Shakespeare for a CPU, and for a
    GPU), gpt2 (124 million parameters), finetune (gentle steps from the model of --init-from).

    \b
    Examples:
      nanoeuler train --preset shakespeare-char --data data/shakespeare --out runs/shakespeare
      nanoeuler train --resume runs/shakespeare --steps 4000
      nanoeuler train --preset finetune --init-from runs/shakespeare --data data/mine --out runs/mine
    """
    from nanoeuler.training.run import train

    if resume is not None and (preset is not None or config is not None):
        raise UserError("--resume takes the settings of the run: leave --preset and --config out")
    if resume is not None and settings["out"] is not None:
        raise UserError("--resume goes on in the run's own folder: leave --out out, or copy the folder first")
    with TrainingDisplay() as display:
        if resume is not None:
            result = train(resume=resume, on_event=display, profile=profile, **given(settings))
        else:
            result = train(load(preset, config, settings), on_event=display, profile=profile)
    click.echo()
    report(result)
    if result.interrupted:
        raise SystemExit(130)
    click.echo(f"next: nanoeuler sample --model {quoted(result.out)}")
    click.echo(f"      nanoeuler train --resume {quoted(result.out)} --steps {2 * result.steps}")


def report(result: TrainResult) -> None:
    """What came out: the loss curve, in the terminal and as PNG, and where the model is; or how to go on."""
    if result.interrupted:
        click.echo(f"\nstopped after step {result.step:,} of {result.steps:,}; all is saved")
        click.echo(f"go on with: nanoeuler train --resume {quoted(result.out)}")
        return
    show_curve(result)
    best = f"best validation loss {result.best_val_loss:.4f} at step {result.best_step:,}, " if result.best_step else ""
    click.echo(f"{best}{human_time(result.seconds)} of training; the model is in {result.model_folder}")


def show_curve(result: TrainResult) -> None:
    """Draw the run's loss curve into the terminal, and say where training has drawn it."""
    from nanoeuler.training.metrics import read_metrics
    from nanoeuler.training.plot import loss_curves, terminal_plot
    from nanoeuler.training.runfolder import RunFolder

    run = RunFolder(result.out)
    curves = loss_curves(read_metrics(run.metrics_file))
    if not curves:
        return
    columns = shutil.get_terminal_size().columns
    click.echo(terminal_plot(curves, width=min(columns - 1, 90), height=14, ascii_only=not can_show("⠿●│")))
    click.echo(f"curve in {run.plot_file}")
