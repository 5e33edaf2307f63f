"""Text in, token shards out: ``prepare(["book.txt"], "data/book", tokenizer)``.

The files are read twice. The first pass decodes everything and counts, so that a bad byte in the last file is
reported within seconds and the split is exact; the second encodes. Both stream: memory does not grow with the text.

**The split.** From 20 documents on, whole documents go to validation: exactly the chosen share of them, picked by a
permutation of the document numbers that the seed determines. With fewer documents the last part of the text goes
there, cut by characters as nanoGPT cuts Shakespeare: ``data[:int(n*0.9)]`` and ``data[int(n*0.9):]``.
"""

import contextlib
import filecmp
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.data.claim import LOCK_NAME, claim
from nanoeuler.data.permutation import Permutation
from nanoeuler.data.shards import MAX_VOCAB, TOKENS_PER_SHARD, ShardWriter, writing
from nanoeuler.data.text import find_files, read_pieces
from nanoeuler.errors import UserError
from nanoeuler.tokenizer.base import BaseTokenizer

META_NAME = "meta.json"
META_FORMAT = "nanoeuler-data"
STAGING_NAME = ".preparing"  # where the new set grows; left behind without a meta.json by an interruption
MANY_DOCUMENTS = 20

Progress = Callable[[str, int, int], None]
"""``progress(stage, done, total)`` in bytes; stages are ``"read"``, ``"encode"`` and ``"download"``."""


@dataclass
class SplitReport:
    """One split: its tokens, the UTF-8 bytes of its text (separators count none), documents and shard names."""

    tokens: int = 0
    bytes: int = 0
    documents: int = 0
    shards: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PrepareReport:
    """What :func:`prepare` made. ``split`` is ``"documents"``, ``"characters"`` or ``"files"``."""

    out_dir: Path
    n_documents: int
    split: str
    train: SplitReport
    val: SplitReport


@dataclass
class _Source:
    """One input file and what the first pass counted in it."""

    path: Path
    is_val: bool = False
    documents: int = 0
    chars: int = 0
    bytes: int = 0


def prepare(
    inputs: Path | str | Sequence[Path | str],
    out_dir: Path | str,
    tokenizer: BaseTokenizer,
    val_fraction: float = 0.1,
    seed: int = 1337,
    append_eot: bool = True,
    progress: Progress | None = None,
    *,
    val_docs: int | None = None,
    val_inputs: Path | str | Sequence[Path | str] = (),
    text_field: str = "text",
    tokens_per_shard: int = TOKENS_PER_SHARD,
    overwrite: bool = False,
) -> PrepareReport:
    """Encode ``inputs`` into ``out_dir``: ``train_*.bin``, ``val_*.bin``, the tokenizer's files, ``meta.json``.

    ``inputs`` are text files, JSON lines and folders (see :mod:`nanoeuler.data.text`). What goes to validation:
    the share ``val_fraction`` (0 for none), or exactly ``val_docs`` documents, or the files of ``val_inputs``.
    After each document comes the tokenizer's end-of-text id, if it has one and ``append_eot`` is true.

    Nothing is half-written: the set appears in ``out_dir`` when complete, and only then, with ``overwrite``, replaces
    an earlier one; without, an earlier one is an error. Raises UserError for unreadable input, a vocabulary over
    65536, a split without text, or a full disk.

    >>> import tempfile
    >>> from nanoeuler.tokenizer import CharTokenizer
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = Path(d, "book.txt").write_text("to be or not to be")
    ...     report = prepare([Path(d, "book.txt")], Path(d, "book"), CharTokenizer.train("to be or not"))
    >>> report.split, report.train.tokens, report.val.tokens
    ('characters', 16, 2)
    """
    check_new(out_dir, overwrite)
    if not 0 <= val_fraction < 1:
        raise UserError(f"val_fraction must be at least 0 and below 1, got {val_fraction}")
    if tokenizer.n_vocab > MAX_VOCAB:
        raise UserError(f"a vocabulary of {tokenizer.n_vocab} does not fit in 16-bit tokens: at most {MAX_VOCAB}")
    sources = [_Source(path) for path in find_files(inputs)]
    if val_inputs:
        sources += [_Source(path, is_val=True) for path in find_files(val_inputs)]
    _count(sources, text_field, progress)
    rule, route = _choose_split(sources, val_fraction, val_docs, seed)

    out_dir = Path(out_dir)
    with (
        _staged(out_dir, tokenizer) as staging,
        ShardWriter(staging, "train", tokens_per_shard) as train_writer,
        ShardWriter(staging, "val", tokens_per_shard) as val_writer,
    ):
        train = _Split(train_writer, tokenizer, append_eot)
        val = _Split(val_writer, tokenizer, append_eot)
        _encode(sources, route, train, val, text_field, progress)
        n_documents = sum(source.documents for source in sources)
        report = PrepareReport(out_dir, n_documents, rule, train.finish(), val.finish())
        meta = {
            "format": META_FORMAT,
            "version": 1,
            "tokenizer": type(tokenizer).__name__,
            "n_vocab": tokenizer.n_vocab,
            "eot_id": train.eot_id,
            "train": asdict(report.train),
            "val": asdict(report.val),
            "split": rule,
            "val_fraction": val_fraction,
            "val_docs": val_docs,
            "seed": seed,
            "inputs": [source.path.as_posix() for source in sources],
        }
        _write_meta(staging, meta)
    return report


