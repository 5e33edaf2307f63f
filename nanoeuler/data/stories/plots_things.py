"""Plots about a thing: lost, fought over, broken, given away."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import (
    begin,
    cast_friend,
    cast_hero,
    cast_place,
    close,
    feel_sad,
    give_thanks,
)
from nanoeuler.data.stories.teller import Teller


def lost_thing(t: Teller) -> None:
    """A dear thing is lost, looked for in vain, and found with help."""
    cast_hero(t)
    t.cast_thing(words.LOSABLE)
    cast_place(t)
    begin(
        t,
        "[took the {thing} to the {place}|went to the {place} with {his} {thing}|was {at} with {his} {thing}]",
        "{He} had {a_thing} that {he} took everywhere.",
        "{g} had given {him} {a_thing}, and {he} loved it very much.",
        "{He} had {a_thing}. {he} loved it more than anything.",
        "{He} had {a_thing}. It was the best thing that {he} had.",
        sudden="[took {a_thing} to the {place}|went to the {place} with {a_thing}]",
        then=("It was a gift from {g}.", "{He} loved the {noun} more than anything."),
        outside=True,
    )
    t.say(
        "{h} [ran|jumped|danced] and played [all day|for a long time]. "
        "When it was time to go home, the {noun} was gone.",
        "{h} put the {noun} down to play with some [leaves|stones|birds]. When {he} came back, it was gone.",
        "{h} played until the sun was low. Then {he} looked around, and the {noun} was not there.",
        "{h} played so [hard|long] that {he} forgot the {noun}. Then {he} could not find it.",
        "On the way, {h} stopped to look at [a bug|some ducks|the clouds]. Then {he} saw that the {noun} was gone.",
    )
    t.maybe(
        0.6,
        '"Oh no!" said {h}. "Where is my {thing}?"',
        '"My {noun} is lost!" said {h}.',
        '"My {thing} is not here!" said {h}.',
    )
    feel_sad(t)
    t.paragraph()
    t.say(
        "{He} looked {spot1}, but it was not there.",
        "First {he} looked {spot1}, but there was nothing.",
        "{h} ran back and looked {spot1}. The {noun} was not there.",
    )
    t.maybe(
        0.7,
        "Then {he} looked {spot2}, but {he} only found [a stone|some leaves|a small bug].",
        "{He} looked {spot2} too, but the {noun} was not there.",
    )
    t.pick((_found_by_friend, _found_by_grown_up, _found_by_bird, _found_by_dog))(t)
    close(
        t,
        "From that day on, {h} always took good care of {his} {thing}.",
        "{h} was happy again, and that night the {noun} slept next to {him}.",
        "{h} held the {noun} all the way home and never lost it again.",
        "After that day, {h} always knew where {his} {thing} was.",
        "{h} went home with a big smile and the {thing}.",
    )


def _found_by_friend(t: Teller) -> None:
    cast_friend(t)
    t.say(
        'Then {his} friend {f} came by. "What is wrong?" asked {f}.',
        'A {fkind} named {f} saw {him} and asked, "Why are you sad?"',
        "{His} friend {f} heard {him} and came over.",
    )
    t.say('"I lost my {thing}," said {h}.', "{h} told {f} about the {noun}.")
    t.say(
        '"Do not cry. I will help you," said {f}.',
        '"Let us look together," said {f}. "Four eyes are better than two."',
        '"We will find it," said {f}. "I know we will."',
    )
    t.say(
        "They looked and looked. At last, {f} looked {spot3}. There was the {thing}!",
        "So they looked {at} together. Soon {f} found the {thing} {spot3}.",
        '{f} looked {spot3} and called, "I found it!" It was the {thing}.',
    )
    give_thanks(t, "f")


def _found_by_grown_up(t: Teller) -> None:
    t.say("{h} ran to {g} and told {ghim} about it.", "{g} came and saw that {he} was sad.")
    t.say(
        '"Let us think," said {g}. "Where did you play last?"',
        '"Do not cry," said {g}. "Where did you see it last?"',
        '"We will find it," said {g}. "Think about where you were."',
    )
    t.say(
        "{h} thought hard. Then {he} ran and looked {spot3}, and there was the {thing}!",
        '"I know!" said {h}. They looked {spot3}, and there was the {thing}!',
    )
    give_thanks(t, "g")


def _found_by_bird(t: Teller) -> None:
    t.say(
        'A little bird sang from a tree, "I saw it! I saw it! Look {spot3}!"',
        'Then a bird came down and said, "I know where it is. Look {spot3}."',
        '"Do not be sad," said a little bird. "Your {noun} is {spot3}."',
    )
    t.say("{h} ran and looked {spot3}. There was the {thing}!", "{h} looked {spot3} and found the {thing}.")
    t.say(
        '"Thank you, little bird!" said {h}. The bird sang a happy song.',
        "{h} gave the bird some bread to say thank you.",
        "{h} thanked the bird and danced.",
    )


def _found_by_dog(t: Teller) -> None:
    t.say(
        "Then {his} dog began to bark and ran away. {h} ran after the dog.",
        "{His} dog wanted to help. It put its nose to the ground and ran.",
        "But {his} dog was clever. It put its nose to the ground and ran.",
    )
    t.say(
        "The dog stopped {spot3}, and there was the {thing}!",
        "The dog looked {spot3} and came back with the {thing}.",
        "Soon the dog found the {thing} {spot3}.",
    )
    t.say('"Good dog!" said {h}, and {he} hugged the dog.', "{h} laughed and gave the dog a big hug.")


def share_the_toy(t: Teller) -> None:
    """Two friends want the same toy, quarrel, and learn to take turns."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing(words.SHARED_TOYS)
    cast_place(t)
    begin(
        t,
        "[was playing {at} with a friend named {f}|and {his} friend {f} were playing {at}]",
        "{He} had {a_thing} that {he} loved.",
        "{g} had just given {him} {a_thing}.",
        outside=True,
    )
    t.say(
        "{f} saw the {thing} and wanted to play with it too.",
        '"Can I play with the {thing}?" asked {f}.',
        '"What a [nice|good] {noun}!" said {f}. "Can I have it for a moment?"',
        "{f} had no toy and wanted to play with the {thing} too.",
    )
    t.say(
        '"No, it is mine!" said {h}[, and {he} held the {noun} tight|].',
        '"No!" said {h}. "I want to play with it alone."',
        '"Go away, {f}!" said {h}. "This is my {noun}."',
    )
    t.say(
        "{f} pulled the {noun}, and {h} pulled it back.[ They were both angry.|]",
        "{f} felt sad and sat down {spot1}.",
        "{f} began to cry and went away.",
        "{f} looked down and did not say a word.",
    )
    t.paragraph()
    t.say(
        "{g} heard them and came over.",
        "{g} saw it all and came to {h}.",
        "{g} saw that {f} was not happy and came over.",
    )
    t.say(
        '"A toy is more fun with a friend," said {g}.',
        '"You can take turns," said {g}. "That is fair."',
        '"How would you feel?" asked {g}.',
        '"Think about how {f} feels," said {g}.',
        '"Good friends share," said {g}.',
    )
    t.say(
        "{h} thought about it and felt bad.",
        "{h} looked at {f} and felt sorry.",
        "{h} was quiet for a moment. Playing alone was no fun.",
        "{h} knew that {g} was right.",
    )
    t.say(
        '"I am sorry, {f}," said {h}. "You can have a turn."',
        'So {h} gave the {noun} to {f} and said, "You can play with it now."',
        '"Do you want to play with it?" {h} asked {f}. "Yes, please!" said {f}.',
    )
    t.say(
        "{f} smiled, and they played with the {thing} together.",
        "{f} was happy. They took turns until the sun went down.",
        "{f} laughed, and soon they both played with the {thing}.",
    )
    close(
        t,
        "From that day on, {h} and {f} always shared the {thing}.",
        "{h} learned that the {thing} was more fun with a friend.",
        "{h} and {f} were good friends again, and the {thing} was for both of them.",
        "Now the {noun} made both {h} and {f} happy, and that was the best of all.",
    )


