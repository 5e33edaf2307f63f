"""Documents out of files: plain text, JSON lines, or a folder of both, read as a stream in constant memory.

**Text.** UTF-8; a byte-order mark is dropped and line ends become ``\\n``, as Python's text mode does; nothing else
is changed. A literal ``<|endoftext|>``, alone in its line or not, separates documents and is swallowed with the line
breaks around it. A file without one is one document. Documents of white space alone are dropped.

**JSON lines.** Each line is an object; the string under ``field`` is a document.

**Pieces.** A document may be larger than memory, so it comes in pieces of about ``PIECE`` characters. The cuts are
places where GPT-2's splitting pattern always starts a new word, so that encoding the pieces gives *exactly* the
tokens of the whole: before a space, tab or line end that follows a visible character, else between a letter and a
non-letter. Only a run of over ``PIECE`` characters with neither (say base64) is cut anywhere, and may
cost a token or two more at that seam.
"""

import codecs
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nanoeuler.errors import UserError

SEPARATOR = "<|endoftext|>"
PIECE = 1 << 17  # characters
_BLOCK = 1 << 18  # bytes read at a time
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_FOLDER_SUFFIXES = (".txt", ".md", ".jsonl", ".ndjson")
_NOT_TEXT = {  # how files begin that people take for text
    codecs.BOM_UTF16_LE: "UTF-16, not UTF-8 (byte offset 0): save it as UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16, not UTF-8 (byte offset 0): save it as UTF-8",
    b"\x1f\x8b": "compressed (gzip): unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed (zstd): unpack it first",
    b"PK\x03\x04": "a zip archive, as .docx and .epub are: unpack it, or export it as plain text",
    b"%PDF-": "a PDF: export it as plain text",
    b"PAR1": "a Parquet table: export it as JSON lines",
}


class Piece(NamedTuple):
    """A piece of a document; ``ends`` marks its last one, whose text may be empty."""

    text: str
    ends: bool


def find_files(inputs: Path | str | Sequence[Path | str]) -> list[Path]:
    """The files to read: those named, and for each folder its ``*.txt``, ``*.md`` and ``*.jsonl``, recursively.

    Order is part of the result (splits depend on it): as given, and sorted by path within a folder. Hidden, empty
    and ``merges.txt`` files (a tokenizer's) within folders are passed over. UserError for what does not exist.
    """
    if not inputs:
        raise UserError("no input: name a text file, a .jsonl file or a folder")
    files: list[Path] = []
    for path in map(Path, [inputs] if isinstance(inputs, (str, Path)) else inputs):
        if path.is_dir():
            files += _files_in(path)
        elif path.is_file():
            files.append(path)
        elif path.exists():
            raise UserError(f"{path} is no regular file: the data is read twice, so save it to a file first")
        else:
            raise UserError(f"no such file or folder: {path}")
    return files


def _files_in(folder: Path) -> list[Path]:
    found = [
        path
        for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).parts)
        if path.suffix.lower() in _FOLDER_SUFFIXES
        and path.name != "merges.txt"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
        and path.stat().st_size > 0
    ]
    if not found:
        raise UserError(f"no text in the folder {folder}: looked for {', '.join(_FOLDER_SUFFIXES)} files")
    return found


