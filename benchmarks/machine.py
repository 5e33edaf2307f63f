"""What a benchmark result must say about where it was measured, and where results go."""

from __future__ import annotations

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe() -> dict:
    """Date, processor and versions."""

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "date": date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "numba": installed("numba"),
    }


def result_path(name: str) -> Path:
    """``benchmarks/results/NAME-DATE.json``."""
    folder = Path(__file__).resolve().parent / "results"
    folder.mkdir(exist_ok=True)
    return folder / f"{name}-{date.today().isoformat()}.json"
