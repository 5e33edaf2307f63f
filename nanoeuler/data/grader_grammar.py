"""Cheap checks of simple English: cut a text into sentences, and find what is wrong with one.

Word order is judged by a small table of which tag may follow which. A word such as "her" or "back" has several
tags; a clause is read in the way that breaks the fewest rules (a shortest path through the tags), and every
broken rule is a problem. That needs no list of known sentences, so a new sentence made of old words passes, and
the same words shuffled do not.
"""

import re
from collections.abc import Set
from itertools import pairwise

from nanoeuler.data.grader_words import LEXICON

_TOKEN = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|[0-9]+|[^\sA-Za-z0-9]")
_AFTER_NOUN = "FXLVRCT.,NDGEMUQW"
_AFTER_VERB = "DAUPMSHOGRCVQTW.,EIJ"

# tag -> tags that may follow it; "^" begins a sentence, "." ends it, "," is a comma or other inner mark
FOLLOWS: dict[str, str] = {
    "^": "DAPUMSHVRCWIXLQGBKJ",
    ",": "DANYUPMSHOVRCWIXLQGBFETKJ.,",
    "D": "ANYUPQEG",
    "A": "ANYPUCRTV.,",
    "J": _AFTER_NOUN + "A",
    "N": _AFTER_NOUN,
    "U": _AFTER_NOUN + "P",
    "Y": _AFTER_NOUN + "SH",
    "P": _AFTER_NOUN + "B",
    "M": "FXLVRCTDGQW.,",
    "S": "FXLVBCK,",
    "H": "FXLVCK,",
    "O": "VRCTDGQWUP.,",
    "V": "DASHMPUFBGEXLRCTVQKWJ.,",
    "Q": "AVDQ",
    "K": "BADGEVRMUPQWT.,",
    "L": "DAUPMSHRCVQKEGTWOJ.,",
    "B": _AFTER_VERB,
    "F": _AFTER_VERB,
    "G": "DOMAUPRCVQTWLEIJ.,",
    "E": "DOUPARCVQTGMWEJ.,",
    "X": "BSHVKDMJ.,",
    "T": "BDMOUPWJ.,",
    "R": "DUPMOAGWVRTCJ.,",
    "C": "DSHMPUAFBGXLVRTWQIKOCEJ",
    "W": "SHDMPUFXLAVQTJ.,",
    "I": "DANYUPMSHOVRCWIXLQGBFETKJ.,",
}
# With these a bare verb or an adjective may follow a noun: "let him go", "made Tom sad", "did Tom see".
_CAUSATIVE = frozenset(
    (
        "let",
        "help",
        "helped",
        "helps",
        "make",
        "made",
        "makes",
        "see",
        "saw",
        "watch",
        "watched",
        "hear",
        "heard",
        "keep",
        "kept",
    )
)
_ASKING = frozenset(("will", "can", "did", "does", "do", "could", "would", "may", "shall"))
_BARE_VERB_AFTER = {tag: FOLLOWS[tag] + "BA" for tag in "NUPMO"} | {tag: FOLLOWS[tag] + "B" for tag in "FB"}

# In a question, what is asked may follow the subject: "are you sad", "is Tom asleep".
_ADJECTIVE_AFTER = {tag: FOLLOWS[tag] + "AGED" for tag in "NUPMSHOJ"}

_SINGULAR_BAD = frozenset(("are", "were", "have", "do", "am"))
_PLURAL_BAD = frozenset(("is", "was", "has", "does", "am"))
_I_BAD = frozenset(("is", "are", "were", "has", "does"))
_DOUBLES = frozenset(("no", "her", "very", "that", "had", "yes", "tap", "bump", "so", "more", "on"))
_AN_EXCEPTIONS = frozenset(("hour", "honest"))
_A_EXCEPTIONS = frozenset(("one", "once", "use", "useful", "unicorn"))


