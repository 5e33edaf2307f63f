"""Everything that decides a training run, in one dataclass: what is not in here cannot change the result.

Settings are laid over each other: defaults, then a preset, then a TOML file, then single settings (the command
line's flags). The run folder keeps the sum as ``config.toml``.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.activations import RECOMPUTE
from nanoeuler.model.config import GPTConfig
from nanoeuler.training.presets import PRESETS

SCHEDULES = ("cosine", "linear", "constant", "wsd")
WINDOWS = ("anywhere", "document")


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one run. ``None`` means: derive it (see each line); :meth:`resolved` fills those in.

    Raises UserError, in one line, for a wrong type or values that contradict each other.

    >>> config = TrainConfig.load("shakespeare-char", data="data/shakespeare", out="runs/s", lr=5e-4)
    >>> config.n_layer, config.lr, config.tokens_per_step
    (4, 0.0005, 768)
    """

    # the run
    data: str = ""  # folder of prepared tokens, a .bin file or a pattern
    out: str = ""  # run folder
    device: str = "cpu"  # engine: cpu, gpu or reference
    init_from: str = "scratch"  # or a folder with a model to go on from
    seed: int = 1337  # fixes parameters, data order and dropout
    # the model: None takes the size from init_from, or GPT-2 124M's when from scratch
    n_layer: int | None = None
    n_head: int | None = None
    n_embd: int | None = None
    block_size: int | None = None  # longest context
    vocab_size: int | None = None  # None: the size of the data's tokenizer
    dropout: float = 0.0
    init_std: float = 0.02  # of fresh weights; small models learn faster from about 1/sqrt(n_embd)
    # one step
    batch_size: int = 8  # sequences in one forward and backward pass
    seq_len: int | None = None  # tokens in a sequence; None: block_size
    grad_accum: int = 1  # passes summed up before the parameters change
    recompute: str = "auto"  # what backward computes again to save memory: none, light, full; auto: the device's choice
    steps: int = 1000
    windows: str = "anywhere"  # where a sequence begins: anywhere in the data, or at a document's start
    # learning rate
    lr: float = 1e-3
    min_lr: float | None = None  # where the schedule ends; None: a tenth of lr
    warmup: int | None = None  # steps of linear rise; None: a tenth of all, at most 100
    schedule: str = "cosine"  # cosine, linear, constant or wsd (warmup, stable, decay)
    decay_fraction: float = 0.2  # wsd: the share of all steps spent in decay
    # optimizer: AdamW
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1  # on matrices only
    grad_clip: float = 1.0  # largest norm of the gradient; 0: no limit
    # what is reported and kept
    eval_every: int = 250  # steps between evaluations; 0: only after the last step
    eval_tokens: int = 65536  # validation tokens in each; 0: all
    save_every: int = 500  # steps between checkpoints; 0: only after the last step
    keep_every: int = 0  # besides, a model kept for good every so many steps; 0: none
    sample_every: int = 0  # steps between samples; 0: none
    sample_prompt: str = ""  # "": start of a document
    sample_tokens: int = 100
    log_every: int = 1  # steps between lines of metrics.jsonl

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _typed(f.name, getattr(self, f.name)))
        _check(self)

    # ---- making one -----------------------------------------------------------------------------------
    @classmethod
    def load(
        cls,
        preset: str | None = None,
        toml: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> TrainConfig:
        """Defaults, then ``preset``, then the file ``toml``, then ``overrides`` and ``settings``.

        A TOML file may name its preset itself: ``preset = "shakespeare-char"``. Raises UserError for an unknown
        setting, naming the nearest known one.
        """
        from_file = read_toml(Path(toml)) if toml is not None else {}
        file_preset = from_file.pop("preset", None)
        merged: dict[str, Any] = {}
        if (name := preset or file_preset) is not None:
            if not isinstance(name, str) or name not in PRESETS:
                raise UserError(f"unknown preset {name!r}{_nearest(str(name), PRESETS)}: choose {', '.join(PRESETS)}")
            merged |= PRESETS[name]
        check_names(from_file, f"in {toml}")
        given = {**(overrides or {}), **settings}
        check_names(given)
        chosen = {**from_file, **given}
        # Who changes only lr or steps means the rest to follow, not to keep a preset's number for another run.
        if "lr" in chosen:
            merged.pop("min_lr", None)
        steps = chosen.get("steps")
        if isinstance(steps, int) and steps < 4 * merged.get("warmup", 0):
            merged.pop("warmup")
        return cls(**{**merged, **chosen})

    def changed(self, **changes: Any) -> TrainConfig:
        """A copy with some settings changed, checked anew."""
        check_names(changes)
        return replace(self, **changes)

    def resolved(self, model: GPTConfig) -> TrainConfig:
        """A copy without ``None``: sizes as in ``model``, and whatever else is derived."""
        sizes = {k: getattr(model, k) for k in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")}
        seq_len = model.block_size if self.seq_len is None else self.seq_len
        return replace(self, **sizes, seq_len=seq_len, min_lr=self.final_lr, warmup=self.warmup_steps)

    def model_config(self, vocab_size: int) -> GPTConfig:
        """The model to make from scratch, for a tokenizer of ``vocab_size`` entries.

        Raises UserError when the configured ``vocab_size`` is too small for it.
        """
        if self.vocab_size is not None and self.vocab_size < vocab_size:
            raise UserError(
                f"vocab_size {self.vocab_size} is less than the {vocab_size} entries of the data's tokenizer: "
                "leave it out or raise it"
            )
        sizes = {k: getattr(self, k) for k in ("n_layer", "n_head", "n_embd", "block_size")}
        given = {k: v for k, v in sizes.items() if v is not None}
        given |= {"vocab_size": self.vocab_size or vocab_size}
        return GPTConfig(**given, dropout=self.dropout, init_std=self.init_std)

    # ---- what follows from it -------------------------------------------------------------------------
    @property
    def tokens_per_step(self) -> int:
        """Targets that one change of the parameters has seen: batch_size · seq_len · grad_accum."""
        T = self.seq_len or self.block_size or 1024
        return self.batch_size * T * self.grad_accum

    @property
    def warmup_steps(self) -> int:
        return min(100, self.steps // 10) if self.warmup is None else self.warmup

    @property
    def final_lr(self) -> float:
        return self.lr / 10 if self.min_lr is None else self.min_lr

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_toml(self) -> str:
        """The settings as TOML, ``None`` left out; :meth:`load` reads them back as they are.

        >>> config = TrainConfig(data="d", out="o", sample_prompt='say "hi"')
        >>> TrainConfig(**tomllib.loads(config.to_toml())) == config
        True
        """
        lines = (f"{k} = {_toml_value(v)}" for k, v in self.to_dict().items() if v is not None)
        return "\n".join(lines) + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file; UserError if it is missing or is not TOML."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be a config") from None
    except ValueError as error:  # not UTF-8, not TOML, or a number of thousands of digits
        raise UserError(f"{path} is not TOML: {error}") from None


def check_names(names: Iterable[str], where: str = "") -> None:
    """Raise UserError for the first name that is no setting, with the nearest one that is."""
    known = [f.name for f in fields(TrainConfig)]
    for name in names:
        if name not in known:
            raise UserError(f"unknown setting '{name}'{' ' + where if where else ''}{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # then also a TOML basic string
    return str(value).lower() if isinstance(value, bool) else repr(value)


# ---- checks -------------------------------------------------------------------------------------------
_NAMES = {int: "a whole number", float: "a number", str: "text"}


def _typed(name: str, value: Any) -> Any:
    """``value`` as the type of the field ``name``: whole numbers serve as floats, paths as text."""
    hint = get_type_hints(TrainConfig)[name]
    optional = get_origin(hint) is types.UnionType
    kind = get_args(hint)[0] if optional else hint
    if isinstance(value, np.generic):
        value = value.item()  # NumPy's numbers serve like Python's
    if value is None and optional:
        return None
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{name} must be a finite number, not one of {len(str(value))} digits") from None
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 2e3 steps
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{name} must be {_NAMES[kind]}, not {value!r}")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise UserError(f"{name} holds bytes that are not UTF-8: {value!r}")
    if isinstance(value, int) and value >= 1 << 63:
        raise UserError(f"{name} must be below 2^63, not a number of {len(str(value))} digits")
    return value


_AT_LEAST_1 = ("batch_size", "grad_accum", "steps", "sample_tokens", "log_every", "seq_len")
_AT_LEAST_0 = (
    *("seed", "warmup", "weight_decay", "grad_clip", "min_lr"),
    *("eval_every", "eval_tokens", "save_every", "keep_every", "sample_every"),
)


def _check(c: TrainConfig) -> None:
    """Raise UserError for the first value that is out of range or contradicts another."""
    for f in fields(c):
        value = getattr(c, f.name)
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise UserError(f"{f.name} must be a finite number, not {value!r}")
        if f.name in _AT_LEAST_1 and value is not None and value < 1:
            raise UserError(f"{f.name} must be at least 1, not {value}")
        if f.name in _AT_LEAST_0 and value is not None and value < 0:
            raise UserError(f"{f.name} must not be negative, not {value}")
    if c.seed >= 1 << 63:
        raise UserError(f"seed must be below 2^63, not {c.seed}")
    if c.schedule not in SCHEDULES:
        raise UserError(f"unknown schedule '{c.schedule}'{_nearest(c.schedule, SCHEDULES)}: {', '.join(SCHEDULES)}")
    if c.windows not in WINDOWS:
        raise UserError(f"unknown windows '{c.windows}'{_nearest(c.windows, WINDOWS)}: {', '.join(WINDOWS)}")
    if c.recompute not in (choices := ("auto", *RECOMPUTE)):
        raise UserError(f"unknown recompute '{c.recompute}'{_nearest(c.recompute, choices)}: {', '.join(choices)}")
    if c.lr <= 0 or c.eps <= 0:
        raise UserError(f"lr and eps must be above 0, not {c.lr} and {c.eps}")
    if c.min_lr is not None and c.min_lr > c.lr:
        raise UserError(f"min_lr {c.min_lr} is above lr {c.lr}: lower min_lr, or leave it out for a tenth of lr")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(c, name) < 1:
            raise UserError(f"{name} must be at least 0 and below 1, not {getattr(c, name)}")
    if not 0 < c.decay_fraction <= 1:
        raise UserError(f"decay_fraction must be above 0 and at most 1, not {c.decay_fraction}")
    if c.warmup_steps > c.steps:
        raise UserError(f"warmup {c.warmup} is longer than the run of {c.steps} steps: lower warmup or raise steps")
    if c.seq_len is not None and c.block_size is not None and c.seq_len > c.block_size:
        raise UserError(f"seq_len {c.seq_len} is longer than block_size {c.block_size}: lower seq_len")
    # The sizes' own rules (positive, divisible) are GPTConfig's; a size left open stands for one that fits.
    if c.n_embd is not None and c.n_head is not None:
        GPTConfig(n_embd=c.n_embd, n_head=c.n_head)
    for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
        if (size := getattr(c, name)) is not None and size < 1:
            raise UserError(f"{name} must be a positive whole number, not {size}")
    GPTConfig(dropout=c.dropout, init_std=c.init_std)
