"""Plots about courage: a fear, a noise at night, a lost way, a hard skill, a night without sleep."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import (
    begin,
    cast_friend,
    cast_hero,
    close,
    give_thanks,
)
from nanoeuler.data.stories.teller import Teller


def afraid(t: Teller) -> None:
    """The hero is afraid of one thing, and learns not to be."""
    cast_hero(t)
    t.pick((_the_dark, _the_thunder, _the_water, _the_dog))(t)


def _the_dark(t: Teller) -> None:
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
    )
    t.say('"Help! There is a monster!" called {h}.', "{h} hid under the blanket and called {g}.")
    t.paragraph()
    t.say("{g} came in with {a_thing}.", "{g} came quickly and brought {a_thing}.")
    t.say(
        '"Look, it is only your coat," said {g}.',
        '"Let us look at it together," said {g}. It was only a chair with a coat on it.',
    )
    t.say("{h} laughed. {he} had been afraid of a coat!", "{h} looked again. It was not a monster at all.")
    t.say('"The {noun} will stay with you," said {g}.', "Then {g} gave {him} the {thing}.")
    close(
        t,
        "{h} held the {noun} and fell asleep. {he} was not afraid of the dark anymore.",
        "From that night on, the {thing} stood next to the bed, and {h} slept well in the dark.",
        "With the {thing}, the dark was not so bad, and {h} soon fell asleep.",
        after=(),
    )


def _the_thunder(t: Teller) -> None:
    t.cast_thing({"drum": words.TOYS["drum"], "bell": words.BELONGINGS["bell"]})
    begin(
        t,
        "was playing with {his} {thing} and heard [loud |]thunder",
        "{He} was afraid of storms.",
        "{He} had {a_thing} and loved to play music.",
        "{He} did not like storms.",
        day="One [night|evening]",
    )
    t.say("Boom! {h} ran to {g} and hid.", "Boom! {h} hid under the table and did not come out.")
    t.maybe(0.6, '"I do not like the thunder," said {h}.', '"Will the storm hurt us?" asked {h}.')
    t.paragraph()
    t.say(
        '"The thunder is only a big noise," said {g}. "It is the music of the clouds."',
        '"The storm is outside, and we are inside," said {g}. "Let us make some noise too."',
    )
    t.say('"Play as loud as you can," said {g}.', "{g} gave {h} the {noun}.")
    t.say(
        "Boom, went the thunder. {h} played the {noun} as loud as {he} could.",
        "When the thunder came again, {h} played the {noun}. It was fun!",
    )
    t.say("{g} sang a funny song.", "Soon they both laughed and danced.", "{h} forgot to be afraid.")
    close(
        t,
        "After that, when the thunder came, {h} took the {thing} and played along.",
        "At last the storm went away, and {h} put the {noun} down. {he} was not afraid anymore.",
        "{h} was proud. {he} and {his} {thing} were louder than the storm.",
        after=(),
    )


def _the_water(t: Teller) -> None:
    cast_friend(t)
    t.cast_thing({"boat": ("white", "blue", "red"), "ball": ("red", "yellow", "green")})
    begin(
        t,
        "and {his} friend {f} went to the pond with {a_thing}",
        "{h} was afraid of the water.",
        "{h} could not swim yet.",
    )
    t.say(
        "They played on the grass with the {noun}.", "{f} jumped into the water, but {h} stayed on the grass."
    )
    t.say(
        "Then the wind came, and the {noun} went out on the water.",
        "Then the {noun} fell into the pond.",
    )
    t.say('"Oh no, my {noun}!" said {f}.', '"Can you get it, {h}?" asked {f}.')
    t.paragraph()
    t.say("{h} was afraid. The water looked deep.", '"I am afraid of the water," said {h}.')
    t.say(
        '"It is not deep," said {f}. "I will hold your hand."',
        '"First put in one foot, and then the other," said {f}.',
    )
    t.say(
        "{h} put one foot in the water. Then {he} put in the other one.",
        "Step by step, {h} went into the water. It was not so cold.",
    )
    t.say("At last, {he} reached the {thing}!", "Soon {he} had the {thing}!")
    t.say('"You did it!" said {f}.', '"You are so brave!" said {f}.')
    close(
        t,
        "{h} held up the {noun} and laughed. {he} was not afraid of the water anymore.",
        "From that day on, {h} and {f} played in the pond with the {thing}.",
        "They played in the water with the {noun} all day, and {h} was proud.",
    )


def _the_dog(t: Teller) -> None:
    cast_friend(t)
    t.cast_thing({"dog": ("big", "black", "brown", "white")})
    begin(
        t,
        "went to see a friend named {f}, who had {a_thing}",
        "{h} was afraid of dogs.",
        "{h} did not like dogs, because they were loud.",
    )
    t.say("The dog ran to the gate and barked.", '"Woof!" said the dog, and it jumped up and down.')
    t.say("{h} hid behind a tree.", "{h} wanted to run home.", '"Help!" said {h}. "It will bite me!"')
    t.paragraph()
    t.say(
        '"The dog only wants to play," said {f}.',
        '"Do not be afraid," said {f}. "It barks because it is happy."',
    )
    t.say(
        '"Hold out your hand and wait," said {f}.',
        '"Sit down and be quiet," said {f}. "It will come to you."',
    )
    t.say(
        "{h} did as {f} said. The dog came slowly and put its nose on {his} hand.",
        "{h} took a deep breath and did it. The {thing} came and sat down next to {him}.",
    )
    t.say("Its nose was wet and cold. {h} laughed.", "Its ears were very soft. {h} smiled.")
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
        '"Do not go too far," {his} {gkind} always said.',
    )
    t.say(
        "{He} ran after it, over the hill and into the trees.",
        "It was so pretty that {he} followed it far into the trees.",
        '"Wait for me!" said {h}, and {he} ran after it, far from home.',
    )
    t.say(
        "Then the {noun} was gone, and {h} did not know the way.",
        "When {he} looked around, {he} did not know where {he} was.",
    )
    t.maybe(0.6, "All the trees looked the same.", "It was getting dark.")
    t.say('"I want to go home," said {h}[ and began to cry|].', "{h} was afraid and sat down on a stone.")
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
    t.say("At last {he} saw the house, and {g} was at the door.", "Soon {he} saw {g} at the gate.")
    t.say("{g} hugged {h} for a long time.", '"I am so glad that you are here," said {g}.')


def _asked_animal(t: Teller) -> None:
    t.slots["guide"] = t.pick([a for a in ("squirrel", "frog", "mouse") if a != t.slots["kind"]])
    t.say(
        '"Why do you cry?" asked a little {guide}.', "A little {guide} came out of the leaves and saw {him}."
    )
    t.say('"I am lost," said {h}. "Can you help me?"', '"Can you show me the way home?" asked {h}.')
    t.say(
        '"Follow the river," said the {guide}. "It will take you home."',
        '"I know your house," said the {guide}. "Come with me."',
    )
    t.say("{h} did, and soon {he} was home.", "They went past the big rock, and there was the house.")
    t.say('"Thank you!" said {h} to the {guide}.', "{g} was very glad and gave the {guide} some nuts.")


def _stayed(t: Teller) -> None:
    t.say(
        'Then {he} thought of what {g} had said. "If you are lost, stay where you are and call."',
        'But {h} did not run. "My {gkind} will look for me," {he} thought.',
    )
    t.say(
        "So {he} stayed there and sang a loud song.",
        "So {he} sat under a tree and called as loud as {he} could.",
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
    skill, noun, adjectives, failure, advice, success = t.pick(SKILLS)
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
    t.say("So {h} took the {noun} and tried once more.", "{h} took a deep breath and tried again.")
    t.maybe(0.6, "{He} tried the next day and the day after that.", "It was a little better this time.")
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
    t.cast_thing(
        {"teddy": ("soft", "brown", "white"), "blanket": ("soft", "blue", "warm"), "doll": ("soft", "little")}
    )
    begin(
        t,
        "could not sleep",
        "{He} had {a_thing} that slept in {his} bed.",
        "Every night, {he} went to bed with {a_thing}.",
        day="One night",
    )
    t.say("The moon was big and the house was quiet.", "{He} turned this way and that way.")
    t.say("The {thing} was not there!", "{He} looked for {his} {noun}, but {he} could not find it.")
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


PLOTS = (afraid, strange_noise, lost_way, hard_skill, no_sleep)
