"""Make the tokenizer's two data files; needs ``tiktoken`` installed, and GPT-2's ``vocab.bpe`` on disk.

    python tools/make_tokenizer_data.py path/to/vocab.bpe

- ``nanoeuler/tokenizer/gpt2/merges.txt.gz``: OpenAI's merges, byte for byte, compressed. The time stamp
  in the gzip header is zero, so the same input always gives the same file.
- ``nanoeuler/tokenizer/unicode16.txt``: which code points are letters, numbers and white space. GPT-2's
  splitter is a regular expression, so the answer must come from the engine that runs it: every code point
  is shown to tiktoken's own engine, once for each class.
"""

import gzip
import sys
from pathlib import Path

import tiktoken

PACKAGE = Path(__file__).resolve().parent.parent / "nanoeuler" / "tokenizer"
CLASSES = {"letter": r"\p{L}", "number": r"\p{N}", "space": r"\s"}
HEADER = """\
# Code points that GPT-2's splitter calls letter (\\p{L}), number (\\p{N}) and white space (\\s), as tiktoken
# sees them: general categories L* and N*, and the property White_Space, of the Unicode Character Database,
# version 16.0.0. One line a class: its name, then ranges "first-last" or single points, hexadecimal.
# Made by tools/make_tokenizer_data.py.
"""


def members(pattern: str) -> list[int]:
    """Code points that ``pattern`` matches: tiktoken drops text outside any match, so a match gives tokens."""
    one_byte_tokens = {bytes([byte]): byte for byte in range(256)}
    probe = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=one_byte_tokens, special_tokens={})
    scalars = (point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)
    return [point for point in scalars if probe.encode_ordinary(chr(point))]


def ranges(points: list[int]) -> str:
    spans: list[list[int]] = []
    for point in points:
        if spans and spans[-1][1] == point - 1:
            spans[-1][1] = point
        else:
            spans.append([point, point])
    return " ".join(f"{first:x}" if first == last else f"{first:x}-{last:x}" for first, last in spans)


def main() -> None:
    merges = Path(sys.argv[1]).read_bytes()
    (PACKAGE / "gpt2" / "merges.txt.gz").write_bytes(gzip.compress(merges, compresslevel=9, mtime=0))
    lines = [f"{name} {ranges(members(pattern))}\n" for name, pattern in CLASSES.items()]
    (PACKAGE / "unicode16.txt").write_text(HEADER + "".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
