"""``nanoeuler bench``: how fast this machine is, operation by operation, and as a whole."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import say, table
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.model.gpt import GPT
    from nanoeuler.training.step import Stepper


class Timing(NamedTuple):
    """One row: median seconds, the floating-point operations it does (0: bound by memory, not counted), and the least
    bytes it must move: each input read and each output written once (0: not counted)."""

    name: str
    seconds: float
    flops: float
    bytes: float = 0.0


@click.command()
@click.option("--preset", default="demo", show_default=True, help="Size of the model, such as demo or gpt2.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Sequences in a step.")
@click.option("--seq-len", type=int, help="Tokens in a sequence.  [default: the model's context]")
@click.option("--seconds", type=float, default=0.5, show_default=True, help="How long to measure each row.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option(
    "--profile", metavar="FILE.svg", help="On a GPU: the time of each kernel in a step, as table and picture."
)
def command(
    preset: str,
    batch_size: int,
    seq_len: int | None,
    seconds: float,
    device: str,
    as_json: bool,
    profile: str | None,
) -> None:
    """Measure the speed of each operation, of a training step, and of writing.

    A time is the median over the runs that fit into --seconds, after one to warm up. GFLOP/s count multiplications
    and additions of the matrix products and of attention (causal: half the square), GB/s each input and output once.
    On a GPU the last column is the share of what it can do at best: the time that its measured copy bandwidth or
    matrix rate would allow over the time it took.

    \b
    Example:
      nanoeuler bench --preset gpt2 --batch-size 4 --seq-len 64
    """
    from nanoeuler.model.config import GPTConfig
    from nanoeuler.model.gpt import GPT

    config = GPTConfig.preset(preset)
    T = config.block_size if seq_len is None else seq_len
    if batch_size < 1 or not 1 <= T <= config.block_size:
        raise UserError(f"batch_size must be at least 1 and seq_len 1 to {config.block_size}, not {batch_size} and {T}")
    if not 0 < seconds < 3600:
        raise UserError(f"--seconds must be above 0 and below 3600, not {seconds}")
    if profile is not None and (as_json or not device.startswith("gpu")):
        raise UserError("--profile times a GPU's kernels and prints a table: give --device gpu, and leave --json out")
    if text := compile_cache.notice(device):
        say(text)
    model = GPT(config, device=device)
    rows = operations(model, batch_size, T, seconds)
    stepper = new_step(model, batch_size, T)
    step = training_step(model, stepper, batch_size, T, seconds)
    write = writing(model, T, seconds)
    peak = model.ops.memory.peak if device.startswith("gpu") else 0  # type: ignore[attr-defined]
    best = ceilings(model)
    if as_json:
        sizes = {**config.to_dict(), "batch_size": batch_size, "seq_len": T, "device": device}
        timings = [row._asdict() for row in (*rows, step, write)]
        click.echo(json.dumps({"config": sizes, "timings": timings, "ceilings": best._asdict() if best else None}))
        return
    click.echo(f"{preset} ({config.n_params:,} parameters), {batch_size} x {T} tokens, device {device}\n")
    head = ["operation", "ms", "GFLOP/s", "GB/s", *(["of the best"] if best else [])]
    table([_cells(row, best) for row in (*rows, step)], head)
    click.echo(f"\ntraining  {batch_size * T / step.seconds:,.0f} tokens/s")
    if best:
        click.echo(utilisation(model, batch_size, T, step.seconds, peak))
        click.echo(f"best here: copies {best.bandwidth / 1e9:,.0f} GB/s, products {best.flops / 1e12:,.0f} TFLOP/s")
    click.echo(f"writing   {1 / write.seconds:,.0f} tokens/s after {T} tokens of context, one text at a time")
    if profile is not None:
        show_profile(stepper, Path(profile))


def show_profile(stepper: Stepper, path: Path) -> None:
    """Print the time of each kernel in a recorded step, and draw it into ``path``."""
    from nanoeuler.durable import write_text
    from nanoeuler.ops.gpu.runtime.profile import bars
    from nanoeuler.ops.gpu.step import RecordedStep

    assert isinstance(stepper, RecordedStep)
    kernels = stepper.profile()
    total = sum(k.milliseconds for k in kernels)
    rows = [[k.name, str(k.launches), f"{k.milliseconds:.3f}", f"{k.milliseconds / total:.1%}"] for k in kernels]
    click.echo()
    table(rows, ["kernel", "launches", "ms", "share"])
    write_text(path, bars(kernels))
    click.echo(f"\npicture in {path}")


class Ceilings(NamedTuple):
    """The best a GPU does: bytes a second of a copy, operations a second of a large matrix product."""

    bandwidth: float
    flops: float


def ceilings(model: GPT) -> Ceilings | None:
    """Measured on the model's GPU; None for an engine without one."""
    if not model.ops.name.startswith("gpu"):
        return None
    from nanoeuler.ops.gpu.timing import copy_bandwidth, matrix_rate

    return Ceilings(copy_bandwidth(model.ops), matrix_rate(model.ops))  # type: ignore[arg-type]


