"""``nanoeuler tokenizer``: train one, and see what it does to a text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from nanoeuler.cli.console import quoted, stages
from nanoeuler.cli.values import PLACE

if TYPE_CHECKING:
    from nanoeuler.tokenizer import BaseTokenizer

_which = click.option(
    "--tokenizer", "-t", "name", default="gpt2", type=PLACE, show_default=True, metavar="NAME", help="gpt2 or a folder."
)


@click.group()
def command() -> None:
    """Train a tokenizer; encode and decode with it.

    \b
    Example:
      nanoeuler tokenizer encode "Hello, world!"
    """


@command.command(short_help="Learn a byte-level BPE vocabulary from text.")
@click.argument("inputs", nargs=-1, required=True, type=PLACE, metavar="FILE...")
@click.option("--out", "-o", required=True, type=PLACE, metavar="FOLDER", help="Where vocab.json and merges.txt go.")
@click.option("--vocab-size", type=int, default=1024, show_default=True, help="256 bytes, merges, end-of-text.")
@click.option("--char", is_flag=True, help="One token a character instead, as in nanoGPT's Shakespeare.")
@click.option("--field", default="text", show_default=True, help="JSON lines: the field that holds the text.")
def train(inputs: tuple[str, ...], out: str, vocab_size: int, char: bool, field: str) -> None:
    """Learn a byte-level BPE vocabulary from text files, JSON lines or folders.

    \b
    Example:
      nanoeuler tokenizer train stories.txt --vocab-size 1024 --out data/tokenizer
    """
    from nanoeuler.data.text import read_texts
    from nanoeuler.tokenizer import CharTokenizer, Tokenizer

    made: BaseTokenizer
    if char:
        made = CharTokenizer.train(read_texts(inputs, field))
    else:
        with stages("merges") as progress:
            texts = read_texts(inputs, field)
            made = Tokenizer.train(texts, vocab_size, progress=lambda done, n: progress("merges", done, n))
    made.save(out)
    click.echo(f"wrote {out}: {made.n_vocab:,} entries")
    files = " ".join(map(quoted, inputs))
    click.echo(f"next: nanoeuler data prepare {files} --tokenizer {quoted(out)} --out data/mine")


@command.command()
@click.argument("text")
@_which
@click.option("--allow-special", is_flag=True, help="Take <|endoftext|> for the token, not for text.")
@click.option("--pieces", is_flag=True, help="A line a token, with its text.")
def encode(text: str, name: str, allow_special: bool, pieces: bool) -> None:
    """Print the token ids of TEXT; - reads standard input.

    \b
    Examples:
      nanoeuler tokenizer encode "Hello, world!" --pieces
      nanoeuler tokenizer encode - < book.txt
    """
    from nanoeuler.cli.tokenizers import open_tokenizer

    tokenizer = open_tokenizer(name)
    ids = tokenizer.encode(_read_stdin() if text == "-" else text, "all" if allow_special else ())
    if pieces:
        for id in ids:
            click.echo(f"{id:6}  {tokenizer.decode([id])!r}")
    else:
        click.echo(" ".join(map(str, ids)))


@command.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_which
def decode(ids: tuple[str, ...], name: str) -> None:
    """Print the text of token ids; - reads them from standard input.

    \b
    Example:
      nanoeuler tokenizer decode 15496 11 995 0
    """
    from nanoeuler.cli.tokenizers import open_tokenizer
    from nanoeuler.errors import UserError

    words = _read_stdin().split() if ids == ("-",) else [word for id in ids for word in id.replace(",", " ").split()]
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise UserError(f"'{word}' is no token id: give whole numbers, such as 15496 995")
    click.echo(open_tokenizer(name).decode(map(int, words)))


@command.command()
@click.argument("name", default="gpt2", type=PLACE, metavar="[NAME]")
def info(name: str) -> None:
    """Describe a tokenizer: gpt2, or the one in a folder.

    \b
    Example:
      nanoeuler tokenizer info runs/mine
    """
    from nanoeuler.cli.tokenizers import open_tokenizer
    from nanoeuler.tokenizer import Tokenizer

    tokenizer = open_tokenizer(name)
    kind = "byte-level BPE" if isinstance(tokenizer, Tokenizer) else "characters"
    click.echo(f"kind            {kind}")
    click.echo(f"vocabulary      {tokenizer.n_vocab:,}")
    if isinstance(tokenizer, Tokenizer):
        click.echo(f"merges          {len(tokenizer.merges):,}")
    special = ", ".join(f"{token} = {id}" for token, id in tokenizer.special_tokens.items())
    click.echo(f"special tokens  {special or 'none'}")
    ids = range(tokenizer.n_vocab)
    longest = sorted(ids, key=lambda id: -len(tokenizer.decode_bytes([id])))[:5]
    click.echo(f"longest         {', '.join(repr(tokenizer.decode([id])) for id in longest)}")


def _read_stdin() -> str:
    from nanoeuler.errors import UserError

    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 (byte {error.start}): save the text as UTF-8") from None
