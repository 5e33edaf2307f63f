"""Files of tokens: llm.c's shards and nanoGPT's raw files, written and read by memory map.

An **llm.c shard** is 256 little-endian int32 (``[0]`` = 20240520, ``[1]`` = 1, ``[2]`` = number of tokens, the rest
zero: 1024 bytes) and then one uint16 a token. **nanoGPT's** ``train.bin`` and ``val.bin`` are the uint16 alone.
Sources: llm.c ``dev/data/data_common.py``, nanoGPT ``data/*/prepare.py``.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from nanoeuler.errors import UserError

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 1024
MAX_VOCAB = 1 << 16  # token ids are uint16
TOKENS_PER_SHARD = 100_000_000  # as llm.c's FineWeb shards: 200 MB a file
_NO_SPACE = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a full disk, a full quota

_FOREIGN = {  # what else llm.c writes with a magic number, so that a mix-up is named
    20240326: "an llm.c model",
    20240327: "an llm.c debug state",
    20240328: "an llm.c tokenizer",
    20240522: "an llm.c HellaSwag set",
    20240801: "an llm.c shard of 32-bit Llama-3 tokens",
}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing ``path`` (disk full, no permission) into a :class:`UserError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise UserError(
                f"the disk is full while writing {path}: free some space or choose another folder"
            ) from error
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _header(n_tokens: int) -> bytes:
    header = np.zeros(256, dtype="<i4")
    header[:3] = MAGIC, VERSION, n_tokens
    return header.tobytes()


def _as_uint16(tokens: np.ndarray) -> np.ndarray:
    tokens = np.asarray(tokens)
    if tokens.size and tokens.dtype.kind not in "iu":
        raise UserError(f"token ids must be whole numbers, not {tokens.dtype}")
    if tokens.size and tokens.dtype != np.uint16 and not 0 <= tokens.min() <= tokens.max() < MAX_VOCAB:
        raise UserError(f"token ids {tokens.min()} … {tokens.max()} do not fit in 16 bits (0 … 65535)")
    return tokens.astype("<u2", copy=False)


@dataclass(frozen=True)
class TokenFile:
    """One memory-mapped file of tokens.

    ``tokens`` is a read-only uint16 array (n_tokens,) that lives in the file, not in memory; ``layout`` is
    ``"llm.c"`` or ``"nanogpt"``.
    """

    path: Path
    tokens: np.ndarray
    layout: str

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def open(cls, path: Path | str) -> "TokenFile":
        """Map ``path``, telling the two layouts apart by llm.c's magic number.

        Without one the file counts as nanoGPT's only if it is named ``*.bin``: any bytes at all would pass for
        raw tokens. Raises UserError for a file that is missing, empty, truncated or foreign.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d:
        ...     write_shard(Path(d, "a.bin"), np.array([5, 6, 7]))
        ...     file = TokenFile.open(Path(d, "a.bin"))
        ...     print(file.layout, file.tokens.tolist())
        ...     del file  # Windows removes no file that is still mapped
        llm.c [5, 6, 7]
        """
        path = Path(path)
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = np.frombuffer(file.read(HEADER_BYTES)[: size // 4 * 4], dtype="<i4")
        except OSError as error:
            raise UserError(f"cannot read the tokens in {path}: {error.strerror}") from error
        if size == 0:
            raise UserError(f"{path} is empty: it should hold tokens")
        magic = int(head[0]) if len(head) else 0
        if magic in _FOREIGN:
            raise UserError(f"{path} is {_FOREIGN[magic]}, not a file of 16-bit tokens")
        if magic == MAGIC:
            return cls(path, _map(path, HEADER_BYTES, _llmc_count(path, head, size)), "llm.c")
        if path.suffix != ".bin":
            raise UserError(
                f"{path} is not a token file (llm.c shard or nanoGPT .bin); "
                f"if it is text, run: nanoeuler data prepare {path}"
            )
        if size % 2:
            raise UserError(f"{path} has an odd size ({size} bytes): not nanoGPT's uint16 tokens, or truncated")
        return cls(path, _map(path, 0, size // 2), "nanogpt")


def _llmc_count(path: Path, head: np.ndarray, size: int) -> int:
    """The number of tokens that an llm.c header promises, once the file's size agrees."""
    if size < HEADER_BYTES:
        raise UserError(f"{path} is truncated: {size} bytes, less than an llm.c header of {HEADER_BYTES}")
    version, n_tokens = int(head[1]), int(head[2])
    if version != VERSION:
        raise UserError(f"{path} is an llm.c shard of version {version}; only version {VERSION} is known")
    expected = HEADER_BYTES + 2 * n_tokens
    if size != expected:
        state = "truncated" if size < expected else "damaged"
        raise UserError(f"{path} is {state}: its header says {n_tokens} tokens, so {expected} bytes, but it has {size}")
    if n_tokens == 0:
        raise UserError(f"{path} holds no tokens")
    return n_tokens


