"""Plots about a trial: a lost way, a hard skill, a night without sleep."""

from nanoeuler.data.stories.common import begin, cast_friend, cast_hero, close, give_thanks
from nanoeuler.data.stories.teller import Teller

FOLLOWED = {
    "butterfly": ("blue", "yellow", "white", "orange"),
    "rabbit": ("white", "brown"),
    "bird": ("blue", "red", "yellow"),
}


def lost_way(t: Teller) -> None:
    """The hero follows something pretty too far, is lost, and finds the way home."""
    cast_hero(t)
    t.cast_thing({noun: adjectives for noun, adjectives in FOLLOWED.items() if noun != t.slots["kind"]})
    begin(
        t,
        "saw {a_thing} [near the house|in the garden]",
        "{He} loved to look at animals.",
        '"Do not go too far," {g} always said.',
    )
    t.say(
        "{h} ran after it, over the hill and into the trees.",
        "It was so pretty that {h} followed it far into the trees.",
        "{h} wanted to see where it lived, so {he} ran after it into the trees.",
        '"Wait for me!" said {h}, and {he} ran after it, far from home.',
    )
    t.say(
        "Then the {noun} was gone, and {h} did not know the way.",
        "When {he} looked around, {he} did not know where {he} was.",
    )
    t.maybe(0.6, "All the trees looked the same.", "It was getting dark.")
    t.say(
        '"I want to go home," said {h}[, and {he} began to cry|].',
        "{h} was afraid and sat down on a stone.",
        '"Where is my house?" said {h}. {he} was afraid.',
    )
    t.paragraph()
    t.pick((_heard_bell, _asked_animal, _stayed))(t)
    close(
        t,
        "From that day on, when {h} saw {a_thing}, {he} only looked and did not follow it.",
        'That night {h} told {g} about the {thing}. "You are home now," said {g}.',
        "{h} never went so far away again, and one day the {thing} came to the garden.",
    )


def _heard_bell(t: Teller) -> None:
    t.say("Just then, {he} heard a bell. It was far away.", "Then {he} heard a dog. It barked far away.")
    t.say('"That is near my home!" said {h}.', "{He} knew that sound.")
    t.say("{h} walked and walked, and the sound got louder.", "{h} followed the sound step by step.")
    t.say(
        "At last {he} saw the house, and {g} was at the door.",
        "Then the trees were behind {him}, and there stood {g}.",
        "Soon {he} saw {g} at the gate.",
    )
    t.say("{g} hugged {h} for a long time.", '"I am so glad that you are here," said {g}.')


def _asked_animal(t: Teller) -> None:
    t.slots["guide"] = t.pick([a for a in ("squirrel", "frog", "mouse") if a != t.slots["kind"]])
    t.say('"Why do you cry?" asked a little {guide}.', "A little {guide} came out of the leaves and saw {him}.")
    t.say('"I am lost," said {h}. "Can you help me?"', '"Can you show me the way home?" asked {h}.')
    t.say(
        '"Follow the river," said the {guide}. "It will take you home."',
        '"I know your house," said the {guide}. "Come with me."',
    )
    t.say(
        "{h} did, and soon {he} was home.",
        "They went past the big rock, and there was the house.",
        "They walked past a pond and over a bridge, and there was the house.",
    )
    t.say('"Thank you!" said {h} to the {guide}.', "{g} was very glad and gave the {guide} some nuts.")


def _stayed(t: Teller) -> None:
    t.say(
        'Then {he} thought of what {g} had said. "If you are lost, stay where you are and call."',
        'But {h} did not run. "Soon {g} will look for me," {he} thought.',
    )
    t.say(
        "So {he} stayed there and sang a loud song.",
        "So {he} sat under a tree and called as loud as {he} could.",
        '"Here I am!" {he} called, again and again.',
    )
    t.say('Soon {g} heard {h}. "There you are!" said {g}.', "After some time, {g} came out of the trees.")
    t.say("{h} ran to {ghim}, and they hugged.", "{g} took {h} home and made {him} some warm soup.")


# Skill -> thing, adjectives, first failure, advice, success
SKILLS = (
    ("ride a bike", "bike", ("red", "blue", "green", "new"), "fell into the grass",
     "Look up and not down", "rode the {thing} all the way to the gate"),
    ("fly a kite", "kite", ("red", "blue", "yellow", "purple"), "ran too fast and the kite fell down",
     "Wait for the wind, and then run", "ran, and the {thing} went up to the clouds"),
    ("play the flute", "flute", ("little", "old", "shiny"), "made a very bad sound",
     "Take a deep breath", "played a whole song on the {thing}"),
    ("throw a ball", "ball", ("red", "blue", "green", "yellow"), "threw the ball into the bushes",
     "Look at where you want it to go", "threw the {thing} right to {helper}"),
    ("swim with a board", "board", ("blue", "yellow", "red"), "got water in {his} nose",
     "Kick with your legs", "swam across the pond with the {thing}"),
)  # fmt: skip


