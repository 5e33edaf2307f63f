"""What a training run will hold in memory, counted before it starts: the figures are those of the arrays it makes.

Parameters, gradients and AdamW's two moments do not depend on the batch; activations grow with it. Scratch is what the
engine's operations use for a moment: above all a chunk of logits.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanoeuler.errors import UserError
from nanoeuler.model.activations import RECOMPUTE, n_bytes, recompute_level
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.data_parallel import micro_batches
from nanoeuler.ops import check_device
from nanoeuler.ops.storage import STORAGE
from nanoeuler.training.memory import available_memory

CONTEXT_BYTES = 529 << 20
"""What CUDA takes of the GPU's memory as soon as a program opens it: measured on an H200 with driver 580."""
PROGRAM_BYTES = {"reference": 80 << 20, "cpu": 210 << 20, "gpu": 584 << 20, "gpu-fp32": 584 << 20}
"""Python, NumPy and (cpu) Numba with its kernels, measured on Linux: the one figure that is no exact count. The run
that compiles the kernels needs 110 MiB more, for a moment. On a GPU, what CUDA takes of the GPU's memory: the context,
4 MiB for the kernels and the recorded step of GPT-2, and up to 50 (0 in most runs) since its pool of memory grows in
pieces of 2 to 32 MiB."""

AGAIN = {"none": "", "light": "; layer norms and GELU are computed again", "full": "; blocks are run again"}


@dataclass(frozen=True)
class PlanRow:
    """One line of the table: what it is, its bytes, and how they come about."""

    name: str
    bytes: int
    note: str


@dataclass(frozen=True)
class Plan:
    """The memory of training ``config`` with batches of B sequences of T tokens on ``device``.

    ``available``: the budget in bytes, None if unknown. ``largest_batch``: the largest B that fits into it: 0 if not
    even one sequence does, None if the budget is unknown. ``recompute``: a name in
    :data:`~nanoeuler.model.activations.RECOMPUTE`.
    """

    config: GPTConfig
    B: int
    T: int
    device: str
    recompute: str
    rows: tuple[PlanRow, ...]
    available: int | None
    largest_batch: int | None

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(row.bytes for row in self.rows)

    @property
    def fits(self) -> bool | None:
        """Whether it fits into what is available; None if that is unknown."""
        return None if self.available is None else self.total <= self.available


def plan(
    config: GPTConfig,
    B: int,
    T: int | None = None,
    device: str = "cpu",
    memory_bytes: int | None = None,
    recompute: str = "auto",
) -> Plan:
    """Count the memory of training with batches of ``B`` sequences of ``T`` tokens (default: block_size).

    ``memory_bytes`` is the budget; by default what the machine has available now. ``recompute`` "auto": what the device
    does by default. Raises UserError for an unknown device or sizes that do not fit the model.

    >>> table = plan(GPTConfig(), B=4, T=64, device="reference", memory_bytes=8 << 30)
    >>> table.rows[0].name, table.rows[0].bytes == 124439808 * 8
    ('parameters', True)
    """
    T = config.block_size if T is None else T
    check_device(device)
    if B < 1 or T < 1:
        raise UserError(f"a batch needs at least one sequence of one token, not {B} of {T}")
    if config.block_size < T:
        raise UserError(f"sequences of {T} tokens are longer than the model's block_size {config.block_size}")
    budget = _available(device) if memory_bytes is None else memory_bytes
    level = recompute_level(recompute, STORAGE[device])
    largest = None if budget is None else _largest_batch(config, T, device, budget, level)
    return Plan(config, B, T, device, level, _rows(config, B, T, device, level), budget, largest)


def alternatives(made: Plan) -> list[Plan]:
    """The same run with each choice of ``recompute``, that of ``made`` among them."""
    sizes = (made.config, made.B, made.T, made.device, made.available)
    return [made if level == made.recompute else plan(*sizes, level) for level in RECOMPUTE]


def advice(made: Plan) -> str:
    """What to change in a run that does not fit, in words."""
    fits = []
    if made.largest_batch:
        fits.append(f"batch_size {made.largest_batch} fits")
    best = max(alternatives(made), key=lambda other: other.largest_batch or 0)
    if best.largest_batch and best.largest_batch > (made.largest_batch or 0):
        fits.append(f"batch_size {best.largest_batch} does with --recompute {best.recompute}")
    return ", ".join(fits) or "choose a smaller model or seq_len"


def _available(device: str) -> int | None:
    """Bytes that a run on ``device`` could have now, None if unknown: on the GPU, or of the machine's memory."""
    if device.startswith("gpu"):
        from nanoeuler.ops.gpu.runtime.driver import free_bytes

        free = free_bytes()
        return None if free is None else free + CONTEXT_BYTES  # which this process has taken by asking
    return available_memory()


