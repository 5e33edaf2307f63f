"""Every step of the chapters in docs/kernels is right: in Triton's interpreter, at odd shapes, against NumPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from gpu_interpreter import HostArray, array, run

from nanoeuler.ops.gpu.kernels.spec import Target

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "kernels"))
from ladder import attention, classifier, matmul, memory, reductions

TARGET = Target(90, 3)


class View(HostArray):
    """An array on the host that can be reshaped, as those on the device can."""

    def reshape(self, *shape: int) -> View:
        return View(self.host.reshape(*shape))

    def __getitem__(self, rows: slice) -> View:
        return View(self.host[rows])


class Arrays:
    """fp32 in the place of bf16, which the interpreter's products do not know."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(
        self, *shape: int, dtype: str = "bf16", scale: float = 1.0, below: int = 0, value: float | None = None
    ) -> View:
        if value is not None:
            values = np.full(shape, value)
        else:
            values = self.rng.integers(0, below, shape) if below else self.rng.standard_normal(shape) * scale
        return View(array(values, "i32" if dtype == "i32" else "fp32").host)


LADDERS: dict[str, Any] = {
    "matmul": lambda new: matmul.forward(new, TARGET, 70, 132, 36),
    "order of tiles": lambda new: matmul.order(new, TARGET, 270, 140, 36),
    "epilogue": lambda new: matmul.epilogue(new, TARGET, 37, 132, 20),
    "weight gradient": lambda new: matmul.weight_gradient(new, TARGET, 36, 68, 130, parts=3),
    "cross-entropy": lambda new: reductions.cross_entropies(new, TARGET, 9, 4999),
    "layer norm": lambda new: reductions.layer_norms(new, TARGET, 7, 100),
    "column sums": lambda new: reductions.bias_gradients(new, TARGET, 131, 300),
    "transpose": lambda new: memory.transposes(new, TARGET, 70, 1100),
    "copy": lambda new: memory.copies(new, TARGET, 20_001),
    "AdamW": lambda new: memory.adamws(new, TARGET, 3001),
    "attention": lambda new: attention.forward(new, TARGET, 2, 70, 2, 16),
    "attention backward": lambda new: attention.backward(new, TARGET, 2, 70, 2, 16),
    "classifier": lambda new: classifier.ladder(new, TARGET, 21, 24, 333, (8,)),
}


@pytest.mark.parametrize("name", LADDERS)
def test_ladder(name):
    ladder = LADDERS[name](Arrays())
    assert ladder.name == name
    for rung in ladder.rungs:
        for output in rung.outputs.values():
            output.host.fill(np.nan)  # so that an element left unwritten shows
        run([*rung.before, *rung.launches])
        for what, got, want in ladder.check(lambda a: a.host.astype(np.float64), rung):
            assert got.shape == want.shape
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            assert error < 2e-6, (rung.title, what, error)
