"""``nanoeuler bench``: how fast this machine is, operation by operation, and as a whole."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import kernel_table, say, table
from nanoeuler.cli.values import COUNT
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.model.config import GPTConfig
    from nanoeuler.model.gpt import GPT
    from nanoeuler.ops.gpu.timing import Ceilings
    from nanoeuler.training.step import Stepper


class Timing(NamedTuple):
    """One row: median seconds, the floating-point operations it does (0: bound by memory, not counted), and the least
    bytes it must move: each input read and each output written once (0: not counted)."""

    name: str
    seconds: float
    flops: float
    bytes: float = 0.0


@click.command()
@click.argument("what", type=click.Choice(["all", "kernels", "train", "generate"]), default="all")
@click.option("--preset", default="demo", show_default=True, help="Size of the model, such as demo or gpt2.")
@click.option("--batch-size", type=COUNT, default=8, show_default=True, help="Sequences in a step.")
@click.option("--seq-len", type=COUNT, help="Tokens in a sequence.  [default: the model's context]")
@click.option("--seconds", type=float, default=0.5, show_default=True, help="How long to measure each row.")
@click.option("--device", default="cpu", show_default=True, help="cpu, gpu or reference.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option(
    "--profile", metavar="FILE.svg", help="On a GPU: the time of each kernel in a step, as table and picture."
)
@click.option("--weights", metavar="KIND", help="generate: float32, bf16 or int8.  [default: the device's own]")
@click.option("--no-peer", is_flag=True, help="kernels: without PyTorch's times, where it is installed.")
def command(
    what: str,
    preset: str,
    batch_size: int,
    seq_len: int | None,
    seconds: float,
    device: str,
    as_json: bool,
    profile: str | None,
    weights: str | None,
    no_peer: bool,
) -> None:
    """Measure the speed of each kernel, of a training step, and of writing.

    kernels: on a GPU each kernel of a step, with bytes, operations, the share of what the GPU can do at best (the time
    that its measured copy bandwidth or matrix rate would allow over the time it took) and, in a checkout with PyTorch
    installed, PyTorch's time; on a CPU each operation. train: milliseconds a step, tokens a second, the share of the
    GPU's promised matrix rate (MFU), peak memory. generate: time to the first token, tokens a second, bytes read a
    second and their share of what memory gives at best, by length of context and texts side by side. all: operations,
    training and writing.

    A time is the median over the runs that fit into --seconds, after one to warm up. GFLOP/s count multiplications
    and additions of the matrix products and of attention (causal: half the square), GB/s each input and output once.

    \b
    Examples:
      nanoeuler bench --preset gpt2 --batch-size 4 --seq-len 64
      nanoeuler bench train --device gpu --preset gpt2 --batch-size 16 --profile step.svg
      nanoeuler bench kernels --device gpu --preset gpt2 --batch-size 16
      nanoeuler bench generate --preset gpt2 --weights int8
    """
    from nanoeuler.model.config import GPTConfig

    config = GPTConfig.preset(preset)
    T = config.block_size if seq_len is None else seq_len
    on_gpu = device.startswith("gpu")
    if batch_size < 1 or not 1 <= T <= config.block_size:
        raise UserError(f"batch_size must be at least 1 and seq_len 1 to {config.block_size}, not {batch_size} and {T}")
    if not 0 < seconds < 3600:
        raise UserError(f"--seconds must be above 0 and below 3600, not {seconds}")
    if profile is not None and (as_json or not on_gpu or what == "kernels"):
        raise UserError(
            "--profile times a GPU's kernels in a step and prints a table: give --device gpu, and leave --json and "
            "'kernels' out"
        )
    if text := compile_cache.notice(device):
        say(text)
    if what == "generate":
        from nanoeuler.cli import bench_generate

        bench_generate.command(preset, config, seconds, device, weights, as_json)
        return
    if what == "kernels" and on_gpu:
        from nanoeuler.cli import bench_kernels

        bench_kernels.command(preset, config, batch_size, T, seconds, device, as_json, not no_peer)
        return
    overview(what, preset, config, batch_size, T, seconds, device, as_json, profile)


def overview(
    what: str,
    preset: str,
    config: GPTConfig,
    B: int,
    T: int,
    seconds: float,
    device: str,
    as_json: bool,
    profile: str | None,
) -> None:
    """Measure and print the model's operations (``what`` all or kernels), training (all or train), writing (all)."""
    from nanoeuler.model.gpt import GPT
    from nanoeuler.training.config import TrainConfig
    from nanoeuler.training.setup import check_memory

    check_memory(TrainConfig(device=device, batch_size=B, seq_len=T), config)
    model = GPT(config, device=device)
    rows = operations(model, B, T, seconds) if what != "train" else []
    stepper = new_step(model, B, T) if what != "kernels" else None
    steps = [training_step(model, stepper, B, T, seconds)] if stepper else []
    peak = peak_memory(model)
    writes = [writing(model, T, seconds)] if what == "all" else []
    best = ceilings(model) if what == "all" else None
    if as_json:
        sizes = {**config.to_dict(), "batch_size": B, "seq_len": T, "device": device}
        record: dict[str, Any] = {"config": sizes, "timings": [row._asdict() for row in (*rows, *steps, *writes)]}
        if steps:
            record["training"] = _record(model, B, T, steps[0].seconds, peak)
        click.echo(json.dumps({**record, "ceilings": best._asdict() if best else None}))
        return
    click.echo(f"{preset} ({config.n_params:,} parameters), {B} x {T} tokens, device {device}\n")
    if rows:
        head = ["operation", "ms", "GFLOP/s", "GB/s", *(["of the best"] if best else [])]
        table([_cells(row, best) for row in (*rows, *steps)], head)
        click.echo()
    for step in steps:
        click.echo(f"training  {1e3 * step.seconds:,.2f} ms a step, {B * T / step.seconds:,.0f} tokens/s")
        click.echo(utilisation(model, B, T, step.seconds, peak))
    if best:
        click.echo(f"best here: copies {best.bandwidth / 1e9:,.0f} GB/s, products {best.flops / 1e12:,.0f} TFLOP/s")
    for write in writes:
        click.echo(f"writing   {1 / write.seconds:,.0f} tokens/s after {T} tokens of context, one text at a time")
    if profile is not None and stepper is not None:
        show_profile(stepper, Path(profile), f"{preset}, a training step of {B} x {T} tokens")


