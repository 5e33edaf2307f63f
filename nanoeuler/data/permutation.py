"""A pseudo-random permutation of 0 … n-1 that needs no memory: shuffling without a list to shuffle.

Shuffling a billion windows with a list costs 8 GB and must be saved to resume. Here position ``i`` is *computed*:

1. A **Feistel network** permutes the 2^b numbers of b bits. Cut a number into a left and a right half and, in
   turn, xor each half with a hash of the other. However bad the hash, each such step undoes itself, so the whole
   is a bijection (Luby and Rackoff, "How to construct pseudorandom permutations", SIAM J. Comput. 17, 1988).
2. **Cycle-walking** brings 2^b down to n: where the result is n or more, permute it again, until it falls below
   n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). As 2^b < 2n, two walks suffice on
   average.

The hash is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), whose every output bit depends on every input bit.
"""

import numpy as np

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, SplitMix64's increment
_BLOCK = 1024  # positions computed together, as NumPy is slow one number at a time
_ROUNDS = 8  # each xors one half; Luby and Rackoff prove four enough for a perfect hash


def hash64(*values: int) -> int:
    """Hash any integers into one of 64 bits, the same on every machine and in every run.

    >>> hash64(1, 2) == hash64(1, 2), hash64(1, 2) == hash64(2, 1)
    (True, False)
    """
    state = 0
    for value in values:
        state = (state ^ (value & _MASK64)) + _GOLDEN & _MASK64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK64
        state ^= state >> 31
    return state


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer on a uint64 array; products wrap modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Permutation:
    """The permutation of ``range(n)`` that belongs to ``key`` (a tuple of integers, say seed and epoch).

    Call it with an integer array of positions below ``n`` to get an int64 array of the same shape, or index it with
    one position, which is fast for positions in ascending order.

    >>> p = Permutation(5, (42, 0))
    >>> sorted(p(np.arange(5)).tolist()), [p[i] for i in range(5)] == p(np.arange(5)).tolist()
    ([0, 1, 2, 3, 4], True)
    """

    def __init__(self, n: int, key: tuple[int, ...]) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs at least one element, got n={n}")
        self.n = n
        bits = (n - 1).bit_length()
        self._right_bits = np.uint64((bits + 1) // 2)
        self._right_mask = np.uint64((1 << ((bits + 1) // 2)) - 1)
        self._left_mask = np.uint64((1 << (bits // 2)) - 1)
        self._keys = [np.uint64(hash64(*key, n, r)) for r in range(_ROUNDS)]
        self._cached: tuple[int, list[int]] = (-1, [])  # the block of positions computed last: number, values

    def _feistel(self, x: np.ndarray) -> np.ndarray:
        left, right = x >> self._right_bits, x & self._right_mask
        for r in range(0, _ROUNDS, 2):
            left = left ^ (_mix(right ^ self._keys[r]) & self._left_mask)
            right = right ^ (_mix(left ^ self._keys[r + 1]) & self._right_mask)
        return (left << self._right_bits) | right

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        x = self._feistel(np.asarray(positions).astype(np.uint64))
        while (outside := x >= self.n).any():
            x[outside] = self._feistel(x[outside])
        return x.astype(np.int64)

    def __getitem__(self, position: int) -> int:
        block, within = divmod(position, _BLOCK)
        number, values = self._cached
        if number != block:
            first = block * _BLOCK
            values = self(np.arange(first, min(first + _BLOCK, self.n))).tolist()
            self._cached = (block, values)
        return values[within]
