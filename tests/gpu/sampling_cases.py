"""Choices on the device beside choices on the host, for the interpreter and for a GPU."""

import numpy as np

from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform
from nanoeuler.ops.gpu.device_sampling import Sampler


def settings(rng, n, kinds=("plain", "top_k", "top_p", "both", "greedy")):
    """``n`` random settings."""
    out = []
    for i in range(n):
        kind = kinds[i % len(kinds)]
        temperature = 0.0 if kind == "greedy" else float(rng.choice([0.05, 0.3, 0.8, 1.0, 1.7, 30.0]))
        top_k = int(rng.choice([1, 2, 5, 40, 63, 64, 1000])) if kind in ("top_k", "both") else None
        top_p = float(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.999])) if kind in ("top_p", "both") else 1.0
        seed = int(rng.integers(0, 1 << 64, dtype=np.uint64))
        out.append(SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed))
    return out


def logits(rng, n, V):
    """Rows of several kinds: smooth, full of ties, nearly certain, of both signs and far below zero."""
    x = rng.standard_normal((n, V)) * rng.choice([0.01, 1.0, 4.0, 20.0], (n, 1)) + rng.choice([-80.0, 0.0, 3.0], (n, 1))
    tied = rng.random(n) < 0.3
    x[tied] = np.round(x[tied])
    x[rng.random(n) < 0.1, V // 2] += 30.0
    return x.astype(np.float32)


def device_choices(ops, x, configs, samples, positions, n_valid, turns=1):
    """(turns, n) ids of the device for the same logits; every turn is a position further."""
    n, V = x.shape
    stride = -(-V // 64) * 64
    padded = np.full((n, stride), 1e30, np.float32)  # what lies beyond the vocabulary must not count
    padded[:, :V] = x
    device = ops.empty((n, stride), "fp32")
    ops.upload(device, padded)
    tokens, places = ops.zeros((n,), "i32"), ops.zeros((n,), "i32")
    sampler = Sampler(ops, n, V)
    sampler.set(configs, samples, positions)
    out = []
    for _ in range(turns):
        for launch in sampler.launches(tokens, places, device, n, n_valid, configs):
            ops.runtime.launch(launch)
        out.append(ops.download(tokens))
    assert (ops.download(places) == turns).all()
    np.testing.assert_array_equal(ops.download(sampler.drawn)[:turns], out)
    return np.array(out)


def host_choices(x, configs, samples, positions, n_valid, turns=1):
    return np.array(
        [
            [
                sample_next(row, [], config, uniform(config.seed, sample, position + turn), n_valid)
                for row, config, sample, position in zip(x, configs, samples, positions)
            ]
            for turn in range(turns)
        ]
    )
