"""The GPU engine's column of the table: it hands arrays to the kernels' plans and launches what they describe.

Kernels take what varies from call to call (a dropout seed, the scale of a loss) from device memory, because a recorded
step can change nothing else. Called with a plain number, an operation first writes it there.

Scratch memory grows to what the largest operation so far needed; kernels run one after another, so all share it.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler.ops.gpu.fusing import Fusing
from nanoeuler.ops.gpu.kernels import attention as att
from nanoeuler.ops.gpu.kernels import classifier as cls
from nanoeuler.ops.gpu.kernels import dropout as drp
from nanoeuler.ops.gpu.kernels import embedding as emb
from nanoeuler.ops.gpu.kernels import layernorm as ln
from nanoeuler.ops.gpu.kernels import linear as lin
from nanoeuler.ops.gpu.kernels import matmul as mm
from nanoeuler.ops.gpu.kernels import optimizer as opt
from nanoeuler.ops.gpu.kernels import totals
from nanoeuler.ops.gpu.kernels.spec import Target
from nanoeuler.ops.gpu.runtime.driver import Device, open_device
from nanoeuler.ops.gpu.runtime.launch import Launcher
from nanoeuler.ops.gpu.runtime.memory import DeviceArray, Memory
from nanoeuler.ops.gpu.scratch import classifier_rows, classifier_scratch
from nanoeuler.ops.storage import STORAGE, Storage


@dataclass(frozen=True)
class DeviceSeed:
    """A dropout seed in device memory, (1,) i32, plus a number that is known when recording."""

    array: DeviceArray
    site: int = 0

    def __add__(self, site: int) -> DeviceSeed:
        return DeviceSeed(self.array, self.site + site)


class Runtime:
    """A GPU, its memory, and its loaded kernels: one for all engines of a process."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = Memory(device)
        self.launch = Launcher(device, self.memory)


@functools.cache
def open_runtime() -> Runtime:
    """The first GPU's. UserError if there is none that will do."""
    return Runtime(open_device())


