"""A lexicon of simple English for the story grader: what each word can be.

Each known word has a set of tags, one letter each:

==== ========================================  ==== ========================================
D    determiner (the, his, every)              B    verb, base form (go)
A    adjective or number                       F    verb, finite past or third person (went, goes)
N    noun that needs a determiner              G    verb, -ing form
U    noun that can stand bare (milk, home)     E    past participle
P    plural noun                               X    auxiliary before a base form (can, did)
M    proper name                               T    the word "to"
S    pronoun as subject (H: he, she)            R    preposition or particle (in, up)
O    pronoun as object                         C    conjunction or relative (and, because, who)
V    adverb                                    W    question word
Q    adverb of degree (very)                   I    interjection
K    the word "not"                            L    form of "to be"
J    indefinite pronoun (something)             Y    noun of time ("that night she slept")
==== ========================================  ==== ========================================

It is wider than the vocabulary of the built-in stories, so that a text of another origin can be judged too.
"""

import re
from collections import defaultdict


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAME_GENDER = {
    **dict.fromkeys(
        _words(
            """
    Lily Mia Anna Emma Sara Zoe Ruby Nora Ella Maya Lucy Amy Kate Nina Leah Clara Alice Jane Mary
    Sue Jenny Sally Sarah Lisa Molly Lola Rosie Ellie Daisy Jill Grace Hannah Eva Tina Susie Mommy
    Mama Mother Mom Grandma Granny Mum
    """
        ),
        "f",
    ),
    **dict.fromkeys(
        _words(
            """
    Tom Ben Max Sam Leo Tim Jack Finn Noah Omar Adam Hugo Luke Dan Theo Ravi Bob Joe John Peter Paul
    Billy Bobby Jim Jimmy Timmy Tommy Mark Mike Fred Daddy Papa Father Dad Grandpa
    """
        ),
        "m",
    ),
}
KIN = frozenset(_words("Mom Dad Grandma Grandpa Mommy Daddy Mum Mama Papa Mother Father Granny"))
GENDERED_NOUNS = {
    **dict.fromkeys(
        _words("girl girls woman mom mother mum mommy grandma granny sister aunt queen princess lady"), "f"
    ),
    **dict.fromkeys(_words("boy boys man dad father daddy grandpa brother uncle king prince"), "m"),
}

EITHER_GENDER = frozenset(_words("farmer baker teacher doctor nurse neighbor child baby knight driver person"))

COLOURS = frozenset(_words("red blue green yellow white black pink purple orange brown gray grey golden silver"))
BIG, SMALL = frozenset(_words("big huge large giant")), frozenset(_words("little small tiny"))
# Adjectives that tell one thing from another and do not change in the course of a story.
IDENTITY = COLOURS | BIG | SMALL | frozenset(_words("soft shiny old pretty warm round sweet long"))

# Things a story can be about: wished for, lost, given, rescued.
THINGS = frozenset(
    _words(
        """
    ball kite boat doll drum train robot car teddy balloon hat scarf book bell key ring blanket bag
    umbrella apple pear plum cup vase plate lamp bowl cake ribbon pie pumpkin carrot turnip card
    necklace picture dog kitten puppy bird butterfly rabbit bike flute board turtle flower rose cart
    wagon toy truck coin cookie box crown bear cat duck fish frog horse sheep coat dress shoe basket
    bucket candle clock gift noise guitar jar letter medal mirror nest pen pencil piano puzzle rope
    seed shell shovel spoon stick sword ticket treasure whistle chest banana orange peach egg hen
    goat mouse squirrel fox pig snowman
    """
    )
)

