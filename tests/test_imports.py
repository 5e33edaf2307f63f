"""What commands import: torch never, Numba only where the CPU engine is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import TINY, make_data

ROOT = Path(__file__).parents[1]
WITHOUT = """
import sys
for name in ("torch", "numba", "llvmlite"):
    sys.modules[name] = None  # an import of it fails
from nanoeuler.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def run_without(*args, code=WITHOUT):
    """Run a command in a process where torch and Numba cannot be imported."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, *map(str, args)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_writing_and_evaluating_on_another_engine_need_no_numba(tmp_path):
    data, run = make_data(tmp_path), tmp_path / "run"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**TINY, "steps": 3}.items()]
    run_without("train", "--data", data, "--out", run, *flags)
    assert "loss" in run_without("eval", data, "--model", run, "--device", "reference")
    assert run_without("sample", "--model", run, "--device", "reference", "--max-new-tokens", 5, "cat")
    assert "reference" in run_without("plan", "--preset", "demo", "--device", "reference")
    assert "the CPU engine needs Numba" in run_without("info")


def test_the_gpu_engine_needs_neither():
    pytest.importorskip("triton")
    assert "GiB" in run_without("plan", "--preset", "gpt2", "--device", "gpu", "--memory", "80")
    modules = ("engine", "step", "scratch", "timing", "runtime.profile", "runtime.driver", "kernels.matmul")
    code = WITHOUT.split("from")[0] + "\n".join(f"import nanoeuler.ops.gpu.{name}" for name in modules)
    run_without(code=code)
