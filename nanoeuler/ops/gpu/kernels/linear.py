"""The linear layer: its product, and the three products and sums of its backward pass, as plans of ``matmul``.

``out = x W + b`` is one product. Its gradients are two more, the same size each:

    dx = dout W^T        (N, O) by (O, I)
    dW = x^T dout        (I, N) by (N, O): the long dimension N is summed over
    db = sum of dout over rows
"""

from __future__ import annotations

from nanoeuler.ops.gpu.kernels.matmul import matmul, matmul_scratch, sums_rows, tiles_for
from nanoeuler.ops.gpu.kernels.reductions import column_sums, column_sums_scratch, sum_partials
from nanoeuler.ops.gpu.kernels.spec import Array, Launch, Target, cdiv


def linear(
    out: Array, x: Array, weight: Array, bias: Array, pre_gelu: Array | None = None, residual: Array | None = None,
    *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``out = x @ weight + bias``: x (N,I), weight (I,O) -> (N,O).

    With ``pre_gelu`` (N,O) that receives the sum and out its GELU. With ``residual`` (N,O) it is added to out.
    """
    gelu = 1 if pre_gelu is not None else 0
    return matmul(out, x, weight, bias=bias, residual=residual, pre=pre_gelu, gelu=gelu, target=target)


def linear_backward_scratch(N: int, inputs: int, outputs: int, dtype: str, target: Target) -> int:
    """fp32 elements of scratch that :func:`linear_backward` needs."""
    return max(
        matmul_scratch(inputs, outputs, N, dtype, target),
        column_sums_scratch(N, outputs, target),
        cdiv(N, 64) * inputs,
    )


def linear_backward(
    dx: Array, dweight: Array, dbias: Array | None, dout: Array, x: Array, weight: Array, scratch: Array,
    pre_gelu: Array | None = None, act: Array | None = None, accumulate: bool = False, dx_sum: Array | None = None,
    *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``dx = dout @ weight.T``, ``dweight (+)= x.T @ dout``, ``dbias (+)= sum of dout over rows``.

    With ``pre_gelu`` (N,I) the layer's input was ``x = gelu(pre_gelu)`` and dx becomes the gradient of pre_gelu; with
    ``act`` (N,I) besides, x was not kept: it is computed again into ``act``, from which dweight is then made.
    ``dbias`` None: it has been computed where dout was made. ``dx_sum`` (I,) (+)= the sum of dx over rows: the
    gradient of the bias of the linear layer before.
    """
    gelu = 2 if pre_gelu is not None else 0
    sums = None if dx_sum is None else scratch
    (N, outputs), inputs = dout.shape, dx.shape[1]
    launches = matmul(dx, dout, weight, b_t=True, pre=pre_gelu, act=act, gelu=gelu, sums=sums, target=target)
    if dx_sum is not None:
        rows = sums_rows(N, tiles_for(N, inputs, outputs, dout.dtype, target, False, gelu))
        launches.append(sum_partials([dx_sum], scratch, rows, accumulate))
    source = x if act is None else act
    launches += matmul(dweight, source, dout, a_t=True, accumulate=accumulate, scratch=scratch, target=target)
    if dbias is not None:
        launches += column_sums(dbias, dout, scratch, accumulate, target=target)
    return launches
