"""Plots about care: an animal in need, a rainy day, eating too much, a cart in the mud."""

from nanoeuler.data.stories import words
from nanoeuler.data.stories.common import begin, cast_friend, cast_hero, cast_place, close, feel_sad
from nanoeuler.data.stories.teller import Teller

# Animal -> adjectives, trouble, what the hero does with the helper, how it says thanks.
RESCUES = {
    "bird": (
        ("blue", "little", "yellow"),
        ("It could not fly, because its wing was hurt.", "It had a bad wing and could not fly."),
        ("They made a soft bed in a box and gave the bird some water.",
         "They put the bird in a warm box and fed it every day."),
        ("Soon its wing was strong again, and the bird could fly.", "After a week, the bird could fly again."),
    ),
    "kitten": (
        ("white", "black", "little"),
        ("It was up in a tree and could not come down.", "It sat high in a tree and cried."),
        ("They got a ladder, and {h} climbed up to the kitten.",
         "They held out a blanket, and the kitten jumped into it."),
        ("The kitten was safe now and drank some milk.", "The kitten was not afraid anymore."),
    ),
    "puppy": (
        ("brown", "little", "black"),
        ("It was wet and cold and had no home.", "It was alone in the rain and cried."),
        ("They took the puppy home and dried it with a blanket.",
         "They gave the puppy some food and a warm bed."),
        ("Soon the puppy was warm and fell asleep.", "The puppy ate it all and jumped around."),
    ),
    "turtle": (
        ("green", "old", "little"),
        ("It was on its back and could not get up.", "It could not find the way to the water."),
        ("They picked up the turtle and took it to the pond.",
         "They helped the turtle and walked with it to the water."),
        ("The turtle was happy and swam around.", "The turtle went into the water and looked back at them."),
    ),
}  # fmt: skip


def rescue(t: Teller) -> None:
    """The hero finds an animal in trouble and helps it with a friend or a grown-up."""
    cast_hero(t, animals=False)
    noun = t.pick(tuple(RESCUES))
    adjectives, trouble, action, recovery = RESCUES[noun]
    t.set_thing(noun, t.pick(adjectives))
    cast_place(t)
    begin(
        t,
        "found {a_thing} {at}",
        "{He} loved animals.",
        "{He} wanted to help everyone.",
        "{He} had a kind heart.",
        then=(),
    )
    t.say(*trouble)
    t.say(
        '"Poor {noun}!" said {h}.',
        "{h} felt sorry for the {noun}.",
        '"I will help you," said {h} to the {noun}.',
        '"Do not cry, little {noun}," said {h}.',
    )
    t.maybe(0.5, "But {he} could not do it alone.", "At first, the {noun} was afraid of {him}.")
    t.paragraph()
    if t.chance(0.5):
        t.say(
            "{He} ran home and got {g}.",
            '"Please come quickly!" {he} called, and {g} came.',
            "{He} called {g}, and {g} came at once.",
        )
        t.slots["helper"] = t.slots["g"]
    else:
        cast_friend(t)
        t.say("{He} called {his} friend {f}.", "{His} friend {f} came to help.")
        t.slots["helper"] = t.slots["f"]
    t.say('"We must be quiet and slow," said {helper}.', '"I know what to do," said {helper}.')
    t.say(*action)
    t.say(*recovery)
    close(
        t,
        "From that day on, the {thing} came to see {h} every day.",
        "{h} and {helper} were glad, and the {thing} was their friend from that day on.",
        '"You have a good heart," said {helper}. {h} smiled at the {thing}.',
        "When it was time to say goodbye, the {thing} looked at {h}, and {he} knew that it said thank you.",
    )


INSIDE = (
    ("make a house with the chairs and a blanket", "They made a house and sat inside with a lamp"),
    ("bake some cookies", "They baked cookies, and the kitchen was warm"),
    ("paint", "They painted a big sun on paper"),
    ("tell stories", "They told funny stories and laughed"),
)


