"""``nanoeuler quantize``: a model's weights in 8 bits, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoeuler.cli.console import human_bytes, quoted, say, stages
from nanoeuler.cli.eval import UNSEEN_SEED, open_data
from nanoeuler.cli.values import PLACE, TOKENS
from nanoeuler.durable import replacing_folder
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.data.dataset import Dataset
    from nanoeuler.inference.decoder import Source
    from nanoeuler.training.evaluate import EvalResult

STORIES = 200  # for a text that no model has been trained on


@click.command()
@click.argument("model", required=False, type=PLACE)
@click.option("--out", required=True, type=PLACE, metavar="FOLDER", help="Where to write the model.")
@click.option("--data", type=PLACE, help="A text or prepared data to measure on.  [default: new stories]")
@click.option("--split", default="val", show_default=True, help="Of prepared data: val or train.")
@click.option("--max-tokens", type=TOKENS, default=20_000, show_default=True, help="Measure on the first N tokens.")
@click.option("--no-measure", is_flag=True, help="Only write the folder.")
def command(model: str | None, out: str, data: str | None, split: str, max_tokens: int, no_measure: bool) -> None:
    """Write MODEL (a model or a run; the shipped one if left out) with weights in 8 bits.

    The folder is a quarter the size, and `sample`, `chat` and `bench generate` write with it faster, since a token
    costs what reading the weights costs. Shown is the perplexity on a text before and after, as the model will really
    compute: with its inputs in 8 bits too.

    \b
    Example:
      nanoeuler quantize runs/mine --out models/mine-int8 --data data/mine
    """
    from nanoeuler.formats.int8_folder import is_int8, save_int8
    from nanoeuler.inference.pretrained import find_model_folder, tokenizer_of
    from nanoeuler.inference.quantize import quantize
    from nanoeuler.model.gpt import GPT

    folder, target = find_model_folder(model), Path(out)
    if max_tokens < 2:
        raise UserError(f"--max-tokens must be at least 2, not {max_tokens}")
    if is_int8(folder):
        raise UserError(f"{folder} is in 8 bits already")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder: choose another with --out")
    net = GPT.from_pretrained(folder)
    tokenizer = tokenizer_of(folder, net.config)
    if data is not None and not no_measure:
        with open_data(data, split, tokenizer):
            pass  # what is wrong with it is said before anything is written
    small = quantize(net.config, net.state_dict())
    with replacing_folder(target) as new:
        save_int8(new, small, tokenizer.eot_id)
        tokenizer.save(new)
        if (state := _trained(folder)) is not None:
            (new / "trainer_state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    sizes = [sum(file.stat().st_size for file in where.glob("*.safetensors")) for where in (folder, target)]
    click.echo(f"{human_bytes(sizes[0])} -> {human_bytes(sizes[1])}: {out}")
    if not no_measure:
        before, after = measure(net, small, data, split, max_tokens, folder)
        change = after.perplexity / before.perplexity - 1
        click.echo(
            f"perplexity {before.perplexity:.4f} -> {after.perplexity:.4f} ({change:+.2%}) on {before.tokens:,} tokens"
        )
    say(f"write with it: nanoeuler sample --model {quoted(out)}")


def measure(
    net: Source, small: Source, data: str | None, split: str, max_tokens: int, folder: Path
) -> tuple[EvalResult, EvalResult]:
    """How well both predict the text."""
    import tempfile

    from nanoeuler.data.stories import stories
    from nanoeuler.inference.pretrained import tokenizer_of

    tokenizer = tokenizer_of(folder, net.config)
    if data is not None:
        with open_data(data, split, tokenizer) as dataset:
            return _evaluate(net, dataset, max_tokens), _evaluate(small, dataset, max_tokens)
    with tempfile.TemporaryDirectory(prefix="nanoeuler-") as place:
        text = Path(place) / "stories.txt"
        text.write_text("\n".join(stories(STORIES, seed=UNSEEN_SEED)), encoding="utf-8")
        try:
            with open_data(str(text), split, tokenizer) as dataset:
                return _evaluate(net, dataset, max_tokens), _evaluate(small, dataset, max_tokens)
        except UserError as error:
            raise UserError(f"cannot measure on stories ({error}): give a text with --data, or --no-measure") from None


def _evaluate(source: Source, dataset: Dataset, max_tokens: int) -> EvalResult:
    from nanoeuler.inference.decoder import open_decoder
    from nanoeuler.inference.losses import DecoderLosses
    from nanoeuler.training.evaluate import evaluate

    T = source.config.block_size
    decoder = open_decoder(source, 1, T)
    with stages("tokens") as progress:
        total = min(dataset.n_tokens, max_tokens)
        return evaluate(DecoderLosses(decoder), dataset, 1, T, max_tokens, lambda n: progress("evaluate", n, total))


def _trained(folder: Path) -> dict[str, object] | None:
    """What is written down of the model's training."""
    try:
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        return {name: state[name] for name in ("step", "tokens", "val_loss") if name in state}
    except (OSError, ValueError, TypeError, RecursionError):
        return None
