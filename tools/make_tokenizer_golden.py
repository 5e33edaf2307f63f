"""Make the tokenizer's golden values with other people's tokenizers: tiktoken, tokenizers, transformers.

    python tools/make_tokenizer_golden.py path/to/vocab.bpe path/to/tinyshakespeare.txt

Needs those three packages, and no network. Writes into ``tests/golden``:

- ``shakespeare_20k.txt``: the beginning of tiny Shakespeare, as much as fits the tests;
- ``tokenizer.json``: tiktoken's ids for GPT-2, Hugging Face's merges trained on the excerpt, and the ids that
  ``transformers`` gives with a folder that our own tokenizer saved;
- ``tokenizer_hf/``: a small vocabulary saved by Hugging Face, in both of its layouts.
"""

import json
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2TokenizerFast

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import tokenizer_cases as cases  # noqa: E402

from nanoeuler.tokenizer import Tokenizer  # noqa: E402

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tiktoken_gpt2(vocab_bpe: Path) -> tiktoken.Encoding:
    """tiktoken's ``gpt2``, built from the merges, since ``get_encoding`` would download them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    symbols = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
    spelled = {symbol: bytes([byte]) for symbol, byte in zip(symbols, order)}
    tokens = [bytes([byte]) for byte in order]
    for line in vocab_bpe.read_text(encoding="utf-8").splitlines()[1:]:
        left, right = line.split()
        spelled[left + right] = spelled[left] + spelled[right]
        tokens.append(spelled[left + right])
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding(
        "gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)}
    )


def excerpt_of(text: str, size: int = 20_000) -> str:
    return text[: text.rindex("\n", 0, size) + 1]


def gpt2_values(gpt2: tiktoken.Encoding, text: str, excerpt: str) -> dict[str, Any]:
    def digest(text: str) -> str:
        return cases.digest(gpt2.encode_ordinary(text))

    def digest_alone(block: str) -> str:
        return cases.digest(chain.from_iterable([*gpt2.encode_ordinary(c), cases.BETWEEN] for c in block))

    shakespeare = gpt2.encode_ordinary(text)
    return {
        "shakespeare": {"tokens": len(shakespeare), "digest": cases.digest(shakespeare)},
        "excerpt": {"tokens": len(gpt2.encode_ordinary(excerpt)), "digest": digest(excerpt)},
        "excerpt_ids": gpt2.encode_ordinary(excerpt)[:100],
        "code_points_alone": [digest_alone(block) for block in cases.code_point_blocks()],
        "code_points_in_context": [digest(cases.in_context(block)) for block in cases.code_point_blocks()],
        "nasty": [gpt2.encode_ordinary(text) for text in cases.nasty_strings()],
        "nasty_special": [gpt2.encode(text, allowed_special="all") for text in cases.special_strings()],
        "long": [digest(text) for text in cases.long_strings()],
    }


def hugging_face_values(excerpt: str) -> dict[str, Any]:
    peer = ByteLevelBPETokenizer()
    peer.train_from_iterator([excerpt], vocab_size=600, min_frequency=2, show_progress=False)
    merges = json.loads(peer.to_str())["model"]["merges"]

    with tempfile.TemporaryDirectory() as folder:
        Tokenizer.train([excerpt], vocab_size=600).save(folder)
        reader = GPT2TokenizerFast.from_pretrained(folder)
    ids = [reader.encode(text) for text in cases.nasty_strings() if cases.is_utf8(text)]
    return {"trained_merges": [" ".join(merge) for merge in merges], "transformers_reading_ours": ids}


def saved_by_hugging_face(excerpt: str, folder: Path) -> list[list[int]]:
    """Special tokens first, so that no id is what it is in GPT-2's numbering."""
    peer = ByteLevelBPETokenizer()
    special = ["<pad>", "<|endoftext|>"]
    peer.train_from_iterator([excerpt], vocab_size=300, special_tokens=special, show_progress=False)
    for layout in ("pair", "single"):
        (folder / layout).mkdir(parents=True, exist_ok=True)
    peer.save_model(str(folder / "pair"))
    peer.save(str(folder / "single" / "tokenizer.json"), pretty=False)
    return [peer.encode(text).ids for text in cases.nasty_strings()[:40]]


def write_lines(path: Path, values: dict[str, Any]) -> None:
    """JSON with one line for each item of a list, so that a change can be read."""
    entries = []
    for name, value in values.items():
        if isinstance(value, list) and not isinstance(value[0], int):
            value = "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in value) + "\n]"
        else:
            value = json.dumps(value)
        entries.append(f'"{name}": {value}')
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8", newline="\n")


def main() -> None:
    vocab_bpe, shakespeare = map(Path, sys.argv[1:])
    text = shakespeare.read_bytes().decode("utf-8")
    excerpt = excerpt_of(text)
    (GOLDEN / "shakespeare_20k.txt").write_bytes(excerpt.encode("utf-8"))
    values = {"strings": cases.digest_of_strings(), **gpt2_values(tiktoken_gpt2(vocab_bpe), text, excerpt)}
    values |= hugging_face_values(excerpt)
    values["saved_by_hugging_face"] = saved_by_hugging_face(excerpt, GOLDEN / "tokenizer_hf")
    write_lines(GOLDEN / "tokenizer.json", values)


if __name__ == "__main__":
    main()
