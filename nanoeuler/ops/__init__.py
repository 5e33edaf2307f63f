"""Operations: the table (``table.py``) and the engines that fill it in, one folder each."""

from __future__ import annotations

from nanoeuler.errors import UserError
from nanoeuler.ops.storage import STORAGE
from nanoeuler.ops.table import Ops

DEVICES = tuple(STORAGE)
"""``gpu`` computes in bfloat16; ``gpu-fp32`` does the same in float32, slowly, to tell rounding from mistakes."""


def get_engine(device: str) -> Ops:
    """The engine named ``device``; imported only now, so that ``import nanoeuler`` stays fast.

    Raises UserError for a name that is not one of :data:`DEVICES`, or when there is no such GPU here.

    >>> get_engine("reference").dtype
    dtype('float64')
    """
    check_device(device)
    if device == "reference":
        from nanoeuler.ops.reference import ReferenceOps

        return ReferenceOps()
    if device == "cpu":
        try:
            from nanoeuler.ops.cpu import CpuOps
        except RuntimeError as error:  # Numba's, when it finds no folder for compiled kernels
            if "locator" not in str(error):
                raise
            raise UserError("no folder for compiled kernels: set NUMBA_CACHE_DIR to one that can be written") from None
        return CpuOps()
    from nanoeuler.ops.gpu.runtime.driver import load_bindings

    load_bindings()  # or say what to install
    from nanoeuler.ops.gpu.engine import GpuOps

    return GpuOps(device)


def check_device(device: str) -> None:
    """UserError unless ``device`` is one of :data:`DEVICES`."""
    if device not in DEVICES:
        raise UserError(f"unknown device '{device}': choose one of {', '.join(DEVICES)}")
