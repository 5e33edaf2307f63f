"""What a ladder is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nanoeuler.ops.gpu.kernels.spec import Launch, cdiv, launch
from nanoeuler.ops.gpu.kernels.totals import convert_kernel

Get = Callable[[Any], np.ndarray]  # a copy of a device array on the host, in float64


@dataclass
class Rung:
    """One step: its launches, and the bytes of device memory that it cannot avoid to move, done as it is done here."""

    title: str
    launches: list[Launch]
    bytes: float = 0.0
    operations: float = 0.0
    before: list[Launch] = field(default_factory=list)  # makes the inputs anew where a rung overwrites them
    outputs: dict[str, Any] = field(default_factory=dict)  # what it computes, by name
    inputs: dict[str, Any] = field(default_factory=dict)  # from what, where that is not the same for all rungs


@dataclass
class Ladder:
    """``check(get, rung)`` yields (what, got, wanted) for a sample of the rows of the rung's outputs."""

    name: str
    rungs: list[Rung]
    check: Callable[[Get, Rung], Iterable[tuple[str, np.ndarray, np.ndarray]]]


class New(Protocol):
    """Makes arrays: of normal random numbers times ``scale``, of whole numbers below ``below``, or all of one value.

    ``dtype`` "bf16" stands for what the network computes with.
    """

    def __call__(
        self, *shape: int, dtype: str = "bf16", scale: float = 1.0, below: int = 0, value: float | None = None
    ) -> Any: ...


def copy(out: Any, x: Any) -> Launch:
    """``out = x``, for arrays of one shape, without gaps."""
    n = math.prod(x.shape)
    return launch(convert_kernel, (cdiv(n, 2048),), 4, out=out, x=x, n=n, BLOCK=2048)


def ends(n: int, count: int = 8) -> list[slice]:
    """The first and the last ``count`` rows of n: what is checked where checking all would take too long."""
    return [slice(0, min(n, count)), slice(max(0, n - count), n)]