FRAGILE = {
    "cup": ("white", "blue", "old", "pretty"),
    "vase": ("blue", "white", "green", "pretty"),
    "plate": ("white", "yellow", "old", "pretty"),
    "lamp": ("green", "old", "yellow"),
    "bowl": ("blue", "red", "old"),
}


ACCIDENTS = (
    ("was playing with a ball in the house", "The ball hit the {thing}", "played with a ball"),
    ("was running in the house", "{h} ran into the table and hit the {thing}", "ran"),
    ("was dancing in the kitchen", "{h} turned around and hit the {thing}", "danced"),
)


def broken_thing(t: Teller) -> None:
    """The hero breaks what a grown-up loves, is tempted to hide it, tells the truth and is forgiven."""
    cast_hero(t)
    t.cast_thing(FRAGILE)
    scene, accident, t.slots["game"] = t.pick(ACCIDENTS)
    begin(
        t,
        scene,
        "{g} had {a_thing} that {ghe} loved.",
        "On the table stood {a_thing}. It was a gift for {g}.",
    )
    t.say(accident + ", and it [fell on the floor|fell down] and broke.")
    t.maybe(0.5, '"Oh no!" said {h}.', '"This is bad!" said {h}.', '"Oh, the {noun}!" said {h}.')
    t.say("{h} was afraid that {g} would be angry.", "{h} did not know what to do.")
    t.paragraph()
    t.say(
        "{He} wanted to hide under the bed.",
        "{He} hid the {noun} under the bed and was very quiet.",
        "{He} wanted to say that the dog did it, but that was not true.",
        "{He} wanted to run away, but {he} did not.",
    )
    t.say('Soon {g} came home. "What happened to my {noun}?" asked {g}.', '"Where is my {thing}?" asked {g}.')
    t.say(
        '{h} looked down. "I broke it," {he} said. "I am so sorry."',
        '{h} began to cry. "I broke your {noun}," {he} said. "I am sorry."',
        '"I [ran|played] in the house and broke it," said {h}. "I am very sorry."',
    )
    t.say(
        '{g} was quiet for a moment. Then {ghe} smiled and said, "Thank you for telling the truth."',
        '{g} hugged {him} and said, "I am not angry. You told the truth."',
        '"I am sad about the {noun}," said {g}, "but I am glad that you told me."',
        '"You did the right thing," said {g}. "The truth is better than a {noun}."',
    )
    t.maybe(
        0.7,
        "They fixed the {noun} together.",
        "Then they put the {noun} together again.",
        "They worked on it all day, and then the {noun} was fixed.",
    )
    close(
        t,
        "From that day on, {h} always told the truth, and {he} never {game} near the {noun} again.",
        "When {h} saw the {thing}, {he} was always glad that {he} had told the truth.",
        "{h} learned that the truth is better than hiding, and {he} saved coins for a new {noun}.",
        after=(),
    )


