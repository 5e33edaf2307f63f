"""Reading and writing ``.safetensors`` files one tensor at a time, bfloat16 included, which NumPy has no type for.

The layout: an unsigned 64-bit little-endian number n; n bytes of JSON that give each tensor's dtype, shape and place;
then the numbers themselves, little-endian, one tensor right after the other::

    {"__metadata__": {"format": "pt"}, "wte": {"dtype": "F32", "shape": [65, 32], "data_offsets": [0, 8320]}, ...}

Nothing in it can run code, unlike a pickle. Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nanoeuler.durable import fsync, write_errors
from nanoeuler.errors import UserError

STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
NUMPY: dict[str, np.dtype] = {
    name: np.dtype(kind) for name, kind in (("F32", "<f4"), ("F16", "<f2"), ("BF16", "<u2"), ("I8", "i1"))
}
AS_IT_IS = {np.dtype(np.int8): "I8", np.dtype("<u2"): "BF16"}  # arrays that are not converted on writing
MAX_HEADER = 100_000_000  # bytes; the official reader's limit
CHUNK = 1 << 20  # elements converted at a time


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in its file; ``offset`` in bytes from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class TensorFile:
    """An open ``.safetensors`` file. Raises UserError if it is truncated or something else.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.safetensors"
    >>> write_tensors(path, {"a": np.array([1.0, 2.5], np.float32)}, dtype="bfloat16")
    >>> with TensorFile(path) as file:
    ...     out = np.empty(file.tensors["a"].shape, np.float32)
    ...     file.read("a", out)
    >>> out
    array([1. , 2.5], dtype=float32)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from None
        try:
            self.tensors = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def read(self, name: str, out: np.ndarray) -> None:
        """Copy tensor ``name`` into ``out``, a C-contiguous array of the same number of elements: int8 for an I8, else
        float32."""
        flat = out.reshape(-1)
        for start, part in self._chunks(name):
            flat[start : start + part.size] = part

    def equals(self, name: str, array: np.ndarray) -> bool:
        """Whether tensor ``name`` holds the same numbers as the C-contiguous ``array``."""
        flat = array.reshape(-1)
        if self.tensors[name].shape != array.shape:
            return False
        return all(np.array_equal(flat[start : start + part.size], part) for start, part in self._chunks(name))

    def _chunks(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        tensor = self.tensors[name]
        if tensor.dtype not in NUMPY:
            raise UserError(
                f"{self.path}: {name} is stored as {tensor.dtype}, which is not read here: save the model as float32"
            )
        dtype, size = NUMPY[tensor.dtype], math.prod(tensor.shape)
        self._file.seek(tensor.offset)
        for start in range(0, size, CHUNK):
            raw = np.frombuffer(self._file.read(min(CHUNK, size - start) * dtype.itemsize), dtype)
            yield start, from_bfloat16(raw) if tensor.dtype == "BF16" else raw

    def _read_header(self) -> dict[str, StoredTensor]:
        foreign = f"{self.path} is not a safetensors file: is it complete, and the right file?"
        total = os.fstat(self._file.fileno()).st_size
        start = self._file.read(9)
        n = struct.unpack("<Q", start[:8])[0] if len(start) == 9 and start[8:] == b"{" else 0
        if not 2 <= n <= MAX_HEADER:
            raise UserError(foreign)
        if 8 + n > total:
            raise UserError(f"{self.path} is truncated in its header: copy or download it again")
        try:
            header = json.loads(b"{" + self._file.read(n - 1))
            assert isinstance(header, dict)
            header.pop("__metadata__", None)
            places = {name: _place(entry) for name, entry in header.items()}
        except (ValueError, TypeError, KeyError, AssertionError, RecursionError):
            raise UserError(foreign) from None
        end = 8 + n
        tensors = {}
        for name, (dtype, shape, first, last) in sorted(places.items(), key=lambda item: item[1][2:]):
            if dtype in NUMPY and last - first != math.prod(shape) * NUMPY[dtype].itemsize:
                raise UserError(f"{self.path}: the place of {name} does not fit its shape {shape}: the file is damaged")
            if 8 + n + first != end:
                raise UserError(f"{self.path}: {name} does not lie right after the tensor before: the file is damaged")
            end = 8 + n + last
            tensors[name] = StoredTensor(dtype, shape, 8 + n + first)
        if total != end:
            state = "truncated" if total < end else "longer than its header says"
            raise UserError(f"{self.path} is {state} ({total} bytes, expected {end}): copy or download it again")
        return tensors


def _place(entry: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
    """A header entry as (dtype, shape, first byte, byte after the last); raises one of several errors if it is none."""
    shape = tuple(entry["shape"])
    first, last = entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, first, last)) or last < first:
        raise ValueError(entry)
    return str(entry["dtype"]), shape, first, last


def write_tensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "float32") -> None:
    """Write ``tensors`` to ``path`` as ``dtype``: "float32", "float16" or "bfloat16", rounded to nearest.

    Arrays of int8, and of uint16 (the bits of bfloat16), are written as they are.

    The old file or the whole new one is there at any moment. Raises UserError when a number is too large for
    float16, and when the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        stored = AS_IT_IS.get(tensor.dtype, STORED[dtype])
        end = offset + tensor.size * NUMPY[stored].itemsize
        header[name] = {"dtype": stored, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8
    temporary = path.with_name(path.name + ".new")
    with write_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(struct.pack("<Q", len(text)) + text)
                for name, tensor in tensors.items():
                    flat = tensor.reshape(-1)
                    for start in range(0, flat.size, CHUNK):
                        file.write(_stored(name, flat[start : start + CHUNK], dtype).data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            fsync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _stored(name: str, part: np.ndarray, dtype: str) -> np.ndarray:
    if part.dtype in AS_IT_IS:
        return np.ascontiguousarray(part)
    if dtype == "bfloat16":
        return to_bfloat16(part)
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(part, NUMPY[STORED[dtype]])
    if dtype == "float16" and np.isinf(stored).any():
        raise UserError(f"{name} holds numbers beyond float16's 65504: save as bfloat16 or float32")
    return stored


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The upper 16 bits of each float32, rounded to nearest, ties to even; as uint16.

    Adding half a unit of the last place kept carries into it when the rest is more than half, and the lowest bit kept
    decides a tie. A NaN's lower bits must not carry into its exponent, so it becomes one fixed NaN.

    >>> [hex(bits) for bits in to_bfloat16(np.array([1.0, 1.00390625, 1.01171875, -2.0], np.float32))]
    ['0x3f80', '0x3f80', '0x3f82', '0xc000']
    """
    x = np.ascontiguousarray(x, np.float32)
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype("<u2")


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 whose upper 16 bits are ``bits`` (uint16).

    >>> from_bfloat16(np.array([0x3F80, 0xC000], np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
