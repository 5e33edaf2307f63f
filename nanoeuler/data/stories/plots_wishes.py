"""Plots about a wish: for a fruit too high, a thing too dear, a flower that takes its time."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import begin, cast_friend, cast_hero, close, give_thanks
from nanoeuler.data.stories.teller import Teller

FRUIT = {
    "apple": ("red", "green", "big"),
    "pear": ("yellow", "green", "big"),
    "plum": ("purple", "big", "red"),
}


def out_of_reach(t: Teller) -> None:
    """A fruit hangs too high; jumping fails; a ladder or a friend's back helps."""
    cast_hero(t)
    t.cast_thing(FRUIT)
    begin(
        t,
        "saw {a_thing} [high |]up in a tall tree",
        "{He} loved to eat fruit.",
        "{He} was always hungry.",
        outside=True,
    )
    t.say(
        '"I want that {noun}!" said {h}.',
        "{He} wanted to eat the {noun} very much.",
        '"That {noun} looks so good," said {h}.',
        '"I will get that {noun}," said {h}.',
    )
    t.paragraph()
    t.say(
        "{h} jumped as high as {he} could, but {he} could not reach it.",
        "But the {noun} was too high. {he} jumped and jumped, but it did not help.",
    )
    t.maybe(
        0.6,
        "{He} tried to climb the tree, but {he} slid down again.",
        "{He} shook the tree, but the {noun} did not fall.",
        "{He} threw a stick at it, but the {noun} did not fall.",
    )
    t.maybe(0.5, "{h} was [very |]sad.", "{h} sat down under the tree.", '"I am too small," said {h}.')
    if t.chance(0.5):
        cast_friend(t)
        t.say(
            "Just then, {his} friend {f} came by.",
            "Then a {fkind} named {f} walked by.",
            "A {fkind} named {f} saw {him} and came over.",
        )
        t.say(
            '"Stand on my back," said {f}.',
            '"I can help you. Climb on my back," said {f}.',
            '"You are not alone," said {f}. "Climb on my back."',
        )
        t.say(
            "{h} stood on the back of {f} and took the {thing} from the tree.",
            "Now {h} was tall. {he} took the {thing} with a laugh.",
        )
        helper = "f"
    else:
        t.say("So {h} went home and asked {g} for help.", "{g} saw {him} and came over.", "So {h} called {g}.")
        t.say('"We need a ladder," said {g}.', '"I know what to do," said {g}, and {ghe} got a ladder.')
        t.say(
            "{g} held the ladder, and {h} climbed up. {he} took the {thing}!",
            "{h} climbed up the ladder step by step and took the {thing}.",
            "{h} was not afraid. {he} climbed up the ladder and took the {thing}.",
        )
        helper = "g"
    give_thanks(t, helper)
    t.slots["helper"] = t.slots[helper]
    close(
        t,
        "{h} gave half of the {noun} to {helper}. It was sweet, and they were very happy.",
        "They shared the {noun}. {h} learned that it is good to ask for help.",
        "They sat under the tree and ate the {noun} together.",
        "The {thing} was sweet, and {h} and {helper} ate it together under the tree.",
    )


JOBS = (
    "swept the floor", "washed the dishes", "fed the hens", "carried water", "cleaned the windows",
    "picked apples", "made the beds",
)  # fmt: skip


