"""Plots about friends: a first meeting, a race, a hiding game, a heavy job, a gift, a quarrel mended."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import (
    begin,
    cast_friend,
    cast_hero,
    cast_place,
    close,
    give_thanks,
)
from nanoeuler.data.stories.teller import Teller


def new_friend(t: Teller) -> None:
    """A lonely hero sees somebody else alone, overcomes shyness and asks."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing(words.SHARED_TOYS)
    cast_place(t)
    begin(
        t,
        "went to the {place} with {his} {thing}",
        "{He} had {a_thing}, but {he} had no one to play with.",
        "{He} was new and did not know anyone. {he} only had {a_thing}.",
        "{He} was shy and often played alone with {his} {thing}.",
        sudden="went to the {place} with {a_thing}",
        then=("{He} had no one to play with.", "{He} was new and did not know anyone."),
        outside=True,
    )
    t.say(
        "There {he} saw a {fkind} {spot1}, all alone.",
        "A {fkind} was sitting {spot1} and looked [sad|lonely].",
        "{spot1}, a {fkind} was sitting alone.",
    )
    t.paragraph()
    t.say(
        "{h} wanted to say hello, but {he} was too shy.",
        '"I hope the {fkind} will play with me," thought {h}.',
        "{h} stopped. {he} did not know what to say.",
        "{h} looked at the {fkind}, but {he} did not say a word.",
    )
    t.maybe(0.5, "But then {he} took a deep breath.", 'Then {he} thought, "I can do it."')
    t.say(
        '"Hello, my name is {h}. What is your name?" asked {h}. "I am {f}," said the {fkind}.',
        '"Hello," said {h}. "I am {h}." "And I am {f}," said the {fkind}.',
        'The {fkind} looked up and said, "Hello, my name is {f}. Who are you?" "I am {h}," said {h}.',
    )
    t.say(
        '"Do you want to play with my {noun}?" asked {h}.',
        '"What a nice {noun}!" said {f}. "Do you want to play with me?" asked {h}.',
        '{h} showed {f} the {thing}. "We can play with it together," said {h}.',
        '"This is my {noun}," said {h}. "Let us play together."',
    )
    t.say(
        '"Yes!" said {f} with a [big |]smile.',
        '"I would love to," said {f}.',
        "{f} laughed and jumped up.",
        '"Yes, please!" said {f}.',
    )
    t.say(
        "They played with the {thing} until the sun went down.",
        "They ran and laughed and played with the {noun} all day.",
        "They took turns with the {noun} and laughed a lot.",
        "They played with the {noun} and told funny stories.",
    )
    close(
        t,
        "From that day on, {h} and {f} played with the {thing} every day.",
        "{h} was not lonely anymore. {he} had {a_thing} and a good friend.",
        "{h} went home with the {noun} and told {g} about {his} new friend.",
        "When they said goodbye, {f} smiled. {h} knew that they would play with the {thing} again.",
    )


PRIZES = {
    "cake": ("big", "sweet"),
    "bell": ("shiny", "little"),
    "ribbon": ("red", "blue", "green", "yellow"),
    "pie": ("big", "sweet"),
}
GOALS = ("the old tree", "the big rock", "the bridge", "the gate", "the pond")


