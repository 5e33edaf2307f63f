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
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

CHUNK = 1 << 20  # characters split at a time: bounds the memory that the list of pieces takes

# After a visible character, before a blank: no piece holds both sides, and neither side looks across.
_SAFE_CUT = re.compile(r"\S(?=[ \n])")


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
        if part.isascii():
            yield _ascii_pattern().findall(part)
        else:
            yield _unicode_pattern().findall(replace_surrogates(part))
        start = end


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
    return _pattern(**unicode_classes())


@cache
def unicode_classes() -> dict[str, str]:
    """``letter``, ``number`` and ``space``, each as the inside of a regular expression's ``[...]``."""
    classes = {}
    for line in files(__package__).joinpath("unicode16.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, *spans = line.split()
            classes[name] = "".join(
                "-".join(rf"\U{int(end, 16):08x}" for end in span.split("-")) for span in spans
            )
    return classes
