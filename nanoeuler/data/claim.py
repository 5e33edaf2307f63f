"""One writer at a time: a lock on a folder, which the system drops when the process ends, however it ends."""

import os
from pathlib import Path
from typing import BinaryIO

LOCK_NAME = ".lock"


def claim(folder: Path) -> BinaryIO | None:
    """Claim ``folder`` until the file returned is closed; None if another process has it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     mine = claim(Path(d))
    ...     theirs = claim(Path(d))
    ...     mine.close()
    >>> theirs is None
    True
    """
    file = (folder / LOCK_NAME).open("ab")
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
