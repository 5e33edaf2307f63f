"""Training runs that people know by name: settings of :class:`~nanoeuler.training.config.TrainConfig`.

``shakespeare-char`` is the run that nanoGPT's README gives for a laptop without a GPU; ``baby`` the one it gives for
a GPU (10.7M parameters). ``gpt2`` follows the settings of its 124M reproduction, with batches cut into pieces that fit
a modest memory. ``finetune`` leaves all sizes to the model that ``init_from`` names.
"""

from typing import Any

from nanoeuler.model.config import PRESETS as SIZES


def _sizes(name: str) -> dict[str, Any]:
    """The model sizes known as ``name``; the vocabulary's comes from the data's tokenizer."""
    gpt2 = dict(block_size=1024, n_layer=12, n_head=12, n_embd=768)
    return {**gpt2, **{k: v for k, v in SIZES[name].items() if k != "vocab_size"}}


_NANOGPT_SMALL = dict(lr=1e-3, min_lr=1e-4, warmup=100, schedule="cosine", beta2=0.99, weight_decay=0.1, grad_clip=1.0)
_NANOGPT_LARGE = dict(lr=6e-4, min_lr=6e-5, warmup=2000, schedule="cosine", beta2=0.95, weight_decay=0.1, grad_clip=1.0)

PRESETS: dict[str, dict[str, Any]] = {
    "demo": dict(
        **_sizes("demo"),
        # Tuned on the built-in stories, for how well the names of the characters are kept; see docs/performance-log.md.
        **dict(init_std=0.1, windows="document", batch_size=4, steps=3000, lr=3e-3, min_lr=1e-5, warmup=50, beta2=0.99),
        **dict(schedule="wsd", decay_fraction=0.5, eval_every=500, save_every=500),
    ),
    "shakespeare-char": dict(
        **_sizes("shakespeare-char"),
        **_NANOGPT_SMALL,
        **dict(batch_size=12, steps=2000, dropout=0.0, eval_every=250, eval_tokens=15360, save_every=500),
    ),
    "baby": dict(
        **_sizes("baby"),
        **_NANOGPT_SMALL,
        **dict(batch_size=64, steps=5000, dropout=0.2, eval_every=250, eval_tokens=262144, save_every=500),
    ),
    "gpt2": dict(
        **_sizes("gpt2"),
        **_NANOGPT_LARGE,
        **dict(batch_size=4, grad_accum=120, steps=600_000, eval_every=1000, eval_tokens=1 << 20, save_every=1000),
    ),
    "finetune": dict(
        **dict(lr=3e-5, min_lr=3e-5, warmup=0, schedule="constant", batch_size=2, grad_accum=8, steps=100),
        **dict(eval_every=20, eval_tokens=8192, save_every=20),
    ),
}
