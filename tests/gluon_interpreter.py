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

from nanoeuler.ops.gpu.kernels.decode_ring import vectors_at

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
        return tl.reduce(values, axis, combine)

    def convert_layout(self, value: Any, layout: Any) -> Any:
        return value

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


def _tensor(values: np.ndarray, kind: tl.dtype) -> tl.tensor:
    values = np.ascontiguousarray(values)
    return tl.tensor(interpreter.TensorHandle(values, kind), tl.block_type(kind, list(values.shape)))


def _number(value: Any) -> int:
    return int(_data(value).item()) if isinstance(value, tl.tensor) else int(value)


def _polled(address: Any, last: Any, epoch: Any, N: int, STRIDE: int) -> list[np.ndarray]:
    at = [_data(address) + i * int(STRIDE) for i in range(int(N) - 1)] + [_data(last)]
    return [_checked(_words(a), epoch) for a in at]


def poll_vector(address: Any, last: Any, epoch: Any, N: int, STRIDE: int) -> Any:
    return tuple(_floats(words.view(np.float32)) for words in _polled(address, last, epoch, N, STRIDE))


def poll_words(address: Any, last: Any, epoch: Any, N: int, STRIDE: int) -> Any:
    return tuple(_tensor(words.view(np.int32), tl.int32) for words in _polled(address, last, epoch, N, STRIDE))


def poll_shares(address: Any, stride: Any, count: Any, epoch: Any, N: int) -> Any:
    values, lses = [], []
    first = _data(address)
    for split in range(int(N)):
        if split >= _number(count):
            values += [_floats(np.zeros(first.shape))] * 4
            lses.append(_floats(np.full(first.shape, MINUS_INFINITY)))
            continue
        at = first + split * int(stride)
        lse = _checked(_words(at + 8), epoch).view(np.float32)
        values += [
            _floats(x) for x in np.moveaxis(_bf16_halves(np.stack([_words(at)[..., i] for i in (0, 1)], -1)), -1, 0)
        ]
        lses.append(_floats(lse))
    return tuple(values + lses)


def put_share(address: Any, values: Any, lse: Any, epoch: Any, THREADS: int) -> None:
    four, lses = np.stack([_data(v) for v in values], -1), _data(lse).view(np.uint32)
    for a, value, tail in list(zip(_data(address), four, lses))[: int(THREADS)]:
        bits = value.astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint32)
        raw = np.array([*rounded, tail, _number(epoch)], np.uint32)
        ctypes.memmove(int(a), raw.tobytes(), 16)


# ---- what one program does with its shared memory: a dictionary in its place ---------------------------------------
MEMORY: dict[Any, Any] = {}


def start_ring(epoch: Any, SLOTS: int, TMA: bool) -> None:
    MEMORY.clear()


def ask(address: Any, size: Any, slot: Any, SECOND: bool, SLOT: int, AT: int, TMA: bool) -> None:
    assert 0 < _number(size) <= int(SLOT) and _number(address) % 16 == 0
    half = _number(size) // 2
    begin = _number(address) + (half if SECOND else 0)
    if SECOND:
        MEMORY[_number(slot)] += ctypes.string_at(begin, half)
    else:
        MEMORY[_number(slot)] = ctypes.string_at(begin, half)


def await_slot(slot: Any, parity: Any, TMA: bool) -> None:
    del MEMORY[_number(slot)]


def hold(i: Any, slot: Any, parity: Any, N: int, R: int, BITS: int, PAIRS: bool, SLOT: int, AT: int, TMA: bool) -> Any:
    N, R, bits, raw = int(N), int(R), int(BITS), MEMORY[_number(slot)]
    dtype = np.uint8 if bits == 8 else np.float32
    K = 256 * N
    w = np.frombuffer(raw, dtype, R * K).reshape(K // 32, R, 32).swapaxes(0, 1).reshape(R, K).astype(np.float64)
    if bits == 8:
        scales = np.frombuffer(raw, np.float16, K // 64 * R, R * K).reshape(K // 64, R)  # bfloat16 on a GPU
        w = (w - 128) * np.repeat(scales.T, 64, 1)
    pairs = np.frombuffer(raw, np.float32, 2 * R, int(vectors_at(R, K, bits))).reshape(R, 2)
    row = np.minimum(np.arange(256) % 32, R - 1)
    return w, _floats(pairs[row, 0]), _floats(pairs[row, 1])


def fragments(i: Any, x: Any, N: int, BITS: int, FORM: str) -> np.ndarray:
    N, t = int(N), np.arange(256)
    vector, form = np.zeros(256 * N), getattr(FORM, "value", FORM)
    for j, tensor in enumerate(x):
        values = _data(tensor)
        if form == "exact":
            vector[t + 256 * j] = values
        elif form == "pairs":
            words = values.astype(np.int32).view(np.uint32)
            pair = words.view(np.float16).reshape(-1, 2) if int(BITS) == 8 else _bf16_halves(words[:, None])
            vector[2 * (t + 256 * j)], vector[2 * (t + 256 * j) + 1] = pair.T
        else:
            chunk = t % 32 // 8 + 4 * (j // 4)
            k = chunk * 256 + t // 32 * 32 + t % 8 * 4 + j % 4
            vector[k[chunk < N]] = values[chunk < N]
    return vector


def multiply(i: Any, flip: Any, vector: np.ndarray, tiles: np.ndarray, N: int, R: int, BITS: int) -> Any:
    return _floats(2 * (tiles @ vector)[np.minimum(np.arange(256) % 32, int(R) - 1)])


def multiply_and_sum(
    i: Any, flip: Any, vector: np.ndarray, tiles: np.ndarray, a: Any, b: Any, N: int, R: int, BITS: int
) -> Any:
    rows = (tiles @ vector)[np.minimum(np.arange(256) % 32, int(R) - 1)]
    return _floats(rows), *(_floats(np.full(256, _data(c).astype(np.float64).sum())) for c in (a, b))


def spread(i: Any, values: Any, N: int, SIZE: int) -> None:
    MEMORY["spread"] = np.concatenate([_data(v) for v in values])[: int(SIZE)]


def eight_of(d: Any, OFFSET: int) -> Any:
    return _floats(MEMORY["spread"][_data(d) + int(OFFSET)])


def gather(acc: Any, most: Any, total: Any, BD: int) -> None:
    MEMORY["gather"] = _data(acc), _data(most), _data(total)


def gathered(i: Any, BD: int) -> Any:
    acc, most, total = MEMORY["gather"]
    four = acc.reshape(8, -1, 4)[:, np.arange(256) % (int(BD) // 4)]
    values = [_floats(four[w, :, j]) for w in range(8) for j in range(4)]
    return (*values, *(_floats(np.full(256, x)) for x in (*most, *total)))


def neighbour(y: Any) -> Any:
    return _floats(_data(y).reshape(-1, 2)[:, ::-1].reshape(-1))


def offer(rank: Any, PLACE: int) -> None:
    MEMORY["most", int(PLACE)] = _data(rank).max()


def most_of(epoch: Any, PLACE: int) -> Any:
    return tl.tensor(interpreter.TensorHandle(np.array([MEMORY["most", int(PLACE)]], np.int64), tl.int64), tl.int64)


DIRECT = {
    f.__name__: f
    for f in (
        *(poll_vector, poll_words, poll_shares, put_share, start_ring, ask, await_slot, hold, fragments, multiply),
        *(multiply_and_sum, spread, eight_of, gather, gathered, neighbour, offer, most_of),
    )
}


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