def earn_it(t: Teller) -> None:
    """The hero wishes for a thing in a shop, has no money, and works for it."""
    cast_hero(t)
    t.cast_thing(words.TOYS if t.chance(0.5) else words.BELONGINGS)
    begin(
        t,
        "saw {a_thing} in [a|the] shop",
        "{He} loved to look at new things.",
        "{He} liked to walk to town.",
        then=(),
    )
    t.say(
        '"I want that {noun} so much," said {h}.',
        '"What a [nice|pretty] {noun}!" said {h}.',
        "{He} wished for the {noun} with all {his} heart.",
        "It was the best {noun} that {he} had ever seen.",
    )
    t.say(
        "But {he} had no money.",
        "{He} looked for some money, but {he} only had [one coin|two coins].",
        "But the {noun} cost ten coins, and {he} had only one.",
    )
    t.maybe(0.5, "{h} was [very |]sad.", "{h} went home and was quiet.")
    t.paragraph()
    t.say(
        '"How can I get the {noun}?" {he} asked {g}.',
        '{g} asked, "What is wrong?" "I have no money for the {noun}," said {h}.',
    )
    t.say(
        '"You can work for it," said {g}.',
        '"If you help me, I will give you some coins," said {g}.',
        '"I have some work for you," said {g}. "Then you can buy it."',
    )
    t.slots["job1"], t.slots["job2"], t.slots["job3"] = t.some(JOBS, 3)
    t.say("So {h} {job1} and {job2}.", "{h} {job1}. Then {he} {job2}.", "First {h} {job1}. Then {he} {job2}.")
    t.maybe(0.5, "The next day, {h} {job3} too.")
    t.maybe(
        0.5,
        "It was hard work, but {h} did not stop.",
        "{He} was tired, but {he} did not give up.",
        "{He} wanted to play, but {he} worked on.",
    )
    t.say(
        '"Good work!" said {g}, and {ghe} gave {him} [ten|some] coins.',
        "At last, {g} gave {him} [ten|some] coins for all {his} work.",
        '"You worked hard," said {g}. "Here are your [ten |]coins."',
    )
    t.say(
        "{h} ran to the shop and bought the {thing}.",
        "{h} ran to the shop. Soon {he} came out with the {thing}.",
        "The next morning, {h} went to the shop and bought the {thing}.",
    )
    close(
        t,
        "{He} was proud, because {he} had worked for the {noun}.",
        "From that day on, {h} knew that good things take work, and {he} loved {his} {thing}.",
        "{h} showed the {noun} to {g} and was very proud.",
        "{h} loved the {thing} even more, because {he} had worked for it.",
    )


FLOWERS = {"flower": ("red", "yellow", "blue", "white", "pink"), "rose": ("red", "white", "pink", "yellow")}


def seed(t: Teller) -> None:
    """A seed needs water, sun and patience before the wished flower comes."""
    cast_hero(t)
    t.cast_thing(FLOWERS)
    begin(
        t,
        "put a [little |small |]seed in the ground",
        "{He} wanted to have {a_thing}.",
        "{He} wanted to grow {a_thing}.",
        "{g} gave {him} a seed. It was the seed of {a_thing}.",
        then=("{He} wanted to have {a_thing}.", "It was the seed of {a_thing}."),
    )
    t.say(
        '"Now I will wait for my {thing}," said {h}.',
        '"Soon I will have a {noun}," said {h}.',
        '"Grow, little seed, grow!" said {h}. "Be a {noun}!"',
    )
    t.say("{He} gave it water and waited.", "Every morning, {he} gave it some water.")
    t.say(
        "But the next day there was nothing. The day after, there was nothing too.",
        "Days went by, but no {noun} came up.",
        "{He} waited and waited, but there was no {noun}.",
    )
    t.say(
        '"My seed is bad," said {h}.',
        "{h} was sad and wanted to give up.",
        '"Why does it not grow?" asked {h}.',
    )
    t.paragraph()
    t.say(
        '"A seed needs time," said {g}. "Give it water and sun, and wait."',
        '"It is asleep under the ground," said {g}. "You must wait."',
        '"Good things take time," said {g}. "Give it some water and wait."',
    )
    t.say("So {h} did not give up.", "So {h} waited and sang to the seed.", "{h} gave it water day after day.")
    t.maybe(0.6, "One night, it rained, and then the sun came out.", "The sun was warm, and the rain was soft.")
    t.say("Then one morning, {he} saw a little green leaf!", "At last, a green leaf came out of the ground!")
    t.say(
        "It grew and grew, and soon there was {a_thing}.",
        "Day after day, it grew, and then {he} saw {a_thing}.",
        "A week later, it was {a_thing}.",
    )
    close(
        t,
        "{h} gave the {thing} to {g}, and they were both very happy.",
        '"I waited, and it came," said {h}. {he} was very proud of the {thing}.',
        "{h} learned that good things need time, and {he} loved the {thing} very much.",
        "Every day, {h} sat next to the {thing} and smiled.",
    )


PLOTS = (
    out_of_reach,
    earn_it,
    seed,
)
