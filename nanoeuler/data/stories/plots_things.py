"""Plots about a thing: lost, fought over, out of reach, earned, broken, given away."""

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
    )
    t.say(
        "{He} [ran|jumped|danced] and played [all day|for a long time]. "
        "When it was time to go home, the {noun} was gone.",
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
    t.say("{h} ran to {g} and told {ghim} about it.", "{g} came and saw that {he} was sad.")
    t.say(
        '"Let us think," said {g}. "Where did you play last?"',
        '"Do not cry," said {g}. "Where did you see it last?"',
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
    cast_friend(t)
    t.cast_thing(words.SHARED_TOYS)
    cast_place(t)
    begin(
        t,
        "[was playing {at} with a friend named {f}|and {his} friend {f} were playing {at}]",
        "{He} had {a_thing} that {he} loved.",
        "{g} had just given {him} {a_thing}.",
    )
    t.say(
        "{f} saw the {thing} and wanted to play with it too.",
        '"Can I play with the {thing}?" asked {f}.',
        '"What a [nice|good] {noun}!" said {f}. "Can I have it for a moment?"',
    )
    t.say(
        '"No, it is mine!" said {h}[ and held the {noun} tight|].',
        '"No!" said {h}. "I want to play with it alone."',
    )
    t.say(
        "{f} pulled the {noun}, and {h} pulled it back. [They were both angry.|]",
        "{f} felt sad and sat down {spot1}.",
        "{f} began to cry and went away.",
    )
    t.paragraph()
    t.say("{g} heard them and came over.", "{g} saw it all and came to {h}.")
    t.say(
        '"A toy is more fun with a friend," said {g}.',
        '"You can take turns," said {g}. "That is fair."',
        '"How would you feel?" asked {g}.',
    )
    t.say(
        "{h} thought about it and felt bad.",
        "{h} looked at {f} and felt sorry.",
        "{h} was quiet for a moment. Playing alone was no fun.",
    )
    t.say(
        '"I am sorry, {f}," said {h}. "You can have a turn."',
        'So {h} gave the {noun} to {f} and said, "You can play with it now."',
    )
    t.say(
        "{f} smiled, and they played with the {thing} together.",
        "{f} was happy. They took turns until the sun went down.",
    )
    close(
        t,
        "From that day on, {h} and {f} always shared the {thing}.",
        "{h} learned that the {thing} was more fun with a friend.",
        "Now the {noun} made both {h} and {f} happy, and that was the best of all.",
    )


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
        "saw {a_thing} [high |]up in a [tall|big] tree",
        "{He} loved to eat fruit.",
        "{He} was always hungry.",
    )
    t.say(
        '"I want that {noun}!" said {h}.',
        "{He} wanted to eat the {noun} very much.",
        '"That {noun} looks so good," said {h}.',
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
    )
    t.maybe(0.5, "{h} was [very |]sad.", "{h} sat down under the tree.")
    if t.chance(0.5):
        cast_friend(t)
        t.say("Just then, {his} friend {f} came by.", "Then a {fkind} named {f} walked by.")
        t.say('"Stand on my back," said {f}.', '"I can help you. Climb on my back," said {f}.')
        t.say(
            "{h} stood on the back of {f} and took the {thing} from the tree.",
            "Now {h} was tall. {he} took the {thing} with a laugh.",
        )
        helper = "f"
    else:
        t.say("{h} went home and asked {g} for help.", "{g} saw {him} and came over.")
        t.say('"We need a ladder," said {g}.', '"I know what to do," said {g}, and {ghe} got a ladder.')
        t.say(
            "{g} held the ladder, and {h} climbed up. {he} took the {thing}!",
            "{h} climbed up the ladder step by step and took the {thing}.",
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
        t, "saw {a_thing} in [a|the] shop", "{He} loved to look at new things.", "{He} liked to walk to town."
    )
    t.say(
        '"I want that {noun} so much," said {h}.',
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
    t.say('"You can work for it," said {g}.', '"If you help me, I will give you some coins," said {g}.')
    t.slots["job1"], t.slots["job2"], t.slots["job3"] = t.some(JOBS, 3)
    t.say("So {h} {job1} and {job2}.", "{h} {job1}. Then {he} {job2}.", "First {h} {job1}. Then {he} {job2}.")
    t.maybe(0.5, "The next day, {h} {job3} too.")
    t.maybe(0.5, "It was hard work, but {h} did not stop.", "{He} was tired, but {he} did not give up.")
    t.say(
        '"Good work!" said {g}, and {ghe} gave {him} [ten|some] coins.',
        "At last, {g} gave {him} [ten|some] coins for all {his} work.",
    )
    t.say(
        "{h} ran to the shop and bought the {thing}.",
        "{h} ran to the shop. Soon {he} came out with the {thing}.",
    )
    close(
        t,
        "{He} was proud, because {he} had worked for the {noun}.",
        "From that day on, {h} knew that good things take work, and {he} loved {his} {thing}.",
        "{h} showed the {noun} to {g} and was very proud.",
        "{h} loved the {thing} even more, because {he} had worked for it.",
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
    ("was running in the house", "{He} ran into the table and hit the {thing}", "ran"),
    ("was dancing in the kitchen", "{He} turned around and hit the {thing}", "danced"),
)


def broken_thing(t: Teller) -> None:
    """The hero breaks what a grown-up loves, is tempted to hide it, tells the truth and is forgiven."""
    cast_hero(t)
    t.cast_thing(FRAGILE)
    scene, accident, t.slots["game"] = t.pick(ACCIDENTS)
    begin(
        t,
        scene,
        "{His} {gkind} had {a_thing} that {ghe} loved.",
        "On the table stood {a_thing}. It was a gift for {his} {gkind}.",
    )
    t.say(accident + ", and it [fell on the floor|fell down] and broke.")
    t.maybe(0.5, '"Oh no!" said {h}.', '"This is bad!" said {h}.')
    t.say("{h} was afraid that {g} would be angry.", "{h} did not know what to do.")
    t.paragraph()
    t.say(
        "{He} wanted to hide under the bed.",
        "{He} hid the {noun} under the bed and was very quiet.",
        "{He} wanted to say that the dog did it, but that was not true.",
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
    )
    t.maybe(0.7, "They fixed the {noun} together.", "Then they put the {noun} together again.")
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
        day="One rainy day" if rain else "One [winter|cold] day",
    )
    if not rain:
        t.maybe(0.5, "There was snow everywhere.", "The wind was cold.")
    t.say(
        "On the way, {he} saw a {fkind} named {f}, who was [very |]{bad}.",
        "Under a tree sat a {fkind} named {f}. {f} was {bad} and sad.",
    )
    t.say(
        '"I am so {bad}," said {f}. "I have no {noun}."',
        '"Where is your {noun}?" asked {h}. "I lost it," said {f}.',
    )
    t.paragraph()
    t.say(
        "{h} thought about it. {he} loved the {noun}, but {he} did not want {f} to be {bad}.",
        "{h} held the {noun} tight. Then {he} looked at {f} again.",
        "{h} felt sorry for {f}.",
    )
    t.say(
        '"Take my {noun}," said {h}. "You need it more."',
        'Then {h} gave {f} the {thing}. "It is for you," {he} said.',
    )
    t.say("{f} smiled a big smile.", '"Thank you, {h}! You are so kind," said {f}.')
    t.pick((_new_one, _shared_walk))(t)


def _new_one(t: Teller) -> None:
    t.say("{h} came home {bad}, but {his} heart was warm.", "{h} ran home as fast as {he} could.")
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
        '"Come home with me," said {f}. "We have warm soup."',
        '"Now you are {bad}," said {f}. "Let us share the {noun}."',
    )
    t.say(
        "So they walked home together, side by side.",
        "They sat close together, and soon they were both warm.",
    )
    close(
        t,
        "From that day on, {h} and {f} shared the {thing} and were good friends.",
        "{h} shared the {noun} that day, and {he} got a friend.",
    )


PLOTS = (lost_thing, share_the_toy, out_of_reach, earn_it, broken_thing, given_away)
