"""A grader for simple stories: whole sentences, steady names, steady objects, a real ending.

It judges any text by general rules and a word list, and knows nothing of the templates behind the built-in
corpus. A model may put sentences together in new ways and lose nothing; a text that shuffles its words, swaps
its hero, forgets its red ball or breaks off in the middle loses much.

The total is ``sentences * (names + objects + ending) / 3``: where there are no sentences there is no story.

>>> story = '''Once there was a girl named Mia. She had a red ball. One day, the ball was gone. Mia was sad.
... "I will help you," said Mom. They looked under the bench, and there was the red ball!
... From that day on, Mia always took good care of her ball, and she was happy.'''
>>> grade(story).total > grade(story.replace("and there was the red ball", "there and blue was")).total
True
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nanoeuler.data.grader_grammar import sentence_problems, split_sentences, word_tags
from nanoeuler.data.grader_words import (
    BIG,
    COLOURS,
    EITHER_GENDER,
    GENDERED_NOUNS,
    IDENTITY,
    KIN,
    NAME_GENDER,
    SMALL,
    THINGS,
)

_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_PRONOUNS = {
    "he": "m",
    "him": "m",
    "his": "m",
    "himself": "m",
    "she": "f",
    "her": "f",
    "hers": "f",
    "herself": "f",
}
_CLOSING = re.compile(
    r"\b(happy|happily|glad|proud|smil\w+|laugh\w*|hug\w*|friends?|friendship|together|home|safe|love[ds]?|asleep"
    r"|slept|sleep|always|never|ever after|learned|best|good|better|fun|shared?|thank\w*|kind|kindness|from that"
    r"|every day|anymore|the end|at last|fair|well|played|enjoyed|forever|goodbye|knew|winner|won|brave)\b",
    re.IGNORECASE,
)
_UNSOLVED = re.compile(
    r"\b(sad|cry|cried|crying|gone|afraid|scared|angry|worried|could not|cannot|but)\b", re.IGNORECASE
)
_SOLVED = re.compile(
    r"\b(not|never|no longer|anymore|again|could not stop|but (he|she|they) (was|were|got))\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Grade:
    """Scores from 0 (bad) to 1 (good), and what was found wrong, in plain words."""

    sentences: float
    names: float
    objects: float
    ending: float
    total: float
    problems: list[str] = field(default_factory=list)


def grade(text: str) -> Grade:
    """Judge one story. A trailing ``<|endoftext|>`` is no part of it.

    >>> grade("").total
    0.0
    """
    text = text.split("<|endoftext|>")[0].strip()
    found = split_sentences(text)
    if not found:
        return Grade(0.0, 0.0, 0.0, 0.0, 0.0, ["there is no text"])
    names = _names_in(found)
    problems: list[str] = []
    sentences = _grade_sentences(found, names, problems)
    steady_names = _grade_names(found, names, problems)
    steady_objects = _grade_objects(found, problems)
    ending = _grade_ending(text, found, names, problems)
    total = sentences * (steady_names + steady_objects + ending) / 3
    return Grade(sentences, steady_names, steady_objects, ending, total, problems)


def grade_many(texts: Iterable[str]) -> float:
    """The mean total of many stories; 0 for none."""
    totals = [grade(text).total for text in texts]
    return sum(totals) / len(totals) if totals else 0.0


# Sentences


def _grade_sentences(found: list[str], names: frozenset[str], problems: list[str]) -> float:
    """Mean over sentences: 1 without a problem, 0.3 with one, 0 with more or if it was said before."""
    scores, seen = [], Counter[str]()
    for sentence in found:
        wrong = sentence_problems(sentence, names)
        if seen[sentence] >= (1 if len(sentence.split()) > 3 else 2):  # "Tap, tap!" may come twice
            wrong += ["said before: " + sentence] * 2
        seen[sentence] += 1
        scores.append((1.0, 0.3, 0.0)[min(len(wrong), 2)])
        problems += wrong
    return sum(scores) / len(scores)


# Names


def _names_in(found: list[str]) -> frozenset[str]:
    """Names: known ones, and unknown capitalised words that stand inside a sentence."""
    names = set()
    for sentence in found:
        for match in _WORD.finditer(sentence):
            word = match[0].removesuffix("'s")
            inside = (
                match.start() > 0 and sentence[match.start() - 1] == " " and sentence[match.start() - 2] not in '.!?"'
            )
            if word in NAME_GENDER or (inside and word[0].isupper() and word != "I" and word_tags(word) is None):
                names.add(word)
    return frozenset(names)


def _introduced(name: str, sentence: str) -> bool:
    """Whether the sentence tells who this is: "a boy named Ben", "her friend Ben", "I am Ben", "Ben, a fox"."""
    kinds = "friend|brother|sister|cousin|neighbor|teacher|girl|boy|dog|cat|named|called|name is|name was|I am|am"
    return bool(
        re.search(rf"\b({kinds}|[Mm]r|[Mm]rs)\.? {name}\b", sentence)
        or re.search(rf"\b{name}, (a|an|his|her|the|who)\b", sentence)
    )


def _grade_names(found: list[str], names: frozenset[str], problems: list[str]) -> float:
    """Whoever is introduced stays, nobody comes from nowhere, and he is not she."""
    mentions: dict[str, list[int]] = {}
    for i, sentence in enumerate(found):
        for word in _WORD.findall(sentence):
            if word.removesuffix("'s") in names:
                mentions.setdefault(word.removesuffix("'s"), []).append(i)
    people = {name: where for name, where in mentions.items() if name not in KIN}
    early = max(3, round(0.3 * len(found)))
    if not any(where[0] < early for where in people.values()):
        problems.append("nobody is named at the beginning")
        return 0.0
    score = 1.0
    for name, where in mentions.items():
        if name in KIN:
            rivals = [other for other in mentions if other in KIN and mentions[other][0] < where[0]]
            stranger = bool(rivals) and where[0] > 0.6 * len(found)
        else:
            stranger = where[0] >= early and not _introduced(name, found[where[0]])
            # '"I am Ben," said the boy': the name may be told one sentence later
        if stranger:
            problems.append(f"{name} comes from nowhere")
            score -= 0.4
    hero = max(people, key=lambda name: sum(i < len(found) / 2 for i in people[name]))
    for name, where in people.items():
        gone = where[-1] < 0.6 * len(found)
        if gone and (name == hero or (where[0] < early and len(where) > 1)):
            problems.append(f"{name} is forgotten")
            score -= 0.5 if name == hero else 0.3
    for wrong in _pronoun_problems(found, names) + _role_problems(found, people):
        problems.append(wrong)
        score -= 0.3
    return max(0.0, score)


def _pronoun_problems(found: list[str], names: frozenset[str]) -> list[str]:
    """Each he or she needs somebody of that gender close by.

    Close is: named before it in the same sentence, or in the last sentence that named anybody; for a pronoun
    that does not begin its sentence, also in the sentence that named anybody before that one.
    """
    genders = _genders(found, names)
    present: list[set[str]] = []  # the genders named, for each sentence that names anybody
    problems = []
    for sentence in found:
        here: set[str] = set()
        lost = None
        for k, word in enumerate(_WORD.findall(sentence)):
            person = genders.get(word.removesuffix("'s")) or GENDERED_NOUNS.get(word.lower())
            if person:
                here.add(person)
            elif word.lower() in EITHER_GENDER:
                here |= {"f", "m"}
            gender = _PRONOUNS.get(word.lower())
            if gender and gender not in here.union(*present[-1 if here or k == 0 else -2 :]):
                lost = word
        if lost and _PRONOUNS[lost.lower()] not in here:  # "When she came, Mia ..." looks forward
            problems.append(f'"{lost}" is nobody: {sentence}')
        if here:
            present.append(here)
    return problems


def _genders(found: list[str], names: frozenset[str]) -> dict[str, str]:
    """Gender of each name: known, or that of the first pronoun after the name's first mention."""
    genders = {name: NAME_GENDER[name] for name in names if name in NAME_GENDER}
    text = " ".join(found)
    for name in names - genders.keys():
        after = _WORD.findall(text[text.find(name) :])
        gender = next((_PRONOUNS[word.lower()] for word in after if word.lower() in _PRONOUNS), None)
        if gender:
            genders[name] = gender
    return genders


