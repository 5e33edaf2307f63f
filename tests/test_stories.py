"""The built-in corpus is what it claims to be, and the grader tells a story from a damaged one."""

import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nanoeuler.data import stories as corpus
from nanoeuler.data.grader import grade, grade_many
from nanoeuler.data.grader_grammar import sentence_problems, split_sentences
from nanoeuler.data.grader_words import LEXICON
from nanoeuler.data.stories import story, words, write_stories
from nanoeuler.data.stories.teller import Teller, parse
from nanoeuler.errors import UserError

MANY = 50_000
SAMPLE = [story(0, index) for index in range(2_000)]
NAMES = words.GIRLS + words.BOYS


# The corpus


def test_first_hundred_stories_never_change() -> None:
    digest = hashlib.sha256("\n".join(SAMPLE[:100]).encode("ascii")).hexdigest()
    assert digest == "ccc09a3e3869f6d14ef5ff7dd550e6f907805fefb5bc422cbb407867f3c09c97"


def test_a_story_depends_on_seed_and_index_only() -> None:
    random.seed(5)
    assert story(0, 7) == SAMPLE[7]
    assert list(corpus.stories(3, seed=0)) == SAMPLE[:3]
    assert story(1, 7) != SAMPLE[7]


@pytest.mark.slow
def test_fifty_thousand_distinct_stories() -> None:
    seen = {hashlib.blake2b(text.encode(), digest_size=16).digest() for text in corpus.stories(MANY)}
    assert len(seen) == MANY


def _skeleton(text: str) -> str:
    """The story without its names, colours and things: what is left when fill-in words are taken out."""
    text = re.sub(rf"\b({'|'.join(NAMES)})\b", "NAME", text)
    text = re.sub(r"\b([Hh]e|[Ss]he|[Hh]is|[Hh]er|[Hh]im)\b", "PRO", text)
    adjectives = {a for things in (words.TOYS, words.BELONGINGS) for kinds in things.values() for a in kinds}
    nouns = {*words.TOYS, *words.BELONGINGS, *words.ANIMAL_HEROES, "boy", "girl", *words.TRAITS, *adjectives}
    return re.sub(rf"\b(an?|{'|'.join(sorted(nouns))})\b", "WORD", text)


def test_variety_is_more_than_swapped_names() -> None:
    assert len({_skeleton(text) for text in SAMPLE}) > 0.99 * len(SAMPLE)


def test_lengths_fit_the_context() -> None:
    lengths = sorted(len(text.split()) for text in SAMPLE)
    assert 110 <= sum(lengths) / len(lengths) <= 130
    assert lengths[0] >= 70 and lengths[-1] <= 175
    # Words and marks together bound the tokens of a tokenizer that knows each word as one token.
    assert max(len(re.findall(r"[A-Za-z]+|[^A-Za-z ]", text)) for text in SAMPLE) <= 240


def test_vocabulary_is_small_and_known_to_the_grader() -> None:
    found = {word.lower() for text in SAMPLE for word in re.findall(r"[A-Za-z]+", text)}
    assert 500 <= len(found) <= 800
    assert found <= LEXICON.keys()


def test_only_printable_ascii_and_single_spaces() -> None:
    for text in SAMPLE:
        assert re.fullmatch(r"[A-Za-z .,!?\"'\n]+", text)
        assert "  " not in text and text == text.strip()
        assert not set("{}[]|") & set(text)


def test_every_story_begins_like_a_story() -> None:
    beginnings = ("Once ", "One ", "There once ", "Long ago, ", "In a ", "On a ", "Under a ", "Near a ",
                  "At the edge ", "In the ")  # fmt: skip
    assert all(text.startswith(beginnings) for text in SAMPLE)


def test_articles_agree() -> None:
    for text in SAMPLE:
        assert not re.search(r"\b[Aa] [aeiou]", text)
        assert not re.search(r"\b[Aa]n [^aeiou]", text)


def test_names_never_follow_a_line_break() -> None:
    for text in SAMPLE:
        assert not re.search(rf"\n({'|'.join(NAMES)})\b", text)


@pytest.mark.parametrize("plot", corpus.PLOTS, ids=lambda plot: plot.__name__)
def test_every_plot_tells_a_good_story(plot: Callable[[Teller], None]) -> None:
    for index in range(40):
        teller = Teller(random.Random(f"plot {index}"))
        plot(teller)
        judged = grade(teller.text())
        assert judged.total > 0.9, (teller.text(), judged.problems)