def utilisation(model: GPT, B: int, T: int, seconds: float, peak_bytes: int) -> str:
    """The share of the GPU's promised matrix rate that training uses (MFU), in words, and the memory it took.

    Counted as is usual (Chowdhery et al. 2022, "PaLM", appendix B): ``6 N + 6 n_layer n_embd T`` operations a token, N
    parameters; recomputation does not count.
    """
    from nanoeuler.ops.gpu.timing import peak_flops

    c, peak = model.config, f"peak memory {peak_bytes / 1e9:.2f} GB"
    name = model.ops.device.name  # type: ignore[attr-defined]
    promised = peak_flops(name)
    if promised is None:
        return f"          {peak}; no share of the peak: the matrix rate of {name} is not in the table"
    per_token = 6 * c.n_params + 6 * c.n_layer * c.n_embd * T
    mfu = per_token * B * T / seconds / promised
    return (
        f"          {mfu:.1%} of {promised / 1e12:g} TFLOP/s (MFU: (6 x {c.n_params:,} + 6 x {c.n_layer} x {c.n_embd} "
        f"x {T}) operations a token); {peak}"
    )


def _cells(row: Timing, best: Ceilings | None) -> list[str]:
    cells = [row.name, f"{1e3 * row.seconds:.3f}"]
    cells += [f"{amount / row.seconds / 1e9:.1f}" if amount else "-" for amount in (row.flops, row.bytes)]
    if best:
        least = max(row.flops / best.flops, row.bytes / best.bandwidth)
        cells.append(f"{least / row.seconds:.0%}")
    return cells


def timer(model: GPT) -> Callable[[Callable[[], Any], float], float]:
    """How to time an operation of the model's engine: :func:`median_seconds`, or the GPU's own."""
    if not model.ops.name.startswith("gpu"):
        return median_seconds
    from nanoeuler.ops.gpu import timing

    return lambda run, seconds: timing.median_seconds(model.ops, run, seconds)  # type: ignore[arg-type]


