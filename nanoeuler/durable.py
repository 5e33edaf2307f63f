"""Files and folders that a kill, a power cut or a full disk cannot leave half-written.

A whole folder is replaced in four moves: write ``X.new`` and fsync it, rename ``X`` to ``X.old``, rename ``X.new`` to
``X``, delete ``X.old``. No file system offers the two renames as one, so a kill between them leaves no ``X``, but two
whole folders beside it; :func:`present` finds the newer, and :func:`recover` finishes the move.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nanoeuler.errors import UserError


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses while writing ``path`` into one line for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk is full while writing {path}: free some space") from None
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def fsync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no such call, and journals names itself
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` of UTF-8, with ``\\n`` on every system."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file: the old one or the new one is there at any moment. UserError if it cannot."""
    temporary = path.with_name(path.name + ".new")
    with write_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            fsync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of ``folder`` when the block ends well.

    If the block raises, or the disk is full, ``folder`` stays as it was. Raises UserError if it cannot be written.
    """
    new, old = _beside(folder)
    with write_errors(folder):
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            yield new
            for path in new.iterdir():
                fsync(path)
            fsync(new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            _rename(folder, old)
        _rename(new, folder)
        fsync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)


def _rename(source: Path, target: Path) -> None:
    """Rename a folder; on Windows another program (a virus scanner, say) may hold a file of it for a moment."""
    for wait in (0.05, 0.1, 0.2, 0.4, 0.8):
        try:
            source.rename(target)
            return
        except PermissionError:
            if sys.platform != "win32":
                raise
            time.sleep(wait)
    source.rename(target)


def present(folder: Path, is_whole: Callable[[Path], bool]) -> Path | None:
    """Where the newest whole content of ``folder`` lies, even after a kill; None if nowhere. Changes nothing."""
    if folder.is_dir():
        return folder
    return next((path for path in _beside(folder) if path.is_dir() and is_whole(path)), None)


def recover(folder: Path, is_whole: Callable[[Path], bool]) -> None:
    """Finish or undo what a kill interrupted. Only for the one process that writes ``folder``."""
    with write_errors(folder):
        source = present(folder, is_whole)
        if source is not None and source != folder:
            _rename(source, folder)
            fsync(folder.parent)
        if source is not None:
            for path in _beside(folder):
                shutil.rmtree(path, ignore_errors=True)