def split_sentences(text: str) -> list[str]:
    """Cut a text into sentences; a quotation with its "said Tom" stays in one piece.

    >>> split_sentences('Tom ran. "Wait! I am here," said Mia. "Good!" Tom smiled.')
    ['Tom ran.', '"Wait! I am here," said Mia.', '"Good!"', 'Tom smiled.']
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.split())
        start, quoted = 0, False
        for i, char in enumerate(flat):
            after = flat[i + 1 : i + 3]
            if char == '"':
                opens = (i == 0 or flat[i - 1] == " ") and bool(after[:1].strip())
                quoted = opens
                ends = not opens and flat[i - 1 : i] in (".", "!", "?") and (not after or _begins(after))
            else:
                ends = not quoted and char in ".!?" and after[:1] in ("", " ")
            if ends:
                found.append(flat[start : i + 1].strip())
                start = i + 1
        if flat[start:].strip():
            found.append(flat[start:].strip())
    return found


def _begins(after: str) -> bool:
    """Whether the two characters after a closing quote begin a new sentence: a space and a capital or quote."""
    return after[0] == " " and (after[1:].isupper() or after[1:] == '"')


def word_tags(word: str, names: Set[str] = frozenset()) -> frozenset[str] | None:
    """The tags a word can have, or None for a word that is not known.

    >>> sorted(word_tags("played")), word_tags("plaied")
    (['E', 'F'], None)
    """
    if word in names or word.isdigit():
        return frozenset("M" if word in names else "AD")
    lower = word.lower()
    if lower in LEXICON:
        return LEXICON[lower]
    if lower.endswith("'s") and (lower[:-2] in LEXICON or word[:-2] in names):
        return frozenset("DL")
    if lower.endswith("n't"):
        return frozenset("X") | frozenset("L") if lower[:-3] in ("is", "are", "was", "were") else frozenset("X")
    for ending, tag in (("er", "A"), ("est", "A"), ("ly", "V"), ("s", "P"), ("ing", "G"), ("ed", "F")):
        stem = lower.removesuffix(ending)
        if stem != lower and (stem in LEXICON or stem + "e" in LEXICON) and len(stem) > 2:
            return frozenset(tag)
    return None


def _fewest_broken_rules(tags: list[frozenset[str]], follows: dict[str, str]) -> int:
    """Cheapest reading of a clause: each adjacent pair that ``FOLLOWS`` does not allow costs 1."""
    costs = dict.fromkeys(tags[0], 0)
    for options in tags[1:]:
        costs = {tag: min(cost + (tag not in follows[before]) for before, cost in costs.items()) for tag in options}
    return min(costs.values())


def _clauses(sentence: str) -> list[tuple[str, bool]]:
    """The stretches of a sentence to be read in order, each with whether it must begin like a sentence.

    What is inside quotation marks is read for itself; what follows it ("said Tom.") begins freely.
    """
    out = []
    for i, piece in enumerate(sentence.split('"')):
        inside = i % 2 == 1
        for part in re.findall(r"[^.!?]+[.!?]*", piece) if inside else [piece]:
            if part.strip():
                out.append((part.strip(), i == 0 or (inside and part.strip()[0].isupper())))
    return out


def _order_problems(sentence: str, names: Set[str]) -> list[str]:
    words = set(re.findall(r"[a-z]+", sentence.lower()))
    problems = []
    for clause, begins in _clauses(sentence):
        follows = FOLLOWS | {".": ".,"}
        if words & _CAUSATIVE or (clause.endswith("?") and words & _ASKING):
            follows |= _BARE_VERB_AFTER
        elif clause.endswith("?"):
            follows |= _ADJECTIVE_AFTER
        if "how" in words:
            follows["A"] += "SH"
        tags = [frozenset("^" if begins else ",")]
        for token in _TOKEN.findall(clause):
            if token[0].isalnum():
                tags.append(word_tags(token, names) or frozenset("NUPAVFM"))
            elif tags[-1] != frozenset(","):
                tags.append(frozenset(","))
        if clause[-1] in ".!?":
            tags[-1] = frozenset(".")
        problems += [f"word order: {clause}"] * _fewest_broken_rules(tags, follows)
    return problems


def _word_problems(tokens: list[str], names: Set[str]) -> list[str]:
    """Unknown words, "a apple", "the the", "they was"."""
    problems = [f"unknown word: {w}" for w in tokens if w[0].isalnum() and word_tags(w, names) is None]
    before, joined = "", False  # joined: after "and" in this clause, where two together may be plural
    for here, after in pairwise(tokens):
        one, two = here.lower(), after.lower()
        vowel = (two[0] in "aeiou" and two not in _A_EXCEPTIONS) or two in _AN_EXCEPTIONS
        if (one == "a" and two[0].isalpha() and vowel) or (one == "an" and not vowel):
            problems.append(f"article: {here} {after}")
        if one == two and one.isalpha() and one not in _DOUBLES:
            problems.append(f"doubled word: {here}")
        single = one in ("he", "she", "it") or here in names or LEXICON.get(one) == frozenset("M")
        alone = not joined and before not in ("did", "does", "do", "let", "help", "or")
        if (
            (single and alone and two in _SINGULAR_BAD)
            or (one in ("they", "we", "you") and two in _PLURAL_BAD)
            or (one == "i" and alone and two in _I_BAD)
        ):
            problems.append(f"agreement: {here} {after}")
        before = one
        joined = one == "and" or (joined and here.isalnum())
    return problems


def sentence_problems(sentence: str, names: Set[str] = frozenset()) -> list[str]:
    """What is wrong with one sentence; an empty list if nothing is found.

    ``names`` holds capitalised words of the text that are names though the lexicon does not know them.

    >>> sentence_problems("Tom went to the park.")
    []
    >>> sentence_problems("Tom saw a apple.")
    ['article: a apple']
    >>> len(sentence_problems("The to went park Tom.")) > 1
    True
    """
    problems = []
    body = sentence.strip('"')
    if not body[:1].isupper() and not body[:1].isdigit():
        problems.append(f"no capital: {sentence}")
    if not re.search(r"""[.!?]"?$""", sentence):
        problems.append(f"no end: {sentence}")
    if sentence.count('"') % 2:
        problems.append(f"open quotation: {sentence}")
    tokens = _TOKEN.findall(sentence)
    problems += _word_problems(tokens, names)
    problems += _order_problems(sentence, names)
    tags = [word_tags(token, names) or frozenset() for token in tokens if token[0].isalnum()]
    if len(tags) >= 4 and not any(options & frozenset("FLXB") for options in tags):
        problems.append(f"no verb: {sentence}")
    return problems
