"""Batches out of a dataset, without state: the step number alone says which batch comes.

An epoch cuts each file into windows of T+1 tokens, one every T tokens, so that each token is predicted once. Where the
first window starts is random in each epoch (a token is not always seen in the same place of a window), and so is the
order of the windows: a permutation that is computed, not stored (:mod:`nanoeuler.data.permutation`). Since
``batch(step)`` is a pure function of (dataset, seed, B, T, step), a resumed run sees exactly what it would have seen.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, islice

import numpy as np

from nanoeuler.data.dataset import Dataset
from nanoeuler.data.permutation import Permutation, hash64
from nanoeuler.errors import UserError

IGNORE = -1  # the target that counts for nothing in a loss

Batch = tuple[np.ndarray, np.ndarray]


class Loader:
    """Random-order batches of ``B`` windows of ``T`` tokens; ``y`` is ``x`` shifted by one.

    A batch may span two epochs, so that no window is dropped. With ``separator`` (the id of end-of-text), a window
    moves on to the first document that begins within it, so that a short document is never seen without its
    beginning: every other window to the separator itself (the model learns to begin a text), the rest to what follows
    (it learns to go on from a bare prompt). Tokens then are no longer visited exactly once an epoch.

    Raises UserError if no file of ``dataset`` holds a single window of T+1 tokens.

    >>> from pathlib import Path
    >>> from nanoeuler.data.shards import TokenFile
    >>> dataset = Dataset((TokenFile(Path("counting.bin"), np.arange(100, dtype=np.uint16), "nanogpt"),), "train")
    >>> loader = Loader(dataset, B=2, T=4, seed=1)
    >>> x, y = loader.batch(7)
    >>> x.shape, bool((y == x + 1).all()), loader.windows_per_epoch
    ((2, 4), True, 24)
    """

    def __init__(
        self, dataset: Dataset, B: int, T: int, seed: int, shuffle: bool = True, separator: int | None = None
    ) -> None:
        if B < 1 or T < 1:
            raise UserError(f"batch size and block size must be at least 1, got {B} and {T}")
        self.dataset, self.B, self.T, self.seed, self.shuffle = dataset, B, T, seed, shuffle
        self.separator = separator
        self._tokens = [file.tokens for file in dataset.files]
        # Windows a file gives at *every* start below T, so that all epochs are equally long. A file too short
        # for that gives one window, and starts it where it still fits.
        self._counts = [max((len(t) - T) // T, int(len(t) > T)) for t in self._tokens]
        self._ends = list(accumulate(self._counts))
        self.windows_per_epoch = self._ends[-1]
        if self.windows_per_epoch == 0:
            _refuse_short(dataset, T)
        # Remembering what was computed last changes no result: it only spares computing it at each call.
        self._order = lru_cache(maxsize=2)(self._compute_order)  # two: a batch may span two epochs
        self._starts = lru_cache(maxsize=2)(self._compute_starts)

    @property
    def tokens_per_batch(self) -> int:
        return self.B * self.T

    @property
    def steps_per_epoch(self) -> float:
        """Batches in an epoch, not rounded: batches run across epochs."""
        return self.windows_per_epoch / self.B

    def epoch(self, step: int) -> float:
        """Epochs seen before batch ``step``."""
        return step * self.B / self.windows_per_epoch

    def batch(self, step: int, out: Batch | None = None) -> Batch:
        """Batch number ``step`` (from 0): ``x`` and ``y``, int32 (B, T), written into ``out`` if given."""
        x, y = out if out is not None else (np.empty((self.B, self.T), np.int32) for _ in range(2))
        T = self.T
        for b in range(self.B):
            epoch, position = divmod(step * self.B + b, self.windows_per_epoch)
            file, start = self._window(epoch, position)
            tokens = self._tokens[file]
            if self.separator is not None:
                start = self._document_start(tokens, start)
            x[b] = tokens[start : start + T]
            y[b] = tokens[start + 1 : start + T + 1]
        return x, y

    def __iter__(self) -> Iterator[Batch]:
        """Batches 0, 1, 2, … without end, in fresh arrays."""
        step = 0
        while True:
            yield self.batch(step)
            step += 1

    def _window(self, epoch: int, position: int) -> tuple[int, int]:
        """(file, first token) of the window that epoch ``epoch`` visits at ``position``."""
        if self.shuffle:
            position = self._order(epoch)[position]
        file = bisect_right(self._ends, position)
        window = position - (self._ends[file] - self._counts[file])
        return file, self._starts(epoch)[file] + window * self.T

    def _document_start(self, tokens: np.ndarray, start: int) -> int:
        """The first document's beginning within the window at ``start``, or the separator before it; else ``start``."""
        if start == 0:
            return 0
        latest = min(start + self.T, len(tokens) - self.T) - 1  # the last separator after which T+1 tokens follow
        found = np.flatnonzero(tokens[start - 1 : latest] == self.separator)
        return start + int(found[0]) - start // self.T % 2 if len(found) else start

    def _compute_order(self, epoch: int) -> Permutation:
        return Permutation(self.windows_per_epoch, (self.seed, epoch))

    def _compute_starts(self, epoch: int) -> list[int]:
        """Where the first window of each file starts in this epoch."""
        T = self.T
        if not self.shuffle:
            return [0] * len(self._tokens)
        choices = [max(1, min(T, len(t) - n * T)) for t, n in zip(self._tokens, self._counts)]
        return [hash64(self.seed, epoch, file, 1) % c for file, c in enumerate(choices)]


def eval_batches(dataset: Dataset, B: int, T: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """Walk through the split once, in order: ``(x, y)``, int32 (B, T), in fresh arrays.

    Windows do not overlap, and each token but the first of each file is a target exactly once. Places beyond a
    file's end, and rows beyond the last window, have x = 0 and the target -1, to be ignored. ``max_tokens`` stops
    after the windows that hold that many targets (at least one window). UserError if there is nothing to predict.

    >>> from pathlib import Path
    >>> from nanoeuler.data.shards import TokenFile
    >>> dataset = Dataset((TokenFile(Path("counting.bin"), np.arange(6, dtype=np.uint16), "nanogpt"),), "val")
    >>> for x, y in eval_batches(dataset, B=2, T=3):
    ...     print(x.tolist(), y.tolist())
    [[0, 1, 2], [3, 4, 0]] [[1, 2, 3], [4, 5, -1]]
    """
    if max(map(len, dataset.files)) < 2:
        _refuse_short(dataset, 1)
    windows: Iterator[np.ndarray] = (
        file.tokens[s : s + T + 1] for file in dataset.files for s in range(0, len(file) - 1, T)
    )
    if max_tokens is not None:
        windows = islice(windows, max(1, max_tokens // T))
    while rows := list(islice(windows, B)):
        x = np.zeros((B, T), np.int32)
        y = np.full((B, T), IGNORE, np.int32)
        for b, window in enumerate(rows):
            x[b, : len(window) - 1] = window[:-1]
            y[b, : len(window) - 1] = window[1:]
        yield x, y


def _refuse_short(dataset: Dataset, T: int) -> None:
    longest = max(map(len, dataset.files))
    where = dataset.folder or dataset.files[0].path
    raise UserError(
        f"the {dataset.split} data in {where} is too short: block_size {T} needs {T + 1} tokens in one file, "
        f"the longest has {longest}; "
        + (f"a block_size of at most {longest - 1} fits" if longest > 1 else "add more text")
    )
