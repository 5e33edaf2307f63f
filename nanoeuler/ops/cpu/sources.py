"""Let Numba's cache look at all the source that a kernel is made of.

A kernel in the cache counts as fresh while the file it is defined in has not changed. But parts, ``fork`` and
intrinsics come from other files of this folder: after an update of one of those, old machine code would go on running.
So the kernels of this folder are stamped with a digest of the whole folder. It is Numba that compares stamps, each time
it opens an index, so nothing is deleted and processes cannot disturb one another. Reading and hashing the sources takes
about a millisecond.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from numba.core import caching

_HERE = Path(__file__).parent
_SOURCES = sorted(_HERE.glob("*.py"))  # none in a package that is run from an archive: then Numba's stamp counts
DIGEST = hashlib.sha256(b"".join(file.read_bytes() for file in _SOURCES)).digest()


def stamp_kernels() -> None:
    """Give the kernels of this folder, and no others, the folder's digest as their stamp."""
    locator: Any = getattr(caching, "_SourceFileBackedLocatorMixin", None)
    if locator is None or not _SOURCES:
        return
    of_file = locator.get_source_stamp

    def of_folder(self: Any) -> Any:
        return DIGEST if Path(self._py_file).parent == _HERE else of_file(self)

    locator.get_source_stamp = of_folder
