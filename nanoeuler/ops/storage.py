"""How an engine stores numbers: as data, so that memory can be planned without the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Storage:
    """Dtypes by name with their bytes an element, and how arrays lie side by side in one allocation.

    ``dtype``: what the network computes with: parameters, activations and their gradients. ``exact``: what sums up
    many small numbers, and would lose them by rounding: the parameters that the optimizer updates, their gradients
    and moments, statistics and losses. Where the two are the same, the network computes with the optimizer's own
    parameters; otherwise with a rounded copy.

    An array in an allocation takes whole ``line`` s of bytes, and ``gap`` more. ``recompute``: how much backward
    computes again if nobody says otherwise, see :data:`~nanoeuler.model.activations.RECOMPUTE`. ``logits``: the
    least and the most bytes of logits to make room for, over memory that lies idle while the classifier runs.
    ``workers``: whether two workers may share the batches of a small model (``model/data_parallel.py``).
    """

    dtype: str
    dtype_bytes: int
    exact: str
    exact_bytes: int
    line: int = 64
    gap: int = 0
    recompute: str = "none"
    logits: tuple[int, int] = (0, 0)
    workers: bool = False

    @property
    def rounds(self) -> bool:
        """Whether the network computes with a rounded copy of the parameters."""
        return self.dtype != self.exact

    def padded(self, n_bytes: int) -> int:
        """Bytes that an array of ``n_bytes`` takes in an allocation that it shares.

        >>> STORAGE["cpu"].padded(100)
        1472
        """
        return (-(-n_bytes // self.line) + self.gap) * self.line


_LOGITS = (200 << 20, 530 << 20)  # GPT-2 124M at 16 x 1024 tokens then needs three chunks

# An odd number of cache lines between neighbours: sizes are mostly multiples of a page, and without the gap all arrays
# would begin at the same place within a page, and so compete for the same cache sets.
STORAGE = {
    "cpu": Storage("float32", 4, "float32", 4, gap=21, workers=True),
    "reference": Storage("float64", 8, "float64", 8, gap=21),
    "gpu": Storage("bf16", 2, "fp32", 4, line=512, recompute="light", logits=_LOGITS),
    "gpu-fp32": Storage("fp32", 4, "fp32", 4, line=512, recompute="light", logits=_LOGITS),
}
"""By engine. On a GPU, arrays start on multiples of 512 bytes: whole pieces for every kind of wide access."""