_NOUNS = _words(
    """
    air afternoon animal apple arm baby back bag ball balloon banana bark barn basket beach bear bed
    bee bell bench berry bike bird birthday bite blanket board boat book bottle bottom bowl box boy
    branch breath bridge broom brother bucket bug bush butterfly button cake candle car card carrot
    cart cat chair chest chicken child cloud coat coin color cookie corner cow crown cup day deer
    desk dish dog doll door dragon dress drink drum duck ear edge egg elephant end evening eye face
    farm farmer father feather fence field fire fish flag floor flower flute foot forest fox friend
    frog game garden gate ghost giant gift girl glass goat grandma grandpa grandfather grandmother
    group guitar hair hand hat head heart hen hill hole horse hour house idea jar job journey juice
    key king kitchen kite kitten knee knight ladder lady lake lamp leaf leg lesson letter light lion
    loaf man map market medal meadow minute mirror mom dad moment monkey monster month moon morning
    mother mountain mouse mouth mud name neck necklace neighbor nest night noise nose nut orange
    oven owl page paint pan panda parent park part party path peach pear pen pencil penguin person
    pet piano piece pie pig picnic picture place plan plane plate playground plum pocket pond pool
    pot prince princess problem prize promise puddle pumpkin puppy puzzle queen question rabbit race
    rainbow reason ribbon ride ring river road robot rock roof room rope rose rug sandcastle scarf
    seat secret seed sheep shell ship shirt shoe shop shovel side sister sky slide smell snack
    snowman sofa song sound spider spoon spot squirrel stair star step stick stomach stone store
    storm story street string sun surprise swing sword table tail teacher team tear teddy tent thing
    thought ticket tiger time toad tooth top tower town toy train trap treasure tree trick trip
    truck truth tummy tunnel turn turnip turtle umbrella vase vet village visit voice wagon wall
    wave way week whale wheel whistle wind window wing winner wish wolf woman wood word world worm
    yard year zoo hug kiss kick bump act lot bit laugh smile sleep half while nap meal cave island
    chance crumb dream fall feeling flash guest hall mistake net note nurse doctor baker ocean sea
    rest roar row sail shadow sign shape spring station stream tool tune twig vine well whisper
    feast hero loser leader swim climb walk talk run jump cry call drop look shout splash try cheer
    help care love hay moss glow kind horn rest
    """
)
_BARE = _words(
    """
    milk water bread soup home school bed town mud sand snow rain food music fun money work time
    love help sleep thunder paper hay care night noon day luck honey butter cheese rice fruit sugar
    flour tea breakfast lunch dinner supper winter summer spring fall hide seek air grass ice ground
    fire gold wood light dark darkness step side bit tomorrow today tonight yesterday life kindness
    courage patience sunshine juice chocolate candy magic trouble dirt wool hope pain shade outside
    sun two three four five six seven eight nine ten inside course church dust glue fear joy hunger
    """
)
_PLURALS = _words(
    """
    men women children people mice sheep feet teeth leaves wolves knees shells berries stories
    dishes cookies others ones clothes stairs eggs pieces puppies butterflies branches wishes boxes
    benches bushes kisses lots pants shoes scissors stars cherries strawberries blueberries parties
    families babies lives
    """
)
_ADJECTIVES = _words(
    """
    afraid alone angry asleep awake bad beautiful best better big black blue bored brave bright
    brown busy calm careful cheerful clean clear clever close cold cool cozy curious dark deep
    delicious different dirty dry each eager easy empty excited extra fair famous fast favorite few
    fine first five four free fresh friendly full funny gentle giant glad golden gone good gray
    great green grumpy half happy hard heavy high hot huge hungry important kind large last late
    lazy left little lonely long lost loud louder loving low lucky mad magic many mean messy muddy
    naughty near neat new next nice noisy old only open orange other own perfect pink playful polite
    poor pretty proud purple quick quiet rainy ready real red rich right round sad safe same scared
    scary second selfish shiny short shy sick silly silver simple six sleepy slow small smart smooth
    soft some sorry special stormy strange strong stuck sunny sure surprised sweet tall ten terrible
    thankful thick thin third three tight tiny tired true two ugly unhappy upset useful warm weak
    wet white whole wide wild windy wise wonderful worried worse worst wrong yellow young warmer
    faster bigger smaller stronger happier closer softer slower older younger taller more most less
    enough grateful lovely seven eight nine twelve hundred much such another both all several broken
    hidden hurt patient deaf dear fixed sparkly fluffy wooden tasty yummy honest generous helpful
    foolish grown worth twenty dozen
    """
)
_ADVERBS = _words(
    """
    again ago all alone along already also always anymore anyway around away back backwards bravely
    brightly carefully close closer down early else even ever everywhere exactly far fast faster
    finally first forever forward gently hand happily hard here high higher home immediately indeed
    indoors inside instead just kindly last late later left long loudly louder maybe much near
    nearby nearly never next nicely nowhere now off often on once only outside over past perhaps
    proudly quickly quietly really right sadly safely slowly slower so softly somehow sometimes
    somewhere soon still straight suddenly tight tightly today together tomorrow tonight too twice
    up upstairs usually very well yesterday yet better best more most then there this that though
    everyday enough almost before after half one both deep low loud aloud apart anywhere farther
    further downstairs underneath through under across by in out
    """
)
_PREPOSITIONS = _words(
    """
    about above across after against along among around as at before behind below beneath beside
    between beyond by down during for from in inside into like near of off on onto out outside over
    past through toward towards under underneath until up upon with within without than since except
    """
)
_CONJUNCTIONS = _words(
    """
    and but or so because if when while that as than until before after who which where since though
    although for nor unless what how whose whenever then like
    """
)
_IRREGULAR = """
    be was been, beat beat beaten, become became become, begin began begun, bend bent bent, bite bit
    bitten, blow blew blown, break broke broken, bring brought brought, build built built, buy
    bought bought, catch caught caught, choose chose chosen, come came come, cost cost cost, cut cut
    cut, dig dug dug, do did done, draw drew drawn, dream dreamt dreamt, drink drank drunk, drive
    drove driven, eat ate eaten, fall fell fallen, feed fed fed, feel felt felt, fight fought
    fought, find found found, fly flew flown, forget forgot forgotten, forgive forgave forgiven,
    freeze froze frozen, get got got, give gave given, go went gone, grow grew grown, have had had,
    hear heard heard, hide hid hidden, hit hit hit, hold held held, hurt hurt hurt, keep kept kept,
    know knew known, lay laid laid, lead led led, leave left left, lend lent lent, let let let, lie
    lay lain, light lit lit, lose lost lost, make made made, mean meant meant, meet met met, pay
    paid paid, put put put, read read read, ride rode ridden, ring rang rung, rise rose risen, run
    ran run, say said said, see saw seen, sell sold sold, send sent sent, set set set, shake shook
    shaken, shine shone shone, shut shut shut, sing sang sung, sink sank sunk, sit sat sat, sleep
    slept slept, slide slid slid, speak spoke spoken, spend spent spent, spin spun spun, stand stood
    stood, steal stole stolen, stick stuck stuck, swim swam swum, sweep swept swept, swing swung
    swung, take took taken, teach taught taught, tear tore torn, tell told told, think thought
    thought, throw threw thrown, understand understood understood, wake woke woken, wear wore worn,
    win won won, write wrote written, creep crept crept, hang hung hung, spread
    spread spread, leap leapt leapt, kneel knelt knelt
"""
_REGULAR = _words(
    """
    add agree answer appear arrive ask bake bark beg behave believe belong blink borrow bounce bow
    breathe brush bump call care carry change chase cheer chew clap clean climb close collect
    comfort cook count cover crawl cross cry cuddle dance decide disappear dive drag dress drift
    drip drop dry encourage end enjoy enter explain explore fail fear feast fill finish fix float
    follow fold gather giggle glow grab greet guess guide hand happen hate help hop hope hug hunt
    hurry imagine invite join jump kick kiss knock land last laugh lean learn lick lift like listen
    live lock look love march melt mend miss mix move name nap need nod notice offer open own pack
    paint pat pick plant play point polish pop pour practice practise praise pray press pretend
    promise protect pull push race rain reach relax remember repair reply rescue rest return roar
    roll row rub rush sail save scare scratch scream search share shine shiver shout show sigh skip
    slip smell smile sneak sniff snore snow splash spot squeak squeeze start stay step stir stop
    stretch surprise talk tap taste thank tie tiptoe touch trap travel trip trust try tuck tug turn twirl
    twist use visit wag wait walk wander want warm wash watch water wave weep welcome whisper
    whistle wiggle wink wipe wish wonder work worry wrap yawn yell copy cost order pass plan please
    question realize rule shake sparkle stroll test tickle wear whirl hide amaze gift echo flow
    """
)
_FUNCTION = {
    "D": """
        a an the my your his her its our their this that these those every each some any no another all
        both such either neither half what which whose many much few several enough more most one two
        three four five six seven eight nine ten other
    """,
    "H": "he she",
    "S": "i we they you it this that these those there one all both some others who what",
    "O": """
        other me him her us them you it mine yours hers his ours theirs himself herself itself myself
        yourself themselves this that these those one each all both any some
    """,
    "J": "everyone everybody everything someone somebody something anyone anybody anything nothing nobody",
    "N": "one other no yes more",
    "L": "am is are was were have has had",
    "Q": "very so too as how really quite more most such much",
    "K": "not",
    "T": "to",
    "X": "can could will would must should may might shall do does did let cannot",
    "W": "who what where when why how which",
    "I": """
        oh yes no hello hi goodbye bye hey wow ouch please ok okay boom pop crash splash woof meow tap
        bump scratch ha beep hooray yay thanks thank well look help moo quack tweet shh hush ah aha oops
        dear sorry good wait stop
    """,
    "F": "has does had did",
    "B": "have do be",
    "G": "being having doing",
    "E": "been done had full",
    "U": "one ones thanks none",
    "Y": "day morning afternoon evening night time week year summer winter",
}


