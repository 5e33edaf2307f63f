"""Every GPU kernel's arithmetic, in Triton's interpreter on NumPy arrays, against the reference at odd shapes."""

from __future__ import annotations

import types

import numpy as np
import pytest

pytest.importorskip("triton")

from gpu_interpreter import HostArray, array, empty, run

from nanoeuler.ops.gpu.kernels import attention as att
from nanoeuler.ops.gpu.kernels import classifier as cls
from nanoeuler.ops.gpu.kernels import dropout as drp
from nanoeuler.ops.gpu.kernels import embedding as emb
from nanoeuler.ops.gpu.kernels import layernorm as ln
from nanoeuler.ops.gpu.kernels import linear as lin
from nanoeuler.ops.gpu.kernels import optimizer as opt
from nanoeuler.ops.gpu.kernels import reductions as red
from nanoeuler.ops.gpu.kernels import weight_gradient as wg
from nanoeuler.ops.gpu.kernels.matmul import ROLES, Tiles, matmul, stream_shares
from nanoeuler.ops.gpu.kernels.spec import Target, launch, parameters
from nanoeuler.ops.reference import ReferenceOps
from nanoeuler.ops.reference.gelu import gelu
from nanoeuler.ops.table import keep_mask

TARGET = Target(90, 3)  # a small GPU, so that persistent programs go round their loops several times
LIMIT = 2e-6
ref = ReferenceOps()


@pytest.fixture
def normal():
    rng = np.random.default_rng(0)
    return lambda *shape: rng.standard_normal(shape)


def close(got: HostArray, want: np.ndarray, limit: float = LIMIT) -> None:
    assert got.shape == want.shape
    assert np.isfinite(got.host).all()
    error = np.linalg.norm(got.host - want) / np.linalg.norm(want)
    assert error < limit, error


def i32(values: np.ndarray) -> HostArray:
    return array(np.asarray(values).astype(np.int64).astype(np.uint32).view(np.int32), "i32")


# ---- layer norm -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("N, C", [(1, 33), (13, 65), (70, 100)])
def test_layernorm(normal, N, C):
    x, delta, weight, bias = normal(N, C), normal(N, C), normal(C), normal(C)
    out, mean, rstd, residual = empty(N, C), empty(N), empty(N), empty(N, C)
    w_out, w_mean, w_rstd, w_residual = np.empty((N, C)), np.empty(N), np.empty(N), np.empty((N, C))
    run(ln.layernorm(out, mean, rstd, array(x), array(weight), array(bias), target=TARGET))
    ref.layernorm(w_out, w_mean, w_rstd, x, weight, bias)
    close(out, w_out)
    run(ln.layernorm(out, mean, rstd, array(x), array(weight), array(bias), array(delta), residual, target=TARGET))
    ref.add_layernorm(w_out, w_mean, w_rstd, w_residual, x, delta, weight, bias)
    for got, want in ((out, w_out), (mean, w_mean), (rstd, w_rstd), (residual, w_residual)):
        close(got, want)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("N, C, past", [(1, 33, "absent"), (13, 65, "apart"), (70, 100, "in place")])
def test_layernorm_backward(normal, N, C, past, accumulate):
    dout, x, weight, dresidual = normal(N, C), normal(N, C), normal(C), normal(N, C)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    before = normal(3, C)
    sums = [array(row) if accumulate else empty(C) for row in before]
    dx = array(dresidual) if past == "in place" else empty(N, C)
    given = {"absent": None, "apart": array(dresidual), "in place": dx}[past]
    arrays = (array(dout), array(x), array(mean), array(rstd), array(weight))
    scratch = empty(ln.layernorm_backward_scratch(C, TARGET))
    run(ln.layernorm_backward(dx, *sums[:2], *arrays, scratch, given, sums[2], accumulate, target=TARGET))
    want, w_sums = np.empty((N, C)), before.copy()
    ref.layernorm_backward(
        want, *w_sums[:2], dout, x, mean, rstd, weight, None if given is None else dresidual, accumulate
    )
    close(dx, want)
    w_sums[2] = want.sum(0) + (before[2] if accumulate else 0.0)
    for got, expected in zip(sums, w_sums):
        close(got, expected)