def race(t: Teller) -> None:
    """A proud, fast friend races the slow hero for a prize; pride or a fall changes the end."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing(PRIZES)
    t.slots["goal"] = t.pick(GOALS)
    begin(
        t,
        "met a [fast|proud] {fkind} named {f}",
        "{He} was slow, but {he} never gave up.",
        "{He} was not fast, but {he} always did {his} best.",
        then=("{h} was slow, but {he} never gave up.", "{h} was not fast, but {he} always did {his} best."),
        outside=True,
    )
    t.say(
        '"I am faster than you," said {f}. "I am faster than everyone!"',
        '"No one is as fast as I am," said {f}.',
        '"Look how fast I am," said {f}. "You are so slow!"',
    )
    t.say(
        '"Let us race to {goal}," said {h}. "{g} will give the winner {a_thing}."',
        "{g} made {a_thing}. It was for the winner of a race to {goal}.",
        '"Then we will race to {goal}," said {h}. "The winner gets {a_thing}."',
    )
    t.paragraph()
    t.say('"One, two, three, go!" said {g}.', "They both began to run.")
    t.say(
        "{f} ran very fast, and soon {h} was far behind.",
        "{f} was like the wind. {h} was slow and came behind.",
        "{f} was soon far away, and {h} was all alone.",
    )
    t.pick((_slept, _fell))(t)


def _slept(t: Teller) -> None:
    t.say(
        '"I have a lot of time," thought {f}, and {fhe} sat down and fell asleep.',
        "{f} looked back and laughed. Then {fhe} stopped to eat some berries and sat down to sleep.",
        '"I will take a little nap," said {f}, and {fhe} lay down under a tree.',
    )
    t.say(
        "But {h} did not stop. Step by step, {he} came closer and walked past {f}.",
        "{h} ran on and on, past {f}, and did not stop.",
        "{h} was tired, but {he} ran on and came past {f}.",
    )
    t.say(
        "When {f} woke up, {h} was already at {goal}.",
        "{f} woke up and ran, but it was too late. {h} was the winner!",
    )
    t.say(
        '"You won," said {f}. "I was too proud. I am sorry."',
        '"I thought you were slow," said {f}. "I was wrong."',
        '"You did not give up," said {f}. "You are the best."',
    )
    close(
        t,
        "{h} was not angry. {he} shared the {thing} with {f}.",
        "{h} got the {thing}, and {f} was never so proud again.",
        "{h} won the {thing}, because {he} did not give up.",
    )


def _fell(t: Teller) -> None:
    t.say(
        "But {f} did not see a stone and fell down. {fhe} could not get up.",
        "Then {f} fell into a hole and hurt {fhis} foot.",
        'Then {f} fell over a stone. "My foot hurts!" said {f}.',
    )
    t.say(
        "{h} could run past {f} and win. But {he} stopped.",
        "{h} wanted to win, but {he} did not want to leave {f} there.",
    )
    t.say(
        '"Take my hand," said {h}. "Let us go together."',
        '"I will help you," said {h}, and {he} helped {f} up.',
        '"A race is not so much fun without you," said {h}, and {he} helped {f} up.',
    )
    t.say("So they walked to {goal} side by side.", "They came to {goal} at the same time.")
    t.say(
        '"You both won," said {g}.',
        '"A good friend is better than a fast one," said {g}.',
        '"You are both winners," said {g}.',
    )
    close(
        t,
        "{h} and {f} shared the {thing}, and both were proud.",
        "{h} and {f} shared the {thing}, and from that day on, they were good friends.",
    )


def hide_and_seek(t: Teller) -> None:
    """A friend hides too well; something bright gives the place away."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing({"hat": ("red", "blue", "green", "yellow"), "scarf": ("red", "blue", "green")})
    cast_place(t)
    begin(
        t,
        "and {his} friend {f} were {at}",
        "{h} loved to play games.",
        "{h} was good at finding things.",
        outside=True,
    )
    t.say("{f} wore {a_thing}.", "{f} had {a_thing}.")
    t.say('"Let us play hide and seek," said {f}.', '"I will hide, and you will find me," said {f}.')
    t.say("{h} closed {his} eyes and counted to ten.", 'So {h} counted, "One, two, three," up to ten.')
    t.paragraph()
    t.say(
        "{h} looked {spot1}, but {f} was not there.",
        "First {h} looked {spot1}. No one was there.",
        "{h} ran and looked {spot1}, but {f} was not there.",
    )
    t.say(
        "{h} looked {spot2}, but {he} only saw a [bird|bug|cat].",
        "Then {h} looked {spot2}, but {f} was not there.",
    )
    t.say(
        "{h} called and called, but {f} did not answer.",
        'It got late. "Where are you?" called {h}. No one answered.',
    )
    t.maybe(0.6, "Now {h} was afraid.", "{h} was [a little |]worried.", "What if {f} was lost?")
    t.say(
        "Then {he} saw something {spot3}. It was the {thing}!",
        "Just then {h} saw the {thing} {spot3}.",
    )
    t.paragraph()
    t.say(
        "{f} was asleep, and the {noun} moved up and down.",
        "There sat {f}, fast asleep!",
        "{h} ran there. {f} was lying on the ground, asleep.",
    )
    t.say(
        '"I found you!" said {h}. {f} woke up and laughed.',
        '"You hid so well that you fell asleep," said {h}, and they both laughed.',
    )
    close(
        t,
        '"I saw your {thing}," said {h}. They walked home together and were happy.',
        "From that day on, {f} always wore the {thing}, so that {h} could find {fhim}.",
        "Then they went home, and {f} let {h} wear the {thing}.",
    )


HEAVY = {
    "pumpkin": ("big", "orange", "round"),
    "carrot": ("big", "orange", "long"),
    "turnip": ("big", "white", "round"),
}


