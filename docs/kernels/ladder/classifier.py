"""The classifier's loss and gradients: with all logits in memory, and in chunks.

See ``docs/kernels/classifier.md``. Products are the engine's throughout; only what lies between them changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ladder.common import Get, Ladder, New, Rung, ends
from ladder.reductions import softmax_rows, three_pass_kernel
from nanoeuler.ops.gpu.kernels.classifier import classifier, logits_stride
from nanoeuler.ops.gpu.kernels.matmul import matmul
from nanoeuler.ops.gpu.kernels.spec import Target
from nanoeuler.ops.gpu.scratch import classifier_scratch
from nanoeuler.ops.reference import ReferenceOps


def ladder(new: New, target: Target, N: int, C: int, V: int, chunks: tuple[int, ...]) -> Ladder:
    """x (N, C), wte (V, C) -> losses, dx, dwte."""
    x, wte, targets = new(N, C), new(V, C, scale=C**-0.5), new(N, dtype="i32", below=V)
    losses, dx, dwte = new(N, dtype="fp32"), new(N, C), new(V, C, dtype="fp32")
    scale, stride = new(1, dtype="fp32", value=1.0 / N), logits_stride(V)
    most = max(classifier_scratch(N, rows, C, V, x.dtype, target) for rows in (N, *chunks))
    scratch, z, wide = new(most, dtype="fp32"), new(N, stride), new(N, stride, dtype="fp32")
    products = {"scratch": scratch, "target": target}
    naive = [
        *matmul(wide, x, wte, b_t=True, columns=V, **products),
        softmax_rows(three_pass_kernel, losses, z, wide, targets, scale, V, stride),
        *matmul(dx, z, wte, inner=V, **products),
        *matmul(dwte, z, x, a_t=True, **products),
    ]
    operations, logits = 6.0 * N * V * C, float(N * V)
    rungs = [
        Rung(
            f"all logits in fp32, their gradient beside them: {logits * 6 / 2**30:.2f} GiB", naive,
            logits * (4 + 3 * 4 + 2 + 2 * 2), operations,
        )
    ]  # fmt: skip
    for rows in (N, *chunks):
        rest = losses, x, wte, targets, z[:rows], scratch, dx, dwte, scale
        how = "all logits in bf16, gradient in place" if rows == N else f".. in chunks of {rows} rows"
        title = f"{how}: {2.0 * rows * V / 2**30:.2f} GiB"
        rungs.append(Rung(title, classifier(*rest, target=target), logits * (2 + 6 + 4), operations))
    for rung in rungs:
        rung.outputs = {"losses": losses, "dx": dx, "dwte": dwte}

    def check(get: Get, rung: Rung) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        table, factor = get(wte), float(get(scale)[0])
        for rows in ends(N):
            n = rows.stop - rows.start
            want, want_dx = np.empty(n), np.empty((n, C))
            ReferenceOps().classifier(want, get(x[rows]), table, get(targets[rows]).astype(int), want_dx, scale=factor)
            yield "losses", get(rung.outputs["losses"][rows]), want
            yield "dx", get(rung.outputs["dx"][rows]), want_dx
        if N > 1000:
            return  # dwte needs all rows: only where they are few
        want, want_dx, want_dwte = np.empty(N), np.empty((N, C)), np.empty((V, C))
        ReferenceOps().classifier(want, get(x), table, get(targets).astype(int), want_dx, want_dwte, factor)
        yield "dwte", get(rung.outputs["dwte"]), want_dwte

    return Ladder("classifier", rungs, check)