def read_pieces(path: Path, field: str = "text") -> Iterator[Piece]:
    """Stream the documents of one file as pieces; UserError names the file and the place of anything unreadable.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     path = Path(d, "stories.txt")
    ...     _ = path.write_text("A cat sat.<|endoftext|>A dog ran.")
    ...     print(list(read_pieces(path)))
    [Piece(text='A cat sat.', ends=True), Piece(text='A dog ran.', ends=True)]
    """
    try:
        if path.suffix.lower() in _JSON_SUFFIXES:
            for document in _json_lines(path, field):
                yield from _split([document])
        else:
            yield from _split(_text_blocks(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_texts(inputs: Path | str | Sequence[Path | str], field: str = "text") -> Iterator[str]:
    """Every piece of text of ``inputs``, for training a tokenizer: ``Tokenizer.train(read_texts(paths))``."""
    for path in find_files(inputs):
        for piece in read_pieces(path, field):
            if piece.text:
                yield piece.text


def _text_blocks(path: Path) -> Iterator[str]:
    """Decode a UTF-8 file block by block, line ends made ``\\n``."""
    utf8 = codecs.getincrementaldecoder("utf-8")("strict")
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    with path.open("rb") as file:
        offset = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(offset)
        while True:
            block = file.read(_BLOCK)
            _refuse_binary(path, block, offset)
            pending = len(utf8.getstate()[0])  # bytes of a character that the block before began
            try:
                text = newlines.decode(utf8.decode(block, final=not block), final=not block)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset - pending + error.start, error) from error
            if text:
                yield text
            if not block:
                return
            offset += len(block)


def _refuse_binary(path: Path, block: bytes, offset: int) -> None:
    if offset == 0:
        for magic, name in _NOT_TEXT.items():
            if block.startswith(magic):
                raise UserError(f"{path} is {name}")
    zero = block.find(b"\0")
    if zero >= 0:
        raise UserError(f"{path} is binary, not text: NUL byte at byte offset {offset + zero}")


def _not_utf8(path: Path, offset: int, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(
        f"{path} is not UTF-8: byte 0x{byte:02x} at byte offset {offset} ({error.reason}); save it as UTF-8"
    )


def _json_lines(path: Path, field: str) -> Iterator[str]:
    """The string under ``field`` of each line; blank lines are passed over."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            _refuse_binary(path, line, offset)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + error.start, error) from error
            offset += len(line)
            if text.strip():
                yield _document_of(text, field, f"{path}, line {number}")


def _document_of(line: str, field: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError itself: a number of thousands of digits
        reason = getattr(error, "msg", "nested too deeply, or a number too long")
        hint = "; a JSON array must become one object a line" if line.lstrip().startswith("[") else ""
        raise UserError(f"{where}: not a JSON object on one line ({reason}){hint}") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object with the field {field!r}, got {type(record).__name__}")
    if field not in record:
        known = ", ".join(map(repr, record)) or "none"
        raise UserError(f"{where}: no field {field!r} (fields here: {known}); choose one with --field")
    text = record[field]
    if not isinstance(text, str):
        raise UserError(f"{where}: the field {field!r} is {type(text).__name__}, not a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the field {field!r} holds half a surrogate pair, which is no character") from error
    return text


def _split(blocks: Iterable[str]) -> Iterator[Piece]:
    """Cut a stream of text blocks into documents at the separator, and documents into pieces."""
    held = ""  # text of the current document not yet given out
    begun = False  # has the current document given out a piece?
    after_separator = False
    for block in blocks:
        held += block
        *complete, held = held.split(SEPARATOR)
        for text in complete:
            yield from _document_end(text.rstrip("\n"), begun, after_separator)
            begun, after_separator = False, True
        if after_separator and not begun:
            held = held.lstrip("\n")
        # More than a separator must stay behind: the block may end in the middle of one.
        while len(held) > PIECE + len(SEPARATOR):
            cut = safe_cut(held, PIECE)
            yield Piece(held[:cut], False)
            held, begun = held[cut:], True
    yield from _document_end(held, begun, after_separator)


def _document_end(text: str, begun: bool, after_separator: bool) -> Iterator[Piece]:
    """The rest of a document, all of it in hand; nothing for a document of white space."""
    if not begun:
        if after_separator:
            text = text.lstrip("\n")
        if not text or text.isspace():
            return
    while len(text) > PIECE:
        cut = safe_cut(text, PIECE)
        yield Piece(text[:cut], False)
        text = text[cut:]
    yield Piece(text, True)


def safe_cut(text: str, limit: int) -> int:
    """The last place in ``1 … limit`` where cutting ``text`` leaves the tokens of both parts as they were.

    ``text`` must be longer than ``limit``. See the top of this file for which places are safe, and why.

    >>> safe_cut("Once upon  a time", 11)
    9
    """
    for i in range(limit, 0, -1):
        if text[i] in " \n\t" and not text[i - 1].isspace():
            return i
    for i in range(limit, 0, -1):
        if text[i - 1].isalpha() and not text[i].isalpha():
            return i
    return limit
