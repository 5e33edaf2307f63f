"""How much memory this machine can still give, asked of the operating system in its own way."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def available_memory() -> int | None:
    """Bytes that a new program can use without pushing others out; None where the system does not say."""
    try:
        if sys.platform == "win32":
            return _windows()
        if Path("/proc/meminfo").exists():
            return _linux()
        # macOS: no plain number of free bytes (caches count as used), so take what is installed
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _linux() -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    free = [int(found[1]) * 1024] if found else []
    cgroup = Path("/sys/fs/cgroup")  # a container may get less than the machine has
    try:
        limit, used = ((cgroup / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        free.append(int(limit) - int(used))
    except (OSError, ValueError):  # no cgroup v2, or its limit is the word "max"
        pass
    return min(free, default=None)


def _windows() -> int | None:
    import ctypes

    class MemoryStatus(ctypes.Structure):  # MEMORYSTATUSEX
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load_percent", ctypes.c_uint32),
            ("total", ctypes.c_uint64),
            ("available", ctypes.c_uint64),
            ("others", ctypes.c_uint64 * 5),
        )

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    asked = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return int(status.available) if asked else None
