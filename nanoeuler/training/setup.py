"""From settings to the things a trainer works with: data, tokenizer, model. Everything is checked here, before the
run folder is made, so that a run that cannot start leaves nothing behind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoeuler.data.dataset import Dataset, has_split
from nanoeuler.data.loader import Loader, eval_batches
from nanoeuler.errors import UserError
from nanoeuler.formats.huggingface import read_config
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import BaseTokenizer, Tokenizer, load_tokenizer
from nanoeuler.training.checkpoint import TrainerState
from nanoeuler.training.config import TrainConfig, check_names
from nanoeuler.training.plan import advice, plan
from nanoeuler.training.runfolder import RunFolder, find_model

CHANGEABLE = frozenset(
    {
        "data",
        "out",
        "device",
        "recompute",
        "steps",
        "log_every",
        "eval_every",
        "eval_tokens",
        "save_every",
        "keep_every",
    }
    | {"sample_every", "sample_prompt", "sample_tokens"}
)
"""Settings that may differ when a run goes on. ``data`` may move, its tokens may not change; a longer run (``steps``)
stretches what is left of the schedule."""

_CHECK_ALL_IDS = 1 << 27  # tokens; in larger sets, each batch is checked when its turn comes
_SAMPLE = 1 << 20  # tokens at either end that tell data sets apart


@dataclass(frozen=True)
class Data:
    """The tokens to train on and to validate with, and the tokenizer they were made with, where known."""

    train: Dataset
    val: Dataset | None
    tokenizer: BaseTokenizer | None

    def fingerprint(self) -> dict[str, Any]:
        """What tells these tokens from others: their number, and a hash of both ends."""
        files = self.train.files
        ends = files[0].tokens[:_SAMPLE].tobytes() + files[-1].tokens[-_SAMPLE:].tobytes()
        return {"train_tokens": self.train.n_tokens, "sha256": hashlib.sha256(ends).hexdigest()}


def open_data(config: TrainConfig) -> Data:
    """Open what ``config.data`` names. UserError when there is no training data."""
    if not config.data:
        raise UserError("no data: give --data FOLDER, made with `nanoeuler data prepare FILE... --out FOLDER`")
    train = Dataset.open(config.data, "train")
    folder = Path(config.data)
    val = Dataset.open(folder, "val") if folder.is_dir() and has_split(folder, "val") else None
    tokenizer: BaseTokenizer | None = None
    if train.folder is not None:
        tokenizer = load_tokenizer(train.folder)
    elif train.files[0].layout == "llm.c":  # whose 16-bit shards are GPT-2's tokens by definition
        tokenizer = Tokenizer.gpt2()
    return Data(train, val, tokenizer)


def new_model(config: TrainConfig, data: Data) -> tuple[GPT, BaseTokenizer | None]:
    """The model a run starts with, from scratch or from ``init_from``, and its tokenizer.

    Raises UserError when sizes, tokenizer and data contradict each other.
    """
    if config.init_from != "scratch":
        return _pretrained(config, data)
    n_vocab = data.tokenizer.n_vocab if data.tokenizer else config.vocab_size
    if n_vocab is None:
        raise UserError(f"the tokens in {config.data} come without a tokenizer: give --vocab-size (GPT-2's is 50257)")
    sizes = config.model_config(n_vocab)
    check_data(config, sizes, data)
    check_memory(config, sizes)
    model = GPT(sizes, device=config.device, seed=config.seed, recompute=config.recompute)
    return model, data.tokenizer


def _pretrained(config: TrainConfig, data: Data) -> tuple[GPT, BaseTokenizer | None]:
    folder = find_model(config.init_from).folder
    sizes = pretrained_sizes(config, folder)
    try:
        tokenizer: BaseTokenizer | None = load_tokenizer(folder)
    except UserError:
        tokenizer = None
    if tokenizer and data.tokenizer and not tokenizer.is_same(data.tokenizer):
        raise UserError(
            f"{config.data} was prepared with another tokenizer than the model in {folder}: "
            f"prepare it again with --tokenizer {folder}"
        )
    check_data(config, sizes, data)
    check_memory(config, sizes)
    model = GPT.from_pretrained(folder, device=config.device, recompute=config.recompute)
    model.config = sizes
    return model, tokenizer or data.tokenizer


def pretrained_sizes(config: TrainConfig, folder: Path) -> GPTConfig:
    """The sizes of the model in ``folder``. Raises UserError when the run's settings ask for others."""
    sizes = replace(read_config(folder), dropout=config.dropout)
    for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
        wanted, has = getattr(config, name), getattr(sizes, name)
        if wanted not in (None, has):
            raise UserError(f"{name} {wanted} contradicts the model in {folder}, which has {has}: leave {name} out")
    return sizes


