"""The linear layer: its product, and the three products and sums of its backward pass, as plans of ``matmul``.

``out = x W + b`` is one product. Its gradients are two more, the same size each:

    dx = dout W^T        (N, O) by (O, I)
    dW = x^T dout        (I, N) by (N, O): the long dimension N is summed over
    db = sum of dout over rows
"""

from __future__ import annotations

from collections.abc import Sequence

from nanoeuler.ops.gpu.kernels import weight_gradient as wg
from nanoeuler.ops.gpu.kernels.matmul import fits_tma, matmul, matmul_scratch, sums_rows, tiles_for
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
    """fp32 elements of scratch that :func:`linear_backward` and :func:`weight_gradients` need."""
    return max(
        wg.weight_gradients_scratch(target) if target.sm == 90 and dtype == "bf16" else 0,
        matmul_scratch(inputs, outputs, N, dtype, target),
        column_sums_scratch(N, outputs, target),
        cdiv(N, 64) * inputs,
    )


def linear_backward(
    dx: Array, dbias: Array | None, dout: Array, weight: Array, scratch: Array, pre_gelu: Array | None = None,
    act: Array | None = None, accumulate: bool = False, dx_sum: Array | None = None, *, target: Target,
) -> list[Launch]:  # fmt: skip
    """``dx = dout @ weight.T`` and ``dbias (+)= sum of dout over rows``; the weight: :func:`weight_gradients`.

    With ``pre_gelu`` (N,I) the layer's input was ``x = gelu(pre_gelu)`` and dx becomes the gradient of pre_gelu; with
    ``act`` (N,I) besides, x was not kept: it is computed again into ``act``, from which dweight is to be made.
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
    if dbias is not None:
        launches += column_sums(dbias, dout, scratch, accumulate, target=target)
    return launches


def weight_gradients(
    products: Sequence[tuple[Array, Array, Array]], scratch: Array, accumulate: bool = False, *, target: Target
) -> list[Launch]:
    """``dweight (+)= x.T @ dout`` for one or two (dweight, x, dout) with the same number of rows."""
    arrays = [array for product in products for array in product]
    if target.sm == 90 and all(fits_tma(a) and a.dtype == ("bf16" if i % 3 else "fp32") for i, a in enumerate(arrays)):
        return wg.weight_gradients(products, scratch, accumulate, target=target)
    launches = []
    for dweight, x, dout in products:
        launches += matmul(dweight, x, dout, a_t=True, accumulate=accumulate, scratch=scratch, target=target)
    return launches
