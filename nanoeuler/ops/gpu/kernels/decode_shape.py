"""How the decoding kernel's work is cut: rows of each product into records, and records into shared memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from nanoeuler.ops.gpu.kernels.decode_ring import MOST_ROWS, VECTOR, inputs_padded, record_bytes
from nanoeuler.ops.gpu.kernels.spec import Array, cdiv


@dataclass(frozen=True)
class Weights:
    """A model's weights for decoding.

    ``stream``: bytes, what each program needs in the order in which it needs it (``Shape.part_bytes`` a program), see
    ``decode_ring.py``. ``wte`` (V, C), its int8 ``scales`` if any, and ``wpe`` are for the embedding. ``vectors``:
    norms and biases, layer after layer as :class:`~nanoeuler.model.parameters.Layout` has them, then the last norm.
    """

    stream: Array
    wte: Array
    wpe: Array
    vectors: Array
    scales: Array | None = None


@dataclass(frozen=True)
class Records:
    """How a product is cut: ``rows`` a record, ``count`` records a program; ``inputs``, padded."""

    rows: int
    count: int
    inputs: int
    bits: int

    @functools.cached_property
    def size(self) -> int:
        """Bytes of a record."""
        return int(record_bytes(self.rows, self.inputs, self.bits))


@dataclass(frozen=True)
class Shape:
    """What a decoding kernel is compiled for."""

    layers: int
    C: int
    H: int
    V: int
    T: int
    programs: int
    bits: int = 16  # of a weight; 32 in the tests' interpreter
    block: int = 32
    largest: int = 40960  # bytes of a record
    slots: int = 8  # at most
    split_among: int = 0  # programs that share a head's positions; 0: as many as there are

    @property
    def splits(self) -> int:
        """Programs that share a head's positions."""
        return max(1, min(self.split_among or self.programs, self.programs // self.H, cdiv(self.T, self.block)))

    @property
    def exchange_words(self) -> int:
        """Words of 8 bytes through which programs talk: x twice a layer, q k v, hidden, shares, and the choice."""
        return self.layers * self.C * (2 + 3 + 2) + self.layers * self.splits * (self.C // 2) + 2 * self.programs

    @functools.cached_property
    def records(self) -> tuple[Records, ...]:
        """Of qkv, projection, fc, back, and the head."""
        C, KP, KH = self.C, int(inputs_padded(self.C, False)), int(inputs_padded(4 * self.C, True))
        qkv, fc, head = (self._cut(rows, KP) for rows in (3 * C, 4 * C, self.V))
        back = self._cut(C, KH)
        return qkv, Records(back.rows, back.count, KP, self.bits), fc, back, head

    def _cut(self, rows: int, inputs: int) -> Records:
        """Rows of all programs alike, an even number a record (two share a word, and a register of scales)."""
        each = cdiv(rows, self.programs)
        most = max(2, min(MOST_ROWS, self.largest * 8 // (inputs * self.bits)) // 2 * 2)
        if each > 2 * MOST_ROWS:  # the head: whole tiles of eight
            most = max(2, min(24, most) // 8 * 8)
        count = cdiv(each, most)
        per = cdiv(each, count)
        return Records(per + per % 2, count, inputs, self.bits)

    @property
    def busy(self) -> int:
        """Programs that have rows of a layer."""
        rows = (3 * self.C, self.C, 4 * self.C, self.C)
        return max(cdiv(n, r.rows * r.count) for n, r in zip(rows, self.records))

    @property
    def layer_bytes(self) -> int:
        """Of a program."""
        return sum(r.size * r.count for r in self.records[:4])

    @property
    def part_bytes(self) -> int:
        """Of a program's part of the stream."""
        return self.layers * self.layer_bytes + self.records[4].size * self.records[4].count

    @functools.cache  # noqa: B019  (shapes are few)
    def memory(self, shared: int) -> tuple[int, int, int, int]:
        """(bytes of a slot, slots, where they begin, bytes in all) in ``shared`` bytes of shared memory."""
        KP, KH = int(inputs_padded(self.C, False)), int(inputs_padded(4 * self.C, True))
        slot = cdiv(max(r.size for r in self.records), 128) * 128
        at = cdiv(VECTOR + max(4 * KP, 2 * KH), 128) * 128
        slots = min(self.slots, (shared - at - 1024) // slot)  # beyond a record a few bytes are read that do not count
        return slot, slots, at, cdiv(at + slots * slot + 512, 1024) * 1024