def _map(path: Path, offset: int, n_tokens: int) -> np.ndarray:
    # A plain ndarray over the map: slicing np.memmap itself costs a microsecond more each time.
    return np.asarray(np.memmap(path, dtype="<u2", mode="r", offset=offset, shape=(n_tokens,)))


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under its name only when complete and on the disk."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with writing(path):
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_shard(path: Path, tokens: np.ndarray) -> None:
    """Write ``tokens`` (n,) as one llm.c shard; UserError if an id exceeds 65535 or the disk is full."""
    data = _as_uint16(tokens)
    with _replacing(Path(path)) as file:
        file.write(_header(len(data)))
        data.tofile(file)


def write_nanogpt(path: Path, tokens: np.ndarray) -> None:
    """Write ``tokens`` (n,) as nanoGPT's raw uint16; UserError if an id exceeds 65535 or the disk is full."""
    data = _as_uint16(tokens)
    with _replacing(Path(path)) as file:
        data.tofile(file)


class ShardWriter:
    """Write a stream of tokens into ``{split}_000000.bin``, ``{split}_000001.bin``, … of at most N tokens each.

    A context manager. Each shard bears a temporary name until it is full or the stream ends; if the block raises
    (a full disk included), every shard of this writer is removed again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d, ShardWriter(Path(d), "train", tokens_per_shard=2) as writer:
    ...     writer.write(np.array([1, 2, 3]))
    ...     writer.finish()
    ...     print([path.name for path in writer.paths], writer.n_tokens)
    ['train_000000.bin', 'train_000001.bin'] 3
    """

    def __init__(self, folder: Path, split: str, tokens_per_shard: int = TOKENS_PER_SHARD) -> None:
        if not 1 <= tokens_per_shard < 1 << 31:  # the header counts in int32
            raise UserError(f"a shard holds 1 to {(1 << 31) - 1} tokens, got {tokens_per_shard}")
        self.folder, self.split, self.tokens_per_shard = Path(folder), split, tokens_per_shard
        self.paths: list[Path] = []
        self.n_tokens = 0
        self._file: BinaryIO | None = None
        self._in_shard = 0

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self._abandon)
            if error is None:
                self.finish()  # may raise too
                undo.pop_all()

    def write(self, tokens: np.ndarray) -> None:
        """Append ``tokens`` (n,), any integer dtype; starts a new shard whenever one is full."""
        data = _as_uint16(tokens)
        while len(data):
            room = self.tokens_per_shard - self._in_shard
            with writing(self.folder):
                if self._file is None:
                    self._file = self._next_shard()
                self._file.write(data[:room].tobytes())
            self._in_shard += len(data[:room])
            self.n_tokens += len(data[:room])
            data = data[room:]
            if self._in_shard == self.tokens_per_shard:
                self.finish()

    def finish(self) -> None:
        """Complete the shard in progress, if there is one; the next ``write`` starts another."""
        if self._file is None:
            return
        with writing(self.folder):
            self._file.seek(0)
            self._file.write(_header(self._in_shard))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary(self.paths[-1]).replace(self.paths[-1])
        self._file, self._in_shard = None, 0

    def _next_shard(self) -> BinaryIO:
        path = self.folder / f"{self.split}_{len(self.paths):06d}.bin"
        self.paths.append(path)
        file = self._temporary(path).open("wb", buffering=1 << 20)
        file.write(_header(0))  # the true count is written by finish()
        return file

    @staticmethod
    def _temporary(path: Path) -> Path:
        return path.with_name(path.name + ".tmp")

    def _abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # closing flushes, and the disk may be full
                self._file.close()
            self._file = None
        for path in self.paths:
            path.unlink(missing_ok=True)
            self._temporary(path).unlink(missing_ok=True)
