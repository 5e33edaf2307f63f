"""What many plots share: casting, beginnings, sadness, thanks and closing words."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.teller import Teller

ONE_DAY = "One [sunny |warm |bright |fine |][day|morning]"


def cast_hero(t: Teller, animals: bool = True) -> None:
    """Draw the hero ``{h}``: a child, or (one in four, where the plot allows) an animal that talks.

    Also draws the home and the grown-up ``{g}`` who looks after the hero.
    """
    kind = t.pick(words.ANIMAL_HEROES) if animals and t.chance(0.25) else None
    t.cast_person("", "f" if t.chance(0.5) else "m", kind)
    t.slots["trait"] = t.pick(words.TRAITS)
    t.slots["home"] = t.pick(words.ANIMAL_HOMES if kind else words.CHILD_HOMES)
    t.cast_grown_up()


def cast_friend(t: Teller) -> None:
    """Draw a friend ``{f}`` of the hero's sort (child with child, animal with another animal) and of the other
    gender, so that "he" and "she" never leave a doubt.
    """
    kind = None
    if t.slots["kind"] not in ("girl", "boy"):
        kind = t.pick([animal for animal in words.ANIMAL_HEROES if animal != t.slots["kind"]])
    t.cast_person("f", "f" if t.slots["he"] == "he" else "m", kind)


def cast_place(t: Teller) -> None:
    """Draw a place that is not the hero's home: ``{place}``, ``{at}`` "in the park", ``{spot1}`` to 3."""
    place = t.pick(tuple(words.SPOTS))
    while place in t.slots["home"]:
        place = t.pick(tuple(words.SPOTS))
    t.slots["place"] = place
    t.slots["at"] = ("at" if place in ("beach", "farm", "playground") else "in") + f" the {place}"
    for i, spot in enumerate(t.some(words.SPOTS[place], 3), start=1):
        t.slots[f"spot{i}"] = spot


def introduce(t: Teller) -> None:
    """Begin with who the hero is and where the hero lives."""
    t.say(
        "Once upon a time, there was a {trait} {kind} named {h}.[ {he} lived {home}.|]",
        "Once upon a time, a {trait} {kind} named {h} lived {home}.",
        "Once there was a {trait} {kind} named {h}, who lived {home}.",
        "There once was a {trait} {kind} named {h}.[ {he} lived {home}.|]",
        "Long ago, a {trait} {kind} named {h} lived {home}.",
        "{Home} lived a {trait} {kind} named {h}.",
    )


def begin(
    t: Teller,
    scene: str,
    *background: str,
    sudden: str = "",
    then: tuple[str, ...] | None = None,
    day: str = ONE_DAY,
    outside: bool = False,
) -> None:
    """Introduce the hero, tell the background, then the scene of the day; or plunge into the scene at once.

    ``scene`` goes on after the hero's name: "was playing {at}". A story that plunges in uses ``sudden`` in its
    place, if given, and goes on with ``then``, or else with the background.
    """
    if t.chance(0.7):
        introduce(t)
        if background:
            t.say(*background)
        t.paragraph()
        t.say(day + ", {h} " + scene + ".")
    else:
        t.say(day + ", a {trait} {kind} named {h} " + (sudden or scene) + ".")
        follow = background if then is None else then
        if follow:
            t.say(*follow)
    if outside:
        t.maybe(0.25, "The sun was [warm|bright].", "The birds sang in the trees.", "The sky was blue.")


def feel_sad(t: Teller) -> None:
    """The hero is sad, in one of the common ways."""
    t.say(
        "{h} was [very |so |]sad.",
        "{h} felt [very |]sad and sat down.",
        "{h} began to cry.",
        "{h} wanted to cry.",
        "{h} did not know what to do.",
        "This made {h} [very |]sad.",
    )


def give_thanks(t: Teller, helper: str) -> None:
    """The hero thanks ``helper``: "f" for the friend or "g" for the grown-up."""
    to, them = "{" + helper + "}", "{" + helper + "him}"
    t.say(
        f'"Thank you, {to}!" said {{h}}[ with a big smile|].',
        f"{{h}} thanked {to} and gave {them} a [big |warm |]hug.",
        f'{{h}} hugged {to} and said, "Thank you[ so much|]!"',
        f'"You are the best, {to}!" said {{h}}.',
    )


GOOD_DAYS = (
    "It was a [very |]good day.",
    "It was the best day [ever|of all].",
    "{h} could not stop smiling.",
    "{h} was [very |so |]happy.",
    "That night, {h} slept very well.",
)


def close(t: Teller, *variants: str, after: tuple[str, ...] = GOOD_DAYS) -> None:
    """End the story with one of the plot's own closing lines, now and then with a common one ``after`` it."""
    t.paragraph()
    line = t.pick(variants)
    if after and t.chance(0.25):
        line += " " + t.pick(after)
    t.say(line)
