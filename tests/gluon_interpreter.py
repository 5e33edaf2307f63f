"""Run a Gluon kernel in Triton's interpreter: Gluon is Triton's language plus layouts, which change no number.

While :func:`interpreting_gluon` is open, ``gl`` in the given modules is :class:`Language`: Triton's functions, with
layouts left out. Words by which programs talk (``decode_exchange.py``) are read and written directly; a program that
would have to wait for another can only be a mistake where programs run one after another, so a wrong epoch raises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from gpu_interpreter import interpreting
from triton.experimental.gluon import language as real
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

MINUS_INFINITY = np.float32(-np.inf)


class Shared:
    """A piece of shared memory: what is stored under an index."""

    def __init__(self, *_: Any) -> None:
        self.parts: dict[int, Any] = {}

    def index(self, i: Any) -> Part:
        return Part(self.parts, int(i))


class Part:
    def __init__(self, parts: dict[int, Any], i: int) -> None:
        self.parts, self.i = parts, i

    def store(self, value: Any) -> None:
        self.parts[self.i] = value

    def load(self, layout: Any) -> Any:
        return self.parts[self.i]


class Language:
    """Gluon's language on the interpreter."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tl, name) if hasattr(tl, name) else getattr(real, name)

    BlockedLayout = SliceLayout = SwizzledSharedLayout = staticmethod(lambda *args, **kwargs: None)
    allocate_shared_memory = Shared

    def arange(self, start: int, end: int, layout: Any = None) -> Any:
        return tl.arange(start, end)

    def full(self, shape: Any, value: Any, dtype: Any, layout: Any = None) -> Any:
        return tl.full([int(n) for n in shape], value, dtype)

    def zeros(self, shape: Any, dtype: Any, layout: Any = None) -> Any:
        return self.full(shape, 0, dtype)

    def static_range(self, *args: Any) -> range:
        return range(*(int(a) for a in args))

    def cdiv(self, a: Any, b: Any) -> Any:
        return (a + b - 1) // b

    def reduce(self, values: Any, axis: int, combine: Any) -> Any:
        if combine.__name__ == "add_three":  # Triton's interpreter would add element by element
            return tuple(tl.sum(value, axis) for value in values)
        return tl.reduce(values, axis, combine)

    def rsqrt(self, x: Any) -> Any:
        return tl.math.rsqrt(x)


LANGUAGE = Language()


def _words(address: Any) -> np.ndarray:
    """The (data, flag) at each address: uint32 (..., 2)."""
    flat = [ctypes.string_at(int(a), 8) for a in address.ravel()]
    return np.frombuffer(b"".join(flat), np.uint32).reshape(*address.shape, 2)


def _floats(values: np.ndarray) -> tl.tensor:
    values = np.ascontiguousarray(values, np.float32)
    kind = tl.block_type(tl.float32, list(values.shape))
    return tl.tensor(interpreter.TensorHandle(values, tl.float32), kind)


def _data(tensor: Any) -> np.ndarray:
    return tensor.handle.data


def _checked(words: np.ndarray, epoch: Any) -> np.ndarray:
    assert (words[..., 1] == int(_data(epoch).item())).all(), "a word was read before it was written"
    return words[..., 0]


def _bf16_halves(words: np.ndarray) -> np.ndarray:
    """(..., n) words of two bfloat16 as (..., 2n) float32."""
    low, high = words << np.uint32(16), words & np.uint32(0xFFFF0000)
    return np.stack([low, high], -1).reshape(*words.shape[:-1], -1).view(np.float32)


def poll_vector(address: Any, last: Any, epoch: Any, N: int, STRIDE: int) -> Any:
    at = [_data(address) + i * int(STRIDE) for i in range(int(N) - 1)] + [_data(last)]
    return tuple(_floats(_checked(_words(a), epoch).view(np.float32)) for a in at)


def poll_eight(address: Any, last: Any, epoch: Any, N: int, STRIDE: int, PAIRS: bool) -> Any:
    """Each run of eight neighbours has one address, the first one's."""
    first = [_data(address) + i * int(STRIDE) for i in range(int(N) - 1)] + [_data(last)]
    out = []
    for whole in first:
        at = whole.reshape(-1, 8)[:, 0]
        words = np.stack([_checked(_words(at + 8 * i), epoch) for i in range(4 if PAIRS else 8)], -1)
        values = _bf16_halves(words) if PAIRS else words.view(np.float32)
        out.append(_floats(values.reshape(whole.shape)))
    return tuple(out)


def poll_shares(address: Any, stride: Any, count: Any, epoch: Any, N: int) -> Any:
    values, lses = [], []
    shape, first = _data(address).shape, _data(address).reshape(-1, 8)[:, 0]
    for split in range(int(N)):
        if split >= int(_data(count).item()):
            values.append(_floats(np.zeros(shape)))
            lses.append(_floats(np.full(shape, MINUS_INFINITY)))
            continue
        at = first + split * int(stride)
        halves = [_words(at + half) for half in (0, 16)]
        _, lse = (_checked(_words(at + half + 8), epoch).view(np.float32) for half in (0, 16))
        values.append(_floats(_bf16_halves(np.concatenate(halves, -1)).reshape(shape)))
        lses.append(_floats(np.repeat(lse, 8).reshape(shape)))
    return tuple(values + lses)


def put_share(address: Any, values: Any, lse: Any, epoch: Any, THREADS: int) -> None:
    at, numbers = _data(address).reshape(-1, 8)[:, 0], _data(values).reshape(-1, 8)
    tail = [np.float32(_data(lse).ravel()[0]).view(np.uint32), np.uint32(int(_data(epoch).item()))]
    for a, eight in list(zip(at, numbers))[: int(THREADS)]:
        bits = eight.astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint32)
        for half in (0, 1):
            raw = np.array([*rounded[2 * half : 2 * half + 2], *tail], np.uint32)
            ctypes.memmove(int(a) + 16 * half, raw.tobytes(), 16)


def prefetch(address: Any) -> None:
    """Nothing to compute; but what is asked for must be memory that is there."""
    for a in _data(address).ravel()[[0, -1]]:
        ctypes.string_at(int(a), 1)


DIRECT = {f.__name__: f for f in (poll_vector, poll_eight, poll_shares, put_share, prefetch)}


@contextmanager
def interpreting_gluon(*modules: ModuleType) -> Iterator[None]:
    """As ``gpu_interpreter.interpreting``, for Gluon kernels of ``modules``."""
    for function in [f for module in modules for f in vars(module).values() if isinstance(f, JITFunction)]:
        hash(function)  # of its text and of all it uses: kept, but it must be taken before ``gl`` changes
    saved = [
        (module, {name: vars(module)[name] for name in ("gl", *DIRECT) if name in vars(module)}) for module in modules
    ]
    with interpreting():
        for module, names in saved:
            for name in names:
                setattr(module, name, LANGUAGE if name == "gl" else DIRECT[name])
        try:
            yield
        finally:
            for module, names in saved:
                for name, value in names.items():
                    setattr(module, name, value)
