"""Plots about a thing: lost, out of reach, wished for, fought over, broken."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import begin, cast_friend, cast_hero, cast_place, feel_sad, give_thanks
from nanoeuler.data.stories.teller import Teller


def lost_thing(t: Teller) -> None:
    """A dear thing is lost, looked for in vain, and found with help."""
    cast_hero(t)
    t.cast_grown_up()
    t.cast_thing(words.LOSABLE)
    cast_place(t)
    begin(
        t,
        "[took the {thing} to the {place}|went to the {place} with {his} {thing}|was {at} with {his} {thing}]",
        "{He} had {a_thing} that {he} took everywhere.",
        "{g} had given {him} {a_thing}, and {he} loved it very much.",
        "More than anything, {he} loved {his} {thing}.",
        "{He} had {a_thing}. It was the best thing {he} had.",
    )
    t.say(
        "{He} [ran|jumped|danced] and played [all day|for a long time]. When it was time to go home, the {noun} was gone.",
        "{He} put the {noun} down to play with some [leaves|stones|birds]. When {he} came back, it was gone.",
        "{He} played until the sun was low. Then {he} looked around, and the {noun} was not there.",
        "{He} played so [hard|long] that {he} forgot the {noun}. Then {he} could not find it.",
    )
    t.maybe(0.6, '"Oh no!" said {h}. "Where is my {thing}?"', '"My {noun} is lost!" said {h}.')
    feel_sad(t)
    t.paragraph()
    t.say("{He} looked {spot1}, but it was not there.", "First {he} looked {spot1}, but there was nothing.")
    t.maybe(
        0.7,
        "Then {he} looked {spot2}, but {he} only found [a stone|some leaves|a small bug].",
        "{He} looked {spot2} too, but the {noun} was not there.",
    )
    t.pick((_found_by_friend, _found_by_grown_up, _found_by_bird, _found_by_dog))(t)
    t.paragraph()
    t.say(
        "From that day on, {h} always took good care of {his} {thing}.",
        "{h} was happy again, and that night the {noun} slept next to {him}.",
        "{h} held the {noun} all the way home and never lost it again.",
        "After that day, {h} always knew where {his} {thing} was.",
        "{h} went home with a big smile and the {thing} in {his} arms.",
    )


def _found_by_friend(t: Teller) -> None:
    cast_friend(t)
    t.say(
        'Then {his} friend {f} came by. "What is wrong?" asked {f}.',
        'A {fkind} named {f} saw {him} and asked, "Why are you sad?"',
    )
    t.say('"I lost my {thing}," said {h}.', "{h} told {f} about the {noun}.")
    t.say(
        '"Do not cry. I will help you," said {f}.',
        '"Let us look together," said {f}. "Four eyes are better than two."',
    )
    t.say(
        "They looked and looked. At last, {f} looked {spot3}. There was the {thing}!",
        "So they looked {at} together. Soon {f} found the {thing} {spot3}.",
    )
    give_thanks(t, "f")


def _found_by_grown_up(t: Teller) -> None:
    t.say("{h} ran to {his} {gkind} and told {ghim} about it.", "{His} {gkind} saw that {he} was sad.")
    t.say(
        '"Let us think," said {g}. "Where did you play last?"',
        '"Do not cry," said {g}. "Where did you see it last?"',
    )
    t.say(
        "{h} thought hard. Then {he} ran and looked {spot3}, and there was the {thing}!",
        '"I know!" said {h}. They looked {spot3}, and there it was, the {thing}!',
    )
    give_thanks(t, "g")


def _found_by_bird(t: Teller) -> None:
    t.say(
        'A little bird sang from a tree, "I saw it! I saw it! Look {spot3}!"',
        'Then a bird came down and said, "I know where it is. Look {spot3}."',
    )
    t.say("{h} ran and looked {spot3}. There was the {thing}!", "{h} looked {spot3} and found the {thing}.")
    t.say(
        '"Thank you, little bird!" said {h}. The bird sang a happy song.',
        "{h} gave the bird some bread to say thank you.",
    )


def _found_by_dog(t: Teller) -> None:
    t.say(
        "Then {his} dog began to bark and ran away. {h} ran after the dog.",
        "{His} dog wanted to help. It put its nose to the ground and ran.",
    )
    t.say(
        "The dog stopped {spot3}, and there was the {thing}!",
        "The dog looked {spot3} and came back with the {thing}.",
    )
    t.say('"Good dog!" said {h}, and {he} hugged the dog.', "{h} laughed and gave the dog a big hug.")


def share_the_toy(t: Teller) -> None:
    """Two friends want the same toy, quarrel, and learn to take turns."""
    cast_hero(t)
    t.cast_grown_up()
    cast_friend(t)
    t.cast_thing(words.SHARED_TOYS)
    cast_place(t)
    begin(
        t,
        "[was playing with a friend named {f}|and {his} friend {f} were playing {at}]",
        "{He} had {a_thing} that {he} loved.",
        "{g} had just given {him} {a_thing}.",
    )
    t.say(
        "{f} saw the {thing} and wanted to play with it too.",
        '"Can I play with the {thing}?" asked {f}.',
    )
    t.say('"No, it is mine!" said {h}[ and held the {noun} tight|].', '"No!" said {h}. "I had it first."')
    t.say(
        "{f} pulled the {noun}, and {h} pulled it back.",
        "{f} felt sad and sat down alone.",
        "{f} began to cry and went away.",
    )
    t.paragraph()
    t.say("{g} heard them and came over.", "{His} {gkind} saw it all.")
    t.say(
        '"A toy is more fun with a friend," said {g}.',
        '"You can take turns," said {g}. "First one, then the other."',
        '"How would you feel?" asked {g}.',
    )
    t.say(
        "{h} thought about it. {he} felt bad.",
        "{h} looked at {f} and felt sorry.",
        "{h} was quiet for a moment. Playing alone was no fun.",
    )
    t.say(
        '"I am sorry, {f}," said {h}. "You can have a turn."',
        'So {he} gave the {noun} to {f} and said, "You can play with it now."',
    )
    t.say(
        "{f} smiled, and they played with the {thing} together.",
        "{f} was happy. They took turns until the sun went down.",
    )
    t.paragraph()
    t.say(
        "From that day on, {h} and {f} always shared the {thing}.",
        "{h} learned that the {thing} was more fun with a friend.",
        "Now the {noun} made two friends happy, and that was the best of all.",
    )


def out_of_reach(t: Teller) -> None:
    """A fruit hangs too high; jumping fails; a ladder, a friend or a bird helps."""
    cast_hero(t)
    t.cast_grown_up()
    t.cast_thing(
        {
            "apple": ("red", "green", "big"),
            "pear": ("yellow", "green", "big"),
            "plum": ("purple", "big", "red"),
        }
    )
    begin(
        t,
        "saw {a_thing} [high |]up in a [tall |big |]tree",
        "{He} loved to eat fruit.",
        "{He} was always a little hungry.",
    )
    t.say(
        '"I want that {noun}!" said {h}.',
        "{He} wanted to eat the {noun} very much.",
        '"That {noun} looks so good," said {h}.',
    )
    t.paragraph()
    t.say(
        "{He} jumped as high as {he} could, but {he} could not reach it.",
        "But the {noun} was too high. {he} jumped and jumped, but it did not help.",
    )
    t.maybe(
        0.6,
        "{He} tried to climb the tree, but {he} slid down again.",
        "{He} shook the tree, but the {noun} did not fall.",
    )
    t.maybe(0.5, "{h} was [very |]sad.", "{h} sat down under the tree.")
    t.pick((_lifted_by_friend, _ladder))(t)
    t.paragraph()
    t.say(
        "The {noun} was sweet, and {h} was very happy.",
        "{h} learned that it is good to ask for help, and the {thing} was the best {he} ever had.",
        "They sat under the tree and ate the {noun} together. It was a very good day.",
    )


def _lifted_by_friend(t: Teller) -> None:
    cast_friend(t)
    t.say("Just then, {his} friend {f} came by.", "Then a {fkind} named {f} walked by.")
    t.say('"Stand on my back," said {f}.', '"I can help you. Climb on my back," said {f}.')
    t.say(
        "{h} stood on {f} and took the {thing} from the tree.",
        "Now {h} was tall. {he} took the {thing} with a laugh.",
    )
    give_thanks(t, "f")
    t.say("{h} gave half of the {noun} to {f}.", "They shared the {noun}.")


def _ladder(t: Teller) -> None:
    t.say("{He} went home and asked {his} {gkind} for help.", "{His} {gkind} saw {him} and came over.")
    t.say('"We need a ladder," said {g}.', '"I know what to do," said {g}, and {ghe} got a ladder.')
    t.say(
        "{g} held the ladder, and {h} climbed up. {he} took the {thing}!",
        "{h} climbed up step by step and took the {thing}.",
    )
    give_thanks(t, "g")
    t.say("{h} gave half of the {noun} to {g}.", "They shared the {noun}.")


PLOTS = (lost_thing, share_the_toy, out_of_reach)
