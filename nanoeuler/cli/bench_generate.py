"""``nanoeuler bench generate``: time to the first token, tokens a second, and the share of what memory allows."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from nanoeuler.cli.console import table

if TYPE_CHECKING:
    from nanoeuler.inference.decoder import Decoder
    from nanoeuler.model.config import GPTConfig

CONTEXTS = (1, 64, 256, 1000, 4000)
BATCHES = (1, 4, 16)
BATCHES_GPU = (1, 4, 16, 64)
CACHED = "from cache"


def command(preset: str, config: GPTConfig, seconds: float, device: str, weights: str | None, as_json: bool) -> None:
    """Measure a model of random weights by length of context, one text, and then by texts side by side."""
    from nanoeuler.inference.decoder import open_decoder, prepare
    from nanoeuler.model.gpt import GPT

    model = GPT(config, device=device)
    source = prepare(model, weights, device)
    best = bandwidth(model)
    rows = []
    contexts = [n for n in CONTEXTS if n + 8 <= config.block_size] or [1]
    batches = BATCHES_GPU if device == "gpu" else BATCHES
    places = [(n, 1) for n in contexts] + [(contexts[min(1, len(contexts) - 1)], B) for B in batches[1:]]
    for context, B in places:
        room = min(config.block_size, context + 64)
        rows.append(measure(open_decoder(source, B, room, weights, device), config, context, B, seconds, best))
    if as_json:
        click.echo(json.dumps({"config": config.to_dict(), "device": device, "weights": weights, "rows": rows}))
        return
    kind = weights or "the device's own"
    click.echo(f"{preset} ({config.n_params:,} parameters), device {device}, weights: {kind}")
    if best:
        click.echo(f"reading memory: {best / 1e9:.1f} GB/s at best\n")
    cells = [
        [
            str(row["context"]),
            str(row["batch"]),
            f"{1e3 * row['first_token']:.1f}",
            f"{1e3 * row['step']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['bytes_per_second'] / 1e9:.1f}",
            share(row["bytes_per_second"], best),
        ]
        for row in rows
    ]
    table(cells, ["context", "texts", "first token ms", "step ms", "tokens/s", "GB/s", "of the best"])
    if any(row[-1] == CACHED for row in cells):
        click.echo(f"\n{CACHED}: read faster than memory gives, so what a step reads lies in the processor's caches")


def share(rate: float, best: float | None) -> str:
    """How much of memory's best rate a step reads at, unless memory is not what it reads from.

    >>> share(5e9, 1e10), share(3e10, 1e10), share(1.0, None)
    ('50%', 'from cache', '-')
    """
    if best is None:
        return "-"
    return f"{rate / best:.0%}" if rate <= best else CACHED


def measure(
    decoder: Decoder, config: GPTConfig, context: int, B: int, seconds: float, best: float | None
) -> dict[str, Any]:
    """``context`` tokens read, then one token after another to each of ``B`` texts; the median step.

    Where the device can choose tokens by itself it does, as in writing.
    """
    rng, slots = np.random.default_rng(0), list(range(B))
    prompt = rng.integers(0, config.vocab_size, context).tolist()
    decoder.prefill(0, prompt)
    begun = time.perf_counter()
    decoder.prefill(0, prompt)
    first = time.perf_counter() - begun
    for slot in slots[1:]:
        decoder.copy(0, slot)
    step = _drawing(decoder, config, context, B, seconds) or _stepping(decoder, config, context, B, seconds)
    n_bytes = decoder.bytes_per_step(context) + (B - 1) * (decoder.bytes_per_step(context) - decoder.bytes_per_step(0))
    row = {"context": context, "batch": B, "first_token": first, "step": step, "tokens_per_second": B / step}
    return {**row, "bytes_per_second": n_bytes / step, "share": n_bytes / step / best if best else None}


def _drawing(decoder: Decoder, config: GPTConfig, context: int, B: int, seconds: float) -> float | None:
    """Seconds a step, of steps that choose on the device with chance; None if it cannot choose."""
    from nanoeuler.inference.sampling import SamplingConfig

    draw: Any = getattr(decoder, "draw", None)
    slots, configs = list(range(B)), [SamplingConfig(seed=i) for i in range(B)]
    n = decoder.context - context
    times: list[float] = []
    end = time.perf_counter() + seconds
    while draw is not None and (len(times) < 3 or time.perf_counter() < end):
        for slot in slots:
            decoder.truncate(slot, context)
        ids = draw(slots, [0] * B, configs, slots, [0] * B, config.vocab_size, n, None)
        if ids is None:
            return None
        begun = time.perf_counter()
        for _ in ids:
            pass
        times.append((time.perf_counter() - begun) / n)
    return statistics.median(times[1:]) if times else None


def _stepping(decoder: Decoder, config: GPTConfig, context: int, B: int, seconds: float) -> float:
    """Seconds a step, of steps whose logits come to the host."""
    rng, slots = np.random.default_rng(1), list(range(B))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 4 or time.perf_counter() < end:
        if decoder.lengths[0] == decoder.context:
            for slot in slots:
                decoder.truncate(slot, context)
        ids = rng.integers(0, config.vocab_size, B).tolist()
        begun = time.perf_counter()
        decoder.step(slots, ids)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def bandwidth(model: Any) -> float | None:
    """What this device reads from its memory a second, measured; None for the reference."""
    if model.ops.name == "cpu":
        from nanoeuler.ops.cpu.bandwidth import read_bandwidth

        return read_bandwidth(model.ops.threads, 1 << 28)
    if model.ops.name.startswith("gpu"):
        from nanoeuler.ops.gpu.timing import copy_bandwidth

        return copy_bandwidth(model.ops)
    return None
