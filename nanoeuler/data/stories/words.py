"""The words of the built-in stories: who, what, where.

Few and plain on purpose. A model of one million parameters sees some four million tokens in the two
minutes of ``nanoeuler demo``; it learns a few hundred words well, and a few thousand not at all.

Everything here is plain data. Adjectives are listed with the nouns that can bear them, so that no
story has a soft key or a brave cup.
"""

# Six and six, and two grown-ups: in the three million tokens that the demo has time for, a model of one million
# parameters learns to carry one of twelve names through a story; with thirty-two names it did not.
GIRLS = ("Lily", "Mia", "Zoe", "Emma", "Ruby", "Nora")
BOYS = ("Tom", "Ben", "Max", "Sam", "Leo", "Jack")

PRONOUNS = {"f": ("she", "her", "her"), "m": ("he", "him", "his")}  # subject, object, possessive

GROWN_UPS = (("Mom", "f"), ("Dad", "m"))

ANIMAL_HEROES = ("rabbit", "fox", "bear", "mouse", "duck", "frog", "squirrel", "cat", "pig", "goat")
TRAITS = ("little", "kind", "young", "happy", "cheerful", "brave", "clever", "small", "funny", "gentle")

CHILD_HOMES = (
    "in a small house near the forest", "in a little town by the sea", "on a farm",
    "in a white house on a hill", "in a house by the river", "in a quiet village",
)  # fmt: skip
ANIMAL_HOMES = (
    "in the forest", "near a pond", "under a big tree", "on a green hill",
    "in a little house by the river", "at the edge of the forest",
)  # fmt: skip

COLOURS = ("red", "blue", "green", "yellow", "white", "purple", "pink", "orange", "brown", "black")

# Noun -> adjectives it may bear. A story keeps the one that it drew, to the end.
TOYS = {
    "ball": ("red", "blue", "green", "yellow", "big"),
    "kite": ("red", "blue", "yellow", "purple", "orange"),
    "boat": ("white", "blue", "red", "little"),
    "doll": ("pretty", "little", "soft", "old"),
    "drum": ("red", "blue", "big", "orange"),
    "train": ("green", "red", "black", "blue"),
    "robot": ("shiny", "blue", "little", "red"),
    "car": ("red", "yellow", "shiny", "green"),
    "teddy": ("brown", "soft", "old", "white"),
    "balloon": ("red", "pink", "yellow", "big", "purple"),
}
BELONGINGS = {
    "hat": ("red", "blue", "green", "yellow", "warm"),
    "scarf": ("red", "blue", "warm", "soft", "green"),
    "book": ("blue", "old", "green", "big"),
    "bell": ("shiny", "little", "old"),
    "key": ("shiny", "old", "little"),
    "ring": ("shiny", "pretty", "little"),
    "blanket": ("soft", "warm", "blue", "yellow", "pink"),
    "bag": ("brown", "green", "red", "old"),
    "umbrella": ("yellow", "red", "purple", "big"),
}
LOSABLE = {
    **{noun: TOYS[noun] for noun in ("ball", "boat", "doll", "drum", "train", "robot", "car", "teddy")},
    **{noun: BELONGINGS[noun] for noun in ("hat", "scarf", "book", "bell", "key", "ring", "blanket", "bag")},
}
SHARED_TOYS = {noun: TOYS[noun] for noun in ("ball", "kite", "boat", "drum", "train", "robot", "car", "teddy")}

# Place -> places in it where a small thing can lie.
SPOTS = {
    "park": ("under the bench", "behind the big tree", "in the tall grass", "near the pond"),
    "garden": ("behind the flowers", "under the apple tree", "in the tall grass", "near the gate"),
    "forest": ("under the leaves", "behind a rock", "near the old tree", "in the bushes"),
    "beach": ("behind a rock", "in the sand", "under a chair", "near the water"),
    "farm": ("in the hay", "behind the barn", "near the gate", "under the cart"),
    "playground": ("under the slide", "behind the bench", "near the swing", "in the bushes"),
}
