"""The CPU engine: float32, multi-threaded, every kernel in Numba, the matrix product included."""

from nanoeuler.ops.cpu.engine import CpuOps

__all__ = ["CpuOps"]
