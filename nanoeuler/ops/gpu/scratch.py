"""How much scratch memory the engine's operations need, known before they run: what ``nanoeuler plan`` counts."""

from __future__ import annotations

from nanoeuler.errors import UserError
from nanoeuler.model.activations import spare_bytes
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.gpu.kernels import attention as att
from nanoeuler.ops.gpu.kernels import classifier as cls
from nanoeuler.ops.gpu.kernels import layernorm as ln
from nanoeuler.ops.gpu.kernels import linear as lin
from nanoeuler.ops.gpu.kernels import matmul as mm
from nanoeuler.ops.gpu.kernels import optimizer as opt
from nanoeuler.ops.gpu.kernels.spec import Target
from nanoeuler.ops.gpu.runtime.driver import open_device
from nanoeuler.ops.storage import Storage

LOGITS_BYTES = 200 << 20  # the classifier's chunk of logits is at most about this large where none is given


def classifier_rows(N: int, C: int, V: int, item_bytes: int, target: Target, spare: int = 0) -> tuple[int, bool]:
    """(rows of logits that the classifier holds at a time, whether they fit into ``spare`` bytes).

    Whole tiles of 128 rows, if there are that many; in memory of its own only where that allows more of them.
    """

    def rows(n_bytes: int) -> int:
        fitting = n_bytes // (item_bytes * cls.logits_stride(V))
        return N if fitting >= N else fitting // 128 * 128

    own = max(rows(LOGITS_BYTES), min(N, 128))
    fits = rows(spare) >= own
    return cls.chunk_rows(N, C, rows(spare) if fits else own, target), fits


def classifier_scratch(N: int, rows: int, C: int, V: int, dtype: str, target: Target) -> int:
    """fp32 elements for what the classifier's products sum up on the side, over N rows in chunks of ``rows``."""
    chunks = [n for n in (rows, N % rows) if n]
    shapes = [shape for n in chunks for shape in ((n, V, C), (n, C, V), (V, C, n))]  # logits, dx and dwte
    return max(
        1, cls.stats_scratch(rows, V, dtype, target), *(mm.matmul_scratch(m, n, k, dtype, target) for m, n, k in shapes)
    )


def training_scratch(
    config: GPTConfig,
    B: int,
    T: int,
    storage: Storage,
    recompute: frozenset[str],
    target: Target | None = None,
) -> tuple[int, int, int]:
    """(bytes of logits, rows of logits, bytes of other scratch) that a training step ends up with.

    No bytes of logits: they lie over activations that are idle then.

    ``target``: by default the GPU of this machine or, if there is none, an H100.
    """
    target = target or _target_here()
    N, C, V = B * T, config.n_embd, config.vocab_size
    spare = spare_bytes(config, B, T, True, storage, recompute)[1]
    rows, fits = classifier_rows(N, C, V, storage.dtype_bytes, target, spare)
    layers = ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C))
    sums = max(
        ln.layernorm_backward_scratch(C, target),
        att.attention_backward_scratch(B, config.n_head, T, C),
        classifier_scratch(N, rows, C, V, storage.dtype, target),
        opt.global_norm_scratch(target),
        *(lin.linear_backward_scratch(N, inner, outer, storage.dtype, target) for inner, outer in layers),
    )
    logits = 0 if fits else rows * cls.logits_stride(V) * storage.dtype_bytes
    return logits, rows, 4 * (sums + N)


def _target_here() -> Target:
    try:
        device = open_device()
    except UserError:
        return Target()
    return Target(device.sm, device.n_sm)
