"""``nanoeuler sample``: a model continues a prompt, streamed to the terminal."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import click

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import say
from nanoeuler.cli.values import COUNT, PLACE
from nanoeuler.errors import UserError


@click.command()
@click.argument("prompt", default="", metavar="[PROMPT]")
@click.option("--model", "-m", type=PLACE, metavar="FOLDER", help="A model or a run.  [default: the shipped model]")
@click.option("--file", "-f", "file", type=PLACE, metavar="FILE", help="Read the prompt from a file.")
@click.option("--num-samples", "-n", type=COUNT, default=1, show_default=True, help="How many texts.")
@click.option("--max-new-tokens", type=COUNT, default=256, show_default=True, help="Longest text, in tokens.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0: always the most probable token.")
@click.option("--top-k", type=int, default=0, help="Choose among the K most probable tokens.  [default: all]")
@click.option("--top-p", type=float, default=1.0, help="Choose among the fewest that reach P.  [default: all]")
@click.option("--repetition-penalty", type=float, default=1.0, help="Above 1: avoid what was there.  [default: 1]")
@click.option("--seed", type=int, help="The same seed gives the same text.  [default: a new one]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text (may be repeated).")
@click.option("--ignore-eot", is_flag=True, help="Write on where the model ends its text.")
@click.option("--allow-special", is_flag=True, help="Take <|endoftext|> in the prompt for the token, not for text.")
@click.option("--refuse-overflow", is_flag=True, help="Fail if prompt and text may not fit into the context.")
@click.option("--hide-prompt", is_flag=True, help="Print only what is new.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a text and line, not streamed.")
@click.option("--weights", metavar="KIND", help="float32, bf16 or int8: faster, a little less exact.")
@click.option("--draft", type=PLACE, metavar="DRAFT", help="A smaller model's folder, or lookup: guess ahead.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
def command(
    prompt: str,
    model: str | None,
    file: str | None,
    num_samples: int,
    seed: int | None,
    ignore_eot: bool,
    refuse_overflow: bool,
    hide_prompt: bool,
    as_json: bool,
    weights: str | None,
    draft: str | None,
    device: str,
    **settings: Any,
) -> None:
    """Let a model write on from PROMPT; - reads the prompt from standard input.

    Without a prompt it begins a new text. The text goes to standard output; which model wrote it, and how much that
    was trained, to standard error.

    \b
    Examples:
      nanoeuler sample "Once upon a time" --temperature 0.7 --num-samples 3
      nanoeuler sample --model runs/mine --file beginning.txt --stop "THE END" --seed 1
      echo "Lily saw" | nanoeuler sample - --top-k 50
    """
    prompt = read_prompt(prompt, file)
    if num_samples < 1:
        raise UserError(f"num_samples must be a whole number, 1 or above, not {num_samples}")
    settings |= {
        "seed": secrets.randbits(32) if seed is None else seed,
        "stop_at_eot": not ignore_eot,
        "overflow": "refuse" if refuse_overflow else "slide",
        "stop": list(settings["stop"]),
    }
    generator = open_generator(model, device, weights)
    if draft is not None:
        settings["draft"] = open_draft(draft, device)
    say(f"seed:  {settings['seed']}")
    if as_json:
        for i, text in enumerate(generator.generate(prompt, num_samples=num_samples, **settings)):
            click.echo(json.dumps({"sample": i, "prompt": prompt, **vars(text)}, ensure_ascii=False))
        return
    for i in range(num_samples):
        if i:
            click.echo("---")
        write(generator, "" if hide_prompt else prompt, generator.stream(prompt, sample=i, **settings))


def open_generator(model: str | None, device: str, weights: str | None = None) -> Any:
    """Load the model, and say which it is and how much it was trained."""
    from nanoeuler.inference.decoder import check_weights
    from nanoeuler.inference.generator import Generator
    from nanoeuler.inference.pretrained import describe, find_model_folder

    folder = find_model_folder(model)
    check_weights(weights)
    if text := compile_cache.notice(device):
        say(f"note:  {text}")
    generator = Generator.from_pretrained(folder, device, weights)
    say(f"model: {describe(folder, generator.model.config)}")
    return generator


def open_draft(draft: str, device: str) -> Any:
    """What guesses: "lookup", or the generator of a smaller model."""
    from nanoeuler.inference.generator import Generator

    return draft if draft == "lookup" else Generator.from_pretrained(draft, device)


def write(generator: Any, prompt: str, stream: Any) -> None:
    """Print a text as it comes; notes and speed on standard error. Nothing is printed if it cannot begin."""
    begun = time.perf_counter()
    click.echo(prompt + next(stream, ""), nl=False)
    sys.stdout.flush()
    for piece in stream:
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()
    seconds = time.perf_counter() - begun
    for note in stream.generation.notes:
        say(f"note:  {note}")
    n, guessed = len(stream.generation.tokens), stream.generation.guessed
    if guessed:
        right = stream.generation.accepted
        say(f"draft: {right} of {guessed} guesses were right ({right / guessed:.0%})")
    why = {"length": "--max-new-tokens reached", "eot": "the model ended the text", "stop": "stop text reached"}
    rate = f", {n / seconds:.0f} tokens/s" if n and seconds > 0 else ""
    say(f"end:   {n} tokens{rate} ({why[stream.generation.finish_reason]})")


def read_prompt(prompt: str, file: str | None) -> str:
    """The prompt from the argument, a file, or standard input; UserError if it is not UTF-8 text."""
    if file is not None and prompt:
        raise UserError("a prompt and --file contradict each other: give one of the two")
    if file is None and prompt != "-":
        if os.path.isdir(prompt):  # noqa: PTH112 - Path.is_dir raises for a text too long to be a name
            raise UserError(f"the prompt '{prompt}' is a folder: to use the model in it, write --model {prompt}")
        return prompt
    name = file or "standard input"
    try:
        data = Path(file).read_bytes() if file else sys.stdin.buffer.read()
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise UserError(f"cannot read the prompt {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    if "\0" in text:
        raise UserError(f"{name} is binary, not text (NUL at character {text.index(chr(0))})")
    return text.removesuffix("\n")  # the line end that editors and echo put there