def heavy_job(t: Teller) -> None:
    """Something will not come out of the ground until the smallest helper pulls too."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing(HEAVY)
    t.slots["small"] = t.pick([animal for animal in ("mouse", "bird", "frog") if animal != t.slots["kind"]])
    begin(t, "found {a_thing} in the garden", "{He} loved to work in the garden.", "{He} was always hungry.")
    t.say(
        '"I will make soup with it," said {h}.',
        "{He} wanted to make soup for everyone.",
        '"This {noun} will make a good soup," said {h}.',
    )
    t.say(
        "{He} pulled and pulled, but the {noun} did not move.",
        "{h} pulled hard, but the {noun} was too heavy.",
    )
    t.paragraph()
    t.say('"Can you help me?" {h} asked {g}.', "So {h} asked {g} for help.")
    t.say(
        "{g} came and pulled too, but the {noun} did not move.",
        "{g} pulled {h}, and {h} pulled the {noun}. It did not help.",
    )
    t.say(
        "Then {his} friend {f} came by and helped. They pulled hard, but it was not enough.",
        "Then they called a friend {f}. They all pulled, but the {noun} did not move.",
        'Then {f}, a [good|strong] {fkind}, came by. "I am strong," said {f}. But the {noun} did not move.',
    )
    t.say(
        'A little {small} came out of the grass. "Can I help?" asked the {small}.',
        '"I can help too," said a little {small}.',
        'Then a little {small} came and said, "Please let me help."',
    )
    t.say('They all laughed. "You are too small," said {f}.', '"You are so small," said {h}, "but please try."')
    t.say(
        "The {small} pulled, and they all pulled. Pop! The {thing} came out of the ground.",
        "But this time, with the {small}, they pulled the {thing} out!",
        "The {small} was small, but it pulled hard. Pop! Out came the {thing}.",
    )
    close(
        t,
        "{h} and {f} made soup with the {thing}, and the {small} was very proud.",
        "That night, they all ate soup from the {noun}. {h} learned that even a small friend can be a big help.",
        '"Thank you, little {small}!" said {h}. They all ate the {noun} together.',
    )


# Gift -> adjectives, how it is made, what goes wrong, how it is saved.
GIFTS = {
    "cake": (
        ("big", "sweet", "round"),
        "mixed milk, eggs and sugar",
        "The cake fell on the floor",
        "They made a new cake together",
    ),
    "card": (
        ("red", "blue", "pretty"),
        "took some paper and drew a flower on it",
        "The milk fell on the card, and it was wet",
        "They made a new card together",
    ),
    "necklace": (
        ("pretty", "blue", "white"),
        "put little shells on a string",
        "The string broke, and the shells rolled away",
        "They found all the shells and fixed the necklace",
    ),
    "picture": (
        ("big", "pretty", "little"),
        "painted a house and a sun",
        "The dog ran over the picture with wet feet",
        "They turned the spots into flowers, and the picture was good again",
    ),
}  # fmt: skip


def birthday_gift(t: Teller) -> None:
    """The hero makes a gift, something goes wrong, a friend helps, and the gift is loved."""
    cast_hero(t)
    cast_friend(t)
    noun = t.pick(tuple(GIFTS))
    adjectives, making, mishap, saving = GIFTS[noun]
    t.set_thing(noun, t.pick(adjectives))
    begin(
        t,
        "wanted to make {a_thing} for {g}",
        "{g} had a birthday.",
        "{He} loved {g} very much.",
        "Soon {g} would have a birthday.",
    )
    t.say('"I will make the best {noun} ever," said {h}.', "{h} was very excited.", "It was a secret.")
    t.say(f"{{h}} {making}.", f"{{h}} {making}. It was a lot of work.")
    t.paragraph()
    t.say(f"But then a bad thing happened. {mishap}.", f"Oh no! {mishap}.")
    t.say(
        '"Now I have no gift," said {h}[, and {he} began to cry|].',
        "{h} was so sad. There was not much time.",
        '"It was for {g}!" said {h}.',
    )
    t.say(
        '{His} friend {f} came in and said, "Do not cry. I will help you."',
        '{f}, {his} best friend, heard it. "We can fix it," said {f}.',
        '"What happened?" asked {his} friend {f}. "I can help you."',
        'Then {his} friend {f} came to play. "Let us try again," said {f}.',
    )
    t.say(f"{saving}.", f"They worked hard. {saving}.")
    give_thanks(t, "f")
    close(
        t,
        '{h} gave the {thing} to {g}. "It is the best gift ever," said {g}, and {ghe} hugged {him}.',
        'When {g} saw the {thing}, {ghe} smiled. "You made it with love," said {g}.',
        '"For you!" said {h}, and {g} took the {thing} with a big smile.',
        "{g} loved the {thing}, and {h} and {f} were very proud.",
    )


PLOTS = (new_friend, race, hide_and_seek, heavy_job, birthday_gift)
