"""``nanoeuler bench``: how fast this machine is, operation by operation, and as a whole."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import say, table
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.model.gpt import GPT


class Timing(NamedTuple):
    """One row: median seconds, and the floating-point operations it does (0: bound by memory, not counted)."""

    name: str
    seconds: float
    flops: float


@click.command()
@click.option("--preset", default="demo", show_default=True, help="Size of the model, such as demo or gpt2.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Sequences in a step.")
@click.option("--seq-len", type=int, help="Tokens in a sequence.  [default: the model's context]")
@click.option("--seconds", type=float, default=0.5, show_default=True, help="How long to measure each row.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def command(preset: str, batch_size: int, seq_len: int | None, seconds: float, device: str, as_json: bool) -> None:
    """Measure the speed of each operation, of a training step, and of writing.

    A time is the median over the runs that fit into --seconds, after one to warm up. GFLOP/s count multiplications
    and additions of the matrix products and of attention (causal: half the square).

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
    if text := compile_cache.notice(device):
        say(text)
    model = GPT(config, device=device)
    rows = operations(model, batch_size, T, seconds)
    step = training_step(model, batch_size, T, seconds)
    write = writing(model, T, seconds)
    if as_json:
        sizes = {**config.to_dict(), "batch_size": batch_size, "seq_len": T, "device": device}
        timings = [row._asdict() for row in (*rows, step, write)]
        click.echo(json.dumps({"config": sizes, "timings": timings}))
        return
    click.echo(f"{preset} ({config.n_params:,} parameters), {batch_size} x {T} tokens, device {device}\n")
    table([_cells(row) for row in (*rows, step)], ["operation", "ms", "GFLOP/s"])
    click.echo(f"\ntraining  {batch_size * T / step.seconds:,.0f} tokens/s")
    click.echo(f"writing   {1 / write.seconds:,.0f} tokens/s after {T} tokens of context, one text at a time")


def _cells(row: Timing) -> list[str]:
    return [row.name, f"{1e3 * row.seconds:.3f}", f"{row.flops / row.seconds / 1e9:.1f}" if row.flops else "-"]


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

    cases: list[tuple[str, float, Callable[[], Any]]] = [
        ("embedding", 0, lambda: ops.embedding(a.embedded, a.idx, p["wte.weight"], p["wpe.weight"])),
        ("add + layernorm", 0, lambda: ops.add_layernorm(
            blk.ln2, blk.mean2, blk.rstd2, blk.mid, a.dresidual, a.delta, ln_w, p[h + "ln_1.bias"])),
        ("layernorm backward", 0, lambda: ops.layernorm_backward(
            a.dresidual, g[h + "ln_1.weight"], g[h + "ln_1.bias"], a.dln, blk.mid, blk.mean2, blk.rstd2, ln_w)),
        ("linear + GELU", fc, lambda: ops.linear(blk.act, blk.ln2, fc_w, fc_b, pre_gelu=blk.pre)),
        ("linear backward", 2 * fc, lambda: ops.linear_backward(
            a.dln, g[h + "mlp.c_fc.weight"], g[h + "mlp.c_fc.bias"], a.dpre, blk.ln2, fc_w)),
        ("attention", attention, lambda: ops.attention(blk.att, blk.lse, blk.qkv, heads)),
        ("attention backward", 2.5 * attention, lambda: ops.attention_backward(
            a.dqkv, a.dln.reshape(B, T, C), blk.att, blk.lse, blk.qkv, heads)),
        ("classifier", 6.0 * N * C * V, lambda: ops.classifier(
            a.losses, a.lnf, p["wte.weight"], a.targets, a.dln, g["wte.weight"], 1.0 / N)),
        ("global norm", 0, lambda: ops.global_norm(model.grads)),
        ("AdamW", 0, lambda: model.update(moments, step=1, lr=0.0)),
    ]  # fmt: skip
    return [Timing(name, median_seconds(run, seconds), flops) for name, flops, run in cases]


def training_step(model: GPT, B: int, T: int, seconds: float) -> Timing:
    """Forward, backward, clipping and AdamW (with a learning rate of 0, so that it can go on for ever)."""
    x, y = _tokens(model, B, T)
    moments = model.moments()

    def step() -> None:
        model.loss_and_grad(x, y)
        model.ops.global_norm(model.grads)
        model.update(moments, step=1, lr=0.0)

    return Timing("training step", median_seconds(step, seconds), flops_per_token(model, T) * B * T)


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
