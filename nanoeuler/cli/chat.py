"""``nanoeuler chat``: a text in turns. You write some, the model goes on, and so forth."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoeuler.cli.console import say
from nanoeuler.cli.sample import open_generator
from nanoeuler.cli.values import COUNT, PLACE
from nanoeuler.durable import write_text
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.inference.conversation import Conversation

HELP = """\
an empty line lets the model go on by itself
/undo        take your last line and what came after it back
/reset       begin a new text
/save FILE   write the text so far to a file
/seed N      draw with another seed from here on
/temp X      another temperature: 0 always takes the most probable token
/help        these lines
/quit        end (so does Ctrl-D); Ctrl-C ends an answer, what was written stays"""


@click.command()
@click.option("--model", "-m", type=PLACE, metavar="FOLDER", help="A model or a run.  [default: the shipped model]")
@click.option("--max-new-tokens", type=COUNT, default=128, show_default=True, help="Longest answer, in tokens.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0: always the most probable token.")
@click.option("--top-k", type=int, default=0, help="Choose among the K most probable tokens.  [default: all]")
@click.option("--top-p", type=float, default=1.0, help="Choose among the fewest that reach P.  [default: all]")
@click.option("--seed", type=int, help="The same seed gives the same answers.  [default: a new one]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End an answer before this text (may be repeated).")
@click.option("--weights", metavar="KIND", help="float32, bf16 or int8: faster, a little less exact.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
def command(
    model: str | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    weights: str | None,
    device: str,
) -> None:
    """Write a text together with a model: your line, its answer, your next line.

    The models here are no assistants: they go on with the text. All of it stays in their memory, as far as their
    context reaches. Lines that begin with / are commands, /help lists them. Reads lines from a pipe as well.

    \b
    Example:
      nanoeuler chat --model runs/mine --temperature 0.7
    """
    from nanoeuler.inference.conversation import Conversation
    from nanoeuler.inference.sampling import SamplingConfig

    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # a bad byte must not end a conversation
    seed = secrets.randbits(32) if seed is None else seed
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    talk = Conversation(open_generator(model, device, weights), config)
    say(f"seed:  {seed}")
    say("you write, the model goes on; /help lists commands")
    while (line := read_line()) is not None:
        if line.startswith("/"):
            if not obey(talk, line):
                return
            continue
        try:
            talk.add(joined(talk.text, line))
        except UserError as error:  # a character that the vocabulary does not know: the next line may do
            say(f"error: {error}")
            continue
        answer(talk, max_new_tokens, list(stop))


def joined(text: str, line: str) -> str:
    """``line`` as it goes on after ``text``: with a space, unless one of the two brings its own or a mark goes first.

    >>> joined("", "Once"), joined("He said", "hello"), joined("He said", ", hello"), joined("end.\\n", "New")
    ('Once', ' hello', ', hello', 'New')
    """
    apart = text and line and not text[-1].isspace() and not line[0].isspace() and line[0] not in ".,;:!?"
    return " " + line if apart else line


def read_line() -> str | None:
    """The next line, without its end; None when there are no more."""
    while True:
        try:
            if sys.stdin.isatty():
                click.echo("> ", nl=False, err=True)
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            say("\n(/quit or Ctrl-D ends)")
            continue
        if "\ufffd" in line:
            say("note:  what was not UTF-8 text in that line counts as \ufffd")
        return line.removeprefix("\ufeff").rstrip("\r\n") if line else None


def answer(talk: Conversation, max_new_tokens: int, stop: list[str]) -> None:
    """Print the model's turn as it comes. Ctrl-C ends it, and keeps what there is."""
    pieces = talk.answer(max_new_tokens, stop)
    try:
        for piece in pieces:
            click.echo(piece, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pieces.close()  # type: ignore[attr-defined]
        click.echo(" ...", nl=False)
    click.echo()
    sys.stdout.flush()
    for note in talk.last.notes:
        say(f"note:  {note}")


def obey(talk: Conversation, line: str) -> bool:
    """Carry out a command; False to end. What is wrong with it is said, and the conversation goes on."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    try:
        if name == "/quit":
            return False
        if name == "/help":
            say(HELP)
        elif name == "/reset":
            talk.reset()
            say("a new text begins")
        elif name == "/undo":
            say(f"taken back; the text ends: {talk.undo()[-60:]!r}")
        elif name == "/save":
            save(talk, rest)
        elif name == "/seed":
            talk.config = replace(talk.config, seed=int(_number(rest, int, "a seed, such as /seed 1")))
            talk.turns = 0
        elif name == "/temp":
            talk.config = replace(talk.config, temperature=_number(rest, float, "a temperature, such as /temp 0.7"))
        else:
            say(f"there is no command {name}: /help lists them")
    except UserError as error:
        say(f"error: {error}")
    return True


def save(talk: Conversation, name: str) -> None:
    """Write the text to a file. UserError if there is no name or it cannot be written."""
    if not name:
        raise UserError("/save needs the name of a file")
    path = Path(name.strip("'\"")).expanduser()
    if "\0" in name:
        raise UserError("/save needs the name of a file, without NUL bytes")
    if path.exists() and path not in talk.saved:
        raise UserError(f"{path} exists, and is not from this conversation: choose another name")
    write_text(path, talk.text)
    talk.saved.add(path)
    say(f"saved to {path}")


def _number(text: str, kind: type, what: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise UserError(f"'{text}' is not {what}") from None
