"""A short run of ``tools/fuzz_generation.py``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="the tool asks POSIX for its memory")
def test_nothing_breaks() -> None:
    path = Path(__file__).parents[1] / "tools" / "fuzz_generation.py"
    spec = importlib.util.spec_from_file_location("fuzz_generation", path)
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert len(tool.fuzz(150, seed=3)) == 10
