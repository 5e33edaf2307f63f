"""Cases for every operation at the shapes that training really has: GPT-2's, and odd ones."""

from dataclasses import dataclass

import numpy as np

from nanoeuler.check_cases import Case, run_case
from nanoeuler.ops.reference import ReferenceOps


@dataclass(frozen=True)
class Sizes:
    """A model's width, heads and vocabulary; sequences B of T tokens."""

    C: int
    H: int
    V: int
    B: int
    T: int

    @property
    def N(self):
        return self.B * self.T


SIZES = {
    "gpt2": Sizes(768, 12, 50257, 2, 1024),  # so many rows that the gradients of weights are cut along them
    "gpt2, T=1000": Sizes(768, 12, 1013, 1, 1000),
    "odd": Sizes(192, 3, 65, 3, 1000),
    "gpt2-xl": Sizes(1600, 25, 50257, 1, 512),
}


def normal(rng, *shape, scale=1.0):
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def unwritten(*shape):
    return np.full(shape, np.nan, np.float32)


def saved(case):
    """What the forward pass keeps for backward, as float32."""
    return {name: answer.astype(np.float32) for name, answer in run_case(ReferenceOps(), case).items()}


def layernorms(s, rng):
    N, C = s.N, s.C
    norm = {"weight": normal(rng, C), "bias": normal(rng, C)}
    outputs = {"out": unwritten(N, C), "mean": unwritten(N), "rstd": unwritten(N)}
    case = Case("layernorm", "", {"x": normal(rng, N, C), **norm}, outputs)
    yield case
    inputs = {"x": normal(rng, N, C), "delta": normal(rng, N, C), **norm}
    yield Case("add_layernorm", "", inputs, {**outputs, "residual": unwritten(N, C)})
    kept = saved(case)
    inputs = {"dout": normal(rng, N, C), "x": case.inputs["x"], "weight": norm["weight"]}
    inputs |= {"mean": kept["mean"], "rstd": kept["rstd"], "dresidual": normal(rng, N, C)}
    grads = {"dx": unwritten(N, C), "dweight": unwritten(C), "dbias": unwritten(C), "dx_sum": unwritten(C)}
    yield Case("layernorm_backward", "", inputs, grads)


def linears(s, rng):
    """The four linear layers of a block; GELU stands before the last one."""
    N, C = s.N, s.C
    for inner, outer in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)):
        how = f"{inner} to {outer}"
        weight, bias = normal(rng, inner, outer, scale=inner**-0.5), normal(rng, outer)
        x, dout = normal(rng, N, inner), normal(rng, N, outer)
        outputs = {"out": unwritten(N, outer)} | ({"pre_gelu": unwritten(N, outer)} if outer == 4 * C else {})
        yield Case("linear", how, {"x": x, "weight": weight, "bias": bias}, outputs)
        grads = {"dx": unwritten(N, inner), "dweight": unwritten(inner, outer), "dx_sum": unwritten(inner)}
        inputs = {"dout": dout, "x": x, "weight": weight}
        if inner == 4 * C:
            inputs = inputs | {"pre_gelu": x, "x": unwritten(N, inner)}
            yield Case(
                "linear_backward", f"{how}, x again", inputs, {**grads, "dbias": unwritten(outer)}, {"x_again": True}
            )
        else:
            more = grads | {
                "dweight": normal(rng, inner, outer),
                "dbias": normal(rng, outer),
                "dx_sum": normal(rng, inner),
            }
            yield Case("linear_backward", f"{how}, added", inputs, more, {"accumulate": True})


def attentions(s, rng):
    B, T, C = s.B, s.T, s.C
    for dropout in (0.0, 0.1):
        options = {"n_head": s.H, "dropout": dropout, "seed": 5}
        how = f"dropout {dropout}"
        case = Case(
            "attention", how, {"qkv": normal(rng, B, T, 3 * C)},
            {"out": unwritten(B, T, C), "lse": unwritten(B, s.H, T)}, options,
        )  # fmt: skip
        yield case
        inputs = {"dout": normal(rng, B, T, C), **case.inputs, **saved(case)}
        yield Case(
            "attention_backward", how, inputs, {"dqkv": unwritten(B, T, 3 * C), "dqkv_sum": unwritten(3 * C)}, options
        )


def classifiers(s, rng):
    """Fewer rows with a large vocabulary: the reference needs its time. That chunks join is seen in the whole model."""
    N, C, V = min(s.N, 600) if s.V > 10000 else s.N, s.C, s.V
    targets = rng.integers(0, V, N).astype(np.int32)
    inputs = {"x": normal(rng, N, C), "wte": normal(rng, V, C, scale=0.05), "targets": targets}
    outputs = {"losses": unwritten(N), "dx": unwritten(N, C), "dwte": unwritten(V, C)}
    yield Case("classifier", "", inputs, outputs, {"scale": 1 / N})
    few = {"x": inputs["x"][:8], "wte": inputs["wte"]}
    yield Case("logits", "", few, {"out": unwritten(8, V)})


def embeddings(s, rng):
    B, T, C, V = s.B, s.T, s.C, s.V
    idx = rng.integers(0, V, (B, T)).astype(np.int32)
    idx[:, T // 2 : T // 2 + 200] = 11  # one id many times over
    wte, wpe = normal(rng, V, C), normal(rng, T, C)
    yield Case("embedding", "", {"idx": idx, "wte": wte, "wpe": wpe}, {"out": unwritten(B, T, C)})
    grads = {"dwte": wte, "dwpe": unwritten(T, C)}
    yield Case("embedding_backward", "", {"dout": normal(rng, B, T, C), "idx": idx}, grads)


def others(s, rng):
    yield Case("dropout", "", {"x": normal(rng, s.N, s.C)}, {"out": unwritten(s.N, s.C)}, {"p": 0.1, "seed": 9})
    n = 12 * s.C**2 + 13 * s.C  # a block's parameters
    yield Case("global_norm", "", {"grad": normal(rng, n)})
    outputs = {"param": normal(rng, n), "m": normal(rng, n, scale=0.1), "v": normal(rng, n, scale=0.1) ** 2}
    options = {"n_decay": 12 * s.C**2, "step": 10, "lr": 6e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
    options |= {"weight_decay": 0.1, "grad_scale": 0.3}
    yield Case("adamw", "", {"grad": normal(rng, n)}, outputs, options)


FAMILIES = [layernorms, linears, attentions, classifiers, embeddings, others]


def real_cases(sizes, family):
    """The cases of one of :data:`FAMILIES`, the same ones each time."""
    rng = np.random.default_rng(FAMILIES.index(family))
    return family(sizes, rng)