def check_memory(config: TrainConfig, model: GPTConfig) -> None:
    """Raise UserError if the run cannot fit into the memory there is, before anything is allocated."""
    table = plan(model, config.batch_size, config.seq_len, config.device, recompute=config.recompute)
    if table.fits is False and table.available is not None:
        raise UserError(
            f"this run needs {table.total / 2**30:,.1f} GiB of memory and {table.available / 2**30:,.1f} GiB are free: "
            f"{advice(table)}; `nanoeuler plan` shows what takes how much"
        )


def new_loader(config: TrainConfig, data: Data, T: int) -> Loader:
    """The batches of a run. UserError if the data is too short, or has no documents to begin sequences with."""
    separator = None
    if config.windows == "document":
        separator = data.tokenizer.eot_id if data.tokenizer else None
        if separator is None:
            raise UserError(f"{config.data} has no end-of-text token to tell documents apart: set windows to anywhere")
    return Loader(data.train, config.batch_size, T, config.seed, separator=separator)


def check_data(config: TrainConfig, model: GPTConfig, data: Data) -> None:
    """Raise UserError unless the model can be fed with this data."""
    if data.tokenizer and data.tokenizer.n_vocab > model.vocab_size:
        raise UserError(
            f"the tokenizer of {config.data} has {data.tokenizer.n_vocab} entries, more than the model's "
            f"{model.vocab_size}: prepare the data with the model's own tokenizer"
        )
    if config.sample_every:
        if data.tokenizer is None:
            raise UserError(f"{config.data} has no tokenizer to write samples with: set sample_every to 0")
        data.tokenizer.encode(config.sample_prompt)  # raises for a character that the vocabulary lacks
    T = config.seq_len or model.block_size
    if model.block_size < T:
        raise UserError(f"seq_len {T} is longer than the model's block_size {model.block_size}: lower seq_len")
    new_loader(config, data, T)  # raises if the data is too short
    if data.val is not None:
        next(eval_batches(data.val, 1, T, 1))  # as well
    for split in (data.train, data.val):
        if split is not None and split.n_tokens <= _CHECK_ALL_IDS:
            split.check_ids(model.vocab_size)


def changed_for_resume(run: RunFolder, stored: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """``stored`` with ``changes``, of which only :data:`CHANGEABLE` may really change anything."""
    check_names(changes)
    for name, value in changes.items():
        wanted, has = getattr(replace(stored, **{name: value}), name), getattr(stored, name)
        if name not in CHANGEABLE and wanted != has:
            raise UserError(
                f"{name} is {has} in the run {run.path} and cannot become {wanted} when it goes on: leave it out, "
                f"or start a new run with --init-from {run.path} --out NAME"
            )
    return replace(stored, **changes)


def with_full_paths(config: TrainConfig) -> TrainConfig:
    """``config`` with the places of data and first model as they are found from any folder, for going on elsewhere."""
    init_from = config.init_from if config.init_from == "scratch" else str(Path(config.init_from).absolute())
    return replace(config, data=str(Path(config.data).absolute()), init_from=init_from)


def where_data_is(config: TrainConfig, given: bool) -> TrainConfig:
    """``config`` of a run that goes on, with its data's full path. UserError if the data is where it was no longer.

    ``given``: the data was named anew. Runs of before kept its name as it was given, from the folder they began in.
    """
    path = Path(config.data)
    if not given and not path.exists() and not any(c in path.name for c in "*?["):
        begun = "" if path.is_absolute() else ", as seen from the folder in which the run began"
        raise UserError(f"the run's data is no longer at {path}{begun}: name its place with --data FOLDER")
    return replace(config, data=str(path.absolute())) if config.data else config


def check_same_run(run: RunFolder, config: TrainConfig, data: Data, state: TrainerState) -> None:
    """Raise UserError unless ``state`` is a state of a run with these settings on this data."""
    for name, value in state.settings.items():
        if (now := getattr(config, name, value)) != value:
            raise UserError(
                f"{name} is {now!r} in {run.config_file}, but the checkpoint {run.last} was made with {value!r}: "
                "set it back"
            )
    if data.fingerprint() != state.data:
        raise UserError(
            f"the training data in {config.data} is not what the run {run.path} was trained on so far: "
            f"restore it, or start a new run with --init-from {run.path} --out NAME"
        )
    if config.steps < state.step:
        raise UserError(f"steps {config.steps} is less than the {state.step} already done: raise steps")


def fixed_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that a run keeps from its first step to its last."""
    return {k: v for k, v in config.to_dict().items() if k not in CHANGEABLE}
