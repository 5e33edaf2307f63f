"""Nasty strings for the tokenizer: the same for the tests and for the tool that makes the golden values."""

import hashlib
import random
from collections.abc import Iterable, Iterator

import numpy as np

BLOCK = 0x1000  # code points that share one golden hash
CODE_POINTS = 0x110000
BETWEEN = 0xFFFFFFFF  # hashed between the ids of one code point and those of the next

_HAND_PICKED = [
    "",
    " ",
    "  ",
    "\n",
    " \n ",
    "a",
    " a",
    "  a",
    "a ",
    "a  ",
    "a  b   c",
    "\t\tindented\twith tabs\t",
    "line\r\nline\rline\n\n\nline",
    "it's we're I've I'm you'll he'd don't",
    "IT'S WE'RE I'VE I'M YOU'LL HE'D DON'T",
    "'s't're've'm'll'd'S'x''s '' 's 'll'",
    "it’s we’re ‘quoted’ “double” „low“ «guillemets» …",
    "o'clock rock'n'roll 'tis 'twas y'all'd've",
    "ſ'ſ K'K",
    "0 1 12 123 1234 1234567890 3.14159 1,000,000 1e-9 0x1F 2³ ½ Ⅷ ٣٤٥ ４２ ①",
    "a1b2c3 v2.0.1 covid19 h2o 4x4",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|> <|endoftext|",
    "<|ENDOFTEXT|> < | endoftext | >",
    "def f(x):\n    if x > 0:\n        return x ** 2  # square\n\n    return -x\n",
    "for(int i=0;i<n;++i){a[i]+=b[i]*c[i];}//loop\n\t\treturn 0;\n",
    '{"key": [1, 2.5, null, true], "näme": "välue\\n"}',
    '<div class="x">&nbsp;</div><!-- comment -->',
    "SELECT * FROM users WHERE id='1' OR '1'='1'; --",
    "https://example.com/path?query=1&other=%20#fragment user@example.com",
    "naïve café résumé Zürich Ærøskøbing Ångström São Łódź",
    "cafe\u0301 e\u0301\u0302\u0303 a\u0308\u0323 \u0301alone",
    "Ελληνικά кириллица Հայերեն ქართული",
    "שלום עולם مرحبا بالعالم \u202eright to left\u202c \u200fmark\u200e",
    "हिन्दी தமிழ் বাংলা ไทย ລາວ မြန်မာ ខ្មែរ",
    "中文字符 漢字 ひらがな カタカナ ｶﾀｶﾅ 한국어 조선말 𠀀𪚥",
    "你好，世界！「引用」。全角　スペース",
    "😀 😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☎️ 1️⃣",
    "👨‍💻's code, 🤖'll run",
    "\u00a0nbsp\u00a0\u00a0nbsp \u00a0 mixed\u00a0",
    "\u0085nel\u0085 \u2028line\u2029para \u2003em\u2009thin\u202fnarrow\u205fmath\u3000wide\u1680ogham",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom\u2060word\u00adsoft",
    "\ufeffstarts with a byte order mark",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0e\x1b[31mred\x1b[0m\x7f",
    "file\x1cgroup\x1drecord\x1eunit\x1f separators \x1c \x1f\x1f",
    "\ufffd\ufffe\uffff\U0010ffff \ue000private\U000f0000",
    "x² + y² = z²; ∑∫√∞ ≤ ≥ ≠ αβγ ℝ ℵ₀ 𝒜𝔅ℂ 𝟘𝟙𝟚",
    "$100 €50 £20 ¥1000 ₿1 50% ½ №5 §3 ©®™ °C",
    "ﬁ ﬂ ﬀ ǅ ß ẞ ı İ ŉ",
    "Ĳ Ğ Ġ Ċ ĉ Ġthe ĠĠ",
    "Z̸̢̛͓a̷͇͝l̴̻̈́g̶̺̀o̸͔͠",
    "--- *** === ___ ... !!! ??? !?!? :-) :'( <3 ->>> |||",
    "\"'\"'\"' `` '' ´` ‵′″",
    "Pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism",
    "SHOUTING camelCase PascalCase snake_case kebab-case SCREAMING_SNAKE",
    "\ud800",
    "a\udfffb \ud83d\ude00 \ude00\ud83d \ud800",
]

_ALPHABETS = {
    "white space": " \n\t\r\x0b\x0c\x1c\x1f\x85\u00a0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000\u200b\ufeff",
    "contractions": [
        "'",
        "'s",
        "'t",
        "'re",
        "'ve",
        "'m",
        "'ll",
        "'d",
        "’s",
        "'S",
        "'R",
        "l",
        "e",
        " ",
        "\n",
        "a",
        "9",
    ],
    "ascii": [chr(point) for point in range(128)],
    "latin": [chr(point) for point in range(0x20, 0x250)],
    "classes": [
        "a",
        "Z",
        "é",
        "中",
        "ß",
        "0",
        "9",
        "½",
        "٣",
        " ",
        "  ",
        "\n",
        "\u00a0",
        ".",
        "_",
        "—",
        "'",
        "😀",
        "\u0301",
    ],
    "emoji": [
        "👩",
        "👨",
        "👧",
        "🏽",
        "\u200d",
        "\ufe0f",
        "❤",
        "🇩",
        "🇪",
        "1",
        "\u20e3",
        " ",
        "a",
        "🏴",
        "\U000e0067",
        "\U000e007f",
    ],
    "numbers": list("0123456789.,-+eE%$ ²½Ⅷ٣४४"),
    "code": [
        "    ",
        "\n",
        "(",
        ")",
        "{",
        "}",
        "==",
        "->",
        "::",
        "//",
        "x",
        "i",
        "foo",
        "_",
        "0x",
        "42",
        ";",
        "\t",
        '"',
        "'",
    ],
    "anywhere": None,
}


def nasty_strings(count: int = 360) -> list[str]:
    """Hand-picked strings, and random ones over alphabets chosen to hurt. Always the same."""
    # Only random() is promised to stay the same in every version of Python.
    uniform = random.Random(1957).random
    strings = list(_HAND_PICKED)
    while len(strings) < count:
        alphabet = list(_ALPHABETS.values())[len(strings) % len(_ALPHABETS)]
        length = 1 + int(uniform() * 40)
        if alphabet is None:
            strings.append("".join(_scalar(uniform()) for _ in range(length)))
        else:
            strings.append("".join(alphabet[int(uniform() * len(alphabet))] for _ in range(length)))
    return strings


def _scalar(u: float) -> str:
    point = int(u * (CODE_POINTS - 0x800))
    return chr(point if point < 0xD800 else point + 0x800)


def special_strings() -> list[str]:
    """Strings that hold the special token's name; the golden ids are those with it allowed."""
    return [text for text in nasty_strings() if "<|endoftext|>" in text] + [
        "<|endoftext|>" * 3,
        "x <|endoftext|>\n\n",
    ]


def is_utf8(text: str) -> bool:
    """Whether ``text`` has no surrogates, which Hugging Face's tokenizers refuse."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def digest_of_strings() -> str:
    """Changes if the strings do: golden values made before are then worth nothing."""
    joined = "\0".join(nasty_strings() + special_strings() + long_strings())
    return hashlib.sha256(joined.encode("utf-16-le", "surrogatepass")).hexdigest()[:16]


def long_strings() -> list[str]:
    """Strings whose tokens are kept as a hash only: very long pieces, where merging could turn quadratic."""
    return [
        "a" * 100_000,
        " " * 10_000 + "x",
        "\n" * 5_000,
        "ab" * 20_000,
        "0123456789" * 2_000,
        "=-" * 10_000,
        "漢字" * 5_000,
        "👍🏽" * 3_000,
        "".join(chr(97 + i * i % 26) for i in range(50_000)),
    ]


def code_point_blocks() -> Iterator[str]:
    """Every code point, surrogates included, ``BLOCK`` of them at a time."""
    for start in range(0, CODE_POINTS, BLOCK):
        yield "".join(map(chr, range(start, start + BLOCK)))


def in_context(block: str) -> str:
    """Each character of ``block`` between letters, between digits and between spaces, as one text."""
    return "".join([f"a{c}b 1{c}2 {c} .\n" for c in block])


def digest(ids: Iterable[int]) -> str:
    """A short hash of token ids."""
    return hashlib.sha256(np.fromiter(ids, dtype="<u4").tobytes()).hexdigest()[:16]
