"""``nanoeuler check``: are the gradients right, and does this machine compute what the reference does?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from nanoeuler.cli.console import is_live, say, table
from nanoeuler.cli.values import COUNT

if TYPE_CHECKING:
    from nanoeuler.check import OpCheck, TensorCheck


@click.command()
@click.option("--device", default="cpu", show_default=True, help="Engine to hold against the reference: cpu or gpu.")
@click.option("--gradients-only", is_flag=True, help="Only the first half: central differences.")
@click.option("--dropout", type=float, default=0.0, show_default=True, help="Check the gradients with dropout on.")
@click.option("--samples", type=COUNT, default=3, show_default=True, help="Single elements tried in each tensor.")
@click.option("--seed", type=int, default=0, show_default=True)
def command(device: str, gradients_only: bool, dropout: float, samples: int, seed: int) -> None:
    """Check every gradient by central differences, and every operation of the engine against the reference.

    Exit code 1 if any error is at its limit or above.

    \b
    Example:
      nanoeuler check
    """
    from nanoeuler.check import GRADIENT_LIMIT, engine_check, gradient_check
    from nanoeuler.errors import UserError
    from nanoeuler.ops import check_device, get_engine

    if samples < 1:
        raise UserError(f"--samples must be at least 1, not {samples}")
    check_device(device)
    if not gradients_only:
        get_engine(device)  # or say now, not after the first half, why there is none
    click.echo(f"Gradients against central differences, float64 (limit {GRADIENT_LIMIT:g}):\n")
    with _Working() as progress:
        tensors = gradient_check(dropout=dropout, samples_per_tensor=samples, seed=seed, progress=progress)
    table([[c.name, f"{c.error:.1e}", _verdict(c)] for c in tensors], ["tensor", "relative error", ""])
    failed = sum(not c.ok for c in tensors)
    if not gradients_only and device != "reference":
        click.echo(f"\nEngine {device} against the reference:\n")
        with _Working() as progress:
            operations = engine_check(device, progress)
        rows = [[c.name, f"{c.error:.1e}", f"{c.limit:.1e}", str(c.n_outputs), _verdict(c)] for c in operations]
        table(rows, ["operation", "relative error", "limit", "outputs", ""])
        failed += sum(not c.ok for c in operations)
        for c in operations:
            if not c.ok:
                say(f"{c.name}: worst is {c.worst}")
    if failed:
        click.echo(f"\n{failed} failed")
        sys.exit(1)
    click.echo("\nall good")


def _verdict(check: TensorCheck | OpCheck) -> str:
    return "ok" if check.ok else "FAILED"


class _Working:
    """Shows what is being checked, on a terminal; wipes it in the end."""

    def __enter__(self) -> Callable[[str], None] | None:
        return self._show if is_live(sys.stderr) else None

    def _show(self, name: str) -> None:
        click.echo(f"\r  {name:40}", nl=False, err=True)

    def __exit__(self, *error: object) -> None:
        if is_live(sys.stderr):
            click.echo(f"\r{'':42}\r", nl=False, err=True)