class GpuOps(Fusing):
    """bfloat16 (``gpu``) or float32 (``gpu-fp32``) on an NVIDIA GPU; see ``ops/table.py`` for what each operation does.

    Raises UserError where there is no GPU, no driver, or a package is missing.
    """

    def __init__(self, name: str = "gpu", runtime: Runtime | None = None) -> None:
        self.name = name
        self.storage: Storage = STORAGE[name]
        self.dtype, self.exact = self.storage.dtype, self.storage.exact
        self.runtime = runtime or open_runtime()
        self.device, self.memory = self.runtime.device, self.runtime.memory
        self.target = Target(self.device.sm, self.device.n_sm)
        self._scratch: dict[str, DeviceArray] = {}
        self._recorded: list[DeviceArray] = []  # scratch that a recorded step has the address of
        super().__init__()

    # ---- memory -------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> DeviceArray:
        return self.memory.empty(shape, dtype or self.dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> DeviceArray:
        return self.memory.zeros(shape, dtype or self.dtype)

    def upload(self, dst: DeviceArray, src: np.ndarray) -> None:
        self.memory.upload(dst, src)

    def download(self, src: DeviceArray) -> np.ndarray:
        return self.memory.download(src)

    def convert(self, dst: DeviceArray, src: DeviceArray) -> None:
        self._run(totals.convert(dst, src, target=self.target))

    def planning(self) -> AbstractContextManager[None]:
        """Inside, operations compute nothing; afterwards all that they need is compiled and allocated."""
        return self.runtime.launch.planning()

    def _space(self, name: str, n: int, dtype: str = "fp32") -> DeviceArray:
        """Scratch of at least ``n`` elements."""
        if name not in self._scratch or self._scratch[name].size < n:
            self._scratch.pop(name, None)  # given back before the larger piece is taken
            self._scratch[name] = self.memory.empty((n,), dtype)
        return self._scratch[name]

    def drop_scratch(self) -> None:
        """Give back the scratch that no recorded step uses."""
        self._scratch.clear()

    def keep_scratch(self) -> None:
        """Keep what scratch there is now, even if it grows: a step is being recorded that uses it."""
        self._recorded += self._scratch.values()

    def _number(self, name: str, value: float | int) -> DeviceArray:
        """``value`` as an array (1,) on the device, fp32 or i32."""
        array = self._space(name, 1, "fp32" if isinstance(value, float) else "i32")
        self.memory.put(array, value)
        return array

    # ---- embedding, layer norm ----------------------------------------------------------------------
    def embedding(self, out: DeviceArray, idx: DeviceArray, wte: DeviceArray, wpe: DeviceArray) -> None:
        self._run(emb.embedding(out, idx, wte, wpe, target=self.target))

    def embedding_backward(
        self, dwte: DeviceArray, dwpe: DeviceArray, dout: DeviceArray, idx: DeviceArray, accumulate: bool = False
    ) -> None:
        order = self._space("order", idx.size, "i32")
        self._run(emb.sort_places(order, idx, target=self.target))
        self._run(emb.embedding_backward(dwte, dwpe, dout, idx, order, bool(accumulate), target=self.target))

    def layernorm(
        self,
        out: DeviceArray,
        mean: DeviceArray,
        rstd: DeviceArray,
        x: DeviceArray,
        weight: DeviceArray,
        bias: DeviceArray,
    ) -> None:
        self._run(ln.layernorm(out, mean, rstd, x, weight, bias, target=self.target), out, mean, rstd)

    def add_layernorm(
        self,
        out: DeviceArray,
        mean: DeviceArray,
        rstd: DeviceArray,
        residual: DeviceArray,
        x: DeviceArray,
        delta: DeviceArray,
        weight: DeviceArray,
        bias: DeviceArray,
    ) -> None:
        if self._add_linear(residual, x, delta):  # the product that makes delta adds x to it: one pass less
            self._run(ln.layernorm(out, mean, rstd, residual, weight, bias, target=self.target))
            return
        self._run(ln.layernorm(out, mean, rstd, x, weight, bias, delta, residual, target=self.target))

    def layernorm_backward(
        self,
        dx: DeviceArray,
        dweight: DeviceArray,
        dbias: DeviceArray,
        dout: DeviceArray,
        x: DeviceArray,
        mean: DeviceArray,
        rstd: DeviceArray,
        weight: DeviceArray,
        dresidual: DeviceArray | None = None,
        accumulate: bool = False,
        *,
        dx_sum: DeviceArray | None = None,
    ) -> None:
        scratch = self._space("sums", ln.layernorm_backward_scratch(x.shape[1], self.target))
        arrays = (dx, dweight, dbias, dout, x, mean, rstd, weight, scratch, dresidual, dx_sum)
        self._run(ln.layernorm_backward(*arrays, bool(accumulate), target=self.target))

    # ---- linear -------------------------------------------------------------------------------------
    def linear(
        self,
        out: DeviceArray,
        x: DeviceArray,
        weight: DeviceArray,
        bias: DeviceArray,
        pre_gelu: DeviceArray | None = None,
    ) -> None:
        if pre_gelu is None and self._wait_linear(out, x, weight, bias):
            return
        self._run(lin.linear(out, x, weight, bias, pre_gelu, target=self.target))

    def linear_backward(
        self,
        dx: DeviceArray,
        dweight: DeviceArray,
        dbias: DeviceArray | None,
        dout: DeviceArray,
        x: DeviceArray,
        weight: DeviceArray,
        pre_gelu: DeviceArray | None = None,
        accumulate: bool = False,
        *,
        dx_sum: DeviceArray | None = None,
        x_again: bool = False,
    ) -> None:
        scratch = self._space("sums", self._weight_scratch(x, dout))
        again = x if pre_gelu is not None and x_again else None
        arrays = (dx, dbias, dout, weight, scratch, pre_gelu, again)
        written = [a for a in (dx, dbias, again, dx_sum) if a is not None]
        self._run(lin.linear_backward(*arrays, bool(accumulate), dx_sum, target=self.target), *written)
        self._weight_gradient(dweight, x, dout, bool(accumulate))

    def logits(self, out: DeviceArray, x: DeviceArray, wte: DeviceArray) -> None:
        if not x.contiguous:
            rows = self.empty(x.shape, x.dtype)
            self.memory.copy(rows, x)
            x = rows
        self._run(mm.matmul(out, x, wte, b_t=True, target=self.target))

    # ---- attention, dropout -------------------------------------------------------------------------
    def _seed(self, p: float, seed: Any) -> tuple[DeviceArray | None, int]:
        """(where the seed lies, what to add to it) for a mask with probability ``p``."""
        if not p:
            return None, 0
        if isinstance(seed, DeviceSeed):
            return seed.array, seed.site
        return self._number("seed", int(seed) & 0xFFFFFFFF), 0

    def attention(
        self, out: DeviceArray, lse: DeviceArray, qkv: DeviceArray, n_head: int, dropout: float = 0.0, seed: Any = 0
    ) -> None:
        self._run(att.attention(out, lse, qkv, n_head, dropout, *self._seed(dropout, seed), target=self.target))

    def attention_backward(
        self,
        dqkv: DeviceArray,
        dout: DeviceArray,
        out: DeviceArray,
        lse: DeviceArray,
        qkv: DeviceArray,
        n_head: int,
        dropout: float = 0.0,
        seed: Any = 0,
        accumulate: bool = False,
        *,
        dqkv_sum: DeviceArray | None = None,
    ) -> None:
        B, T, C = out.shape
        scratch = self._space("sums", att.attention_backward_scratch(B, n_head, T, C))
        arrays = (dqkv, dout, out, lse, qkv, n_head, scratch, dropout, *self._seed(dropout, seed))
        written = [dqkv] if dqkv_sum is None else [dqkv, dqkv_sum]
        self._run(att.attention_backward(*arrays, dqkv_sum, bool(accumulate), target=self.target), *written)

    def dropout(self, out: DeviceArray, x: DeviceArray, p: float, seed: Any) -> None:
        where, site = self._seed(p, seed)
        if where is None:
            where = self._number("seed", 0)
        self._run(drp.dropout(out, x, p, where, site, target=self.target))

    # ---- classifier ---------------------------------------------------------------------------------
    def classifier(
        self,
        losses: DeviceArray,
        x: DeviceArray,
        wte: DeviceArray,
        targets: DeviceArray,
        dx: DeviceArray | None = None,
        dwte: DeviceArray | None = None,
        scale: float = 1.0,
        accumulate: bool = False,
        spare: DeviceArray | None = None,
    ) -> None:
        N, (V, C) = x.shape[0], wte.shape
        stride, item = cls.logits_stride(V), self.storage.dtype_bytes
        rows, fits = classifier_rows(N, C, V, item, self.target, spare.nbytes if spare else 0)
        if spare is not None and fits:
            logits = spare[: rows * stride * item].view(self.dtype).reshape(rows, stride)
        else:
            logits = self._space("logits", rows * stride, self.dtype)[: rows * stride].reshape(rows, stride)
        scratch = self._space("sums", classifier_scratch(N, rows, C, V, self.dtype, self.target))
        factor = None if dx is None else self._number("scale", float(scale))
        arrays = (losses, x, wte, targets, logits, scratch, dx, dwte, factor)
        self._run(cls.classifier(*arrays, bool(accumulate), target=self.target))

    def sum_losses(self, total: DeviceArray, losses: DeviceArray, scale: float, accumulate: bool) -> None:
        """``total (+)= scale * sum(losses)``: total (1,) fp32, on the device."""
        self._run(totals.sum_losses(total, losses, scale, accumulate, target=self.target))

    def guard(self, results: DeviceArray) -> None:
        """Let AdamW do nothing from the first loss or norm on that is not finite: see :func:`totals.guard`."""
        self._run(totals.guard(results, target=self.target))

    # ---- optimizer ----------------------------------------------------------------------------------
    def global_norm(self, grad: DeviceArray) -> float:
        norm = self._space("norm", 2)
        self.norm_and_clip(norm, grad, 0.0)
        return float(self.download(norm)[0])

    def norm_and_clip(self, norm: DeviceArray, grad: DeviceArray, limit: float) -> None:
        """norm (2,): the gradient's norm, and the factor that brings it down to ``limit`` (0: none); on the device."""
        scratch = self._space("sums", opt.global_norm_scratch(self.target))
        self._run(opt.global_norm(norm, grad, self._number("limit", float(limit)), scratch, target=self.target))

    def adamw(
        self,
        param: DeviceArray,
        grad: DeviceArray,
        m: DeviceArray,
        v: DeviceArray,
        n_decay: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
        rounded: DeviceArray | None = None,
    ) -> None:
        hyper, norm = self._space("hyper", 3), self._space("norm", 2)
        for i, value in enumerate(step_numbers(step, lr, beta1, beta2)):
            self.memory.put(hyper[i : i + 1], value)
        self.memory.put(norm[0:1], 0.0)
        self.memory.put(norm[1:2], float(grad_scale))
        self.adamw_recorded(param, grad, m, v, n_decay, hyper, norm, beta1, beta2, eps, weight_decay, rounded)

    def adamw_recorded(
        self,
        param: DeviceArray,
        grad: DeviceArray,
        m: DeviceArray,
        v: DeviceArray,
        n_decay: int,
        hyper: DeviceArray,
        norm: DeviceArray,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        rounded: DeviceArray | None = None,
    ) -> None:
        """:meth:`adamw` with :func:`step_numbers` in ``hyper`` (3,) and the gradient's factor in ``norm[1]``."""
        numbers = (n_decay, float(beta1), float(beta2), float(eps), float(weight_decay))
        self._run(opt.adamw(rounded, param, grad, m, v, hyper, norm, *numbers, target=self.target))


def step_numbers(step: int, lr: float, beta1: float, beta2: float) -> tuple[float, float, float]:
    """What AdamW needs to know of a step: learning rate and the two bias corrections."""
    return float(lr), 1.0 - beta1**step, 1.0 - beta2**step
