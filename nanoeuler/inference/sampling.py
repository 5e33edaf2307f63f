"""Choosing the next token from the model's logits.

A chain of small steps, each of which only makes the choice narrower:

1. entries that are not tokens (padding of the embedding) and banned ones are taken out;
2. the repetition penalty lowers the logits of tokens that were there before;
3. temperature 0 takes the largest logit; any other divides the logits by it;
4. top-k keeps the k most probable, top-p the fewest whose probability reaches p;
5. a uniform random number picks one of what is left.

The random number comes from the caller, so :func:`sample_next` is a pure function, and :func:`uniform` makes it from
``(seed, sample, position)`` alone: a sample's text does not depend on which others are drawn beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from nanoeuler.errors import UserError


@dataclass(frozen=True)
class SamplingConfig:
    """How to choose the next token.

    ``temperature``: 0 always takes the most probable token; 1 draws from the model's own distribution; below 1 is
    safer, above 1 wilder.
    ``top_k``: choose among the k most probable tokens (Fan et al. 2018); None or 0 for all.
    ``top_p``: choose among the fewest tokens whose probability reaches p (Holtzman et al. 2020); 1 for all.
    ``repetition_penalty``: above 1 makes tokens that were there before less probable (Keskar et al. 2019, section
    4.1); 1 leaves them alone. ``seed``: the same seed gives the same text.

    Raises UserError for a value out of range.

    >>> SamplingConfig(temperature=0.8, top_k=50).top_k
    50
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature must be 0 (the most probable token) or above, not {self.temperature!r}")
        if self.top_k is not None and not (_is_whole(self.top_k) and self.top_k >= 0):
            raise UserError(f"top_k must be a whole number, 1 or above (0: all tokens), not {self.top_k!r}")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise UserError(f"top_p must be above 0 and at most 1 (1: all tokens), not {self.top_p!r}")
        if not (_is_number(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100):
            raise UserError(
                f"repetition_penalty must be from 0.01 to 100 (1: no penalty), not {self.repetition_penalty!r}"
            )
        if not (_is_whole(self.seed) and 0 <= self.seed < 1 << 64):
            raise UserError(f"seed must be a whole number from 0 to 2^64 - 1, not {self.seed!r}")


def sample_next(
    logits: np.ndarray,
    history: Sequence[int],
    config: SamplingConfig,
    u: float,
    n_valid: int | None = None,
    banned: Collection[int] = (),
) -> int:
    """The id of the next token, from its ``logits`` (V,), of any float type.

    ``history`` are the ids so far, prompt included, for the repetition penalty. ``u`` is uniform in [0, 1), see
    :func:`uniform`. Ids from ``n_valid`` on (rows that only pad the embedding) and those in ``banned`` are never
    chosen. Among equals, the lowest id comes first.

    Raises UserError for logits that are not finite, and if nothing is left to choose.

    >>> logits = np.log([0.1, 0.6, 0.3])
    >>> [sample_next(logits, [], SamplingConfig(temperature=1), u) for u in (0.05, 0.5, 0.95)]
    [0, 1, 2]
    >>> sample_next(logits, [], SamplingConfig(temperature=0), 0.95)
    1
    """
    ids, scores = candidates(logits, n_valid, banned)
    scores = penalize(ids, scores, history, config.repetition_penalty)
    if config.temperature == 0:
        return int(ids[np.argmax(scores)])
    probs = softmax(scores, config.temperature)
    if config.top_k:
        keep = top_k(probs, config.top_k)
        ids, probs = ids[keep], probs[keep] / probs[keep].sum()
    if config.top_p < 1:
        keep = top_p(probs, config.top_p)
        ids, probs = ids[keep], probs[keep]
    return int(ids[draw(probs, u)])


def uniform(seed: int, sample: int, position: int) -> float:
    """A random number in [0, 1) with 53 bits, a pure function of its three keys.

    Philox is a counter-based generator: it scrambles a counter under a key, so any of its numbers can be had
    without those before it (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3").

    >>> uniform(1, 0, 7) == uniform(1, 0, 7), uniform(1, 0, 7) == uniform(1, 1, 7)
    (True, False)
    """
    key = np.array([seed, sample], np.uint64)
    counter = np.array([position, 0, 0, 0], np.uint64)
    return (int(np.random.Philox(counter=counter, key=key).random_raw()) >> 11) * 2.0**-53


def candidates(logits: np.ndarray, n_valid: int | None, banned: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
    """The ids that may be chosen, ascending, and their logits as float64; both (n,)."""
    scores = np.asarray(logits, np.float64)[:n_valid]
    if not np.isfinite(scores).all():
        at = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise UserError(
            f"the model's logit for token {at} is {scores[at]}: its weights are damaged, or training diverged; "
            "use an earlier checkpoint"
        )
    allowed = np.ones(len(scores), bool)
    allowed[[id for id in banned if 0 <= id < len(scores)]] = False
    ids = np.flatnonzero(allowed)
    if len(ids) == 0:
        raise UserError("no token is left to choose from: ban fewer")
    return ids, scores[ids]


def penalize(ids: np.ndarray, scores: np.ndarray, history: Sequence[int], penalty: float) -> np.ndarray:
    """Divide the logits of tokens in ``history`` by ``penalty``, and multiply them where they are negative.

    CTRL's formula only divides, which would *raise* a negative logit; GPT-2's are mostly negative.
    """
    if penalty == 1 or len(history) == 0:
        return scores
    seen = np.isin(ids, np.asarray(history))
    return np.where(seen, np.where(scores > 0, scores / penalty, scores * penalty), scores)


def softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    """``exp(scores / temperature)`` over its sum; the largest is taken off first, so nothing overflows."""
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature: exp(-inf) = 0 is what is meant
        e = np.exp((scores - scores.max()) / temperature)
    return e / e.sum()


def top_k(probs: np.ndarray, k: int) -> np.ndarray:
    """Indices, ascending, of the ``k`` largest of ``probs``; of equals at the border, the first.

    >>> top_k(np.array([0.1, 0.3, 0.3, 0.3]), 2)
    array([1, 2])
    """
    if k >= len(probs):
        return np.arange(len(probs))
    kth = np.partition(probs, len(probs) - k)[len(probs) - k]
    above = np.flatnonzero(probs > kth)
    equal = np.flatnonzero(probs == kth)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def top_p(probs: np.ndarray, p: float) -> np.ndarray:
    """Indices, ascending, of the fewest of ``probs`` (they sum to 1) whose sum reaches ``p``; at least one.

    They are taken by falling probability, and of equals the first.

    >>> top_p(np.array([0.2, 0.5, 0.3]), 0.7)
    array([1, 2])
    """
    order = np.argsort(-probs, kind="stable")
    rounding = 1e-12  # that 0.1 + 0.2 misses 0.3 by a hair must not take in one more
    n = int(np.searchsorted(np.cumsum(probs[order]), p - rounding)) + 1
    return np.sort(order[:n])


def draw(probs: np.ndarray, u: float) -> int:
    """The index at which the running sum of ``probs`` passes ``u`` of the whole: inverse transform sampling.

    An index of probability 0 is never drawn, since the running sum does not grow there.
    """
    cumulative = np.cumsum(probs)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
