"""GPT-2, forward and backward: the one place where the network's order is written.

Every line below is a call to the table of operations (``ops/table.py``), so this file runs unchanged on every
engine. Shapes: B sequences of T tokens, N = B*T rows, C = n_embd channels, V = vocab_size.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; pre-norm blocks, learned
positions, tanh GELU, and a head that shares its weights with the token embedding.
"""

from __future__ import annotations

from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.activations import RECOMPUTE, Activations, recompute_level
from nanoeuler.model.cache import CacheRows
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.data_parallel import DataParallel, micro_batches
from nanoeuler.model.parameters import Layout, as_parameters, init_parameters
from nanoeuler.ops import get_engine
from nanoeuler.ops.table import Array, Ops, Seed


class GPT:
    """A GPT-2 on one engine: parameters in a flat buffer, gradients beside it when training.

    ``device`` is ``"cpu"`` (float32, Numba), ``"gpu"`` (bfloat16, Triton) or ``"reference"`` (float64, NumPy).
    ``master`` holds the parameters as the optimizer updates them, ``params`` as the network computes with them: the
    same array, or on a GPU a copy rounded to bfloat16. ``recompute`` trades time for memory in training: see
    :data:`~nanoeuler.model.activations.RECOMPUTE`.

    >>> model = GPT(GPTConfig.preset("demo", n_layer=1), device="reference")
    >>> model.logits(np.zeros((1, 3), np.int32)).shape
    (1, 3, 1024)
    """

    def __init__(
        self,
        config: GPTConfig,
        device: str = "cpu",
        seed: int = 1337,
        params: np.ndarray | None = None,
        recompute: str = "auto",
    ) -> None:
        if not isinstance(config, GPTConfig):
            raise UserError(
                f"config must be a GPTConfig, such as GPTConfig.preset('gpt2'), not {type(config).__name__}; "
                "GPT.from_pretrained loads a folder"
            )
        self.config = config
        self.ops: Ops = get_engine(device)
        self.recompute = RECOMPUTE[recompute_level(recompute, self.ops.storage)]
        self.layout = Layout(config)
        n = self.layout.n_params
        self.master: Array = self.ops.empty((n,), self.ops.exact)
        self.params: Array = self.ops.empty((n,)) if self.ops.storage.rounds else self.master
        self.ops.upload(self.master, init_parameters(config, seed) if params is None else as_parameters(params, n))
        self.round_parameters()
        self.p = self.layout.views(self.params)
        self.grads: Array | None = None
        self.g: dict[str, Array] = {}
        self._acts: Activations | None = None
        self._parallel: DataParallel | None = None
        self.held: Activations | None = None  # by a recorded training step, which has their addresses

    # ---- parameters ---------------------------------------------------------------------------------
    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str = "cpu", recompute: str = "auto") -> GPT:
        """Load a GPT-2 from a folder in Hugging Face's layout (``config.json``, ``model.safetensors``).

        Raises UserError when the folder is missing, truncated or not a GPT-2.
        """
        from nanoeuler.formats.huggingface import load_gpt2

        config, params = load_gpt2(Path(folder))
        return cls(config, device=device, params=params, recompute=recompute)

    def save_pretrained(self, folder: str | Path, dtype: str = "float32", eos_token_id: int | None = None) -> None:
        """Save to a folder that ``transformers`` loads unchanged; nothing is left half-written.

        ``dtype`` "float16" or "bfloat16" halves the file and rounds the weights. ``eos_token_id`` is the vocabulary's
        end-of-text, if it has one.
        """
        from nanoeuler.formats.huggingface import save_gpt2

        save_gpt2(Path(folder), self.config, self.ops.download(self.master), dtype, eos_token_id)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Host copies of all parameters by name."""
        return self.layout.views(self.ops.download(self.master))

    def round_parameters(self) -> None:
        """Bring ``params`` up to date with ``master``: to be called whenever something was written into it."""
        if self.params is not self.master:
            self.ops.convert(self.params, self.master)

    def activations(self, B: int, T: int, training: bool) -> Activations:
        """The buffers for (B, T), kept from call to call and replaced when the size changes."""
        if training:
            self._make_gradients()
        for a in (self.held, self._acts):
            if a is not None and (a.B, a.T) == (B, T) and (a.training or not training):
                return a
        self._acts = None  # free the old buffers before the new ones are made
        self._acts = Activations(self.ops, self.config, B, T, training, self.recompute)
        return self._acts

    def _make_gradients(self) -> None:
        if self.grads is None:
            self.grads = self.ops.zeros((self.layout.n_params,), self.ops.exact)
            self.g = self.layout.views(self.grads)

    # ---- forward ------------------------------------------------------------------------------------
    def forward(self, a: Activations, dropout: float = 0.0, seed: Seed = 0, cached: CacheRows | None = None) -> None:
        """From ``a.idx`` (B, T) to ``a.lnf`` (N, C), the final layer norm's output.

        With ``cached``, the rows' keys and values are kept in a cache; unless the rows are all that their sequences
        hold, they are embedded at their own positions and see what the cache holds before them.
        """
        ops, p, C = self.ops, self.p, self.config.n_embd
        if cached is None or cached.whole:
            ops.embedding(a.embedded, a.idx, p["wte.weight"], p["wpe.weight"])
        else:
            cached.embed(a.embedded.reshape(-1, C), a.idx.reshape(-1), p["wte.weight"], p["wpe.weight"])
        if dropout:
            ops.dropout(a.embedded, a.embedded, dropout, _site(seed, 0, 0))
        x = a.embedded.reshape(-1, C)  # the residual stream, (N, C)
        for i, blk in enumerate(a.layers):
            ln1 = (blk.ln1, blk.mean1, blk.rstd1)
            h = f"h.{i}."
            if i == 0:
                ops.layernorm(*ln1, x, p[h + "ln_1.weight"], p[h + "ln_1.bias"])
            else:
                end = a.layers[i - 1].end
                ops.add_layernorm(*ln1, end, x, a.delta, p[h + "ln_1.weight"], p[h + "ln_1.bias"])
                x = end
            self._block(a, i, x, dropout, seed, cached)
            x = blk.mid
            ops.linear(a.delta, blk.act, p[h + "mlp.c_proj.weight"], p[h + "mlp.c_proj.bias"])
            if dropout:
                ops.dropout(a.delta, a.delta, dropout, _site(seed, i, 3))
        end = a.layers[-1].end
        ops.add_layernorm(a.lnf, a.meanf, a.rstdf, end, x, a.delta, p["ln_f.weight"], p["ln_f.bias"])

    def _block(
        self, a: Activations, i: int, x: Array, dropout: float, seed: Seed, cached: CacheRows | None = None
    ) -> None:
        """Block ``i`` between its first layer norm and the MLP's last layer; ``x`` is the residual stream below it."""
        ops, p, C = self.ops, self.p, self.config.n_embd
        blk, h = a.layers[i], f"h.{i}."
        ops.linear(blk.qkv.reshape(-1, 3 * C), blk.ln1, p[h + "attn.c_attn.weight"], p[h + "attn.c_attn.bias"])
        if cached is not None:
            cached.write(i, blk.qkv.reshape(-1, 3 * C), self.config.n_head)
        if cached is None or cached.whole:
            ops.attention(blk.att, blk.lse, blk.qkv, self.config.n_head, dropout, _site(seed, i, 1))
        else:
            cached.attend(i, blk.att.reshape(-1, C), blk.qkv.reshape(-1, 3 * C), self.config.n_head)
        ops.linear(a.delta, blk.att.reshape(-1, C), p[h + "attn.c_proj.weight"], p[h + "attn.c_proj.bias"])
        if dropout:
            ops.dropout(a.delta, a.delta, dropout, _site(seed, i, 2))
        ln2 = (blk.ln2, blk.mean2, blk.rstd2)
        ops.add_layernorm(*ln2, blk.mid, x, a.delta, p[h + "ln_2.weight"], p[h + "ln_2.bias"])
        ops.linear(blk.act, blk.ln2, p[h + "mlp.c_fc.weight"], p[h + "mlp.c_fc.bias"], pre_gelu=blk.pre)

    # ---- backward -----------------------------------------------------------------------------------
    def backward(
        self, a: Activations, scale: float, dropout: float = 0.0, seed: Seed = 0, accumulate: bool = False
    ) -> None:
        """Loss into ``a.losses`` (N,) and the gradients of ``scale * sum(losses)`` into ``self.grads``.

        The forward pass in reverse. ``a.dresidual`` is the gradient of the residual stream: each branch reads
        it, sends it back through its own operations, and adds what comes out to it.
        """
        ops, p, g, C = self.ops, self.p, self.g, self.config.n_embd
        wte, acc = "wte.weight", accumulate
        blocks_again = "qkv" in a.recompute
        ops.classifier(a.losses, a.lnf, p[wte], a.targets, a.dln, g[wte], scale, acc, a.spare)

        # A bias's gradient is the sum, over rows, of the gradient at its layer's output: so the operation that makes
        # that gradient sums it up on the way. Dropout stands in between on the branches' ends; there the layer sums.
        def norm_backward(name: str, x: Array, mean: Array, rstd: Array, past: Array | None, below: str | None) -> None:
            w, b = name + ".weight", name + ".bias"
            dx_sum = None if dropout or below is None else g[below + ".bias"]
            ops.layernorm_backward(a.dresidual, g[w], g[b], a.dln, x, mean, rstd, p[w], past, acc, dx_sum=dx_sum)

        def norm_again(field: str, name: str, out: Array, mean: Array, rstd: Array, x: Array) -> None:
            if field in a.recompute and not blocks_again:
                ops.layernorm(out, mean, rstd, x, p[name + ".weight"], p[name + ".bias"])

        def linear_backward(
            name: str, dx: Array, dout: Array, x: Array, pre: Array | None = None, dx_sum: Array | None = None
        ) -> None:
            w, dbias = name + ".weight", g[name + ".bias"] if dropout and "c_proj" in name else None
            x_again = pre is not None and "act" in a.recompute
            ops.linear_backward(dx, g[w], dbias, dout, x, p[w], pre, acc, dx_sum=dx_sum, x_again=x_again)

        def branch(layer: int, where: int) -> Array:
            if not dropout:
                return a.dresidual
            ops.dropout(a.dbranch, a.dresidual, dropout, _site(seed, layer, where))
            return a.dbranch

        top = f"h.{self.config.n_layer - 1}.mlp.c_proj"
        norm_backward("ln_f", a.layers[-1].end, a.meanf, a.rstdf, None, top)
        for i in reversed(range(self.config.n_layer)):
            blk, h = a.layers[i], f"h.{i}."
            x = a.layers[i - 1].end if i else a.embedded.reshape(-1, C)
            if blocks_again:
                ops.layernorm(blk.ln1, blk.mean1, blk.rstd1, x, p[h + "ln_1.weight"], p[h + "ln_1.bias"])
                self._block(a, i, x, dropout, seed)
            linear_backward(h + "mlp.c_proj", a.dpre, branch(i, 3), blk.act, blk.pre, g[h + "mlp.c_fc.bias"])
            norm_again("ln2", h + "ln_2", blk.ln2, blk.mean2, blk.rstd2, blk.mid)
            linear_backward(h + "mlp.c_fc", a.dln, a.dpre, blk.ln2)
            norm_backward(h + "ln_2", blk.mid, blk.mean2, blk.rstd2, a.dresidual, h + "attn.c_proj")
            linear_backward(h + "attn.c_proj", a.dln, branch(i, 2), blk.att.reshape(-1, C))
            datt = a.dln.reshape(a.B, a.T, C)
            mask = (dropout, _site(seed, i, 1))
            ops.attention_backward(
                a.dqkv, datt, blk.att, blk.lse, blk.qkv, self.config.n_head, *mask, acc,
                dqkv_sum=g[h + "attn.c_attn.bias"],
            )  # fmt: skip
            norm_again("ln1", h + "ln_1", blk.ln1, blk.mean1, blk.rstd1, x)
            linear_backward(h + "attn.c_attn", a.dln, a.dqkv.reshape(-1, 3 * C), blk.ln1)
            norm_backward(h + "ln_1", x, blk.mean1, blk.rstd1, a.dresidual, f"h.{i - 1}.mlp.c_proj" if i else None)
        dembedded = a.dresidual.reshape(a.B, a.T, C)
        if dropout:
            ops.dropout(dembedded, dembedded, dropout, _site(seed, 0, 0))
        ops.embedding_backward(g[wte], g["wpe.weight"], dembedded, a.idx, acc)

    # ---- what callers use ---------------------------------------------------------------------------
    def loss_and_grad(
        self, x: np.ndarray, y: np.ndarray, seed: int = 0, scale: float = 1.0, accumulate: bool = False
    ) -> float:
        """Mean cross-entropy (nats) of targets ``y`` (B, T) after ``x`` (B, T); gradients into ``self.grads``.

        Targets of -1 do not count. ``scale`` multiplies the gradient, not the loss returned; ``accumulate``
        adds to the gradients there are; ``seed`` picks the dropout masks.
        """
        x, y = self._checked(as_ids(x), as_ids(y))
        n_valid = max(1, int(np.count_nonzero(y != -1)))
        parallel = self._data_parallel(*x.shape)
        if parallel is not None:
            return parallel.loss_and_grad(x, y, scale / n_valid, accumulate) / n_valid
        a = self._fill(x, y, training=True)
        dropout = (self.config.dropout, spread(seed))
        self.forward(a, *dropout)
        self.backward(a, scale / n_valid, *dropout, accumulate)
        return float(self.ops.download(a.losses).sum(dtype=np.float64)) / n_valid

    def _data_parallel(self, B: int, T: int) -> DataParallel | None:
        """What computes gradients of batches of (B, T), if not this model by itself; kept from call to call."""
        sizes = micro_batches(self.config, B, T, self.ops.storage)
        if not sizes:
            return None
        if self._parallel is None or (self._parallel.T, self._parallel.sizes) != (T, sizes):
            self._make_gradients()
            self._parallel = self._acts = None
            self._parallel = DataParallel(self, T, sizes)
        return self._parallel

    def moments(self) -> tuple[Array, Array]:
        """AdamW's two moments before the first step: zeros, flat."""
        n = self.layout.n_params
        return self.ops.zeros((n,), self.ops.exact), self.ops.zeros((n,), self.ops.exact)

    def update(
        self,
        moments: tuple[Array, Array],
        step: int,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        grad_scale: float = 1.0,
    ) -> None:
        """One step of AdamW with ``self.grads``: see :meth:`nanoeuler.ops.table.Ops.adamw`. ``step`` starts at 1.

        Raises UserError without gradients, and for moments that are not this model's (:meth:`moments`).
        """
        n = self.layout.n_params
        if self.grads is None:
            raise UserError("there are no gradients to update with: call loss_and_grad first")
        if not isinstance(moments, tuple | list) or [getattr(m, "shape", None) for m in moments] != [(n,), (n,)]:
            raise UserError(f"moments must be the pair that moments() of this model gives, each of {n} numbers")
        if not isinstance(step, Integral) or step < 1:
            raise UserError(f"step must be a whole number, 1 or above, not {step!r}")
        if not isinstance(lr, Real) or not 0 <= beta1 < 1 or not 0 <= beta2 < 1:
            raise UserError(
                f"lr must be a number, and beta1 and beta2 at least 0 and below 1, not {lr!r}, {beta1!r}, {beta2!r}"
            )
        rounded = None if self.params is self.master else self.params
        self.ops.adamw(
            self.master, self.grads, *moments, self.layout.n_decay,
            step, lr, beta1, beta2, eps, weight_decay, grad_scale, rounded,
        )  # fmt: skip

    def loss(self, x: np.ndarray, y: np.ndarray) -> float:
        """Mean cross-entropy (nats) without gradients and without dropout."""
        x, y = as_ids(x), as_ids(y)
        return float(self.losses(x, y).sum(dtype=np.float64)) / max(1, int(np.count_nonzero(y != -1)))

    def losses(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Cross-entropy of each token (B, T), 0 where the target is -1."""
        x, y = as_ids(x), as_ids(y)
        a = self._fill(x, y, training=False)
        self.forward(a)
        self.ops.classifier(a.losses, a.lnf, self.p["wte.weight"], a.targets, spare=a.spare)
        return self.ops.download(a.losses).reshape(x.shape)

    def logits(self, x: np.ndarray, last_only: bool = False) -> np.ndarray:
        """Logits after each token, (B, T, V), or after the last one, (B, V)."""
        return self._logits(x, last_only)

    def logits_cached(self, x: np.ndarray, cached: CacheRows, last_only: bool = False) -> np.ndarray:
        """:meth:`logits` of tokens ``x`` (B, T) whose B T rows have the places in ``cached``: see :meth:`forward`."""
        return self._logits(x, last_only, cached)

    def _logits(self, x: np.ndarray, last_only: bool, cached: CacheRows | None = None) -> np.ndarray:
        a = self._fill(as_ids(x), None, training=False)
        self.forward(a, cached=cached)
        B, T, V, C = a.B, a.T, self.config.vocab_size, self.config.n_embd
        rows = a.lnf.reshape(B, T, C)[:, -1, :] if last_only else a.lnf
        out = self.ops.empty((B if last_only else B * T, V), self.ops.exact)
        self.ops.logits(out, rows, self.p["wte.weight"])
        return self.ops.download(out).reshape((B, V) if last_only else (B, T, V))

    def _fill(self, x: np.ndarray, y: np.ndarray | None, training: bool) -> Activations:
        """The buffers for a batch, with its token ids."""
        self._checked(x, y)
        a = self.activations(x.shape[0], x.shape[1], training)
        self.ops.upload(a.idx, x)
        if y is not None:
            self.ops.upload(a.targets, y.reshape(-1))
        return a

    def _checked(self, x: np.ndarray, y: np.ndarray | None) -> tuple[np.ndarray, Any]:
        """Token ids and targets as given, or UserError."""
        if x.ndim != 2 or x.size == 0:
            raise UserError(f"token ids must have shape (B, T) with at least one token, not {x.shape}")
        if x.dtype.kind not in "iu":
            raise UserError(f"token ids must be whole numbers, not {x.dtype}")
        if x.shape[1] > self.config.block_size:
            raise UserError(
                f"{x.shape[1]} tokens do not fit into the context of {self.config.block_size}: shorten the input"
            )
        V = self.config.vocab_size
        if int(x.min()) < 0 or int(x.max()) >= V:
            bad = int(x.max()) if int(x.max()) >= V else int(x.min())
            raise UserError(f"token id {bad} is outside the model's vocabulary of {V}: is this the right tokenizer?")
        if y is not None and (y.shape != x.shape or y.dtype.kind not in "iu" or int(y.min()) < -1 or int(y.max()) >= V):
            raise UserError(f"targets must have shape {x.shape} and whole numbers from -1 to {V - 1}")
        return x, y


def as_ids(rows: Any) -> np.ndarray:
    """Token ids given as an array or as lists of equal length."""
    try:
        return np.asarray(rows)
    except ValueError:
        raise UserError("rows of token ids must have the same length: pad them, with targets of -1") from None


def spread(seed: int) -> int:
    """A batch's seed (uint32) for :meth:`GPT.forward`, far from other batches': places add small numbers to it."""
    return (seed * 0x9E3779B1) & 0xFFFFFFFF


def _site(seed: Seed, layer: int, where: int) -> Seed:
    """A dropout seed of its own for each place in the network; engines take it modulo 2^32."""
    return seed + (layer * 4 + where + 1)


__all__ = ["GPT"]
