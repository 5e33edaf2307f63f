"""SIGKILL at random moments; ``tools/kill_test.py --kills 50`` is the same for longer."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from kill_test import kill_test


def test_eight_kills(tmp_path):
    counts = kill_test(tmp_path, kills=8, seed=1)
    assert counts["kills"] == 8 and counts["steps"] > 3, "it got beyond the first checkpoint"