def _role_problems(found: list[str], people: dict[str, list[int]]) -> list[str]:
    """Nobody is two at once: "a girl named Tom", "Tom and his friend Tom", '"Thank you, Tom!" said Tom'."""
    problems = []
    text = " ".join(found)
    for name in people:
        gender = NAME_GENDER.get(name)
        for noun, kind in (("girl", "f"), ("boy", "m")):
            if gender and gender != kind and re.search(rf"\b{noun} (named|called) {name}\b", text):
                problems.append(f"a {noun} named {name}")
        if len(re.findall(rf"\bnamed {name}\b", text)) > 1:
            problems.append(f"{name} is introduced twice")
        twice = rf"\b{name} (and|told|asked|hugged|helped|thanked|gave|saw) (his|her|)( friend|) ?{name}\b"
        speaks = rf', {name}[.,!?]+" (said|asked|called) {name}\b'
        friend = rf"\b(his|her) friend {name}\b"
        first = people[name][0]
        if re.search(twice, text) or re.search(speaks, text):
            problems.append(f"{name} is two at once")
        elif any(re.search(friend, s) for s in found[first + 1 :]) and first == min(w[0] for w in people.values()):
            problems.append(f"{name} is the hero and a friend")
    return problems


# Objects


def _grade_objects(found: list[str], problems: list[str]) -> float:
    """The thing of the beginning is there at the end, with the same look, and no other pops up."""
    mentions: dict[str, list[int]] = {}
    looks: dict[str, list[tuple[str, bool]]] = {}  # noun -> (adjective, told of a thing known already)
    definite_first: dict[str, int] = {}
    speakers = re.findall(r"\b(\w+) named\b|\b(?:said|asked) the (\w+)", " ".join(found))
    characters = {noun for pair in speakers for noun in pair}  # "a squirrel named Tom" is no object
    for i, sentence in enumerate(found):
        words = [word.lower() for word in _WORD.findall(sentence)]
        for k, word in enumerate(words):
            noun = word if word in THINGS else word.removesuffix("s")
            if noun not in THINGS or noun in characters or words[k - 1 : k] == ["of"]:  # "full of apples"
                continue
            described = k
            while described > 0 and words[described - 1] in IDENTITY:
                described -= 1
            known = described > 0 and words[described - 1] in ("the", "his", "her", "their")
            if noun not in mentions and known and described < k:
                definite_first[noun] = i
            mentions.setdefault(noun, []).append(i)
            looks.setdefault(noun, []).extend((adjective, known) for adjective in words[described:k])
    late = 0.6 * len(found)
    main = [noun for noun, where in mentions.items() if where[0] < late]
    if not main:
        problems.append("there is no object to follow")
        return 0.0
    score = 1.0
    last = max(mentions[noun][-1] for noun in main)
    if last < 0.7 * len(found):
        problems.append("no object of the beginning is there at the end")
        score -= 0.6
    elif not any(len(mentions[noun]) > 1 and mentions[noun][-1] >= late for noun in main):
        problems.append("the main object is forgotten")
        score -= 0.4
    for noun, told in looks.items():
        if _look_changes(told):
            problems.append(f"the {noun} changes: {' '.join(dict.fromkeys(a for a, _ in told))}")
            score -= 0.5
    for noun, first in definite_first.items():
        if first > late:
            problems.append(f"a {noun} comes from nowhere")
            score -= 0.4
    return max(0.0, score)


