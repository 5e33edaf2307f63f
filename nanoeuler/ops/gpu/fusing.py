"""Operations that wait for the next one, because the two together cost less than one after the other.

The table's operations are called one by one, in the order in which ``model/gpt.py`` writes the network down. Two of
them gain from knowing what follows:

- *A linear layer whose result is added to the residual stream.* The product has its sum in registers, so it can add the
  residual and write the new one: otherwise 2 N C numbers are written and read once more for nothing.
- *The gradient of a weight.* It is a small matrix with a long sum, too few tiles to fill a GPU. Two of them in one
  kernel do better (``kernels/weight_gradient.py``), and nobody reads the first before the second is there.

So inside :meth:`Fusing.fusing` such an operation is only noted. It is launched with the one that it waited for or,
whatever comes instead, before anything that could change or need what it works on. What waits does not depend on
values, so a recorded step is the same every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nanoeuler.ops.gpu.kernels import linear as lin
from nanoeuler.ops.gpu.kernels.spec import Launch, Target
from nanoeuler.ops.gpu.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from nanoeuler.ops.gpu.engine import Runtime


class Fusing:
    """The part of the engine that launches what an operation consists of, now or later."""

    runtime: Runtime
    target: Target
    dtype: str

    def __init__(self) -> None:
        self._fuses = False
        self._linear: tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray] | None = None  # out, x, weight, bias
        self._waiting: list[tuple[DeviceArray, DeviceArray, DeviceArray, bool]] = []  # dweight, x, dout, accumulate

    def _space(self, name: str, n: int, dtype: str = "fp32") -> DeviceArray:
        raise NotImplementedError

    @contextmanager
    def fusing(self) -> Iterator[None]:
        """Inside, operations may wait for the next one; at the end all are launched."""
        self._fuses = True
        try:
            yield
            self._run([])
        finally:
            self._fuses, self._linear = False, None
            self._waiting.clear()

    def _run(self, launches: Iterable[Launch], *writes: DeviceArray) -> None:
        """Launch what waits, and then ``launches``. ``writes``: all that these write, if it is known that they read no
        weight's gradient: then gradients may go on waiting, as long as what they are made from is not written."""
        self._settle_linear()
        if self._waiting and not (writes and not any(overlap(a, b) for a in writes for b in self._awaited())):
            self._settle_weights()
        for launch in launches:
            self.runtime.launch(launch)

    # ---- a linear layer and the residual addition ---------------------------------------------------
    def _wait_linear(self, out: DeviceArray, x: DeviceArray, weight: DeviceArray, bias: DeviceArray) -> bool:
        """Whether the layer waits from now on."""
        self._settle_linear()
        if self._fuses:
            self._linear = out, x, weight, bias
        return self._fuses

    def _add_linear(self, residual: DeviceArray, x: DeviceArray, delta: DeviceArray) -> bool:
        """If the layer that waits makes ``delta``, let it make ``residual = x + delta`` instead, and delta nowhere."""
        if self._linear is None or (self._linear[0].ptr, self._linear[0].shape) != (delta.ptr, delta.shape):
            return False
        (_, inputs, weight, bias), self._linear = self._linear, None
        self._run(lin.linear(residual, inputs, weight, bias, residual=x, target=self.target))
        return True

    def _settle_linear(self) -> None:
        if self._linear is not None:
            layer, self._linear = self._linear, None
            self._run(lin.linear(*layer, target=self.target), layer[0])

    # ---- gradients of weights -----------------------------------------------------------------------
    def _weight_gradient(self, dweight: DeviceArray, x: DeviceArray, dout: DeviceArray, accumulate: bool) -> None:
        """``dweight (+)= x^T dout``, together with the one that waits."""
        if self._waiting and (any(overlap(dweight, a) for a in self._awaited()) or self._waiting[0][3] != accumulate):
            self._settle_weights()
        self._waiting.append((dweight, x, dout, accumulate))
        if not self._fuses or len(self._waiting) == 2:
            self._settle_weights()

    def _awaited(self) -> Iterator[DeviceArray]:
        for dweight, x, dout, _ in self._waiting:
            yield from (dweight, x, dout)

    def _settle_weights(self) -> None:
        products, accumulate = [w[:3] for w in self._waiting], self._waiting[0][3]
        self._waiting.clear()
        scratch = self._space("sums", max(self._weight_scratch(x, dout) for _, x, dout in products))
        for launch in lin.weight_gradients(products, scratch, accumulate, target=self.target):
            self.runtime.launch(launch)

    def _weight_scratch(self, x: DeviceArray, dout: DeviceArray) -> int:
        return lin.linear_backward_scratch(x.shape[0], x.shape[1], dout.shape[1], self.dtype, self.target)


def overlap(a: DeviceArray, b: DeviceArray) -> bool:
    """Whether two arrays without gaps share memory.

    >>> a = DeviceArray(0, (2, 4), "bf16")
    >>> overlap(a, DeviceArray(14, (1,), "bf16")), overlap(a, DeviceArray(16, (1,), "bf16"))
    (True, False)
    """
    return a.ptr < b.ptr + b.nbytes and b.ptr < a.ptr + a.nbytes
