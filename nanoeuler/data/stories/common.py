"""What many plots share: casting, beginnings, feelings, thanks and closing words."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.teller import Teller


def cast_hero(t: Teller, animals: bool = True) -> None:
    """Draw the hero: a child, or (one in four, where the plot allows) an animal that talks."""
    kind = t.pick(words.ANIMAL_HEROES) if animals and t.chance(0.25) else None
    t.cast_person("", kind)
    t.slots["trait"] = t.pick(words.TRAITS)
    t.slots["home"] = t.pick(words.ANIMAL_HOMES if kind else words.CHILD_HOMES)


def cast_friend(t: Teller) -> None:
    """Draw a friend of the hero's sort: child with child, animal with another animal. Slots ``{f} {fhe}`` ..."""
    hero_kind = t.slots["kind"]
    if hero_kind in ("girl", "boy"):
        t.cast_person("f", None, other_than=t.slots["h"])
        return
    kind = t.pick(words.ANIMAL_HEROES)
    while kind == hero_kind:
        kind = t.pick(words.ANIMAL_HEROES)
    t.cast_person("f", kind, other_than=t.slots["h"])


def cast_place(t: Teller) -> None:
    """Draw a place that is not the hero's home: ``{place}``, ``{at}`` "in the park", three ``{spot1}`` ..."""
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


def begin(t: Teller, scene: str, *background: str) -> None:
    """Begin: introduce, tell the background, then the day's scene; or plunge into the scene at once."""
    day = "One [sunny |warm |bright |fine |][day|morning]"
    if t.chance(0.7):
        introduce(t)
        if background:
            t.say(*background)
        t.paragraph()
        t.say(day + ", {h} " + scene + ".")
    else:
        t.say(day + ", a {trait} {kind} named {h} " + scene + ".")
        if background:
            t.say(*background)


def feel_sad(t: Teller) -> None:
    """The hero is sad, in one of the common ways."""
    t.say(
        "{h} was [very |so |]sad.",
        "{h} felt [very |]sad and sat down.",
        "{h} began to cry.",
        "{h} wanted to cry.",
        "This made {h} [very |]sad.",
    )


def give_thanks(t: Teller, helper: str) -> None:
    """The hero thanks ``helper``, a slot's key such as "f" or "g"."""
    to = "{" + helper + "}"
    t.say(
        f'"Thank you, {to}!" said {{h}}[ with a big smile|].',
        f"{{h}} thanked {to} and gave {{{helper}him}} a [big |warm |]hug.",
        f'{{h}} hugged {to} and said, "Thank you[ so much|]!"',
        f'"You are the best, {to}!" said {{h}}.',
    )
