"""The CPU engine's column of the table: argument checks, scratch memory, and one kernel call an operation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numba
import numpy as np

from nanoeuler.ops.cpu import scratch, warmup
from nanoeuler.ops.cpu.lazy import Kernels
from nanoeuler.ops.cpu.options import BIAS, BIAS_GELU, GELU_GRAD, NONE
from nanoeuler.ops.cpu.recorder import Recorder
from nanoeuler.ops.storage import STORAGE
from nanoeuler.ops.table import hash32

att, cls, drp, emb = Kernels("attention"), Kernels("classifier"), Kernels("dropout"), Kernels("embedding")
mm, ln, opt, sums = Kernels("gemm"), Kernels("layernorm"), Kernels("optimizer"), Kernels("sums")
kv, rows, again = Kernels("cache"), Kernels("rows"), Kernels("gelu_again")

_NOTHING = np.zeros(1, np.float32)


class CpuOps(Recorder):
    """float32 on the CPU, in Numba; see ``ops/table.py`` for what each operation computes.

    Scratch grows to what the largest operation so far needed and is then reused, so a training step allocates
    nothing. ``threads`` defaults to Numba's (``NUMBA_NUM_THREADS``, or one per core).

    >>> ops = CpuOps()
    >>> x = np.array([3.0, 4.0], np.float32)
    >>> ops.global_norm(x)
    5.0
    """

    name = "cpu"
    storage = STORAGE["cpu"]
    dtype = np.dtype(np.float32)
    exact = dtype

    def __init__(self, threads: int | None = None) -> None:
        warmup.start()
        super().__init__(threads or numba.get_num_threads())
        self._work = self.empty((self.threads * scratch.product_private(),))
        self._shared = self.empty((0,))
        self._attention = self.empty((0,))
        self._logits = self.empty((0,))
        self._shares = self.empty((0,))
        self._partial = np.empty(0, np.float64)

    # ---- memory -------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        return aligned_empty(shape, np.dtype(dtype or self.dtype))

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def upload(self, dst: np.ndarray, src: np.ndarray) -> None:
        np.copyto(dst, src, casting="same_kind")

    def download(self, src: np.ndarray) -> np.ndarray:
        return src.copy()

    def convert(self, dst: np.ndarray, src: np.ndarray) -> None:
        np.copyto(dst, src, casting="same_kind")

    def sibling(self, threads: int) -> CpuOps:
        """An engine with scratch of its own, for another thread to use at the same time, and ``threads`` below it."""
        return CpuOps(threads)

    # ---- matrix product -----------------------------------------------------------------------------
    def _gemm(
        self,
        out: np.ndarray,
        a: np.ndarray,
        ta: bool,
        b: np.ndarray,
        tb: bool,
        size: tuple[int, int, int],
        accumulate: bool = False,
        mode: int = NONE,
        bias: np.ndarray = _NOTHING,
        aux: np.ndarray = _NOTHING,
    ) -> None:
        need = scratch.product_shared(*size)
        if self._shared.size < need:
            self._shared = self.empty((need,))
        self._run(
            mm.gemm, _flat(out), _flat(a), ta, _flat(b), tb, *size, bool(accumulate), mode, bias, _flat(aux),
            self._shared, self._work, self.threads,
        )  # fmt: skip

    def linear(
        self, out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, pre_gelu: np.ndarray | None = None
    ) -> None:
        size = (x.shape[0], weight.shape[1], weight.shape[0])
        if pre_gelu is None:
            self._gemm(out, x, False, weight, False, size, mode=BIAS, bias=bias)
        else:
            self._gemm(out, x, False, weight, False, size, mode=BIAS_GELU, bias=bias, aux=pre_gelu)

    def linear_backward(
        self,
        dx: np.ndarray,
        dweight: np.ndarray,
        dbias: np.ndarray | None,
        dout: np.ndarray,
        x: np.ndarray,
        weight: np.ndarray,
        pre_gelu: np.ndarray | None = None,
        accumulate: bool = False,
        *,
        dx_sum: np.ndarray | None = None,
        x_again: bool = False,
    ) -> None:
        N, (inner, outer) = x.shape[0], weight.shape
        if x_again and pre_gelu is not None:
            self._run(again.gelu_again, _flat(x), _flat(pre_gelu))
        self._gemm(dweight, x, True, dout, False, (inner, outer, N), accumulate)
        if dbias is not None:
            self._column_sums(dbias, dout, accumulate)
        if pre_gelu is None:
            self._gemm(dx, dout, False, weight, True, (N, inner, outer))
        else:
            self._gemm(dx, dout, False, weight, True, (N, inner, outer), mode=GELU_GRAD, aux=pre_gelu)
        if dx_sum is not None:
            self._column_sums(dx_sum, dx, accumulate)

    def _column_sums(self, out: np.ndarray, x: np.ndarray, accumulate: bool) -> None:
        shares = self._row_shares(scratch.sum_shares(out.size))
        self._run(sums.column_sums, out, _flat(x), x.size // out.size, bool(accumulate), shares)

    def _row_shares(self, need: int) -> np.ndarray:
        """Scratch for sums over rows."""
        if self._shares.size < need:
            self._shares = self.empty((need,))
        return self._shares

    def logits(self, out: np.ndarray, x: np.ndarray, wte: np.ndarray) -> None:
        x = np.ascontiguousarray(x)
        rows.logits(_flat(out), _flat(x), _flat(wte), x.shape[0], *wte.shape, self.threads)

    # ---- embedding, layer norm, dropout -------------------------------------------------------------
    def embedding(self, out: np.ndarray, idx: np.ndarray, wte: np.ndarray, wpe: np.ndarray) -> None:
        self._run(emb.embedding, out.reshape(-1, wte.shape[1]), idx.reshape(-1), wte, wpe, idx.shape[1])

    def embedding_backward(
        self, dwte: np.ndarray, dwpe: np.ndarray, dout: np.ndarray, idx: np.ndarray, accumulate: bool = False
    ) -> None:
        rows = dout.reshape(-1, dwte.shape[1])
        self._run(emb.embedding_backward, dwte, dwpe, rows, idx.reshape(-1), idx.shape[1], bool(accumulate))

    def layernorm(
        self,
        out: np.ndarray,
        mean: np.ndarray,
        rstd: np.ndarray,
        x: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray,
    ) -> None:
        self._run(ln.layernorm, _flat(out), mean, rstd, _NOTHING, _flat(x), _NOTHING, weight, bias, False)

    def add_layernorm(
        self,
        out: np.ndarray,
        mean: np.ndarray,
        rstd: np.ndarray,
        residual: np.ndarray,
        x: np.ndarray,
        delta: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray,
    ) -> None:
        self._run(ln.layernorm, _flat(out), mean, rstd, _flat(residual), _flat(x), _flat(delta), weight, bias, True)

    def layernorm_backward(
        self,
        dx: np.ndarray,
        dweight: np.ndarray,
        dbias: np.ndarray,
        dout: np.ndarray,
        x: np.ndarray,
        mean: np.ndarray,
        rstd: np.ndarray,
        weight: np.ndarray,
        dresidual: np.ndarray | None = None,
        accumulate: bool = False,
        *,
        dx_sum: np.ndarray | None = None,
    ) -> None:
        past = _NOTHING if dresidual is None else _flat(dresidual)
        dx_sum = _NOTHING if dx_sum is None else dx_sum
        shares = self._row_shares(scratch.norm_shares(mean.size, weight.size))
        self._run(
            ln.layernorm_backward, _flat(dx), dweight, dbias, dx_sum, _flat(dout), _flat(x), mean, rstd, weight, past,
            dresidual is not None, bool(accumulate), shares,
        )  # fmt: skip

    def dropout(self, out: np.ndarray, x: np.ndarray, p: float, seed: int) -> None:
        self._run(drp.dropout, _flat(out), _flat(x), *_mask_arguments(p, seed))

    # ---- attention ----------------------------------------------------------------------------------
    def _attention_scratch(self, T: int, D: int) -> np.ndarray:
        need = self.threads * scratch.attention_private(T, D)
        if self._attention.size < need:
            self._attention = self.empty((need,))
        return self._attention

    def attention(
        self, out: np.ndarray, lse: np.ndarray, qkv: np.ndarray, n_head: int, dropout: float = 0.0, seed: int = 0
    ) -> None:
        B, T, C = out.shape
        work = self._attention_scratch(T, C // n_head)
        mask = _mask_arguments(dropout, seed)
        self._run(att.attention, _flat(out), _flat(lse), _flat(qkv), B, T, C, n_head, *mask, work, self.threads)

    def attention_backward(
        self,
        dqkv: np.ndarray,
        dout: np.ndarray,
        out: np.ndarray,
        lse: np.ndarray,
        qkv: np.ndarray,
        n_head: int,
        dropout: float = 0.0,
        seed: int = 0,
        accumulate: bool = False,
        *,
        dqkv_sum: np.ndarray | None = None,
    ) -> None:
        B, T, C = out.shape
        work = self._attention_scratch(T, C // n_head)
        self._run(
            att.attention_backward, _flat(dqkv), _flat(dout), _flat(out), _flat(lse), _flat(qkv), B, T, C, n_head,
            *_mask_arguments(dropout, seed), work, self.threads,
        )  # fmt: skip
        if dqkv_sum is not None:
            self._column_sums(dqkv_sum, dqkv, accumulate)

    # ---- KV cache -----------------------------------------------------------------------------------
    def cache_shapes(self, *sizes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return kv.cache_shapes(*sizes)  # type: ignore[no-any-return]

    def copy_cache(self, keys: np.ndarray, values: np.ndarray, src: int, dst: int, length: int) -> None:
        kv.copy_cache(keys, values, src, dst, length)

    def embedding_at(
        self, out: np.ndarray, idx: np.ndarray, positions: np.ndarray, wte: np.ndarray, wpe: np.ndarray
    ) -> None:
        np.add(wte[idx], wpe[positions], out=out)

    def write_cache(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        qkv: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        n_head: int,
    ) -> None:
        C, context = qkv.shape[1] // 3, values.shape[2]
        kv.write_cache(_flat(keys), _flat(values), _flat(qkv), slots, positions, C, n_head, context, self.threads)

    def attention_cached(
        self,
        out: np.ndarray,
        qkv: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        n_head: int,
    ) -> None:
        context, D = values.shape[2:]
        need = self.threads * (context + D)
        if self._attention.size < need:
            self._attention = self.empty((need,))
        kv.attention_cached(
            _flat(out), _flat(qkv), _flat(keys), _flat(values), slots, positions, out.shape[1], n_head, context,
            self._attention, self.threads,
        )  # fmt: skip

    # ---- classifier ---------------------------------------------------------------------------------
    def classifier(
        self,
        losses: np.ndarray,
        x: np.ndarray,
        wte: np.ndarray,
        targets: np.ndarray,
        dx: np.ndarray | None = None,
        dwte: np.ndarray | None = None,
        scale: float = 1.0,
        accumulate: bool = False,
        spare: np.ndarray | None = None,
    ) -> None:
        (N, C), V = x.shape, wte.shape[0]
        rows = scratch.classifier_rows(N, V)
        if self._logits.size < rows * V:
            self._logits = self.empty((rows * V,))
        for s in range(0, N, rows):
            e = min(N, s + rows)
            logits = self._logits[: (e - s) * V]
            self._gemm(logits, x[s:e], False, wte, True, (e - s, V, C))
            self._run(
                cls.softmax_cross_entropy, losses[s:e], logits, targets[s:e], V, np.float32(scale), dx is not None
            )
            if dx is not None and dwte is not None:
                self._gemm(dx[s:e], logits, False, wte, False, (e - s, C, V))
                self._gemm(dwte, logits, True, x[s:e], False, (V, C, e - s), accumulate or s > 0)

    # ---- optimizer ----------------------------------------------------------------------------------
    def add(self, out: np.ndarray, x: np.ndarray) -> None:
        """``out += x``, both flat."""
        opt.add(out, x)

    def global_norm(self, grad: np.ndarray) -> float:
        blocks = scratch.flat_blocks(grad.size)
        if self._partial.size < blocks:
            self._partial = np.empty(blocks, np.float64)
        partial = self._partial[:blocks]
        opt.block_square_sums(partial, grad)
        return float(np.sqrt(partial.sum()))

    def adamw(
        self,
        param: np.ndarray,
        grad: np.ndarray,
        m: np.ndarray,
        v: np.ndarray,
        n_decay: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
        rounded: np.ndarray | None = None,
    ) -> None:
        f = np.float32
        correct1, correct2 = 1.0 / (1.0 - beta1**step), 1.0 / (1.0 - beta2**step)
        opt.adamw(
            param, grad, m, v, n_decay, f(lr), f(beta1), f(beta2), f(correct1), f(correct2), f(eps),
            f(weight_decay), f(grad_scale),
        )  # fmt: skip
        if rounded is not None:
            self.convert(rounded, param)


_allocations = itertools.count()


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that starts on a cache line, so that no vector access straddles two.

    Large allocations start at the same place within their page, and addresses that agree in their last 12 bits
    share cache sets and look alike to the load and store buffers ("4K aliasing"); so each array starts at another of
    the 64 lines of a page.
    """
    n_bytes = math.prod(shape) * dtype.itemsize
    # From 4 MB on NumPy asks for huge pages; memory that is not touched costs nothing.
    size = n_bytes + 2 * 4096 if n_bytes < 1 << 20 else max(n_bytes + 2 * 4096, 1 << 22)
    raw = np.empty(size, np.uint8)
    start = -raw.ctypes.data % 4096 + 64 * (next(_allocations) * 21 % 64)
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


def _flat(x: np.ndarray) -> np.ndarray:
    """A 1-D view; an array that would need a copy is a bug of ours, since kernels write through it."""
    assert x.flags.c_contiguous
    return x.reshape(-1)


def _mask_arguments(p: float, seed: int) -> tuple[np.uint32, np.uint32, np.float32]:
    """(start, threshold, scale) of dropout's masks, as ``ops/table.py`` defines them."""
    start = hash32(np.array([seed & 0xFFFFFFFF], np.uint32))[0]
    return start, np.uint32(min(int(p * 2**32), 2**32 - 1)), np.float32(1.0 / (1.0 - p))
