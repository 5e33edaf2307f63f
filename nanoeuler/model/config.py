"""The shape of a GPT-2: one dataclass, and the sizes people know by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any

from nanoeuler.errors import UserError


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT-2 (Radford et al. 2019). The defaults are the 124M model.

    ``vocab_size``: rows of the token embedding; ``block_size``: the longest context; ``n_layer`` blocks of
    ``n_head`` heads on ``n_embd`` channels; ``dropout``: probability on the embedding, the attention weights and
    both residual branches while training; ``init_std``: standard deviation of fresh weights. GPT-2's 0.02 suits its
    widths; a model a few hundred channels wide learns much faster from about ``1/sqrt(n_embd)``.

    Raises UserError when the sizes contradict each other.

    >>> GPTConfig().n_params
    124439808
    >>> GPTConfig.preset("gpt2-xl").head_dim
    64
    """

    vocab_size: int = 50257
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 1:
                raise UserError(f"{name} must be a positive whole number, not {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's whole numbers serve, but cannot be written to JSON
            if int(value) > LARGEST[name]:
                raise UserError(f"{name} {value} is more than this program can count with: at most {LARGEST[name]:,}")
        if self.n_embd % self.n_head:
            raise UserError(
                f"n_embd {self.n_embd} is not divisible by n_head {self.n_head}: choose n_embd as a multiple of n_head"
            )
        if not isinstance(self.dropout, Real) or not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout must be at least 0 and below 1, not {self.dropout!r}")
        if not isinstance(self.init_std, Real) or not 0.0 < self.init_std < float("inf"):
            raise UserError(f"init_std must be above 0, not {self.init_std!r}")

        for name in ("dropout", "init_std"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_params(self) -> int:
        """Number of parameters, the tied head counted once."""
        C = self.n_embd
        return (self.vocab_size + self.block_size) * C + self.n_layer * (12 * C * C + 13 * C) + 2 * C

    @classmethod
    def preset(cls, name: str, **changes: Any) -> GPTConfig:
        """The sizes known as ``name`` (see :data:`PRESETS`), with ``changes`` laid over them."""
        if name not in PRESETS:
            raise UserError(f"unknown model preset '{name}': choose one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> GPTConfig:
        """Inverse of :meth:`to_dict`; unknown keys are an error, so that a misspelling cannot pass."""
        unknown = set(d) - {f.name for f in fields(cls)}
        if unknown:
            raise UserError(f"unknown model setting {', '.join(sorted(unknown))}")
        return cls(**d)


# Far beyond any machine: so that a slip of the keyboard is one clear line, not an hour of counting.
LARGEST = {"vocab_size": 1 << 24, "block_size": 1 << 24, "n_layer": 10_000, "n_head": 1 << 16, "n_embd": 1 << 20}

PRESETS: dict[str, dict[str, Any]] = {
    "demo": dict(vocab_size=1024, block_size=256, n_layer=2, n_head=6, n_embd=192),
    "shakespeare-char": dict(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128),
    "baby": dict(block_size=256, n_layer=6, n_head=6, n_embd=384),
    "gpt2": dict(),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
}