def test_layernorm_normalises_the_residual_as_it_is_stored(normal):
    """In half precision: the sum is rounded first, since backward will read the rounded one."""
    x, delta = normal(5, 64).astype(np.float16), normal(5, 64).astype(np.float16)
    ones, zeros = (array(np.full(64, v), "fp16") for v in (1.0, 0.0))
    out, residual, mean, rstd = empty(5, 64, dtype="fp16"), empty(5, 64, dtype="fp16"), empty(5), empty(5)
    run(ln.layernorm(out, mean, rstd, array(x, "fp16"), ones, zeros, array(delta, "fp16"), residual, target=TARGET))
    assert np.array_equal(residual.host, x + delta)
    close(mean, residual.host.astype(np.float64).mean(1))


# ---- embedding --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("B, T, V, C", [(1, 1, 65, 33), (2, 70, 5, 40), (3, 131, 257, 65)])
def test_embedding(normal, B, T, V, C, accumulate):
    idx = np.random.default_rng(1).integers(0, V, (B, T))
    idx[:, T // 2 :] = idx[0, 0]  # a long run of one id, beside short ones
    wte, wpe, dout = normal(V, C), normal(T + 3, C), normal(B, T, C)
    out, want = empty(B, T, C), np.empty((B, T, C))
    run(emb.embedding(out, i32(idx), array(wte), array(wpe), target=TARGET))
    ref.embedding(want, idx, wte, wpe)
    close(out, want)

    order = empty(B * T, dtype="i32")
    run(emb.sort_places(order, i32(idx), target=TARGET))
    assert np.array_equal(order.host, np.argsort(idx.ravel(), kind="stable"))
    w_dwte, w_dwpe = normal(V, C), normal(T + 3, C)
    dwte, dwpe = array(w_dwte), array(w_dwpe) if accumulate else empty(T + 3, C)
    run(emb.embedding_backward(dwte, dwpe, array(dout), i32(idx), order, accumulate, target=TARGET))
    ref.embedding_backward(w_dwte, w_dwpe, dout, idx, accumulate)
    close(dwte, w_dwte)
    close(dwpe, w_dwpe)


# ---- matrix products --------------------------------------------------------------------------------------------
SMALL = Tiles(16, 32, 16, 2, 2, 4, 1, False)  # several tiles, parts and programs in a small matrix


@pytest.mark.parametrize("sm", [80, 90])  # by addresses; by descriptors, where rows are whole pieces of 16 bytes
@pytest.mark.parametrize("N, inner, outer", [(1, 33, 100), (63, 64, 40), (37, 24, 136)])
@pytest.mark.parametrize("tiles", ["planned", "small"])
def test_linear(normal, monkeypatch, sm, N, inner, outer, tiles):
    if tiles == "small":
        monkeypatch.setattr("nanoeuler.ops.gpu.kernels.matmul.tiles_for", lambda *_, **__: SMALL)
    target = Target(sm, 3)
    x, weight, bias, residual = normal(N, inner), normal(inner, outer) / 6, normal(outer), normal(N, outer)
    out, pre, want, w_pre = empty(N, outer), empty(N, outer), np.empty((N, outer)), np.empty((N, outer))
    arrays = (array(x), array(weight), array(bias))
    run(lin.linear(out, *arrays, target=target))
    close(out, x @ weight + bias)
    run(lin.linear(out, *arrays, residual=array(residual), target=target))
    close(out, x @ weight + bias + residual)
    run(lin.linear(out, *arrays, pre, target=target))
    ref.linear(want, x, weight, bias, w_pre)
    close(out, want)
    close(pre, w_pre)


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("N, inner, outer", [(1, 33, 100), (63, 64, 40)])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("how", ["plain", "gelu", "gelu again"])
def test_linear_backward(normal, sm, N, inner, outer, accumulate, how):
    target = Target(sm, 3)
    dout, pre, weight = normal(N, outer), normal(N, inner), normal(inner, outer) / 6
    x = normal(N, inner) if how == "plain" else gelu(pre)
    w_dweight, w_dbias, w_dx, before = normal(inner, outer), normal(outer), np.empty((N, inner)), normal(inner)
    dweight, dbias, dx_sum = (
        array(a) if accumulate else empty(*a.shape) for a in (w_dweight, w_dbias, before)
    )  # fmt: skip
    dx, act = empty(N, inner), empty(N, inner)
    scratch = empty(lin.linear_backward_scratch(N, inner, outer, "fp32", target))
    options = {} if how == "plain" else {"pre_gelu": array(pre)} | ({"act": act} if how == "gelu again" else {})
    given = {"accumulate": accumulate, "target": target}
    run(lin.linear_backward(dx, dbias, array(dout), array(weight), scratch, **options, dx_sum=dx_sum, **given))
    run(lin.weight_gradients([(dweight, act if "again" in how else array(x), array(dout))], scratch, **given))
    ref.linear_backward(w_dx, w_dweight, w_dbias, dout, x, weight, None if how == "plain" else pre, accumulate)
    for got, want in ((dx, w_dx), (dweight, w_dweight), (dbias, w_dbias)):
        close(got, want)
    close(dx_sum, w_dx.sum(0) + (before if accumulate else 0.0))
    if how == "gelu again":
        close(act, x)


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("programs", [1, 3, 7, 50])
@pytest.mark.parametrize("accumulate", [False, True])
def test_stream_schedule(normal, sm, programs, accumulate):
    """More programs than tiles, fewer, and numbers that divide nothing: each step of K is taken exactly once."""
    target, tiles = Target(sm, programs), Tiles(16, 32, 16, 2, 1, 4, 1, schedule="stream")
    a, b, before = normal(200, 72), normal(200, 40), normal(72, 40)
    count, _, segments = stream_shares(72, 40, 200, tiles, target)
    c = array(before) if accumulate else empty(72, 40)
    scratch = empty(count * segments * 16 * 32)
    run(
        matmul(
            c, array(a), array(b), a_t=True, accumulate=accumulate, scratch=scratch, tiles=tiles, target=target
        )
    )  # fmt: skip
    close(c, a.T @ b + (before if accumulate else 0.0))


def as_python(fn, **names):
    """A Gluon function of plain numbers as a Python function, with what it calls given by name."""
    return types.FunctionType(fn.fn.__code__, {"min": min, "max": max, **names})


@pytest.mark.parametrize("programs", [1, 3, 7, 50])
@pytest.mark.parametrize("shapes", [[(130, 520)], [(64, 256)], [(300, 264), (128, 700)]])
@pytest.mark.parametrize("accumulate", [False, True])
def test_weight_gradients_for_hopper(normal, programs, shapes, accumulate):
    """What its programs take of the sum, by the kernel's own functions, put together: each step of each tile once.

    The products themselves run on Hopper only; NumPy computes them here. The kernel that adds up parts is interpreted.
    """
    K, target = 300, Target(90, programs)
    products = [(normal(m, n), normal(K, m), normal(K, n)) for m, n in shapes]
    want = [c * accumulate + a.T @ b for c, a, b in products]
    outs = [array(c) if accumulate else empty(*c.shape) for c, _, _ in products]
    cut, whole, share, segments = wg.cut_tiles(shapes, K, target)
    partial = empty(programs * segments, 128, 256)
    steps, places = -(-K // 64), []
    for which, (m, n) in enumerate(shapes):
        places += [(which, i * 128, j * 256) for j in range(-(-n // 256)) for i in range(-(-m // 128))]
    cdiv = lambda a, b: -(-a // b)  # noqa: E731
    for program in range(programs):
        gl = types.SimpleNamespace(program_id=lambda _, program=program: program, cdiv=cdiv)
        piece_of, block_of = as_python(wg.piece_of, gl=gl), as_python(wg.block_of)
        start = min(program * share, cut * steps)
        end = min(start + share, cut * steps)
        pieces = cdiv(end, steps) - start // steps if end > start else 0
        for item in range(pieces + whole):
            tile, begin, until, way = piece_of(item, pieces, start, end, share, cut, steps, programs)
            which, row, column = places[tile]
            _, a, b = products[which]
            blocks = [block_of(time, way) for time in range(begin, until)]
            rows = [slice(k * 64, k * 64 + 64) for k in blocks]
            total = sum(a[r, row : row + 128].T @ b[r, column : column + 256] for r in rows)
            if item < pieces:
                partial.host[program * segments + item] = 0.0
                partial.host[program * segments + item, : total.shape[0], : total.shape[1]] = total
            else:
                place = outs[which].host[row : row + 128, column : column + 256]
                place[...] = total + (place if accumulate else 0.0)
    arrays = [(out, array(a), array(b)) for out, (_, a, b) in zip(outs, products)]
    launches = wg.weight_gradients(arrays, HostArray(partial.host.reshape(-1)), accumulate, target=target)
    assert len(launches) == (2 if cut else 1)
    run(launches[1:])
    for out, expected in zip(outs, want):
        close(out, expected)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_products_round_once(normal, parts):
    """Half-precision operands and result, fp32 in between: as exact as the result's own rounding."""
    a, b = normal(40, 64).astype(np.float16), normal(72, 64).astype(np.float16)
    c = empty(40, 72, dtype="fp16")
    run(
        matmul(
            c, array(a, "fp16"), array(b, "fp16"), b_t=True, tiles=Tiles(16, 64, 32, parts, 1, 4, 1), target=TARGET
        )
    )  # fmt: skip
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(c.host - want).max() <= np.spacing(np.abs(want).astype(np.float16)).max()


@pytest.mark.parametrize("N, C", [(1, 33), (130, 300)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_column_sums(normal, N, C, accumulate):
    x, before = normal(N, C), normal(C)
    out = array(before) if accumulate else empty(C)
    run(red.column_sums(out, array(x), empty(red.column_sums_scratch(N, C, TARGET)), accumulate, target=TARGET))
    close(out, x.sum(0) + (before if accumulate else 0.0))


# ---- attention --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "B, T, n_head, D", [(1, 1, 1, 11), (2, 7, 3, 11), (1, 65, 2, 32), (2, 64, 1, 16), (1, 100, 1, 80)]
)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_attention(normal, B, T, n_head, D, p):
    C, seed = n_head * D, i32(np.array([70]))
    qkv, dout = normal(B, T, 3 * C), normal(B, T, C)
    out, lse, w_out, w_lse = empty(B, T, C), empty(B, n_head, T), np.empty((B, T, C)), np.empty((B, n_head, T))
    run(att.attention(out, lse, array(qkv), n_head, p, seed, 7, target=TARGET))
    ref.attention(w_out, w_lse, qkv, n_head, p, 77)
    if p == 0.0 or T > 1:  # the one token's only weight may be dropped: nothing but zeros to compare with
        close(out, w_out)
    close(lse, w_lse)

    before = normal(3 * C)
    dqkv, total, want = empty(B, T, 3 * C), array(before), np.empty((B, T, 3 * C))
    scratch = empty(att.attention_backward_scratch(B, n_head, T, C))
    arrays = (array(dout), array(w_out), array(w_lse), array(qkv), n_head, scratch)
    run(att.attention_backward(dqkv, *arrays, p, seed, 7, total, True, target=TARGET))
    ref.attention_backward(want, dout, w_out, w_lse, qkv, n_head, p, 77)
    assert np.linalg.norm(dqkv.host - want) < LIMIT * max(1.0, float(np.linalg.norm(want)))
    close(total, want.sum((0, 1)) + before)


def test_attention_bears_scores_at_which_exp_overflows(normal):
    qkv = normal(1, 9, 48)
    qkv[..., :32] *= 40.0
    out, lse, w_out, w_lse = empty(1, 9, 16), empty(1, 1, 9), np.empty((1, 9, 16)), np.empty((1, 1, 9))
    run(att.attention(out, lse, array(qkv), 1, target=TARGET))
    ref.attention(w_out, w_lse, qkv, 1)
    assert w_lse.max() > 1000
    close(out, w_out, 1e-4)
    close(lse, w_lse)


# ---- classifier -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("N, V, C, rows", [(7, 257, 65, 16), (33, 1000, 24, 16), (40, 64, 16, 40), (5, 5000, 8, 8)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_classifier(normal, N, V, C, rows, accumulate):
    x, wte = normal(N, C), normal(V, C)
    targets = np.random.default_rng(2).integers(0, V, N)
    targets[3], targets[1] = -1, V - 1
    w_losses, w_dx, w_dwte = np.empty(N), np.empty((N, C)), normal(V, C)
    losses, dx, dwte = empty(N), empty(N, C), array(w_dwte) if accumulate else empty(V, C)
    logits, scratch = empty(rows, cls.logits_stride(V)), empty(100_000)
    arrays = (array(x), array(wte), i32(targets), logits, scratch)
    run(cls.classifier(losses, *arrays, target=TARGET))
    ref.classifier(w_losses, x, wte, targets)
    close(losses, w_losses)
    run(cls.classifier(losses, *arrays, dx, dwte, array(np.array([0.37])), accumulate, target=TARGET))
    ref.classifier(w_losses, x, wte, targets, w_dx, w_dwte, 0.37, accumulate)
    for got, want in ((losses, w_losses), (dx, w_dx), (dwte, w_dwte)):
        close(got, want)
    assert losses.host[3] == 0.0 and not dx.host[3].any()


@pytest.mark.parametrize("gradient", [False, True])
def test_cross_entropy_from_what_the_product_says(normal, gradient):
    """With each tile's largest logit and sum of exponentials at hand, the row is read once: the same answers."""
    R, V, width = 9, 1000, ROLES.bn
    z, targets = normal(R, V) * 5, np.random.default_rng(3).integers(0, V, R)
    z[4, targets[4]] = 90.0  # a sure one
    targets[2] = -1
    tiles = -(-V // width)
    stats = np.zeros((R, 2, tiles))
    for tile in range(tiles):
        part = z[:, tile * width : (tile + 1) * width]
        stats[:, 0, tile] = part.max(1) / np.log(2)
        stats[:, 1, tile] = np.exp(part - part.max(1, keepdims=True)).sum(1)
    scale, found = array([0.37]) if gradient else None, []
    for given in (None, array(stats)):
        logits, losses = empty(R, cls.logits_stride(V)), empty(R)
        logits.host[:, :V] = z
        run([cls.cross_entropy(losses, logits, i32(targets), V, scale, given)])
        found.append((losses.host, logits.host[:, :V]))
    rest = np.exp(z - np.take_along_axis(z, targets[:, None].clip(0), 1))
    rest[range(R), targets] = 0.0
    for (a, b), name in zip(zip(*found), ("losses", "gradient")):
        assert np.linalg.norm(a - b) <= LIMIT * np.linalg.norm(a), name
    assert found[1][0] == pytest.approx(np.where(targets < 0, 0.0, np.log1p(rest.sum(1))), rel=1e-4, abs=1e-35)


def test_classifier_is_exact_where_the_model_is_sure(normal):
    """One minus a probability that rounds to one: loss and gradient come from what is left for the others."""
    x, wte = np.eye(3), np.array([[30.0, -5.0, 0.0], [0.0, 9.0, 1.0], [1.0, 0.0, 60.0], [2.0, 1.0, 0.0]])
    targets = np.array([0, 1, 2])
    odds = np.exp(wte.T - wte.T[range(3), targets][:, None])  # of each token against the answer
    odds[range(3), targets] = 0.0
    dz = odds / (1 + odds.sum(1, keepdims=True))
    losses, dx, dwte = empty(3), empty(3, 3), empty(4, 3)
    logits, scratch = empty(3, cls.logits_stride(4)), empty(10)
    arrays = (array(x), array(wte), i32(targets), logits, scratch)
    run(cls.classifier(losses, *arrays, dx, dwte, array([1.0]), target=TARGET))
    assert losses.host == pytest.approx(-np.log1p(-dz.sum(1)), rel=1e-5, abs=1e-35)
    dz[range(3), targets] = -dz.sum(1)
    assert dx.host == pytest.approx(dz @ wte, rel=1e-4, abs=1e-35)
    assert dwte.host == pytest.approx(dz.T @ x, rel=1e-4, abs=1e-35)


# ---- dropout, optimizer -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed, site", [(0, 0), (0x9E3779B1, 5), (2**32 - 1, 2)])
def test_dropout_mask_is_the_tables(p, seed, site):
    x = empty(3, 1700)
    x.host[...] = 1.0
    run(drp.dropout(x, x, p, i32(np.array([seed])), site, target=TARGET))
    keep = keep_mask(5100, p, (seed + site) & 0xFFFFFFFF).reshape(3, 1700)
    assert np.array_equal(x.host, np.where(keep, np.float32(1 / (1 - p)), 0.0))


@pytest.mark.parametrize("limit", [0.0, 2.0, 1e6])
def test_global_norm_and_clipping_factor(normal, limit):
    grad, norm = normal(10_007), empty(2)
    run(opt.global_norm(norm, array(grad), array([limit]), empty(opt.global_norm_scratch(TARGET)), target=TARGET))
    length = np.linalg.norm(grad)
    assert norm.host == pytest.approx([length, limit / length if limit == 2.0 else 1.0], rel=1e-6)


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("rounded", [False, True])
def test_adamw(normal, step, rounded):
    n = 3001
    param, grad, m, v = normal(n), normal(n), normal(n), normal(n) ** 2
    arrays = [array(a) for a in (param, grad, m, v)]
    copy = empty(n, dtype="fp16") if rounded else None
    hyper, norm = array([0.01, 1 - 0.9**step, 1 - 0.999**step]), array([5.0, 0.25])
    run(opt.adamw(copy, *arrays, hyper, norm, 1500, 0.9, 0.999, 1e-8, 0.1, target=TARGET))
    ref.adamw(param, grad, m, v, 1500, step, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.25)
    for got, want in zip(arrays, (param, grad, m, v)):
        close(got, want)
    if copy is not None:
        assert np.array_equal(copy.host, arrays[0].host.astype(np.float16))


# ---- launches ---------------------------------------------------------------------------------------------------
def test_a_launch_must_name_every_argument():
    with pytest.raises(TypeError, match="scale"):
        launch(drp.dropout_kernel, (1,), out=None, x=None, seed=None, site=0, threshold=0, n=1, BLOCK=16)


def test_signature_and_attributes_describe_the_arguments():
    x = empty(4, 100)
    [call] = drp.dropout(x, x, 0.5, i32(np.array([1])), target=TARGET)
    assert list(call.signature()) == list(parameters(drp.dropout_kernel))
    assert call.signature()["x"] == "*fp32" and call.signature()["threshold"] == "i64"
    assert call.signature()["BLOCK"] == "constexpr"
    multiples_of_16 = {list(call.signature())[i] for (i,) in call.attributes()}
    assert multiples_of_16 == {"out", "x", "seed", "site", "threshold", "n"}
