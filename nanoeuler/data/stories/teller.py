"""The teller: draws at random, fills templates, keeps the sentences of one story.

A template is plain text with two marks:

- ``{slot}`` is replaced by the story's own value: ``{h}`` is the hero's name, ``{he}`` the hero's
  pronoun. ``{He}`` is the same with a capital.
- ``[one|two|]`` is replaced by one of its alternatives, each equally likely; they may be empty and may nest.

The only random call in the whole corpus is ``rng.random()``. Python promises that its sequence for a
given seed never changes; it makes no such promise for ``choice`` or ``shuffle``.
"""

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

from nanoeuler.data.stories import words

T = TypeVar("T")

# A parsed template is a sequence of parts: literal text, a slot's key, or a choice of parsed templates.
Part = tuple[str, object]

_NAMES = frozenset(words.GIRLS + words.BOYS + tuple(name for name, _ in words.GROWN_UPS))
_SENTENCE_START = re.compile(r"([.!?] )([a-z])")


def with_article(phrase: str) -> str:
    """Put ``a`` or ``an`` before a phrase.

    >>> with_article("red ball"), with_article("old hat")
    ('a red ball', 'an old hat')
    """
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


@cache
def parse(template: str) -> tuple[Part, ...]:
    """Parse a template once; the stories draw from a fixed set, so the cache stays small.

    >>> parse("{h} [ran|hid].")[0]
    ('slot', 'h')
    """
    parts, end = _parse_until(template, 0, nested=False)
    if end != len(template):
        raise ValueError(f"unbalanced bracket in template: {template!r}")
    return parts


def _parse_until(text: str, i: int, nested: bool) -> tuple[tuple[Part, ...], int]:
    """Parse from ``i`` to the end, or inside brackets to the next ``|`` or ``]``."""
    parts: list[Part] = []
    while i < len(text) and not (nested and text[i] in "|]"):
        if text[i] == "{":
            close = text.index("}", i)
            parts.append(("slot", text[i + 1 : close]))
            i = close + 1
        elif text[i] == "[":
            alternatives = []
            while text[i] != "]":
                alternative, i = _parse_until(text, i + 1, nested=True)
                alternatives.append(alternative)
                if i >= len(text):
                    raise ValueError(f"unbalanced bracket in template: {text!r}")
            parts.append(("choice", tuple(alternatives)))
            i += 1
        else:
            stop = i
            while stop < len(text) and text[stop] not in "{[" and not (nested and text[stop] in "|]"):
                stop += 1
            parts.append(("text", text[i:stop]))
            i = stop
    return tuple(parts), i


def _starts_with_name(text: str) -> bool:
    return re.split(r"\W", text, maxsplit=1)[0] in _NAMES


class Teller:
    """One story in the making: its random source, its slots and its sentences.

    >>> t = Teller(random.Random("1"))
    >>> t.slots["h"] = "Lily"
    >>> t.say("{h} smiled.")
    >>> t.text()
    'Lily smiled.'
    """

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self.slots: dict[str, str] = {}
        self._pieces: list[str] = []
        self._break_next = False

    # Drawing

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each equally likely."""
        return options[int(self._random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random() < probability

    def some(self, options: Sequence[T], k: int) -> list[T]:
        """``k`` different options in random order (the first ``k`` steps of a Fisher-Yates shuffle)."""
        pool = list(options)
        for i in range(k):
            j = i + int(self._random() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]

    # Casting

    def cast_person(self, prefix: str, gender: str, kind: str | None = None) -> None:
        """Draw a name of gender "f" or "m": slots ``{h} {he} {him} {his} {kind}``, each behind ``prefix``."""
        self.slots[prefix or "h"] = self.pick(words.GIRLS if gender == "f" else words.BOYS)
        self._pronouns(prefix, gender)
        self.slots[prefix + "kind"] = kind or ("girl" if gender == "f" else "boy")

    def cast_grown_up(self) -> None:
        """Draw who looks after the hero: ``{g}`` is "Mom", with pronouns ``{ghe} {ghim} {ghis}``."""
        name, gender = self.pick(words.GROWN_UPS)
        self.slots["g"] = name
        self._pronouns("g", gender)

    def _pronouns(self, prefix: str, gender: str) -> None:
        for key, pronoun in zip(("he", "him", "his"), words.PRONOUNS[gender]):
            self.slots[prefix + key] = pronoun

    def cast_thing(self, things: Mapping[str, Sequence[str]]) -> None:
        """Draw the thing of the story from nouns and the adjectives that they may bear."""
        noun = self.pick(tuple(things))
        self.set_thing(noun, self.pick(things[noun]))

    def set_thing(self, noun: str, adjective: str) -> None:
        """Fix the thing: ``{noun}`` "ball", ``{thing}`` "red ball", ``{a_thing}`` "a red ball"."""
        thing = f"{adjective} {noun}"
        self.slots["noun"], self.slots["thing"], self.slots["a_thing"] = noun, thing, with_article(thing)

    # Telling

    def fill(self, template: str) -> str:
        """The template with its choices drawn and its slots filled."""
        out: list[str] = []
        self._fill(parse(template), out)
        return "".join(out)

    def _fill(self, parts: tuple[Part, ...], out: list[str]) -> None:
        for kind, value in parts:
            if kind == "text":
                out.append(value)  # type: ignore[arg-type]
            elif kind == "choice":
                self._fill(self.pick(value), out)  # type: ignore[arg-type]
            else:
                out.append(self._slot(value))  # type: ignore[arg-type]

    def _slot(self, key: str) -> str:
        if key in self.slots:
            return self.slots[key]
        value = self.slots[key[0].lower() + key[1:]]
        return value[0].upper() + value[1:]

    def say(self, *variants: str) -> None:
        """Add one of the variants (one or more sentences) to the story, with its capitals set."""
        text = self.fill(self.pick(variants))
        text = text[0].upper() + text[1:] if text[0] != '"' else text
        text = _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)
        if self._pieces:
            breaks = self._break_next and not _starts_with_name(text)
            self._pieces.append("\n\n" if breaks else " ")
            self._break_next = self._break_next and not breaks
        self._pieces.append(text)

    def maybe(self, probability: float, *variants: str) -> None:
        """Say one of the variants with the given probability."""
        if self.chance(probability):
            self.say(*variants)

    def paragraph(self) -> None:
        """Begin a new paragraph with the next sentence that does not begin with a name.

        A name after a line break is another token than the same name after a space. A story that
        always writes its names after a space is easier to keep straight for a very small model.
        """
        self._break_next = True

    def text(self) -> str:
        """The whole story."""
        return "".join(self._pieces)