def hard_skill(t: Teller) -> None:
    """The hero cannot do a thing, fails, wants to give up, practises and can."""
    cast_hero(t)
    # A duck or a frog need not learn to swim.
    skills = SKILLS if t.slots["kind"] in ("girl", "boy") else SKILLS[:-1]
    skill, noun, adjectives, failure, advice, success = t.pick(skills)
    t.set_thing(noun, t.pick(adjectives))
    t.slots["skill"] = skill
    if t.chance(0.5):
        cast_friend(t)
        helper = "f"
    else:
        helper = "g"
    t.slots["helper"] = t.slots[helper]
    begin(
        t,
        "[got|was given] {a_thing}",
        "{He} wanted to learn to {skill}.",
        "More than anything, {he} wanted to {skill}.",
        "All {his} friends could {skill}, but {he} could not.",
    )
    t.say(f"{{He}} tried, but {{he}} {failure}.", f"The first time, {{he}} {failure}.")
    t.say("{He} tried again, but it did not work.", f"{{He}} tried two more times and {failure} again.")
    t.say(
        '"I will never learn it," said {h}.',
        "{h} was angry and put the {noun} down.",
        '"It is too hard!" said {h}.',
        '"I cannot do it," said {h}, and {he} sat down.',
    )
    t.paragraph()
    if helper == "f":
        t.say("{His} friend {f} saw it and came over.", "Then a {fkind} named {f} came by.")
    else:
        t.say("{g} sat down next to {him}.", "{g} saw that {he} was sad.")
    t.say(
        f'"{advice}," said {{helper}}. "You can do it."',
        f'"I could not do it at first," said {{helper}}. "{advice}."',
    )
    t.say(
        "So {h} took the {noun} and tried once more.",
        "{h} took a deep breath and tried again.",
        '"I will try," said {h}.',
    )
    t.maybe(
        0.6,
        "{He} tried the next day and the day after that.",
        "{He} tried again and again.",
        "It was a little better this time.",
    )
    t.say(f"Then, at last, {{he}} {success}!", f"And this time, {{he}} {success}!")
    give_thanks(t, helper)
    close(
        t,
        "Now {h} could {skill}, and {he} was very proud of {his} {thing}.",
        "{h} learned that you must not give up, and {he} took the {thing} out every day.",
        "From that day on, {h} and {his} {thing} were always together.",
    )


def no_sleep(t: Teller) -> None:
    """The hero cannot sleep, tries this and that, and something soft or a song helps."""
    cast_hero(t)
    t.cast_thing({"teddy": ("soft", "brown", "white"), "blanket": ("soft", "blue", "warm"), "doll": ("soft", "little")})
    begin(
        t,
        "could not sleep",
        "{He} had {a_thing} that slept in {his} bed.",
        "Every night, {he} went to bed with {a_thing}.",
        then=("{He} always slept with {a_thing}.", "Every night, {he} went to bed with {a_thing}."),
        day="One night",
    )
    t.say(
        "The moon was big and the house was quiet.",
        "{He} turned this way and that way.",
        "It was very late, but {he} was still awake.",
    )
    t.say(
        "The {thing} was not there!",
        "{He} looked for {his} {noun}, but {he} could not find it.",
        "{His} bed was not the same without the {noun}. Where was it?",
    )
    t.paragraph()
    t.say(
        "{He} closed {his} eyes and counted sheep, but it did not help.",
        "{He} drank some milk, but {he} was still awake.",
    )
    t.maybe(
        0.6,
        "{h} sang a little song, but {he} was still awake.",
        "{h} looked at the stars, but sleep did not come.",
    )
    t.say("So {h} got up and went to {g}.", "At last {h} called {g}.")
    t.say('"I cannot sleep without my {noun}," said {h}.', '"Where is my {noun}?" asked {h}.')
    t.say(
        "{g} looked in the kitchen. The {thing} was on a chair!",
        '"I washed it today," said {g}, and {ghe} brought the clean {thing}.',
        "They looked under the bed, and there was the {thing}.",
    )
    t.say("{g} told {h} a story about the moon.", "{g} sang a soft song.", "{g} gave {h} a kiss.")
    close(
        t,
        "{h} held the {thing} tight and soon fell asleep.",
        "Soon {h} and {his} {thing} were asleep.",
        '"Good night," said {g}. {h} smiled, held the {noun} and fell asleep.',
        after=(),
    )


PLOTS = (
    lost_way,
    hard_skill,
    no_sleep,
)
