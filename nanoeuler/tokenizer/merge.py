"""Byte-pair encoding of one piece: apply the merges, earliest learnt first, until none fits.

Tokens are numbered in the order they were learnt (0 to 255 are the bytes, 256 is the first merge), so the
number of the merged token is also the merge's rank. A merge only joins tokens learnt before it. Hence, while
the lowest rank present is being applied, nothing lower can appear, and two ways to work give the same result:

- :func:`merge_by_scan` looks through the whole piece once for every rank: quadratic, and fast for words;
- :func:`merge_by_heap` keeps all candidates in a heap, and the piece in a linked list: n log n, for long ones.

Source: Sennrich et al., *Neural Machine Translation of Rare Words with Subword Units*, 2016, section 3.2.
"""

import heapq
from itertools import pairwise

Merges = dict[tuple[int, int], int]  # (left, right) -> merged

_LONG = 100  # bytes from which the heap wins


def merge(tokens: list[int], merges: Merges) -> list[int]:
    """Join neighbouring ``tokens`` by ``merges`` until none fits.

    >>> merges = {(0, 1): 256, (256, 256): 257}
    >>> merge([0, 1, 0, 1, 1], merges)
    [257, 1]
    """
    return merge_by_scan(tokens, merges) if len(tokens) < _LONG else merge_by_heap(tokens, merges)


def merge_by_scan(tokens: list[int], merges: Merges) -> list[int]:
    while len(tokens) > 1:
        candidates = [merges[pair] for pair in pairwise(tokens) if pair in merges]
        if not candidates:
            break
        lowest = min(candidates)
        joined: list[int] = []
        i = 0
        while i < len(tokens):
            if i + 1 < len(tokens) and merges.get((tokens[i], tokens[i + 1])) == lowest:
                joined.append(lowest)
                i += 2
            else:
                joined.append(tokens[i])
                i += 1
        tokens = joined
    return tokens


def merge_by_heap(tokens: list[int], merges: Merges) -> list[int]:
    count = len(tokens)
    alive: list[int | None] = list(tokens)  # None: swallowed by the token on its left
    left = list(range(-1, count - 1))
    right = list(range(1, count + 1))
    heap = [(merges[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in merges]
    heapq.heapify(heap)  # equal ranks come out from left to right, as the scan takes them

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < count and (merged := merges.get((alive[i], alive[j]))) is not None:  # type: ignore[arg-type]
            heapq.heappush(heap, (merged, i))

    while heap:
        merged, i = heapq.heappop(heap)
        j = right[i]
        if alive[i] is None or j >= count or merges.get((alive[i], alive[j])) != merged:  # type: ignore[arg-type]
            continue  # one of the two has been merged with something else meanwhile
        alive[i], alive[j] = merged, None
        right[i] = right[j]
        if right[i] < count:
            left[right[i]] = i
        offer(left[i], i)
        offer(i, right[i])
    return [token for token in alive if token is not None]
