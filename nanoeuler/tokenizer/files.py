"""Tokenizers on disk: the folder layout of Hugging Face's GPT-2, read and written."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.tokenizer.base import BaseTokenizer
from nanoeuler.tokenizer.bpe import END_OF_TEXT, Tokenizer
from nanoeuler.tokenizer.byte_symbols import SYMBOLS

VOCAB_FILE, MERGES_FILE, CONFIG_FILE = "vocab.json", "merges.txt", "tokenizer_config.json"
ADDED_FILE, MAP_FILE, SINGLE_FILE = "added_tokens.json", "special_tokens_map.json", "tokenizer.json"
CHAR_FILE = "char_vocab.json"

_IN_BRACKETS = re.compile(r"<.+>|\[.+\]")  # the look of a special token
_VERSION_LINE = "#version: 0.2"


def load_tokenizer(directory: str | Path) -> BaseTokenizer:
    """Read the tokenizer that lies in a folder, whichever kind it is.

    ``char_vocab.json`` makes a ``CharTokenizer``; ``vocab.json`` with ``merges.txt``, or ``tokenizer.json``
    alone, a ``Tokenizer``. Raises UserError if there is none, or both kinds, or a file is damaged.
    """
    from nanoeuler.tokenizer.char import CharTokenizer

    folder = Path(directory)
    has_char, has_bpe = (folder / CHAR_FILE).exists(), _holds_bpe(folder)
    if has_char and has_bpe:
        raise UserError(f"{folder} holds a character and a BPE tokenizer; delete {CHAR_FILE} or {VOCAB_FILE}")
    return CharTokenizer.load(folder) if has_char else load_bpe(folder)


def _holds_bpe(folder: Path) -> bool:
    return any((folder / name).exists() for name in (VOCAB_FILE, MERGES_FILE, SINGLE_FILE))


def refuse_beside(folder: Path, others: Iterable[str]) -> None:
    """Raise UserError if ``folder`` holds a tokenizer of the other kind, which would make it ambiguous."""
    for name in others:
        if (folder / name).exists():
            raise UserError(f"{folder / name} belongs to another kind of tokenizer; save to a new folder")


def save_bpe(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``, from which ``transformers`` loads it.

    The last names the special tokens, which Hugging Face would otherwise take for ordinary ones. Each file
    replaces its predecessor at once, or not at all. Files that ``transformers`` left there for a tokenizer
    before, and would read in preference, are removed. Raises UserError if a character tokenizer lies there,
    or the folder cannot be written.
    """
    refuse_beside(folder, [CHAR_FILE])
    special = tokenizer.special_tokens
    written = list(SYMBOLS)
    merge_lines = [_VERSION_LINE]
    for left, right in tokenizer.merges:
        merge_lines.append(f"{written[left]} {written[right]}")
        written.append(written[left] + written[right])
    end_of_text = END_OF_TEXT if END_OF_TEXT in special else None
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "bos_token": end_of_text,
        "eos_token": end_of_text,
        "unk_token": end_of_text,
        "added_tokens_decoder": {str(id): _as_added(name) for name, id in special.items()},
    }
    contents = {
        VOCAB_FILE: json.dumps(tokenizer.vocab(), ensure_ascii=False) + "\n",
        MERGES_FILE: "\n".join(merge_lines) + "\n",
        CONFIG_FILE: json.dumps(config, ensure_ascii=False, indent=2) + "\n",
    }
    write_texts(folder, contents, remove=[SINGLE_FILE, ADDED_FILE, MAP_FILE])


def _as_added(name: str) -> dict[str, str | bool]:
    """A special token as ``transformers`` describes it: found anywhere in a text, exactly as spelled."""
    loose = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": name, **loose, "special": True}