def check_new(out_dir: Path | str, overwrite: bool = False) -> None:
    """Raise UserError if a prepared set would be replaced that nobody said to replace."""
    if not overwrite and read_meta(Path(out_dir)) is not None:
        raise UserError(f"{out_dir} holds prepared data already: choose another folder, or replace it with --overwrite")


def _count(sources: list[_Source], text_field: str, progress: Progress | None) -> None:
    """The first pass: decode every file, count documents, characters and bytes."""
    total = sum(source.path.stat().st_size for source in sources)
    done = 0
    for source in sources:
        for piece in read_pieces(source.path, text_field):
            size = _utf8_size(piece.text)
            source.documents += piece.ends
            source.chars += len(piece.text)
            source.bytes += size
            if progress:
                progress("read", min(done + source.bytes, total), total)
        if source.documents == 0:
            raise UserError(f"{source.path} is empty: there is no text in it")
        done += source.path.stat().st_size
    if progress:
        progress("read", total, total)


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8"))


Route = Callable[[_Source, int, int], float]
"""``route(source, document, char)``: how many characters from here on belong to training (may be inf)."""


def _choose_split(sources: list[_Source], val_fraction: float, val_docs: int | None, seed: int) -> tuple[str, Route]:
    """Name the rule of the split, and give the function that applies it."""
    if any(source.is_val for source in sources):
        if val_docs is not None:
            raise UserError("val_docs and val_inputs contradict each other: give one of the two")
        return "files", lambda source, document, char: 0 if source.is_val else math.inf

    n_documents = sum(source.documents for source in sources)
    if val_docs is not None and not 0 <= val_docs < n_documents:
        raise UserError(f"val_docs must be 0 to {n_documents - 1} with {n_documents} documents, got {val_docs}")
    if val_docs is None and n_documents < MANY_DOCUMENTS:
        n_chars = sum(source.chars for source in sources)
        n_train = int(n_chars * (1 - val_fraction))
        if n_train == 0:
            raise UserError(f"{n_chars} characters are too few to split: add text or set val_fraction to 0")
        return "characters", lambda source, document, char: max(0, n_train - char)

    n_val = val_docs
    if n_val is None:
        n_val = min(max(round(n_documents * val_fraction), int(val_fraction > 0)), n_documents - 1)
    rank = Permutation(n_documents, (seed, n_documents))
    return "documents", lambda source, document, char: 0 if rank[document] < n_val else math.inf


class _Split:
    """One split while it grows: encodes text into shards and counts."""

    def __init__(self, writer: ShardWriter, tokenizer: BaseTokenizer, append_eot: bool) -> None:
        self.writer, self.tokenizer, self.report = writer, tokenizer, SplitReport()
        self.eot_id = tokenizer.eot_id if append_eot else None
        self._eot = None if self.eot_id is None else np.array([self.eot_id], np.uint16)
        self._document = -1  # the one added to last

    def add(self, text: str, document: int) -> None:
        if not text:
            return
        self.writer.write(self.tokenizer.encode_array(text))
        self.report.bytes += _utf8_size(text)
        self.report.documents += document != self._document
        self._document = document

    def end_document(self) -> None:
        if self._eot is not None:
            self.writer.write(self._eot)

    def finish(self) -> SplitReport:
        self.writer.finish()
        self.report.tokens = self.writer.n_tokens
        self.report.shards = [path.name for path in self.writer.paths]
        return self.report