def test_templates_reject_unbalanced_brackets() -> None:
    with pytest.raises(ValueError, match="unbalanced"):
        parse("[a|b")


# The file


def test_write_stories(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    seen = []
    size = write_stories(path, 1200, seed=3, progress=lambda done, n: seen.append((done, n)))
    data = path.read_bytes()
    assert len(data) == size and b"\r" not in data
    parts = data.decode("ascii").split("<|endoftext|>\n")
    assert parts.pop() == ""
    assert parts == [story(3, index) + "\n" for index in range(1200)]
    assert seen == [(1000, 1200), (1200, 1200)]
    assert [p.name for p in tmp_path.iterdir()] == ["stories.txt"]


def test_a_broken_off_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("old", encoding="utf-8")

    def stop(done: int, n: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stories(path, 1000, progress=stop)
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["stories.txt"]


def test_write_stories_refuses_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 1"):
        write_stories(tmp_path / "x.txt", 0)
    with pytest.raises(UserError, match="cannot write"):
        write_stories(tmp_path / "missing" / "x.txt", 1)


# The grader

JUDGED = SAMPLE[:300]


def _shuffle_words(text: str, rng: random.Random) -> str:
    """Shuffle the words of each sentence, but leave its capital and its last mark where they were."""

    def shuffled(sentence: str) -> str:
        body = re.findall(r"[A-Za-z']+", sentence)
        rng.shuffle(body)
        body = [w if w in NAMES or w == "I" else w.lower() for w in body]
        return " ".join(body)[:1].upper() + " ".join(body)[1:] + "."

    return " ".join(shuffled(sentence) for sentence in split_sentences(text))


def _swap_names_half_way(text: str, rng: random.Random) -> str:
    """From the middle on, each name is another one."""
    half = text.find(" ", len(text) // 2)
    own = sorted(set(re.findall(r"[A-Z][a-z]+", text)) & set(NAMES))
    others = rng.sample([name for name in NAMES if name not in own], len(own))
    swap = dict(zip(own, others))
    return text[:half] + re.sub(r"[A-Z][a-z]+", lambda match: swap.get(match[0], match[0]), text[half:])


def _swap_genders_half_way(text: str, rng: random.Random) -> str:
    """From the middle on, each he is a she."""
    swap = {"he": "she", "she": "he", "He": "She", "She": "He", "his": "her", "him": "her", "her": "his"}
    half = text.find(" ", len(text) // 2)
    return text[:half] + re.sub(r"\w+", lambda match: swap.get(match[0], match[0]), text[half:])


def _change_looks_half_way(text: str, rng: random.Random) -> str:
    """From the middle on, what was red is blue, and what was soft is shiny."""
    half = text.find(" ", len(text) // 2)
    turn = {a: b for a, b in zip(words.COLOURS, words.COLOURS[1:] + words.COLOURS[:1])}
    turn |= {"soft": "shiny", "shiny": "soft", "old": "pretty", "pretty": "old", "big": "little", "little": "big"}
    turn |= {"warm": "pink", "sweet": "long", "round": "tiny", "long": "round", "new": "pink"}
    return text[:half] + re.sub(r"\w+", lambda match: turn.get(match[0], match[0]), text[half:])


def _cut_in_the_middle(text: str, rng: random.Random) -> str:
    return text[: int(len(text) * rng.uniform(0.4, 0.6))]


def _cut_at_a_sentence(text: str, rng: random.Random) -> str:
    """The first half, in whole sentences."""
    found = split_sentences(text)
    return " ".join(found[: len(found) // 2])


def _join_two(text: str, rng: random.Random) -> str:
    """The first half of one story and the second half of another, in whole sentences."""
    first, second = split_sentences(text), split_sentences(rng.choice(SAMPLE[1000:]))
    return " ".join(first[: len(first) // 2] + second[len(second) // 2 :])


def _gibberish(text: str, rng: random.Random) -> str:
    """The letters of each word shuffled."""
    return re.sub(r"[a-z]+", lambda match: "".join(rng.sample(match[0], len(match[0]))), text)


def _misspell(text: str, rng: random.Random) -> str:
    """Two letters swapped in every eighth word."""
    parts = text.split(" ")
    for i in range(0, len(parts), 8):
        if len(parts[i]) > 3:
            parts[i] = parts[i][0] + parts[i][2] + parts[i][1] + parts[i][3:]
    return " ".join(parts)


def _loop(text: str, rng: random.Random) -> str:
    """A beginning, then two sentences again and again."""
    found = split_sentences(text)
    return " ".join(found[:3] + found[3:5] * 8)


def _drop_a_quotation_mark(text: str, rng: random.Random) -> str:
    return text.replace('"', "", 1)


# Each kind of damage, and the mean total that it must stay below; the undamaged stories have 1.00.
DAMAGE = [
    (_shuffle_words, 0.25),
    (_swap_names_half_way, 0.75),
    (_swap_genders_half_way, 0.95),  # often another person of that gender stands near, and then no rule can tell
    (_change_looks_half_way, 0.90),
    (_cut_in_the_middle, 0.50),
    (_cut_at_a_sentence, 0.70),
    (_join_two, 0.65),
    (_gibberish, 0.05),
    (_misspell, 0.75),
    (_drop_a_quotation_mark, 0.75),
    (_loop, 0.30),
]

# Not from our templates: what the grader should make of other people's stories and of other text.
OTHER_STORIES = [
    """Tim was a little boy who liked big trucks. One afternoon he saw a huge yellow truck in the street near his
    house. The driver, a man named Bob, was tired because one wheel was broken. "Do you need a tool?" asked Tim.
    "Yes, I need a long stick," Bob said. Tim ran to the yard and came back with a strong stick. Bob put the stick
    under the truck and fixed the wheel. "You are a clever boy," said Bob. He let Tim sit in the yellow truck and
    press the horn. Beep! Tim laughed all the way home and told his mom about the truck.""",
    """Daisy the cow wanted a golden bell. All the other cows on the farm had a bell, but Daisy had none. She asked
    the farmer, but he shook his head. "Bells are for cows who come home on time," he said. So every evening Daisy
    walked home before the sun went down. It was not easy, because the grass on the hill was so sweet. After seven
    days the farmer came with a small box. Inside was a golden bell! Daisy wore it around her neck, and everyone
    could hear how proud she was.""",
]
HAMLET = """To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer the slings and arrows
of outrageous fortune, or to take arms against a sea of troubles, and by opposing end them. To die, to sleep; no
more; and by a sleep to say we end the heart-ache and the thousand natural shocks that flesh is heir to: 'tis a
consummation devoutly to be wished."""


def test_the_grader_likes_the_stories() -> None:
    assert grade_many(JUDGED) > 0.97


@pytest.mark.parametrize(("damage", "most"), DAMAGE, ids=lambda value: getattr(value, "__name__", ""))
def test_the_grader_sees(damage: Callable[[str, random.Random], str], most: float) -> None:
    rng = random.Random(1)
    assert grade_many(damage(text, rng) for text in JUDGED) < most


def test_the_grader_needs_no_template_of_ours() -> None:
    for text in OTHER_STORIES:
        assert grade(text).total > 0.9, grade(text).problems


def test_the_grader_knows_what_is_no_story() -> None:
    assert grade(HAMLET).total < 0.05
    assert grade("He was happy. " * 20).total < 0.1
    for text in ("", "\n\n", "Hello", '"' * 50, "the " * 100, "?!.", "\u00e9\u4e2d" * 20):
        assert grade(text).total < 0.05, text
    assert grade_many([]) == 0.0


def test_the_end_of_text_mark_is_no_part_of_the_story() -> None:
    assert grade(SAMPLE[0] + "<|endoftext|>" + "xyzzy " * 9) == grade(SAMPLE[0])


@pytest.mark.parametrize(
    "good",
    [
        "Tom went to the park.",
        "She let him go.",
        "Did Mia find the ball?",
        'Mom said, "Do not cry. I will help you."',
        '"Are you sad?" asked Ben.',
        "She gave the boy a ball that was old and round.",
        "They ran and ran, but nobody was there.",
    ],
)
def test_a_good_sentence_has_no_problem(good: str) -> None:
    assert sentence_problems(good) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("Tom saw a apple.", "article"),
        ("Tom saw an ball.", "article"),
        ("Tom saw the the ball.", "doubled"),
        ("Tom saw the bll.", "unknown word"),
        ("tom saw the ball.", "no capital"),
        ("Tom saw the ball", "no end"),
        ('"Tom saw the ball.', "open quotation"),
        ("They was happy.", "agreement"),
        ("Tom were happy.", "agreement"),
        ("He run home.", "word order"),
        ("She did not went home.", "word order"),
        ("He wanted to went home.", "word order"),
        ("Tom went to the.", "word order"),
        ("The red ball in the garden.", "no verb"),
    ],
)
def test_a_bad_sentence_has_its_problem(bad: str, problem: str) -> None:
    assert any(found.startswith(problem) for found in sentence_problems(bad))
