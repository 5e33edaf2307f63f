"""The CPU engine: float32, multi-threaded, every kernel in Numba, the matrix product included."""

import os

# Between two kernels Numba's threads wait in a loop, by default for milliseconds. Where other programs want the cores
# too, that takes them from the very thread that is waited for; a few microseconds bridge the gaps just as well. (GNU's
# OpenMP reads this when it is loaded, which is after this line; what the user has set counts.)
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

from nanoeuler.ops.cpu.sources import stamp_kernels

stamp_kernels()  # before any kernel is defined

from nanoeuler.ops.cpu.engine import CpuOps  # noqa: E402

__all__ = ["CpuOps"]
