"""``nanoeuler data``: text to tokens, and where to get text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoeuler.cli.console import counted, human_bytes, quoted, stages
from nanoeuler.cli.values import COUNT, PLACE, TOKENS, Count

if TYPE_CHECKING:
    from nanoeuler.tokenizer import BaseTokenizer


@click.group()
def command() -> None:
    """Prepare text for training; make or download some.

    \b
    Example: train on your own text
      nanoeuler data prepare book.txt notes/ --vocab-size 2048 --out data/mine
      nanoeuler train --preset demo --data data/mine --out runs/mine
    """


@command.command(short_help="Turn text into the token files that training reads.")
@click.argument("inputs", nargs=-1, required=True, type=PLACE, metavar="FILE...")
@click.option("--out", "-o", required=True, type=PLACE, metavar="FOLDER", help="Where the prepared data goes.")
@click.option(
    "--tokenizer", "-t", default=None, metavar="NAME", help="gpt2 (the default), char, or a folder with a tokenizer."
)
@click.option("--vocab-size", type=COUNT, metavar="N", help="Train a BPE tokenizer of N entries on the files first.")
@click.option("--val-fraction", type=float, default=0.1, show_default=True, help="Share kept for validation.")
@click.option("--val-docs", type=TOKENS, metavar="N", help="Keep exactly N documents for validation instead.")
@click.option(
    "--val", "val_inputs", multiple=True, type=PLACE, metavar="FILE", help="Validate on this file (may be repeated)."
)
@click.option("--field", default="text", show_default=True, help="JSON lines: the field that holds the text.")
@click.option("--no-eot", is_flag=True, help="Put no end-of-text token after each document.")
@click.option("--seed", type=int, default=1337, show_default=True, help="Picks the validation documents.")
@click.option("--tokens-per-shard", type=TOKENS, default=100_000_000, show_default=True, help="Size of a file.")
@click.option("--overwrite", is_flag=True, help="Replace prepared data that is in FOLDER already.")
def prepare(
    inputs: tuple[str, ...],
    out: str,
    tokenizer: str | None,
    vocab_size: int | None,
    val_fraction: float,
    val_docs: int | None,
    val_inputs: tuple[str, ...],
    field: str,
    no_eot: bool,
    seed: int,
    tokens_per_shard: int,
    overwrite: bool,
) -> None:
    """Turn text into the token files that training reads.

    FILE is a text file (UTF-8), JSON lines (.jsonl), or a folder of them. A line <|endoftext|> separates documents.

    \b
    Examples:
      nanoeuler data prepare book.txt --vocab-size 2048 --out data/book
      nanoeuler data prepare shakespeare.txt --tokenizer char --out data/shakespeare
      nanoeuler data prepare posts.jsonl --field body --out data/posts
    """
    from nanoeuler.data.prepare import check_new
    from nanoeuler.data.prepare import prepare as prepare_data

    check_new(out, overwrite)  # before a tokenizer is trained for nothing
    made = _tokenizer(tokenizer, vocab_size, inputs, val_inputs, field)
    with stages() as progress:
        report = prepare_data(
            inputs,
            out,
            made,
            val_fraction=val_fraction,
            seed=seed,
            append_eot=not no_eot,
            progress=progress,
            val_docs=val_docs,
            val_inputs=val_inputs,
            text_field=field,
            tokens_per_shard=tokens_per_shard,
            overwrite=overwrite,
        )
    for name, split in (("train", report.train), ("val", report.val)):
        rate = f", {split.bytes / split.tokens:.2f} bytes a token" if split.tokens else ""
        click.echo(f"{name:5}  {split.tokens:,} tokens of {counted(split.documents, 'document')}{rate}")
    click.echo(f"wrote {report.out_dir} (vocabulary of {made.n_vocab:,}, split by {report.split})")
    run = quoted(f"runs/{report.out_dir.name}")
    click.echo(f"next: nanoeuler train --data {quoted(report.out_dir)} --out {run} --preset demo")


@command.command(short_help="Write the built-in corpus: simple stories.")
@click.argument("out", required=False, default="stories.txt", type=PLACE, metavar="[FILE]")
@click.option("-n", "--count", type=Count(10**9), default=50_000, show_default=True, help="How many stories.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same stories.")
def stories(out: str, count: int, seed: int) -> None:
    """Write the built-in corpus: simple children's stories, separated by <|endoftext|>.

    FILE is stories.txt if not given; - prints them.

    \b
    Examples:
      nanoeuler data stories stories.txt -n 50000
      nanoeuler data stories - -n 3
    """
    from nanoeuler.data import stories as corpus
    from nanoeuler.errors import UserError

    if out == "-":
        if count < 1:
            raise UserError(f"the number of stories must be at least 1, not {count}")
        click.echo(f"\n{corpus.END_OF_TEXT}\n".join(corpus.stories(count, seed)))
        return
    with stages("stories") as progress:
        size = corpus.write_stories(out, count, seed, lambda done, n: progress("stories", done, n))
    click.echo(f"wrote {out}: {count:,} stories, {human_bytes(size)}")
    data = quoted(f"data/{Path(out).stem}")
    click.echo(f"next: nanoeuler data prepare {quoted(out)} --vocab-size 1024 --out {data}")


@command.command(short_help="Download a known corpus.")
@click.argument("name", required=False)
@click.option(
    "--out", "-o", default="data", type=PLACE, show_default=True, metavar="FOLDER", help="Where the files go."
)
@click.option("--url", help="A mirror to download from: the file's address, or a folder's, ending in /.")
def fetch(name: str | None, out: str, url: str | None) -> None:
    """Download a known corpus; size and SHA-256 are checked, and an interrupted download goes on.

    Without NAME, list what there is.

    \b
    Example:
      nanoeuler data fetch shakespeare
    """
    from nanoeuler.data.fetch import CORPORA
    from nanoeuler.data.fetch import fetch as fetch_corpus

    if name is None:
        for known, corpus in CORPORA.items():
            click.echo(f"{known:18} {corpus.about} ({corpus.licence})")
        return
    with stages() as progress:
        paths = fetch_corpus(name, out, progress, url=url)
    for path in paths:
        click.echo(f"{path}  {human_bytes(path.stat().st_size)}")
    kind = "--tokenizer char" if name == "shakespeare" else "--vocab-size 4096"
    click.echo(f"next: nanoeuler data prepare {quoted(paths[0])} {kind} --out data/{name}")


def _tokenizer(
    name: str | None, vocab_size: int | None, inputs: tuple[str, ...], val_inputs: tuple[str, ...], field: str
) -> BaseTokenizer:
    """The tokenizer that the options ask for: a known one, or one made from the files."""
    from nanoeuler.cli.tokenizers import open_tokenizer
    from nanoeuler.data.text import read_texts
    from nanoeuler.errors import UserError
    from nanoeuler.tokenizer import CharTokenizer, Tokenizer

    if name is not None and vocab_size is not None:
        raise UserError("--tokenizer and --vocab-size contradict each other: take a tokenizer, or train a new one")
    if name == "char":
        return CharTokenizer.train(read_texts([*inputs, *val_inputs], field))
    if vocab_size is None:
        return open_tokenizer(name or "gpt2")
    with stages("merges") as progress:
        return Tokenizer.train(read_texts(inputs, field), vocab_size, progress=lambda d, n: progress("merges", d, n))
