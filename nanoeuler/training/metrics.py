"""``metrics.jsonl``: what happened, one JSON object a line, for people, plots and scripts.

    {"step": 250, "loss": 2.1234, "lr": 0.001, "grad_norm": 0.52, "tokens": 192000, "tokens_per_s": 30121, ...}
    {"step": 250, "val_loss": 2.2345, "bits_per_byte": 3.2238}
    {"step": 250, "prompt": "", "sample": "..."}

Numbers carry all their digits. A resumed run first drops the lines after the step it goes on from, so the file ends
up as if it had never stopped, the timing (:data:`TIMING`) aside.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from nanoeuler.durable import write_errors, write_text

TIMING = ("tokens_per_s", "seconds")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line cut short by a kill is passed over. Empty if there is no file."""
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


class MetricsFile:
    """Appends to ``metrics.jsonl``. Opened at ``step``, it keeps what was written up to there.

    With ``pending``, what follows the step itself (evaluation, sample) is dropped too: it will come again.
    """

    def __init__(self, path: Path, step: int, pending: bool = False) -> None:
        self.path = path
        kept = [r for r in read_metrics(path) if _belongs(r, step, pending)]
        write_text(path, "".join(json.dumps(r) + "\n" for r in kept))
        with write_errors(path):
            self._file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, **record: Any) -> None:
        """Append one line. UserError if the disk is full."""
        with write_errors(self.path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Wait until all lines are on the disk: a checkpoint must not be ahead of its metrics."""
        with write_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        # Each line was flushed when it was written. What a full disk refused is tried again here: in vain, and told.
        with contextlib.suppress(OSError):
            self._file.close()


def _belongs(record: dict[str, Any], step: int, pending: bool) -> bool:
    if record["step"] == step:
        return "loss" in record or not pending
    return bool(record["step"] < step)
