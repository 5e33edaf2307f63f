"""Operations: the table (``table.py``) and the engines that fill it in, one folder each."""

from __future__ import annotations

from nanoeuler.errors import UserError
from nanoeuler.ops.table import Ops

DEVICES = ("cpu", "reference")


def get_engine(device: str) -> Ops:
    """The engine named ``device``; imported only now, so that ``import nanoeuler`` stays fast.

    Raises UserError for a name that is not one of :data:`DEVICES`.

    >>> get_engine("reference").dtype
    dtype('float64')
    """
    if device == "reference":
        from nanoeuler.ops.reference import ReferenceOps

        return ReferenceOps()
    if device == "cpu":
        from nanoeuler.ops.cpu import CpuOps

        return CpuOps()
    raise UserError(f"unknown device '{device}': choose one of {', '.join(DEVICES)}")
