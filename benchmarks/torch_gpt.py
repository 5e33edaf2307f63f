"""The peer: GPT-2 in PyTorch as its users write it. Only benchmarks import torch."""

from __future__ import annotations

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int, bias: bool, approximate: str) -> None:
        super().__init__()
        self.n_head = n_head
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.attn_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu = nn.GELU(approximate=approximate)
        self.mlp_proj = nn.Linear(4 * n_embd, n_embd, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.n_head, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp_proj(self.gelu(self.c_fc(self.ln_2(x))))


class TorchGPT(nn.Module):
    """``bias=False`` and ``approximate="none"`` are nanoGPT's defaults; GPT-2 itself has biases and the tanh GELU."""

    def __init__(
        self,
        vocab_size: int,
        block_size: int,
        n_layer: int,
        n_head: int,
        n_embd: int,
        bias: bool = True,
        approximate: str = "tanh",
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block(n_embd, n_head, bias, approximate) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd, bias=bias)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                std = 0.02 / (2 * n_layer) ** 0.5 if "_proj" in name else 0.02
                nn.init.normal_(p, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(x, targets)

    def embed(self, idx: torch.Tensor) -> torch.Tensor:
        return self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))

    def head(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head(self.ln_f(x)).float()  # as autocast has it
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def optimizer(
    model: nn.Module, lr: float, betas: tuple[float, float], weight_decay: float, fused: bool | None = True
) -> torch.optim.AdamW:
    """AdamW with decay on matrices only. ``fused=None`` is PyTorch's default, which nanoGPT uses on a CPU."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)


def load_parameters(model: TorchGPT, named: dict) -> None:
    """Copy NanoEuler's parameters (NumPy arrays by name, see ``GPT.state_dict``) into ``model``.

    Where a linear layer's weight is (in, out) there, it is (out, in) here.
    """
    tensors = {"wte": model.wte, "wpe": model.wpe, "ln_f": model.ln_f}
    for i, block in enumerate(model.blocks):
        tensors |= {f"h.{i}.ln_1": block.ln_1, f"h.{i}.ln_2": block.ln_2}
        tensors |= {f"h.{i}.attn.c_attn": block.c_attn, f"h.{i}.attn.c_proj": block.attn_proj}
        tensors |= {f"h.{i}.mlp.c_fc": block.c_fc, f"h.{i}.mlp.c_proj": block.mlp_proj}
    with torch.no_grad():
        for name, module in tensors.items():
            weight = torch.from_numpy(named[name + ".weight"])
            module.weight.copy_(weight.T if isinstance(module, nn.Linear) else weight)
            if f"{name}.bias" in named:
                module.bias.copy_(torch.from_numpy(named[name + ".bias"]))


class RoundedCopy:
    """A copy of ``master`` in bfloat16 that computes in its place: activations and gradients are bfloat16 throughout,
    as in NanoEuler's GPU engine, where autocast keeps the residual stream and its gradient in float32."""

    def __init__(self, master: TorchGPT) -> None:
        self.master, self.model = master, copy.deepcopy(master).bfloat16()

    def loss_and_grad(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss; its gradient goes into the ``grad`` of the master's parameters, in float32."""
        pairs = list(zip(self.master.parameters(), self.model.parameters(), strict=True))
        with torch.no_grad():
            for exact, rounded in pairs:
                rounded.copy_(exact)
                rounded.grad = None
        loss = self.model(idx, targets)
        loss.backward()
        for exact, rounded in pairs:
            exact.grad = rounded.grad.float()
        return loss
