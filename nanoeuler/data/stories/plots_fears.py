"""Plots about a fear: of the dark, of thunder, of water, of a dog, of a noise at night."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import begin, cast_friend, cast_hero, close
from nanoeuler.data.stories.teller import Teller


def the_dark(t: Teller) -> None:
    """A shape in the dark frightens the hero; a lamp or a teddy helps."""
    cast_hero(t)
    t.cast_thing({"lamp": ("little", "blue", "yellow"), "teddy": ("soft", "brown", "old")})
    begin(
        t,
        "was lying in bed and could not sleep",
        "{He} was afraid of the dark.",
        "{He} did not like the dark at night.",
        day="One night",
    )
    t.say(
        "{He} saw something big and black by the door.",
        "There was something tall by the window, and it moved.",
        "By the window stood something big, and it looked at {him}.",
    )
    t.say('"Help! There is a monster!" called {h}.', "{h} hid under the blanket and called {g}.")
    t.paragraph()
    t.say(
        "{g} came in with {a_thing}.",
        "{g} came quickly and brought {a_thing}.",
        "Soon {g} came with {a_thing}.",
    )
    t.say(
        '"Look, it is only your coat," said {g}.',
        '"Let us look at it together," said {g}. It was only a chair with a coat on it.',
    )
    t.say(
        "{h} laughed. {he} had been afraid of a coat!",
        "{h} looked again. It was not a monster at all.",
        "There was no monster. {h} had to laugh.",
    )
    t.say('"The {noun} will stay with you," said {g}.', "Then {g} gave {him} the {thing}.")
    close(
        t,
        "{h} held the {noun} and fell asleep. {he} was not afraid of the dark anymore.",
        "From that night on, the {thing} stood next to the bed, and {h} slept well in the dark.",
        "With the {thing}, the dark was not so bad, and {h} soon fell asleep.",
        after=(),
    )


def the_thunder(t: Teller) -> None:
    """Thunder frightens the hero, until the two make a louder noise."""
    cast_hero(t)
    t.cast_thing({"drum": words.TOYS["drum"], "bell": words.BELONGINGS["bell"]})
    begin(
        t,
        "was playing with {his} {thing} when {he} heard [loud |]thunder",
        "{He} was afraid of storms.",
        "{He} had {a_thing} and loved to play music.",
        "{He} did not like storms.",
        sudden="was playing with {a_thing} when {he} heard [loud |]thunder",
        then=("{He} was afraid of storms.", "{He} did not like storms."),
        day="One [night|evening]",
    )
    t.say(
        "Boom! {h} ran to {g} and hid.",
        "Boom! {h} hid under the table and did not come out.",
        '"What was that?" said {h}, and {he} ran to {g}.',
    )
    t.maybe(0.6, '"I do not like the thunder," said {h}.', '"Will the storm hurt us?" asked {h}.')
    t.paragraph()
    t.say(
        '"The thunder is only a big noise," said {g}. "It is the music of the clouds."',
        '"The storm is outside, and we are inside," said {g}. "Let us make some noise too."',
    )
    t.say("{g} gave {h} the {noun} again.", "{g} told {h} to play along.")
    t.say(
        "Boom, went the thunder. {h} played the {noun} as loud as {he} could.",
        "When the thunder came again, {h} played the {noun}. It was fun!",
        "{h} played and played, and the {noun} was louder than the thunder.",
    )
    t.say("{g} sang a funny song.", "Soon they both laughed and danced.", "{h} forgot to be afraid.")
    close(
        t,
        "After that, when the thunder came, {h} took the {thing} and played along.",
        "At last the storm went away, and {h} put the {noun} down. {he} was not afraid anymore.",
        "{h} was proud. {he} and {his} {thing} were louder than the storm.",
        after=(),
    )


def the_water(t: Teller) -> None:
    """The hero goes into the water after all, for the sake of what fell in."""
    cast_hero(t, animals=False)
    cast_friend(t)
    t.cast_thing({"boat": ("white", "blue", "red"), "ball": ("red", "yellow", "green")})
    begin(
        t,
        "and {his} friend {f} went to the pond with {a_thing}",
        "{h} was afraid of the water.",
        "{h} could not swim yet.",
        outside=True,
    )
    t.say("They played on the grass with the {noun}.", "{f} jumped into the water, but {h} stayed on the grass.")
    t.say(
        "Then the wind came, and the {noun} went out on the water.",
        "Then the {noun} fell into the pond.",
    )
    t.say('"Oh no, my {noun}!" said {f}.', '"Can you get it, {h}?" asked {f}.')
    t.paragraph()
    t.say(
        "{h} was afraid. The water looked deep.",
        '"I am afraid of the water," said {h}.',
        "{h} looked at the water. {he} wanted to help, but {he} was afraid.",
    )
    t.say(
        '"It is not deep," said {f}. "I will hold your hand."',
        '"First put in one foot, and then the other," said {f}.',
    )
    t.say(
        "{h} put one foot in the water. Then {he} put in the other one.",
        "Step by step, {h} went into the water. It was not so cold.",
        "{h} took a deep breath and went in, step by step.",
    )
    t.say("At last, {he} reached the {thing}!", "Soon {he} had the {thing}!")
    t.say('"You did it!" said {f}.', '"You are so brave!" said {f}.')
    close(
        t,
        "{h} held up the {noun} and laughed. {he} was not afraid of the water anymore.",
        "From that day on, {h} and {f} played in the pond with the {thing}.",
        "They played in the water with the {noun} all day, and {h} was proud.",
    )


def the_dog(t: Teller) -> None:
    """The hero is afraid of a dog that only wants to play."""
    cast_hero(t, animals=False)
    cast_friend(t)
    t.cast_thing({"dog": ("big", "black", "brown", "white")})
    begin(
        t,
        "went to see a friend named {f}, who had {a_thing}",
        "{h} was afraid of dogs.",
        "{h} did not like dogs, because they were loud.",
    )
    t.say(
        "The dog ran to the gate and barked.",
        "When {he} came to the gate, the dog barked.",
        '"Woof!" went the dog, and it jumped up and down.',
    )
    t.say("{h} hid behind a tree.", "{h} wanted to run home.", '"Help!" said {h}. "It will bite me!"')
    t.paragraph()
    t.say(
        '"The dog only wants to play," said {f}.',
        '"Do not be afraid," said {f}. "It barks because it is happy."',
        '"It is a good dog," said {f}. "It will not bite you."',
    )
    t.say(
        "{f} told {h} to hold out a hand and wait.",
        "{f} told {h} to sit down and be quiet.",
    )
    t.say(
        "{h} did what {f} said. The dog came slowly and put its nose on {his} hand.",
        "{h} took a deep breath and did it. The {thing} came and sat down next to {him}.",
    )
    t.say(
        "Its nose was wet and cold. {h} laughed.",
        "Its ears were very soft. {h} smiled.",
        "The dog looked at {h} with big brown eyes.",
    )
    t.maybe(0.5, "Then {he} threw a stick, and the dog brought it back.")
    close(
        t,
        "From that day on, {h} and {f} played with the {thing} every day, and {h} was not afraid.",
        '"Your {thing} is my friend now," {h} told {f} with a smile.',
        "When {h} said goodbye to {f}, the {thing} barked, and {h} was not afraid at all.",
    )


NOISE_PLACES = ("in the kitchen", "behind the door", "under the bed", "in the big box", "outside the window")


NOISE_MAKERS = {
    "kitten": ("white", "black", "little"),
    "puppy": ("brown", "white", "little"),
    "bird": ("blue", "little"),
}


def strange_noise(t: Teller) -> None:
    """A noise at night is frightening until the hero dares to look."""
    cast_hero(t, animals=False)
    t.cast_thing(NOISE_MAKERS)
    t.slots["where"] = t.pick(NOISE_PLACES)
    t.slots["tap"] = t.pick(("Tap, tap, tap", "Bump, bump, bump", "Scratch, scratch"))
    begin(
        t,
        "heard a [strange|funny] noise {where}",
        "{He} wanted to have a {noun}, but {g} always said no.",
        "More than anything, {he} wanted to have a {noun}.",
        "Every day, {he} wished for a {noun} to play with.",
        day="One [dark |windy |]night",
    )
    t.say("{tap}, it went.", "{tap}! Then it was quiet. {tap}!")
    t.say(
        '"What is that?" thought {h}. {he} was [a little |very |]afraid.',
        "{h} sat up in bed. {his} heart beat fast.",
    )
    t.maybe(0.5, "Was it a monster?", "{He} wanted to hide, but {he} also wanted to know.")
    t.paragraph()
    if t.chance(0.5):
        t.say('"There is a noise {where}," {he} told {g}.', "So {he} went and woke {g}.")
        t.say('"Let us look together," said {g}.', '{g} took a lamp and said, "Come with me."')
        t.say("They walked slowly and looked {where}.", "Step by step, they came closer.")
    else:
        t.say("{He} took a lamp and got out of bed.", '"I am brave," {he} said, and {he} got up.')
        t.say("Slowly {h} walked over and looked {where}.", "Step by step, {h} came closer to the noise.")
    t.say("It was not a monster at all. It was {a_thing}!", "There sat {a_thing}. It was afraid too!")
    t.say(
        "The {noun} was cold and hungry. {h} gave it some food and water.",
        '"Are you lost, little {noun}?" asked {h}, and {he} gave it some food.',
        '"Hello, little {noun}," said {h}. "Do not be afraid."',
    )
    t.say(
        '"You were very brave," said {g} in the morning.',
        '"Can it stay with us?" {h} asked {g}. "Yes," said {g}.',
    )
    close(
        t,
        "The {thing} stayed with {h}, and they were friends from that day on.",
        "That night, the {noun} slept next to {h}, and the house was quiet.",
        "The noise was only {a_thing}, and now {h} had a new friend.",
        after=(),
    )


PLOTS = (the_dark, the_thunder, the_water, the_dog, strange_noise)