def _rows(config: GPTConfig, B: int, T: int, device: str, level: str) -> tuple[PlanRow, ...]:
    storage, n, N, on_gpu = STORAGE[device], config.n_params, B * T, device.startswith("gpu")
    exact = storage.exact_bytes
    again = RECOMPUTE[level]
    # workers: each has its gradients, and activations for every size of micro-batch; evaluation takes batches whole
    sizes = [set(sizes) for sizes in micro_batches(config, B, T, storage)]
    kept = [n_bytes(config, b, T, True, storage, again) for own in sizes or [{B}] for b in own]
    kept += [n_bytes(config, B, T, False, storage)] if sizes else []
    held = (sum(map(sum, sizes)) + B if sizes else B) * T  # token ids in the model
    note = f"kept for backward, {B} x {T} tokens"
    if sizes:
        note = f"of two workers with {max(map(max, sizes))} x {T} tokens at a time, and of evaluation"
    if storage.rounds:
        copies = f"{n:,} numbers of {exact} bytes, and a copy of {storage.dtype_bytes} bytes to compute with"
        parameters = PlanRow("parameters", n * (exact + storage.dtype_bytes), copies)
    else:
        parameters = PlanRow("parameters", n * exact, f"{n:,} numbers of {exact} bytes")
    logits, chunk, scratch = _scratch(config, B, T, device, again)
    each = "one for each parameter" + (" and worker" if sizes else "")
    return (
        parameters,
        PlanRow("gradients", n * exact * (len(sizes) or 1), each),
        PlanRow("optimizer", 2 * n * exact, "AdamW's two moments for each parameter"),
        PlanRow("activations", sum(kept), note + AGAIN[level]),
        PlanRow(
            "batch",
            ((6 if on_gpu else 4) * N + 2 * (held - N)) * 4,
            "token ids and targets, on their way and in the model",
        ),
        PlanRow("logits", logits, f"{chunk} rows of {config.vocab_size:,} at a time"),
        PlanRow("scratch", scratch, "of the operations, reused by all of them"),
        PlanRow("program", PROGRAM_BYTES[device], f"{'CUDA' if on_gpu else 'Python and its libraries'} (about)"),
    )


def _scratch(config: GPTConfig, B: int, T: int, device: str, recompute: frozenset[str]) -> tuple[int, int, int]:
    """(bytes of logits, rows of logits, bytes of other scratch) that the engine ends up with."""
    if device.startswith("gpu"):
        try:
            from nanoeuler.ops.gpu.scratch import training_scratch  # needs Triton, but no GPU
        except ImportError:
            from nanoeuler.ops.gpu.runtime.driver import load_bindings

            load_bindings()  # says what to install
            raise

        return training_scratch(config, B, T, STORAGE[device], recompute)
    size = STORAGE[device].dtype_bytes
    scratch, chunk = _cpu_scratch(config, B, T) if device == "cpu" else _reference_scratch(config, B * T)
    return chunk * config.vocab_size * size, chunk, scratch * size


def _cpu_scratch(config: GPTConfig, B: int, T: int) -> tuple[int, int]:
    """(floats of scratch, rows of logits) that the CPU engines end up with after a training step and an evaluation."""
    import numba

    from nanoeuler.ops.cpu import scratch  # and no kernel, for importing those compiles them

    threads = numba.get_num_threads()
    norm = 2 * scratch.flat_blocks(config.n_params)  # float64 partial sums count as two floats each
    workers = micro_batches(config, B, T, STORAGE["cpu"])
    floats, rows = _cpu_operations(config, B, T, threads, backward=not workers)
    for sizes in workers:
        each = [_cpu_operations(config, b, T, max(1, threads // 2), backward=True) for b in set(sizes)]
        floats, rows = floats + max(f for f, _ in each), rows + max(r for _, r in each)
    return floats + norm, rows


def _cpu_operations(config: GPTConfig, B: int, T: int, threads: int, backward: bool) -> tuple[int, int]:
    """(floats of scratch, rows of logits) of one engine."""
    from nanoeuler.ops.cpu import scratch

    N, C, V = B * T, config.n_embd, config.vocab_size
    chunk = scratch.classifier_rows(N, V)
    chunks = [n for n in (chunk, N % chunk) if n]
    shapes = [(n, V, C) for n in chunks]
    if backward:
        shapes += [shape for n in chunks for shape in ((n, C, V), (V, C, n))]
    for inner, outer in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)):
        shapes += [(N, outer, inner)]
        shapes += [(inner, outer, N), (N, inner, outer)] if backward else []  # dweight, dx
    private = threads * (scratch.product_private() + scratch.attention_private(T, config.head_dim))
    shared = max(scratch.product_shared(*shape) for shape in shapes)
    shares = max(scratch.norm_shares(N, C), scratch.sum_shares(4 * C)) if backward else 0
    return private + shared + shares, chunk


def _reference_scratch(config: GPTConfig, N: int) -> tuple[int, int]:
    """The reference engine makes fresh arrays as it goes: about three times the logits at its peak."""
    return 2 * N * config.vocab_size, N


def _largest_batch(config: GPTConfig, T: int, device: str, budget: int, level: str) -> int:
    """The largest B whose total is within ``budget``, by doubling and then halving the gap."""

    def fits(B: int) -> bool:
        return sum(row.bytes for row in _rows(config, B, T, device, level)) <= budget

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