def show_profile(stepper: Stepper, path: Path, title: str) -> None:
    """Print the time of each kernel in a recorded step, and draw it into ``path``."""
    from nanoeuler.durable import write_text
    from nanoeuler.ops.gpu.runtime.picture import picture
    from nanoeuler.ops.gpu.runtime.profile import by_kernel
    from nanoeuler.ops.gpu.step import RecordedStep

    assert isinstance(stepper, RecordedStep)
    spans = stepper.profile()
    click.echo()
    table(*kernel_table(by_kernel(spans)))
    write_text(path, picture(spans, title))
    click.echo(f"\npicture in {path}")


def ceilings(model: GPT) -> Ceilings | None:
    """Measured on the model's GPU; None for an engine without one."""
    if not model.ops.name.startswith("gpu"):
        return None
    from nanoeuler.ops.gpu import timing

    return timing.ceilings(model.ops)  # type: ignore[arg-type]


def peak_memory(model: GPT) -> int | None:
    """Bytes: on a GPU what the engine had allocated at most, elsewhere what the process took; None if unknown."""
    if model.ops.name.startswith("gpu"):
        return int(model.ops.memory.peak)  # type: ignore[attr-defined]
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def promised_flops(model: GPT) -> tuple[str, float | None]:
    """(name of the processor, operations a second that its maker promises; None if that is not in the table)."""
    if not model.ops.name.startswith("gpu"):
        return "this processor", None
    from nanoeuler.ops.gpu.timing import peak_flops

    name = model.ops.device.name  # type: ignore[attr-defined]
    return name, peak_flops(name) if model.ops.storage.rounds else None


def mfu_per_token(model: GPT, T: int) -> float:
    """Operations a token as MFU counts them (Chowdhery et al. 2022, "PaLM", appendix B): ``6 N + 6 n_layer n_embd T``
    with N parameters; recomputation does not count. Theirs has 12 for attention; half of it is masked away here."""
    c = model.config
    return 6.0 * c.n_params + 6.0 * c.n_layer * c.n_embd * T


def utilisation(model: GPT, B: int, T: int, seconds: float, peak: int | None) -> str:
    """The share of the GPU's promised matrix rate that training uses, in words, and the memory it took."""
    c, (name, promised) = model.config, promised_flops(model)
    memory = f"          peak memory {peak / 1e9:.2f} GB" if peak else "          peak memory unknown"
    if not model.ops.name.startswith("gpu"):
        return memory  # of a processor nobody promises a rate
    if not model.ops.storage.rounds:
        return f"{memory}\n          no MFU: it is the share of a GPU's bfloat16 matrix rate"
    if promised is None:
        return f"{memory}\n          MFU unknown: the bfloat16 matrix rate of {name} is not in the table"
    mfu = mfu_per_token(model, T) * B * T / seconds / promised
    return (
        f"{memory}\n          MFU {mfu:.1%}: (6 x {c.n_params:,} + 6 x {c.n_layer} x {c.n_embd} x {T}) operations a "
        f"token, of the {promised / 1e12:g} TFLOP/s (dense bfloat16) of {name}"
    )


def _record(model: GPT, B: int, T: int, seconds: float, peak: int | None) -> dict[str, Any]:
    """What ``bench train`` says, as JSON."""
    name, promised = promised_flops(model)
    per_token = mfu_per_token(model, T)
    return {
        "ms_per_step": 1e3 * seconds,
        "tokens_per_s": B * T / seconds,
        "flops_per_token": per_token,
        "processor": name,
        "promised_flops": promised,
        "mfu": per_token * B * T / seconds / promised if promised else None,
        "peak_bytes": peak,
    }


def _cells(row: Timing, best: Ceilings | None) -> list[str]:
    cells = [row.name, f"{1e3 * row.seconds:.3f}"]
    cells += [f"{amount / row.seconds / 1e9:.1f}" if amount else "-" for amount in (row.flops, row.bytes)]
    if best:
        cells.append(f"{best.least_seconds(row.bytes, row.flops) / row.seconds:.0%}")
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
