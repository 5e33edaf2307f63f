"""Decoding with weights in two bytes and in one: against NumPy, the same bits row by row, and which instruction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numba import njit

from nanoeuler.errors import UserError
from nanoeuler.formats.huggingface import load_gpt2
from nanoeuler.formats.int8_folder import load_int8, save_int8
from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.inference.decoder import UncachedDecoder, open_decoder
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.pretrained import shipped_model
from nanoeuler.inference.quantize import GROUP, Int8Weights, is_quantized, quantize, quantize_matrix
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.cpu import simd_rows
from nanoeuler.ops.cpu.decode import product, round_rows
from nanoeuler.ops.cpu.packing import BF16, INT8, pack_bf16, pack_int8, packed_bytes, unpack_output

SHAPES = [(1, 1, 1), (1, 33, 100), (5, 64, 32), (6, 100, 257), (9, 320, 33), (1, 768, 96)]  # n, K, O
ODD = GPTConfig(101, block_size=70, n_layer=2, n_head=3, n_embd=33, init_std=0.2)


@njit
def call_product(kind, packed, at, out, ldo, n, K, O, x, ldx, q, scales, offsets):  # type: ignore[no-untyped-def]  # noqa: E741
    """From Python: parts of kernels have no entry for it."""
    round_rows(x, ldx, n, K, q, scales, offsets)
    product(kind, x, packed, at, out, ldo, n, K, O, x, ldx, q, scales, offsets, 0, O)


@njit
def call_unpack(out, kind, packed, K):  # type: ignore[no-untyped-def]
    for o in range(out.shape[0]):
        unpack_output(out[o], kind, packed, 0, K, o)


def multiply(kind: int, x: np.ndarray, w: np.ndarray, head: bool) -> tuple[np.ndarray, np.ndarray]:
    """(product by the kernel, the weights as unpacked again) of x (n, K) and w (K, O), stored (O, K) if ``head``."""
    (n, K), O = x.shape, w.shape[1]  # noqa: E741
    stored, axis = (np.ascontiguousarray(w.T), 1) if head else (w, 0)
    strides = (1, K) if head else (O, 1)
    packed = np.full(packed_bytes(kind, K, O) + 64, 7, np.uint8)[64 - 1 :][1:]
    if kind == BF16:
        pack_bf16(packed.view(np.uint16), stored.reshape(-1).view(np.uint32), K, O, *strides)
    else:
        q, scale = quantize_matrix(stored, axis)
        groups = (1, scale.shape[1]) if head else (O, 1)
        pack_int8(packed, q.reshape(-1), scale.reshape(-1), K, O, *strides, *groups)
    ldo, groups8 = -(-O // simd_rows.PANEL) * simd_rows.PANEL, -(-K // GROUP)
    out = np.full((n, ldo), np.nan, np.float32)
    q8 = np.empty(n * groups8 * GROUP, np.int8)
    sx, ox = np.empty(n * groups8, np.float32), np.empty(n * groups8, np.int32)
    call_product(kind, packed, 0, out.reshape(-1), ldo, n, K, O, x.reshape(-1), K, q8, sx, ox)
    rows = np.empty((O, K), np.float32)
    call_unpack(rows, kind, packed, K)
    unpacked = rows.T
    return out[:, :O], unpacked


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(("n", "K", "O"), SHAPES)
def test_bf16_product(n: int, K: int, O: int, head: bool) -> None:  # noqa: E741
    rng = np.random.default_rng(K)
    x, w = rng.standard_normal((n, K), np.float32), rng.standard_normal((K, O), np.float32)
    got, unpacked = multiply(BF16, x, w, head)
    assert np.array_equal(unpacked, from_bfloat16(to_bfloat16(w)).reshape(w.shape))
    want = x.astype(np.float64) @ unpacked
    assert np.linalg.norm(got - want) < 1e-6 * np.linalg.norm(want)
    for r in range(n):
        assert np.array_equal(multiply(BF16, x[r : r + 1], w, head)[0][0], got[r])


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(("n", "K", "O"), SHAPES)
def test_int8_product(n: int, K: int, O: int, head: bool) -> None:  # noqa: E741
    rng = np.random.default_rng(K)
    x, w = rng.standard_normal((n, K), np.float32), rng.standard_normal((K, O), np.float32)
    x[:, : min(K, GROUP)] *= 100  # groups of different size
    if K > GROUP:
        w[:GROUP], x[0, GROUP:] = 0, 0  # groups of zeros
    got, unpacked = multiply(INT8, x, w, head)
    q, scale = quantize_matrix(w, 0)
    assert np.array_equal(unpacked, Int8Weights(GPTConfig(), {"h.": q}, {"h.": scale}, {}).dequantize("h."))
    assert np.abs(unpacked - w).max() <= 0.5 * from_bfloat16(scale).max()
    rounded = np.empty((n, K))  # x as the kernel rounds it
    for g in range(0, K, GROUP):
        part = x[:, g : g + GROUP]
        largest = np.abs(part).max(axis=1, keepdims=True)
        inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        rounded[:, g : g + GROUP] = np.rint(part * inverse) * (largest / np.float32(127)).astype(np.float64)
    want = rounded @ unpacked
    assert np.abs(got - want).max() <= 1e-5 * max(1e-30, np.abs(want).max())
    for r in range(n):
        assert np.array_equal(multiply(INT8, x[r : r + 1], w, head)[0][0], got[r])


def _panel(vnni: bool):  # type: ignore[no-untyped-def]
    columns = simd_rows.make_columns_int8(1, vnni)

    @njit
    def run(groups, x, scales, offsets, w, out):  # type: ignore[no-untyped-def]
        columns(groups, x.ctypes.data, 0, scales.ctypes.data, offsets.ctypes.data, 0, w.ctypes.data, out.ctypes.data, 0)

    rng = np.random.default_rng(0)
    x = rng.integers(-127, 128, 3 * GROUP).astype(np.int8)
    w = rng.integers(0, 256, 3 * (GROUP + 2) * simd_rows.PANEL).astype(np.uint8)
    scale_bytes = w.view(np.uint16).reshape(3, -1)[:, : simd_rows.PANEL]
    scale_bytes[...] = to_bfloat16(rng.random(scale_bytes.shape, np.float32)).reshape(scale_bytes.shape)
    offsets = (-128 * x.reshape(3, GROUP).astype(np.int32).sum(1)).astype(np.int32)
    out = np.zeros(simd_rows.PANEL, np.float32)
    run(3, x, np.ones(3, np.float32), offsets, w, out)
    return out, "".join(run.inspect_asm().values())


def test_the_way_without_vnni_gives_the_same_bits() -> None:
    out, code = _panel(vnni=False)
    assert "vpdpbusd" not in code
    if simd_rows.VNNI:
        assert np.array_equal(out, _panel(vnni=True)[0])


@pytest.mark.skipif(not simd_rows.VNNI, reason="this processor has no VNNI")
def test_the_integer_dot_product_is_one_instruction() -> None:
    code = _panel(vnni=True)[1]
    assert code.count("vpdpbusd") >= 2 * GROUP // 4


@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
def test_prompts_steps_and_batches_give_the_same_bits(weights: str) -> None:
    net = GPT(ODD, seed=3)
    ids = np.random.default_rng(0).integers(0, 101, (2, 60)).tolist()
    decoder = open_decoder(net, 3, 70, weights)
    assert not isinstance(decoder, UncachedDecoder)
    decoder.prefill(0, ids[0][:1])
    alone = np.concatenate([decoder.step([0], [id]) for id in ids[0][1:]])
    decoder.prefill(1, ids[1][:5])
    first = decoder.prefill(2, ids[0][:37])
    assert np.array_equal(first, alone[35])
    assert np.array_equal(decoder.extend(2, ids[0][37:50]), alone[36:49])
    for i in range(50, 60):
        rows = decoder.step([1, 2], [ids[1][i], ids[0][i]])
        assert np.array_equal(rows[1], alone[i - 1])


@pytest.mark.parametrize(("weights", "limit"), [("bf16", 0.01), ("int8", 0.04)])
def test_rounded_weights_change_logits_little(weights: str, limit: float) -> None:
    net = GPT.from_pretrained(shipped_model())
    ids = Generator.from_pretrained().tokenizer.encode("Once upon a time there was a girl named Lily. She went out.")
    exact, rounded = (open_decoder(net, 1, 64, kind) for kind in ("float32", weights))
    want, got = (np.concatenate([d.prefill(0, ids[:1])[None], d.extend(0, ids[1:])]) for d in (exact, rounded))
    want, got = (z - z.mean(axis=1, keepdims=True) for z in (want, got))
    assert 0 < np.linalg.norm(got - want) < limit * np.linalg.norm(want)


def test_ids_outside_the_vocabulary() -> None:
    decoder = open_decoder(GPT(ODD), 1, 10, "int8")
    with pytest.raises(UserError, match="token id 101 is outside"):
        decoder.prefill(0, [1, 101])


# ---- folders ------------------------------------------------------------------------------------------
def test_folder_round_trip(tmp_path: Path) -> None:
    net = GPT(ODD, seed=3)
    small = quantize(ODD, net.state_dict())
    save_int8(tmp_path / "m", small)
    loaded = load_int8(tmp_path / "m")
    assert loaded.config.n_params == ODD.n_params
    for mine, theirs in ((small.q, loaded.q), (small.scale, loaded.scale), (small.rest, loaded.rest)):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    assert {name for name in net.state_dict() if is_quantized(name)} == set(loaded.q)
    _, flat = load_gpt2(tmp_path / "m")  # what the numbers stand for, for everything that is not writing
    assert np.array_equal(net.layout.views(flat)["wte.weight"], small.dequantize("wte.weight"))
    ids = [1, 2, 3]
    a, b = (open_decoder(source, 1, 8, "int8").prefill(0, ids) for source in (net, loaded))
    assert np.array_equal(a, b)


def test_folder_is_read_by_safetensors(tmp_path: Path) -> None:
    from safetensors import safe_open

    small = quantize(ODD, GPT(ODD, seed=3).state_dict())
    save_int8(tmp_path, small)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert np.array_equal(file.get_tensor("transformer.wte.weight"), small.q["wte.weight"])
        assert file.get_slice("transformer.wte.weight_scale").get_dtype() == "BF16"


@pytest.mark.parametrize("damage", ["method", "group", "missing", "shape"])
def test_damaged_folders(tmp_path: Path, damage: str) -> None:
    small = quantize(ODD, GPT(ODD, seed=3).state_dict())
    if damage == "shape":
        small.scale["wte.weight"] = small.scale["wte.weight"][:-1]
    save_int8(tmp_path, small)
    config = tmp_path / "config.json"
    changes = {"method": ('"nanoeuler"', '"gptq"'), "group": ('"group_size": 64', '"group_size": 32')}
    if damage in changes:
        config.write_text(config.read_text().replace(*changes[damage]))
    if damage == "missing":
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError):
        load_gpt2(tmp_path)