def _look_changes(told: list[tuple[str, bool]]) -> bool:
    adjectives = {adjective for adjective, _ in told}
    if len(adjectives & COLOURS) > 1 or (adjectives & BIG and adjectives & SMALL):
        return True
    # "a soft scarf" that is later "his shiny scarf"
    before: set[str] = set()
    for adjective, known in told:
        if known and before and adjective not in before:
            return True
        before.add(adjective)
    return False


# Ending


def _grade_ending(text: str, found: list[str], names: frozenset[str], problems: list[str]) -> float:
    """The last sentence is whole, and it or the one before says how things are now."""
    if not re.search(r"""[.!?]"?$""", text) or text.count('"') % 2:
        problems.append("it breaks off")
        return 0.0
    score = 1.0
    last_two = " ".join(found[-2:])
    if not _CLOSING.search(last_two):
        problems.append("nothing is resolved at the end")
        score -= 0.6
    if found[-1].rstrip('"').endswith("?"):
        problems.append("it ends with a question")
        score -= 0.4
    elif _UNSOLVED.search(found[-1]) and not _SOLVED.search(found[-1]):
        problems.append("it ends in trouble")
        score -= 0.4
    people = [name for name in names if re.search(rf"\b{name}\b", last_two)]
    if not people and not re.search(r"\b(they|he|she|we)\b", last_two, re.IGNORECASE):
        problems.append("nobody is there at the end")
        score -= 0.3
    length = len(text.split())
    if length < 60:
        problems.append("it is too short for a story")
        score *= length / 60
    return max(0.0, score)
