"""``nanoeuler eval``: how well does a model predict a text it has not seen?"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoeuler.cli.console import stages, table
from nanoeuler.cli.values import COUNT, PLACE, TOKENS
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.data.dataset import Dataset
    from nanoeuler.data.grader import Grade
    from nanoeuler.inference.generator import Generator
    from nanoeuler.tokenizer import BaseTokenizer

ASPECTS = ("sentences", "names", "objects", "ending", "total")
UNSEEN_SEED = 1_000_003  # `data stories` and the demo use others


@click.command()
@click.argument("data", required=False, type=PLACE)
@click.option("--model", "-m", type=PLACE, metavar="FOLDER", help="A model or a run.  [default: the shipped model]")
@click.option("--split", default="val", show_default=True, help="Of prepared data: val or train.")
@click.option("--batch-size", type=COUNT, default=8, show_default=True, help="Sequences at a time.")
@click.option("--seq-len", type=COUNT, help="Tokens in a window.  [default: the model's context]")
@click.option("--max-tokens", type=TOKENS, help="Look at the first N tokens only.  [default: all]")
@click.option("--stories", type=COUNT, metavar="N", help="Let the model write N stories, and grade them.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="For --stories.")
@click.option("--seed", type=int, default=0, show_default=True, help="For --stories.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def command(
    data: str | None,
    model: str | None,
    split: str,
    batch_size: int,
    seq_len: int | None,
    max_tokens: int | None,
    stories: int | None,
    temperature: float,
    seed: int,
    device: str,
    as_json: bool,
) -> None:
    """Measure how well a model predicts a text: loss, perplexity, bits per byte.

    DATA is prepared data, a token file (.bin), or a text. Bits per byte compare models with different vocabularies.

    \b
    Examples:
      nanoeuler eval data/shakespeare --model runs/shakespeare
      nanoeuler eval book.txt --model runs/mine
      nanoeuler eval --stories 100
    """
    from nanoeuler.cli.sample import open_generator
    from nanoeuler.training.evaluate import evaluate

    if (data is None) == (stories is None):
        raise UserError("give either DATA to predict or --stories N to write (see: nanoeuler eval --help)")
    if stories is not None and stories < 1:
        raise UserError(f"--stories must be at least 1, not {stories}")
    generator = open_generator(model, device, None if stories else "float32")
    if data is None:
        assert stories is not None
        _grade(generator, stories, temperature, seed, as_json)
        return
    block_size = generator.model.config.block_size
    T = block_size if seq_len is None else seq_len
    if batch_size < 1 or not 1 <= T <= block_size or (max_tokens is not None and max_tokens < 1):
        raise UserError(f"batch_size and max_tokens must be at least 1, and seq_len 1 to the context of {block_size}")
    with open_data(data, split, generator.tokenizer) as dataset:
        total = min(dataset.n_tokens, max_tokens or dataset.n_tokens)
        with stages("tokens") as progress:
            result = evaluate(
                generator.model, dataset, batch_size, T, max_tokens, lambda done: progress("evaluate", done, total)
            )
    if as_json:
        click.echo(json.dumps({**vars(result), "perplexity": result.perplexity}))
        return
    click.echo(f"loss            {result.loss:.4f} nats a token")
    click.echo(f"perplexity      {result.perplexity:.2f}")
    if result.bits_per_byte is not None:
        click.echo(f"bits per byte   {result.bits_per_byte:.4f}")
    click.echo(f"tokens          {result.tokens:,}")


@contextmanager
def open_data(data: str, split: str, tokenizer: BaseTokenizer) -> Iterator[Dataset]:
    """The tokens of ``data``; a text is encoded with the model's tokenizer, in a folder that vanishes afterwards."""
    from nanoeuler.data.dataset import Dataset
    from nanoeuler.data.prepare import prepare
    from nanoeuler.tokenizer import load_tokenizer

    path = Path(data)
    if path.is_file() and path.suffix != ".bin":
        with tempfile.TemporaryDirectory(prefix="nanoeuler-", ignore_cleanup_errors=sys.platform == "win32") as folder:
            prepare([path], Path(folder) / "data", tokenizer, val_fraction=0)
            yield Dataset.open(Path(folder) / "data", "train")
        return
    dataset = Dataset.open(data, split)
    if dataset.folder is not None and not tokenizer.is_same(load_tokenizer(dataset.folder)):
        raise UserError(f"{data} was prepared with another tokenizer than the model's: give the text itself instead")
    yield dataset


def _grade(generator: Generator, n: int, temperature: float, seed: int, as_json: bool) -> None:
    """Grade ``n`` stories of the model beside as many of the built-in corpus that no training run has seen."""
    from nanoeuler.data.grader import grade
    from nanoeuler.data.stories import stories

    written = []
    with stages("stories") as progress:
        for i in range(n):
            written.append("".join(generator.stream(temperature=temperature, seed=seed, sample=i, max_new_tokens=512)))
            progress("writing", i + 1, n)
    columns = [_mean([grade(text) for text in texts]) for texts in (written, stories(n, seed=UNSEEN_SEED))]
    ratio = columns[0]["total"] / columns[1]["total"]
    if as_json:
        click.echo(json.dumps({"model": columns[0], "corpus": columns[1], "ratio": ratio}))
        return
    table([[name, *(f"{column[name]:.3f}" for column in columns)] for name in ASPECTS], ["aspect", "model", "corpus"])
    click.echo(f"\n{n} stories each: the model's are {100 * ratio:.1f} % as good as the corpus")


def _mean(grades: Sequence[Grade]) -> dict[str, float]:
    return {name: sum(getattr(grade, name) for grade in grades) / len(grades) for name in ASPECTS}
