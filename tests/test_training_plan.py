"""The plan's figures against what is really allocated."""

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.training.memory import available_memory
from nanoeuler.training.plan import advice, alternatives, plan


def nbytes(thing):
    """Bytes of all arrays in an object's attributes and in those of its lists' objects; shared memory counts once."""
    return sum({id(root): root.nbytes for root in roots(thing)}.values())


def roots(thing):
    for value in vars(thing).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, np.ndarray):
                while item.base is not None:
                    item = item.base
                yield item
            elif hasattr(item, "ln1"):  # one layer's activations
                yield from roots(item)


SHAPES = [
    (GPTConfig(vocab_size=97, block_size=33, n_layer=2, n_head=3, n_embd=24), 3, 17),
    (GPTConfig(vocab_size=700, block_size=16, n_layer=3, n_head=2, n_embd=10), 1, 16),
    (GPTConfig(vocab_size=50257, block_size=512, n_layer=1, n_head=1, n_embd=8), 1, 400),  # logits in two chunks
]


@pytest.mark.parametrize(("config", "B", "T"), SHAPES)
@pytest.mark.parametrize("recompute", ["none", "light", "full"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_every_figure_is_what_is_allocated(config, B, T, device, recompute):
    if device == "reference" and config.vocab_size > 1000:
        pytest.skip("slow, and nothing new")
    x = np.random.default_rng(0).integers(0, config.vocab_size, (B, T)).astype(np.int32)
    model = GPT(config, device=device, recompute=recompute)
    model.loss_and_grad(x, x)
    norm = model.ops.global_norm(model.grads)
    m, v = (model.ops.zeros(model.params.shape) for _ in range(2))
    adam = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_scale=1 / norm)
    model.ops.adamw(model.params, model.grads, m, v, model.layout.n_decay, 1, **adam)

    planned = {row.name: row.bytes for row in plan(config, B, T, device, recompute=recompute).rows}
    assert planned["parameters"] == model.params.nbytes
    assert planned["gradients"] == model.grads.nbytes
    assert planned["optimizer"] == m.nbytes + v.nbytes
    ids = model._acts.idx.nbytes + model._acts.targets.nbytes
    # An engine may make each allocation a few pages larger, to have it start where it likes.
    assert 0 <= nbytes(model._acts) - ids - planned["activations"] <= 3 << 14
    assert planned["batch"] == 2 * ids
    if device == "cpu":
        scratch = sum(a.nbytes for a in vars(model.ops).values() if isinstance(a, np.ndarray))
        assert planned["logits"] + planned["scratch"] == scratch
        assert planned["logits"] == model.ops._logits.nbytes


@pytest.mark.parametrize(
    ("B", "T", "sizes"), [(4, 33, ((2,), (2,))), (10, 64, ((3, 2), (3, 2))), (13, 64, ((4, 3), (3, 3)))]
)
@pytest.mark.parametrize("recompute", ["none", "light"])
def test_every_figure_is_what_two_workers_allocate(B, T, sizes, recompute):
    config = GPTConfig(vocab_size=97, block_size=64, n_layer=2, n_head=3, n_embd=12)
    x = np.random.default_rng(0).integers(0, config.vocab_size, (B, T)).astype(np.int32)
    model = GPT(config, recompute=recompute)
    model.loss_and_grad(x, x)
    model.loss(x, x)
    model.ops.global_norm(model.grads)

    planned = {row.name: row.bytes for row in plan(config, B, T, recompute=recompute).rows}
    parallel = model._parallel
    assert parallel.sizes == sizes
    assert planned["gradients"] == sum(grads.nbytes for grads in parallel.grads)
    sets = [model._acts, *(a for worker in parallel.workers for a in worker.activations.values())]
    ids = sum(a.idx.nbytes + a.targets.nbytes for a in sets)
    assert 0 <= sum(map(nbytes, sets)) - ids - planned["activations"] <= len(sets) * 3 << 14
    assert planned["batch"] == ids + 2 * x.nbytes
    engines = [model.ops, *(worker.ops for worker in parallel.workers)]
    arrays = [array for ops in engines for array in vars(ops).values() if isinstance(array, np.ndarray)]
    assert planned["logits"] + planned["scratch"] == sum(array.nbytes for array in arrays)
    assert planned["logits"] == sum(ops._logits.nbytes for ops in engines)


def test_the_largest_batch_fits_and_one_more_does_not():
    config = GPTConfig.preset("demo")
    budget = 1 << 30
    best = plan(config, 1, device="reference", memory_bytes=budget).largest_batch
    assert best > 10
    assert plan(config, best, device="reference", memory_bytes=budget).fits
    assert not plan(config, best + 1, device="reference", memory_bytes=budget).fits


def test_a_budget_that_is_too_small():
    table = plan(GPTConfig.preset("gpt2-xl"), 1, device="reference", memory_bytes=1 << 30)
    assert table.largest_batch == 0 and table.fits is False and table.total > 1 << 30


def test_total_is_the_sum():
    table = plan(GPTConfig.preset("demo"), 4, 100, device="reference", memory_bytes=1 << 40)
    assert table.total == sum(row.bytes for row in table.rows) and table.T == 100


def test_bad_plans():
    config = GPTConfig.preset("demo")
    for arguments, words in (
        ((config, 0), "at least one sequence"),
        ((config, 1, 257), "longer than the model's block_size 256"),
        ((config, 1, 8, "tpu"), "unknown device 'tpu'"),
    ):
        with pytest.raises(UserError, match=words):
            plan(*arguments)


def test_this_machine_has_memory():
    memory = available_memory()
    assert memory is None or 1 << 24 < memory < 1 << 50


def test_recomputing_takes_less_memory_and_so_a_larger_batch_fits():
    made = plan(GPTConfig.preset("gpt2"), 4, device="reference", memory_bytes=32 << 30)
    none, light, full = alternatives(made)
    assert none == made and [p.recompute for p in (none, light, full)] == ["none", "light", "full"]
    assert none.total > light.total > full.total
    assert none.largest_batch < light.largest_batch < full.largest_batch
    assert (
        advice(made)
        == f"batch_size {none.largest_batch} fits, batch_size {full.largest_batch} does with --recompute full"
    )