def load_bpe(folder: Path) -> Tokenizer:
    """Read a folder written by :func:`save_bpe`, or by ``transformers`` for GPT-2.

    Either ``vocab.json`` and ``merges.txt``, or ``tokenizer.json`` alone, as newer ``transformers`` write it.
    Special tokens are those listed in ``tokenizer_config.json`` or ``added_tokens.json``, and vocabulary entries
    that no merge makes if they look like ``<this>`` or ``[this]``. Raises UserError if a file is missing or
    damaged, or the tokenizer is not of GPT-2's kind.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name the folder that the tokenizer was saved in")
    if not _holds_bpe(folder):
        raise UserError(
            f"no tokenizer in {folder}: neither {VOCAB_FILE} with {MERGES_FILE}, nor {SINGLE_FILE}, "
            f"nor {CHAR_FILE}; save one there first"
        )
    pair_complete = (folder / VOCAB_FILE).exists() and (folder / MERGES_FILE).exists()
    if (folder / SINGLE_FILE).exists() and not pair_complete:
        return _load_single(folder / SINGLE_FILE)
    vocab = _vocabulary(read_json(folder / VOCAB_FILE), folder / VOCAB_FILE)
    merges_path = folder / MERGES_FILE
    merges = parse_merges(read_text(merges_path), str(merges_path))
    return _assemble(vocab, merges, _added_tokens(folder), folder)


def parse_merges(text: str, source: str = MERGES_FILE) -> list[tuple[int, int]]:
    """The merges of ``merges.txt`` as pairs of tokens, counted as ``Tokenizer`` does.

    >>> parse_merges("#version: 0.2\\nĠ t\\nh e\\nĠt he\\n")
    [(220, 83), (71, 68), (256, 257)]
    """
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    first = 1 if lines[0].startswith("#version") else 0
    return _number_merges((line.split(" ") for line in lines[first:] if line), source)


def _number_merges(pairs: Iterable[list[str]], source: str) -> list[tuple[int, int]]:
    number = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    merges = []
    for pair in pairs:
        try:
            left, right = pair
            merges.append((number[left], number[right]))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{source} is damaged at merge {len(merges) + 1} ({_shown(pair)!r}): a merge is two "
                "tokens, each a byte symbol or made by a merge before it; copy the file again from its source"
            ) from None
        number[left + right] = 255 + len(merges)
    return merges


def _shown(pair: Any) -> str:
    return (" ".join(map(str, pair)) if isinstance(pair, (list, tuple)) else str(pair))[:40]


def _assemble(
    vocab: Mapping[str, int], merges: list[tuple[int, int]], added: Mapping[str, int], source: Path
) -> Tokenizer:
    """A tokenizer from a vocabulary that may number its entries in any order."""
    written = list(SYMBOLS)
    for left, right in merges:
        written.append(written[left] + written[right])
    if missing := [entry for entry in written if entry not in vocab]:
        raise UserError(
            f"the vocabulary in {source} lacks {len(missing)} tokens that are bytes or made by its merges "
            f"({missing[0]!r} first); its files do not belong together: copy them again from one source"
        )
    ids = [vocab[entry] for entry in written]
    made, taken = set(written), set(ids)
    special = {entry: id for entry, id in vocab.items() if entry not in made}
    if stray := [entry for entry in special if entry not in added and not _IN_BRACKETS.fullmatch(entry)]:
        raise UserError(
            f"the vocabulary in {source} has {len(stray)} tokens that its merges do not make ({stray[0]!r} first); "
            "perhaps the merges are cut short: copy its files again from their source"
        )
    special |= {name: id for name, id in added.items() if id not in taken}
    return Tokenizer(merges, special, ids)


def _added_tokens(folder: Path) -> dict[str, int]:
    """Special tokens that ``transformers`` keeps outside ``vocab.json``."""
    added: dict[str, int] = {}
    if (folder / ADDED_FILE).exists():
        added |= _vocabulary(read_json(folder / ADDED_FILE), folder / ADDED_FILE)
    if (folder / CONFIG_FILE).exists():
        listed = read_json(folder / CONFIG_FILE).get("added_tokens_decoder", {})
        try:
            added |= {str(token["content"]): int(id) for id, token in listed.items()}
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            raise damaged(folder / CONFIG_FILE, "'added_tokens_decoder' lists ids and tokens") from None
    return added


def _load_single(path: Path) -> Tokenizer:
    """Read ``tokenizer.json``, the file of Hugging Face's ``tokenizers`` library."""
    content = read_json(path)
    model, before = content.get("model") or {}, content.get("pre_tokenizer") or {}
    if not isinstance(model, dict) or not isinstance(before, dict):
        raise damaged(path, "'model' and 'pre_tokenizer' are objects")
    if (
        model.get("type", "BPE") != "BPE"
        or before.get("type") != "ByteLevel"
        or before.get("add_prefix_space")
        or not before.get("use_regex", True)
        or content.get("normalizer")
    ):
        raise UserError(f"{path} is not a tokenizer of GPT-2's kind (byte-level BPE); other kinds cannot be read")
    try:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        added = {str(token["content"]): int(token["id"]) for token in content.get("added_tokens", [])}
    except (TypeError, KeyError, ValueError, OverflowError):
        raise damaged(path, "it holds a model with vocabulary and merges, and added tokens") from None
    return _assemble(_vocabulary(model.get("vocab"), path), _number_merges(pairs, str(path)), added, path)


def _vocabulary(content: Any, path: Path) -> dict[str, int]:
    if not isinstance(content, dict) or not all(type(id) is int for id in content.values()):
        raise damaged(path, "it holds an object from token to id")
    return content


def damaged(path: Path, sound: str) -> UserError:
    """The error for a file of the wrong content; ``sound`` says what belongs there."""
    return UserError(f"{path} is damaged (when sound, {sound}); copy it again from its source")


def read_text(path: Path) -> str:
    """A UTF-8 file's text; UserError if it is missing, unreadable or not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing; name the folder that the tokenizer was saved in") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; copy it again from its source") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; UserError if it cannot be read or holds none."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # ValueError itself: a number of thousands of digits
        raise UserError(f"{path} is not JSON, or is cut short; copy it again from its source") from None
    if not isinstance(content, dict):
        raise damaged(path, "it holds an object")
    return content


def write_texts(folder: Path, contents: Mapping[str, str], remove: Iterable[str] = ()) -> None:
    """Write files into a folder, all of them first under a temporary name, then renamed; ``remove`` others.

    Killed at any moment, this leaves each file as it was or as it is to be. Raises UserError if it cannot.
    """
    temporary: dict[Path, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = folder / f".{name}.{os.getpid()}.tmp"
            temporary[path] = folder / name
            with path.open("wb") as file:
                file.write(content.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
        for path, final in temporary.items():
            path.replace(final)
        for name in remove:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the tokenizer into {folder}: {error.strerror}") from None
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