def _third(base: str) -> str:
    if base.endswith(("s", "sh", "ch", "x", "z", "o")):
        return base + "es"
    return base[:-1] + "ies" if base.endswith("y") and base[-2] not in "aeiou" else base + "s"


def _doubled(base: str) -> str:
    """Double the last consonant of a short word: hop, hopp(ed)."""
    return base + base[-1] if re.fullmatch("[^aeiou]*[aeiou][^aeiouwxy]", base) else base


def _ing(base: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    return base[:-1] + "ing" if base.endswith("e") and not base.endswith("ee") else _doubled(base) + "ing"


def _ed(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    return base[:-1] + "ied" if base.endswith("y") and base[-2] not in "aeiou" else _doubled(base) + "ed"


def _build() -> dict[str, frozenset[str]]:
    tags: dict[str, set[str]] = defaultdict(set)
    for tag, words in (("N", _NOUNS), ("U", _BARE), ("P", _PLURALS), ("A", _ADJECTIVES), ("V", _ADVERBS),
                       ("R", _PREPOSITIONS), ("C", _CONJUNCTIONS)):  # fmt: skip
        for word in words:
            tags[word].add(tag)
    for noun in _NOUNS:
        tags[_third(noun)].add("P")
    for tag, text in _FUNCTION.items():
        for word in text.split():
            tags[word].add(tag)
    verbs = [tuple(entry.split()) for entry in _IRREGULAR.split(",")]
    verbs += [(base, _ed(base), _ed(base)) for base in _REGULAR]
    for base, past, participle in verbs:
        if base in ("be", "have", "do"):  # listed above, form by form
            continue
        forms = {"B": base, "F": past, "E": participle, "G": _ing(base)}
        for tag, form in forms.items():
            tags[form].add(tag)
        tags[_third(base)].add("F")
    for name in NAME_GENDER:
        tags[name.lower()].add("M")
    return {word: frozenset(found) for word, found in tags.items()}


LEXICON: dict[str, frozenset[str]] = _build()
