"""How the CPU's kernels are compiled: each once, kept in the cache, and run by all threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

import nanoeuler
from nanoeuler.ops.cpu.options import KERNEL
from nanoeuler.ops.cpu.parallel import fork
from nanoeuler.ops.cpu.parts import fast_part, part

PACKAGE = Path(nanoeuler.__file__).parent

_START = """
import os
os.environ["NANOEULER_WARMUP"] = "1"  # no second process
from numba.core import event

class Names(event.Listener):
    def on_start(self, e):
        print(e.data["dispatcher"].py_func.__qualname__)
    def on_end(self, e):
        pass

event.register("numba:compile", Names())
from nanoeuler.ops.cpu.warmup import compile_from_the_end
compile_from_the_end()
"""


def start() -> list[str]:
    """The functions that a new process compiles to train."""
    run = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_a_second_start_compiles_nothing() -> None:
    start()
    assert start() == []


def test_planning_compiles_nothing() -> None:
    """The size of scratch is known without the kernels, so a second process can start before any is compiled."""
    code = (
        "import sys; from nanoeuler.model.config import GPTConfig; from nanoeuler.training.plan import plan; "
        "plan(GPTConfig(vocab_size=65, block_size=64, n_layer=2, n_head=2, n_embd=32), 4, 64, 'cpu'); "
        "print([m for m in sys.modules if m in ('nanoeuler.ops.cpu.gemm', 'nanoeuler.ops.cpu.attention')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


_DROP = """
import os
os.environ["NANOEULER_WARMUP"] = "1"
import numpy as np
from nanoeuler.ops.cpu import CpuOps
from nanoeuler.ops.cpu.dropout import dropout
out = np.zeros(4, np.float32)
dropout(out, np.ones(4, np.float32), np.uint32(0), np.uint32(0), np.float32(2))
from nanoeuler.ops.cpu.warmup import is_cold
print(out.tolist(), sum(dropout.stats.cache_hits.values()), is_cold("dropout", "dropout"))
"""


def test_an_edit_of_another_file_counts_for_a_kernel_in_the_cache(tmp_path: Path) -> None:
    """``fork``, in parallel.py, calls for no index any more: the kernel of dropout.py has to notice."""
    shutil.copytree(PACKAGE, tmp_path / "nanoeuler", ignore=shutil.ignore_patterns("__pycache__", "pretrained"))
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    python: dict[str, Any] = dict(capture_output=True, text=True, check=True, cwd=tmp_path, env=env)

    def drop() -> str:
        return str(subprocess.run([sys.executable, "-c", _DROP], **python).stdout.strip())

    assert drop() == "[2.0, 2.0, 2.0, 2.0] 0 False"
    assert drop() == "[2.0, 2.0, 2.0, 2.0] 1 False"
    source = tmp_path / "nanoeuler" / "ops" / "cpu" / "parallel.py"
    old, new = "b.mul(t, n)", "b.mul(t, _i(0))"
    assert old in source.read_text()
    source.write_text(source.read_text().replace(old, new))
    assert drop() == "[0.0, 0.0, 0.0, 0.0] 0 False"
    assert drop() == "[0.0, 0.0, 0.0, 0.0] 1 False"


@fast_part("i8(i8, f4)")
def _scaled(i, factor):  # type: ignore[no-untyped-def]
    return np.int64(i * factor)


@part()
def _count(i, counts, order, a, factor):  # type: ignore[no-untyped-def]
    counts[i] += 1
    order[i] = a[1] + _scaled(i, factor)


@njit(**KERNEL | {"cache": False})
def _count_all(n, counts, order, x, factor):  # type: ignore[no-untyped-def]
    fork(_count, n, (counts, order, (x, 5), factor))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 1000])
def test_fork_meets_each_index_once(n: int) -> None:
    counts, order = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    _count_all(n, counts, order, np.zeros(1), 2.0)
    assert counts.tolist() == [1] * n + [0]
    assert order[:n].tolist() == [5 + 2 * i for i in range(n)]


_FORKS = """
import numba, numpy as np
from test_cpu_compile import _count_all
for n in (0, 1, 3, 5, 9):
    counts, order = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    _count_all(n, counts, order, np.zeros(1), 2.0)
    print(numba.get_num_threads(), counts.tolist() == [1] * n + [0])
"""


def test_fork_leaves_the_number_of_threads_alone() -> None:
    """Fewer indices than threads once left a process with that many threads for good."""
    env = os.environ | {"NUMBA_NUM_THREADS": "5", "PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, env=env)
    assert run.stdout.split("\n")[:-1] == ["5 True"] * 5, run.stderr
