"""GPT-2's splitter: text into the pieces that byte-pair encoding works on, one at a time.

Merges never cross from one piece into the next, so a piece is the longest thing a token can be: a word with
the space before it, a number, a run of punctuation, a run of white space, or the tail of a contraction. The
rule is a regular expression (Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019,
section 2.2, and the code published with it)::

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

Python's ``re`` has no ``\\p{L}``, and its ``\\s`` also takes U+001C to U+001F, which Unicode does not call
white space. So the three classes are spelled out, from ``unicode16.txt`` beside this file.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.resources import files
from itertools import accumulate

CLASSES = ("letter", "number", "space")  # the lines of unicode16.txt
CHUNK = 1 << 20  # characters split at a time: bounds the memory that the list of pieces takes

# After a visible character, before a blank: no piece holds both sides, and neither side looks across.
_SAFE_CUT = re.compile(r"\S(?=[ \n])")
_BEYOND_TABLE = re.compile("[\U00010000-\U0010ffff]")


def split(text: str) -> list[str]:
    """Split ``text`` into GPT-2's pieces; joined, they are ``text`` again.

    Lone surrogates (which no UTF-8 file can hold, but a Python string can) become U+FFFD, and a pair of them
    becomes the character it stands for, as in tiktoken. Every other text comes back unchanged.

    >>> split("We'll count 123 apples,  won't we?")
    ['We', "'ll", ' count', ' 123', ' apples', ',', ' ', ' won', "'t", ' we', '?']
    """
    return [piece for pieces in split_chunks(text) for piece in pieces]


def split_chunks(text: str, chunk: int = CHUNK) -> Iterator[list[str]]:
    """The same pieces as :func:`split`, in lists that cover about ``chunk`` characters each."""
    start = 0
    while start < len(text):
        cut = _SAFE_CUT.search(text, start + chunk - 1)
        end = cut.end() if cut else len(text)
        part = text[start:end]
        yield _ascii_pattern().findall(part) if part.isascii() else _split_unicode(replace_surrogates(part))
        start = end


def _split_unicode(text: str) -> list[str]:
    """Split by stand-ins: in place of each character beyond U+FFFF, one of the same class below it.

    The ``re`` module looks characters up to U+FFFF up in a table, but goes through the ranges of a class one by
    one for those beyond; a class that has any such range is slow for every character.
    """
    shadow = _BEYOND_TABLE.sub(lambda match: _stand_in(match[0]), text)
    pieces = _unicode_pattern().findall(shadow)
    if shadow == text:
        return pieces
    return [text[end - len(piece) : end] for piece, end in zip(pieces, accumulate(map(len, pieces)))]


@lru_cache(maxsize=1 << 14)
def _stand_in(character: str) -> str:
    """A letter (of no contraction), a digit or a sign. There is no white space beyond U+FFFF."""
    letter, number = _classes_beyond_table()
    return "a" if letter.match(character) else "0" if number.match(character) else "!"


def replace_surrogates(text: str) -> str:
    """``text`` as UTF-8 can hold it: surrogate pairs joined, lone surrogates made U+FFFD.

    >>> replace_surrogates("a\\ud800b") == "a\\ufffdb", replace_surrogates("\\ud83d\\ude00") == "\\U0001f600"
    (True, True)
    """
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _pattern(letter: str, number: str, space: str) -> re.Pattern[str]:
    """The splitter for given classes, each written as the inside of ``[...]``."""
    return re.compile(
        "'(?:[stmd]|re|ve|ll)"
        f"| ?[{letter}]+"
        f"| ?[{number}]+"
        f"| ?[^{space}{letter}{number}]+"
        # White space up to the end of the text, or all but its last character, which is left for the word
        # that follows. "Not followed by a visible character" is "followed by white space or the end".
        f"|[{space}]+(?![^{space}])"
        f"|[{space}]+"
    )


@cache
def _ascii_pattern() -> re.Pattern[str]:
    """Enough for most English text, and compiled in no time."""
    return _pattern("A-Za-z", "0-9", r"\t-\r ")


@cache
def _unicode_pattern() -> re.Pattern[str]:
    """For text up to U+FFFF."""
    classes = _unicode_classes()
    return _pattern(*(_inside(span for span in classes[name] if span[1] <= "\uffff") for name in CLASSES))


@cache
def _classes_beyond_table() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Letters beyond U+FFFF, and numbers."""
    classes = _unicode_classes()
    letter, number = (_inside(span for span in classes[name] if span[1] > "\uffff") for name in CLASSES[:2])
    return re.compile(f"[{letter}]"), re.compile(f"[{number}]")


def _inside(spans: Iterable[tuple[str, str]]) -> str:
    """Spans of characters as the inside of a regular expression's ``[...]``."""
    return "".join(f"{re.escape(first)}-{re.escape(last)}" for first, last in spans)


@cache
def _unicode_classes() -> dict[str, list[tuple[str, str]]]:
    """First and last character of every span of each class."""
    classes = {}
    for line in files(__package__).joinpath("unicode16.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, *spans = line.split()
            ends = [span.split("-") for span in spans]
            classes[name] = [(chr(int(end[0], 16)), chr(int(end[-1], 16))) for end in ends]
    return classes