def given_away(t: Teller) -> None:
    """The hero gives a warm thing to one who is cold, and kindness comes back."""
    cast_hero(t)
    t.cast_thing({noun: words.BELONGINGS[noun] for noun in ("hat", "scarf", "blanket", "umbrella")})
    cast_friend(t)
    rain = t.slots["noun"] == "umbrella"
    t.slots["bad"] = "wet" if rain else "cold"
    begin(
        t,
        "took a walk with {his} {thing}",
        "{g} had given {him} {a_thing}.",
        "{He} had {a_thing} that {he} loved very much.",
        sudden="took a walk with {a_thing}",
        then=("It was a gift from {g}.", "{He} loved the {noun} very much."),
        day="One rainy day" if rain else "One [winter|cold] day",
    )
    if not rain:
        t.maybe(0.5, "There was snow everywhere.", "It was very cold outside.", "The wind was cold.")
    t.say(
        "On the way, {he} saw a {fkind} named {f}, who was [very |]{bad}.",
        "Under a tree sat a {fkind} named {f}. {f} was {bad} and sad.",
        "Then {he} met a {fkind} named {f}, who was {bad} and had no {noun}.",
    )
    t.say(
        '"I am so {bad}," said {f}. "I have no {noun}."',
        '"Where is your {noun}?" asked {h}. "I lost it," said {f}.',
    )
    t.paragraph()
    t.say(
        "{h} thought about it. {he} loved the {noun}, but {he} did not want {f} to be {bad}.",
        "{h} held the {noun} tight and looked at {f} again.",
        "{h} felt sorry for {f}.",
        '"{f} is {bad}, and I am not," thought {h}.',
    )
    t.say(
        '"Take my {noun}," said {h}. "You need it more."',
        'Then {h} gave {f} the {thing}. "It is for you," {he} said.',
    )
    t.say(
        "{f} smiled a big smile.",
        "{f} was so happy that {fhe} danced.",
        '"Thank you, {h}! You are so kind," said {f}.',
    )
    t.pick((_new_one, _shared_walk))(t)


def _new_one(t: Teller) -> None:
    t.say(
        "{h} came home {bad}, but {his} heart was warm.",
        "{h} ran home as fast as {he} could.",
        "{h} walked home and was happy.",
    )
    t.say(
        '"You did a kind thing," said {g}, and {ghe} gave {him} a new {noun}.',
        '{g} heard what {he} had done. "I am proud of you," said {g}.',
    )
    close(
        t,
        "Every time {h} saw {f} with the {thing}, {he} felt happy.",
        "From that day on, {h} and {f} were good friends, and {f} always had the {thing}.",
    )


def _shared_walk(t: Teller) -> None:
    t.say(
        "So {f} took {h} home for some warm soup.",
        "Now {h} was {bad} too, so {f} shared the {noun} with {him}.",
    )
    t.say(
        "They walked together, side by side.",
        "They sat close together, and soon they were both warm.",
        "They talked and laughed all the way.",
    )
    close(
        t,
        "From that day on, {h} and {f} shared the {thing} and were good friends.",
        "{h} shared the {noun} that day, and {he} got a friend.",
        "{h} gave {f} the {noun} that day, and {f} was a good friend from then on.",
    )


PLOTS = (
    lost_thing,
    share_the_toy,
    broken_thing,
    given_away,
)