def _encode(
    sources: list[_Source],
    route: Route,
    train: _Split,
    val: _Split,
    text_field: str,
    progress: Progress | None,
) -> None:
    """The second pass: encode every piece into the split it belongs to."""
    total = sum(source.bytes for source in sources)
    document = char = 0
    for source in sources:
        owner = train  # the split that got the document's latest text, and will get its end
        for piece in read_pieces(source.path, text_field):
            cut = int(min(route(source, document, char), len(piece.text)))
            try:
                train.add(piece.text[:cut], document)
                val.add(piece.text[cut:], document)
            except UserError as error:  # say, a character that a character vocabulary lacks
                raise UserError(f"{source.path}: {error}") from error
            if piece.text:
                owner = train if cut == len(piece.text) else val
            char += len(piece.text)
            if piece.ends:
                owner.end_document()
                document += 1
            if progress:
                progress("encode", train.report.bytes + val.report.bytes, total)


@contextlib.contextmanager
def _staged(out_dir: Path, tokenizer: BaseTokenizer) -> Iterator[Path]:
    """A folder to fill, with the tokenizer's files in it already.

    Upon success its files move to ``out_dir`` and those of an earlier set go; upon failure it vanishes. ``meta.json``
    leaves first and arrives last: whoever finds one finds a whole set behind it.
    """
    if out_dir.is_file():
        raise UserError(f"{out_dir} is a file: name a folder for the prepared data")
    existed = out_dir.exists()
    staging = out_dir / STAGING_NAME
    interrupted = staging.exists()
    earlier = read_meta(out_dir)
    old = set() if earlier is None else set(earlier["files"])
    with writing(out_dir):
        staging.mkdir(parents=True, exist_ok=True)
        mine = claim(staging)
    if mine is None:
        raise UserError(f"{out_dir} is in use: another process is preparing data there")
    try:
        with writing(out_dir):
            for path in _contents(staging):
                path.unlink()
            tokenizer.save(staging)
            if not interrupted:
                _refuse_to_overwrite(out_dir, staging, old)
            yield staging
    except BaseException:
        mine.close()
        shutil.rmtree(staging, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                out_dir.rmdir()
        raise
    # From here on a failure leaves the staging folder, the sign that what lies beside it may be a mixture.
    with writing(out_dir):
        new = {path.name for path in _contents(staging)}
        (out_dir / META_NAME).unlink(missing_ok=True)
        for name in sorted(old - new):
            (out_dir / name).unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: (name == META_NAME, name)):
            (staging / name).replace(out_dir / name)
        mine.close()
        shutil.rmtree(staging)


def _contents(staging: Path) -> list[Path]:
    """The files of the new set."""
    return [path for path in staging.iterdir() if path.name != LOCK_NAME]


def _refuse_to_overwrite(out_dir: Path, staging: Path, old: set[str]) -> None:
    """Stop before the work if ``out_dir`` holds a file of ours by name that no earlier prepare wrote."""
    staged = {path.name for path in _contents(staging)}
    for name in sorted(staged | {META_NAME, "train_000000.bin", "val_000000.bin"}):
        path = out_dir / name
        if not path.exists() or name in old:
            continue
        if name in staged and filecmp.cmp(path, staging / name, shallow=False):
            continue  # the same tokenizer, saved here before
        raise UserError(f"{path} exists and is not part of a prepared set: choose another folder, or move it away")


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    meta["files"] = sorted(path.name for path in _contents(folder))
    meta["files"].append(META_NAME)
    with (folder / META_NAME).open("w", encoding="utf-8", newline="\n") as file:
        json.dump(meta, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The ``meta.json`` of a prepared folder; None where there is none, or another program's.

    Raises UserError for one of ours that is damaged. Its file names must be plain: preparing again removes these files.
    """
    path = folder / META_NAME
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(meta, dict) or meta.get("format") != META_FORMAT:
        return None
    if meta.get("version") != 1:
        raise UserError(f"{path} was written by another version of nanoeuler: run `nanoeuler data prepare` again")
    try:
        names = [*meta["files"], *meta["train"]["shards"], *meta["val"]["shards"]]
        counts = [meta["n_vocab"], *(meta[split][what] for split in ("train", "val") for what in ("tokens", "bytes"))]
        whole = all(Path(name).name == name for name in names) and all(type(count) is int for count in counts)
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged: remove it, and run `nanoeuler data prepare` again")
    return meta
