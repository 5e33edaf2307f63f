"""Learning the merges: join the most frequent pair of neighbouring tokens, again and again.

Source: Sennrich et al., *Neural Machine Translation of Rare Words with Subword Units*, 2016, algorithm 1.
Counting all pairs anew for every merge would cost a pass over the text each time. Instead:

- the text is split once, and each distinct piece is kept once, with the number of times it occurs;
- a merge changes counts only beside the places where it happens, and an index from pair to places finds them;
- every pair that a merge creates holds the new token, so an old pair's count can only fall. A heap may
  therefore hold counts that are too high, put right when they come to its top.
"""

import heapq
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.bpe import END_OF_TEXT, Tokenizer, special_pattern
from nanoeuler.tokenizer.byte_symbols import byte_ids
from nanoeuler.tokenizer.split import split_chunks

Pair = tuple[int, int]

_GAP = -1  # between two pieces: belongs to no pair
_MERGED_AWAY = -2  # swallowed by the token on its left


def train(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    progress: Callable[[int, int], None] | None = None,
) -> Tokenizer:
    """Learn a tokenizer of ``vocab_size`` entries: 256 bytes, then merges, then the special tokens.

    ``texts`` is read once and may be a generator; a single string counts as one text. Special tokens inside a
    text separate documents and are not learnt from. The same texts give the same tokenizer, in any order: of
    pairs equally frequent, the one whose left token has the lower id wins, then the one whose right has.

    A pair that occurs once is nothing to learn. If no pair occurs twice before the size is reached, a warning
    says so and the vocabulary is smaller: ``n_vocab`` tells. ``progress(done, wanted)`` is called after each
    merge. Raises UserError if the size is below 256 + special tokens, or there is no text.

    >>> tokenizer = train(["low lower lowest slow"], vocab_size=260)
    >>> [tokenizer.decode([id]) for id in tokenizer.encode("slowest")]
    ['s', 'low', 'e', 's', 't']
    """
    _check(vocab_size, special_tokens)
    wanted = vocab_size - 256 - len(special_tokens)
    pieces = count_pieces([texts] if isinstance(texts, str) else texts, special_tokens)
    if not pieces:
        raise UserError("there is no text to train the tokenizer on; give it at least one text that is not empty")
    merges = learn_merges(pieces, wanted, progress)
    if len(merges) < wanted:
        warnings.warn(
            f"the text is too small for a vocabulary of {vocab_size}: no pair of tokens occurs twice after "
            f"{len(merges)} merges, so it has {vocab_size - wanted + len(merges)} entries",
            stacklevel=3,
        )
    first_special = 256 + len(merges)
    return Tokenizer(merges, {name: first_special + i for i, name in enumerate(special_tokens)})


def _check(vocab_size: int, special_tokens: Sequence[str]) -> None:
    if not isinstance(vocab_size, Integral):
        raise UserError(f"vocab_size must be a whole number, not {vocab_size!r}")
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise UserError(
            f"vocab_size {vocab_size} is too small: 256 bytes and {len(special_tokens)} special tokens "
            f"need at least {least}"
        )
    short = [name for name in special_tokens if len(name.encode("utf-8", "replace")) < 2]
    if short or len(set(special_tokens)) < len(special_tokens):
        raise UserError(
            f"special tokens must differ and be longer than one byte, not {list(special_tokens)}; "
            "a name like '<|endoftext|>' cannot be mistaken for text"
        )


def count_pieces(texts: Iterable[str], special_tokens: Iterable[str]) -> Counter[str]:
    """How often each piece of GPT-2's split occurs in ``texts``, special tokens left out."""
    special = set(special_tokens)
    counts: Counter[str] = Counter()
    for text in texts:
        for part in re.split(special_pattern(special), text) if special else [text]:
            if part not in special:
                for pieces in split_chunks(part):
                    counts.update(pieces)
    return counts


def learn_merges(pieces: Counter[str], wanted: int, progress: Callable[[int, int], None] | None = None) -> list[Pair]:
    """The first ``wanted`` merges, fewer if pairs that occur twice run out."""
    corpus = _Corpus(pieces)
    heap = [(-count, pair) for pair, count in corpus.counts.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    while heap and len(merges) < wanted:
        count, pair = heapq.heappop(heap)
        current = corpus.counts[pair]
        if current != -count:  # fallen since it was put in
            if current > 1:
                heapq.heappush(heap, (-current, pair))
            continue
        if current < 2:
            break
        for new in corpus.merge(pair, 256 + len(merges)):
            heapq.heappush(heap, (-corpus.counts[new], new))
        merges.append(pair)
        if progress:
            progress(len(merges), wanted)
    return merges


class _Corpus:
    """All distinct pieces in one row of tokens, a gap between each two, with counts of neighbouring pairs."""

    def __init__(self, pieces: Counter[str]) -> None:
        self.tokens: list[int] = [_GAP]
        self.weight: list[int] = [0]  # how often the piece occurs that the token belongs to
        for piece, count in pieces.items():
            ids = byte_ids(piece.encode("utf-8"))
            self.tokens += [*ids, _GAP]
            self.weight += [count] * (len(ids) + 1)
        self.left = list(range(-1, len(self.tokens) - 1))
        self.right = list(range(1, len(self.tokens) + 1))
        self.counts: dict[Pair, int] = defaultdict(int)
        self.places: dict[Pair, list[int]] = defaultdict(list)  # of the left token; may be out of date
        for i in range(len(self.tokens) - 1):
            self._add(i, i + 1)

    def merge(self, pair: Pair, new: int) -> set[Pair]:
        """Join every occurrence of ``pair`` into token ``new``; return the pairs that came up by it."""
        tokens, left, right = self.tokens, self.left, self.right
        created: set[Pair] = set()
        for i in sorted(self.places[pair]):  # left to right, as encoding merges: it matters in "aaa"
            j = right[i]
            if (tokens[i], tokens[j]) != pair:
                continue
            before, after = left[i], right[j]
            self._remove(before, i)
            self._remove(j, after)
            tokens[i], tokens[j] = new, _MERGED_AWAY
            right[i], left[after] = after, i
            created |= self._add(before, i) | self._add(i, after)
        del self.counts[pair], self.places[pair]
        return created

    def _add(self, i: int, j: int) -> set[Pair]:
        pair = self.tokens[i], self.tokens[j]
        if _GAP in pair:
            return set()
        self.counts[pair] += self.weight[i]
        self.places[pair].append(i)
        return {pair}

    def _remove(self, i: int, j: int) -> None:
        pair = self.tokens[i], self.tokens[j]
        if _GAP not in pair:
            self.counts[pair] -= self.weight[i]