def median_seconds(run: Callable[[], Any], seconds: float) -> float:
    """Median time of ``run``: of as many runs as fit into ``seconds``, at least three, after one not counted."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def operations(model: GPT, B: int, T: int, seconds: float) -> list[Timing]:
    """The table of operations, on the arrays of the first block after a real step."""
    x, y = _tokens(model, B, T)
    model.loss_and_grad(x, y)
    a, ops, p, g = model.activations(B, T, training=True), model.ops, model.p, model.g
    blk, N, C, V = a.layers[0], B * T, model.config.n_embd, model.config.vocab_size
    h, heads = "h.0.", model.config.n_head
    fc_w, fc_b, ln_w = p[h + "mlp.c_fc.weight"], p[h + "mlp.c_fc.bias"], p[h + "ln_1.weight"]
    moments = model.moments()
    fc = 2.0 * N * C * 4 * C
    attention = 2.0 * 2 * B * T * T * C / 2  # scores and weighted sum, half of each square

    b, e, n = ops.storage.dtype_bytes, ops.storage.exact_bytes, model.layout.n_params
    row = N * C * b  # bytes of one number a row and channel
    norm: Callable[[], Any] = lambda: ops.global_norm(model.grads)  # noqa: E731
    if ops.name.startswith("gpu"):
        result = ops.zeros((2,), ops.exact)
        norm = lambda: ops.norm_and_clip(result, model.grads, 1.0)  # type: ignore[attr-defined]  # noqa: E731

    cases: list[tuple[str, float, float, Callable[[], Any]]] = [
        ("embedding", 0, 2 * row, lambda: ops.embedding(a.embedded, a.idx, p["wte.weight"], p["wpe.weight"])),
        ("add + layernorm", 0, 4 * row, lambda: ops.add_layernorm(
            blk.ln2, blk.mean2, blk.rstd2, blk.mid, a.dresidual, a.delta, ln_w, p[h + "ln_1.bias"])),
        ("layernorm backward", 0, 3 * row, lambda: ops.layernorm_backward(
            a.dresidual, g[h + "ln_1.weight"], g[h + "ln_1.bias"], a.dln, blk.mid, blk.mean2, blk.rstd2, ln_w)),
        ("linear + GELU", fc, 9 * row + 4 * C * C * b, lambda: ops.linear(
            blk.act, blk.ln2, fc_w, fc_b, pre_gelu=blk.pre)),
        ("linear backward", 2 * fc, 6 * row + 4 * C * C * (b + e), lambda: ops.linear_backward(
            a.dln, g[h + "mlp.c_fc.weight"], g[h + "mlp.c_fc.bias"], a.dpre, blk.ln2, fc_w)),
        ("attention", attention, 4 * row, lambda: ops.attention(blk.att, blk.lse, blk.qkv, heads)),
        ("attention backward", 2.5 * attention, 8 * row, lambda: ops.attention_backward(
            a.dqkv, a.dln.reshape(B, T, C), blk.att, blk.lse, blk.qkv, heads)),
        ("classifier", 6.0 * N * C * V, 2 * row + V * C * (b + e), lambda: ops.classifier(
            a.losses, a.lnf, p["wte.weight"], a.targets, a.dln, g["wte.weight"], 1.0 / N)),
        ("global norm", 0, n * e, norm),
        ("AdamW", 0, n * (7 * e + b * ops.storage.rounds), lambda: model.update(moments, step=1, lr=0.0)),
    ]  # fmt: skip
    measure = timer(model)
    return [Timing(name, measure(run, seconds), flops, moved) for name, flops, moved, run in cases]


def new_step(model: GPT, B: int, T: int) -> Stepper:
    """Training steps on one batch of random tokens."""
    from nanoeuler.training.config import TrainConfig
    from nanoeuler.training.step import new_stepper

    x, y = _tokens(model, B, T)

    def fetch(n: int, out: tuple[np.ndarray, np.ndarray]) -> None:
        out[0][...], out[1][...] = x, y

    config = TrainConfig(device=model.ops.name, batch_size=B)
    return new_stepper(model, model.moments(), config, T, fetch)


def training_step(model: GPT, stepper: Stepper, B: int, T: int, seconds: float) -> Timing:
    """Forward, backward, clipping and AdamW (with a learning rate of 0, so that it can go on for ever)."""
    several = 10 if model.ops.name.startswith("gpu") else 1  # the host works ahead of a GPU: one step is no measure
    numbers = itertools.count(1)

    def steps() -> None:
        for _ in range(several):
            stepper.run(next(numbers), 0.0)
        stepper.finish()

    took = median_seconds(steps, seconds) / several
    return Timing("training step", took, flops_per_token(model, T) * B * T)


def writing(model: GPT, T: int, seconds: float) -> Timing:
    """The next token's logits after ``T`` tokens."""
    x, _ = _tokens(model, 1, T)
    return Timing("next token", median_seconds(lambda: model.logits(x, last_only=True), seconds), 0)


def flops_per_token(model: GPT, T: int) -> float:
    """Of a training step: 6 for each weight of a matrix product (2 forward, 4 backward), and attention's.

    Attention forward is 2·T·C a layer and token (causal), backward 2.5 times that: scores are computed again.
    """
    c = model.config
    return 6.0 * (c.n_layer * 12 * c.n_embd**2 + c.vocab_size * c.n_embd) + 3.5 * c.n_layer * 2 * T * c.n_embd


def _tokens(model: GPT, B: int, T: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, model.config.vocab_size, (2, B, T), dtype=np.int32)
    return x, y
