"""``nanoeuler bench kernels`` on a GPU: each kernel of a training step beside what the GPU can do, and a peer."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nanoeuler.cli.console import say, table
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.model.config import GPTConfig
    from nanoeuler.ops.gpu.engine import GpuOps
    from nanoeuler.ops.gpu.kernel_cases import Case, Maker
    from nanoeuler.ops.gpu.timing import Ceilings

ROUNDS = 3  # turns of ours and the peer's
BEYOND_CACHE = 256 << 20  # bytes: several times the largest L2


class Row(NamedTuple):
    """A kernel: median seconds, the least bytes and the operations, the share of the ceiling, and the peer's time."""

    name: str
    seconds: float
    bytes: float
    flops: float
    share: float
    peer: str = ""
    peer_seconds: float | None = None


class Peer:
    """Another library's kernels, in a process of its own: this one never imports it.

    A line of JSON on its standard input asks for a task (``op``, sizes, for how long to measure); it answers with a
    line: ``what`` it ran and ``seconds`` a run, or ``error``. ``benchmarks/torch_kernels.py`` is such a program.
    """

    def __init__(self, script: Path) -> None:
        self.script = script
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, task: dict[str, Any], dtype: str, seconds: float) -> tuple[str, float | None]:
        """(what it ran or why not, seconds)."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps({**task, "dtype": dtype, "lasting": seconds}) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            raise UserError(f"the peer's program ended ({self.script}): try --no-peer") from None
        return answer.get("error") or answer["what"], answer.get("seconds")

    def close(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):  # it may be gone already
            self.process.stdin.close()
        self.process.wait(timeout=60)


def find_peer() -> Path | None:
    """PyTorch's program, in a checkout with PyTorch installed; None elsewhere. It is looked for, not imported."""
    script = Path(__file__).parents[2] / "benchmarks" / "torch_kernels.py"
    return script if script.exists() and importlib.util.find_spec("torch") is not None else None


def command(
    preset: str, config: GPTConfig, B: int, T: int, seconds: float, device: str, as_json: bool, with_peer: bool
) -> None:
    """Print the table, or JSON."""
    from nanoeuler.ops import get_engine
    from nanoeuler.ops.gpu.timing import Ceilings, ceilings

    ops: Any = get_engine(device)
    script = find_peer() if with_peer else None
    peer = Peer(script) if script else None
    try:
        best = ceilings(ops)
        square = {"op": "linear_dx", "N": 8192, "inner": 8192, "outer": 8192}
        if peer:
            what, took = peer.measure(square, ops.dtype, 0.2)
            say(f"peer: {what}")
            best = Ceilings(best.bandwidth, max(best.flops, 2.0 * 8192**3 / took) if took else best.flops)
        rows = measure(ops, config, B, T, seconds, best, peer)
    finally:
        if peer:
            peer.close()
    if as_json:
        sizes = {**config.to_dict(), "batch_size": B, "seq_len": T, "device": device, "gpu": ops.device.name}
        record = {"date": date.today().isoformat(), "triton": version("triton"), "config": sizes}
        kernels = [row._asdict() for row in rows]
        click.echo(json.dumps({**record, "ceilings": best._asdict(), "kernels": kernels}, indent=1))
        return
    show(f"{preset}, {B} x {T} tokens, {ops.dtype} on {ops.device.name}", rows, best)


def show(title: str, rows: list[Row], best: Ceilings) -> None:
    """The table for people."""
    click.echo(title)
    click.echo(
        f"ceilings: copies {best.bandwidth / 1e12:.2f} TB/s, products of 8192 x 8192 matrices "
        f"{best.flops / 1e12:,.0f} TFLOP/s; the share is of the one that allows less\n"
    )
    peers = any(row.peer for row in rows)
    head = ["kernel", "us", "MB", "TB/s", "GFLOP", "TFLOP/s", "share", *(["peer us", "ratio", "peer"] if peers else [])]
    table([_cells(row, peers) for row in rows], head)


def _cells(row: Row, peers: bool) -> list[str]:
    cells = [row.name, f"{1e6 * row.seconds:.1f}", f"{row.bytes / 1e6:.1f}", f"{row.bytes / row.seconds / 1e12:.2f}"]
    cells += [f"{row.flops / 1e9:.1f}", f"{row.flops / row.seconds / 1e12:.0f}"] if row.flops else ["-", "-"]
    cells.append(f"{row.share:.0%}")
    if peers and row.peer_seconds:
        cells += [f"{1e6 * row.peer_seconds:.1f}", f"{row.peer_seconds / row.seconds:.2f}", row.peer]
    elif peers:
        cells += ["-", "-", row.peer or "-"]
    return cells


def measure(
    ops: GpuOps, config: GPTConfig, B: int, T: int, seconds: float, best: Ceilings, peer: Peer | None
) -> list[Row]:
    """Time every case, ours and the peer's by turns."""
    from nanoeuler.ops.gpu.kernel_cases import Source, makers

    new, rows = Source(ops), []
    for maker in makers(ops, config, B, T).values():
        for sets in _sets(maker, new):
            rows.append(_row(ops, sets, seconds, best, peer))
    return rows


def _sets(maker: Maker, new: Any) -> list[tuple[Case, ...]]:
    """Each case several times, on arrays of their own: together more than a cache holds, as in a step."""
    first = maker(new)
    n = min(4, max(1, math.ceil(BEYOND_CACHE / max(1.0, min(case.bytes for case in first)))))
    return list(zip(first, *(maker(new) for _ in range(n - 1))))


def _row(ops: GpuOps, sets: tuple[Case, ...], seconds: float, best: Ceilings, peer: Peer | None) -> Row:
    from nanoeuler.ops.gpu.timing import Stopwatch

    def run() -> None:
        for case in sets:
            for launch in case.launches:
                ops.runtime.launch(launch)

    case, watch = sets[0], Stopwatch(ops, run)
    ours, theirs, what = [], [], ""
    for _ in range(ROUNDS):
        ours.append(watch.seconds(seconds / ROUNDS) / len(sets))
        if peer and case.peer:
            what, took = peer.measure(case.peer, ops.dtype, seconds / ROUNDS)
            theirs += [took] if took else []
    took = median(ours)
    share = best.least_seconds(case.bytes, case.flops) / took
    return Row(case.name, took, case.bytes, case.flops, share, what, median(theirs) if theirs else None)