def rainy_day(t: Teller) -> None:
    """Rain spoils the plan; something else is fun until the sun comes back."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing({noun: words.TOYS[noun] for noun in ("kite", "ball", "boat", "car", "balloon")})
    cast_place(t)
    t.slots["idea"], done = t.pick(INSIDE)
    begin(
        t,
        "wanted to take {his} {thing} to the {place}",
        "{He} had a new toy. It was {a_thing}.",
        "{He} had {a_thing}, and {he} wanted to show it to {his} friends.",
        sudden="wanted to play with {a_thing} {at}",
        then=(),
        day="One [day|morning]",
    )
    if t.chance(0.5):
        t.say("{h} put on {his} coat.", "{h} was very excited.")
    t.say(
        "But then it began to rain.",
        "But the sky was gray, and soon it rained hard.",
        "Just then, the wind came, and it rained and rained.",
    )
    t.say(
        '"Now I cannot play outside," said {h}.',
        '"Rain, rain, go away!" said {h}.',
        "{h} stood at the window and looked at the rain.",
    )
    feel_sad(t)
    t.paragraph()
    t.say(
        "{His} friend {f} came to the door. {f} was all wet.",
        "{His} friend {f} came to play, but {f} was sad about the rain too.",
    )
    t.say('"I have an idea," said {g}. "Let us {idea}."', '"We can {idea}," said {g}.')
    t.say(f"{done}. It was a lot of fun.", f"{done}. They forgot the rain.")
    t.say(
        "Then the rain stopped, and the sun came out.",
        "Soon the clouds were gone, and the sky was blue again.",
        '"Look, the sun is back!" said {f}.',
    )
    close(
        t,
        "So {h} and {f} went to the {place} and played with the {thing} until night.",
        "{h} and {f} ran outside with the {thing}. They learned that a rainy day can be fun too.",
        "At last, {h} and {f} played with the {thing} {at}, and they were very happy.",
        after=(),
    )


TREATS = {"cake": ("big", "sweet", "round"), "pie": ("big", "sweet", "round")}


def too_much(t: Teller) -> None:
    """The hero eats what was meant for all, is sick and sorry, and makes good."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing(TREATS)
    begin(
        t,
        "saw {a_thing} on the table",
        "{He} loved sweet things.",
        "{He} was always hungry.",
    )
    t.say(
        '"The {noun} is for the party," said {g}. "Please wait."',
        '{g} said, "Wait for your friend {f}. We will all eat the {noun} together."',
        '"It is for you and your friend {f}," said {g}. "You must wait."',
    )
    t.say("Then {g} went out.", "{h} wanted to wait, but it was hard.", "But the {noun} looked so good.")
    t.say(
        '"I will only take a little," thought {h}.',
        '"No one will see it," thought {h}.',
        '"One small bite is not bad," thought {h}.',
    )
    t.say(
        "{He} ate a little, and then a little more. Soon the {noun} was gone.",
        "But {he} took one bite after the other, until it was all gone.",
    )
    t.paragraph()
    t.say("Then {h} felt sick.", "Now {h} felt very bad and had to lie down.")
    t.say(
        '{g} came back with {his} friend {f}. "Where is the {noun}?" asked {g}.',
        'Soon {his} friend {f} came. "Where is the {noun}?" asked {f}.',
    )
    t.say(
        '"I ate it all," said {h}. "I am sorry."',
        "{h} looked down and told the truth. {he} was very sorry.",
        '"It was so good that I ate it all," said {h}. "I am sorry."',
    )
    t.say(
        '"Thank you for telling the truth," said {g}. "Tomorrow you can help me make a new one."',
        '"Next time, you must share," said {g}. "Let us make a new one together."',
        '"It is not good to eat it all," said {g}. "We will make a new one."',
    )
    t.say("So {h} helped {g} to make another {noun}.", "The next day, {h} worked hard in the kitchen.")
    close(
        t,
        "This time {h} gave the first piece of the {noun} to {f}, and they were all happy.",
        "{h} and {f} ate the new {noun} together, and it was much better to share.",
        "{f} got the first piece of the new {noun}. {h} learned that it is good to wait and share.",
        after=(),
    )


def stuck_cart(t: Teller) -> None:
    """A cart on the way to market is stuck in the mud; whom they were kind to comes to help."""
    cast_hero(t)
    cast_friend(t)
    t.cast_thing({"cart": ("red", "old", "little", "green"), "wagon": ("red", "blue", "old", "little")})
    t.slots["load"] = t.pick(("apples", "pears", "carrots", "berries"))
    begin(
        t,
        "took {a_thing} full of {load} to [town|the market]",
        "{He} had a little garden with {g}.",
        "{He} wanted to sell {load} in town.",
        then=("{He} wanted to sell them all.", "They were from {his} own garden."),
        outside=True,
    )
    t.say(
        "On the way, {he} met a {fkind} named {f}, who was hungry.",
        'A {fkind} named {f} sat by the road. "I am so hungry," said {f}.',
    )
    t.say(
        "{h} gave {f} some {load}.",
        '"Take some {load}," said {h}. "I have a lot."',
        '"You can have some {load}," said {h}.',
    )
    t.maybe(0.6, '"Thank you! You are kind," said {f}.')
    t.paragraph()
    t.say(
        "Then it rained, and the {noun} got stuck in the mud.",
        "Soon the road was bad, and the {noun} got stuck in a hole.",
        "Then a wheel fell into a hole, and the {noun} was stuck.",
    )
    t.say(
        "{h} pushed and pushed, but the {noun} did not move.",
        "{h} pulled as hard as {he} could, but it did not help.",
        "{h} pushed as hard as {he} could, but it was too heavy.",
    )
    t.maybe(0.5, '"What can I do now?" said {h}.', "{h} was tired and sad.")
    t.say(
        '"I will help you!" called {f}, and {fhe} ran to {him}.',
        "Just then, {f} came down the road and saw {him}.",
    )
    t.say(
        '"You helped me, and now I will help you," said {f}.',
        '"One, two, three, push!" said {f}.',
        '"I am strong," said {f}. "Let us push."',
    )
    t.say(
        "They pushed together, and the {thing} came out.",
        "They pushed and pulled, and at last the {thing} rolled on.",
    )
    close(
        t,
        "{h} and {f} sold the {load} together and rode home on the {thing}.",
        "From that day on, {h} and {f} always took the {thing} to town together.",
        "{h} gave {f} a ride home on the {noun} and learned that a kind act comes back.",
    )


PLOTS = (
    rescue,
    rainy_day,
    too_much,
    stuck_cart,
)
