"""The ``reference`` engine: the table of operations in float64 NumPy.

This is the specification. Each file states one idea, its formula, the derivation of its backward pass and the paper it
comes from, then the few lines that compute it. Clarity counts, speed and memory do not: the other engines are fast,
and are held to these numbers.
"""

from __future__ import annotations

from nanoeuler.ops.reference.engine import ReferenceOps

__all__ = ["ReferenceOps"]
