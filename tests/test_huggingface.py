"""Hugging Face's folder: theirs loads here, ours loads there, and what is wrong with one is said in a line."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nanoeuler.errors import UserError
from nanoeuler.formats import safetensors_file
from nanoeuler.formats.huggingface import load_gpt2, save_gpt2
from nanoeuler.formats.safetensors_file import TensorFile, from_bfloat16, to_bfloat16, write_tensors
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.model.parameters import Layout

GOLDEN = Path(__file__).parent / "golden"
HF = GOLDEN / "hf_gpt2"
CONFIG = GPTConfig(vocab_size=131, block_size=40, n_layer=2, n_head=3, n_embd=36)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the folder that transformers saved, to be spoilt."""
    return Path(shutil.copytree(HF, tmp_path / "model"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# ---- both directions ----------------------------------------------------------------------------------------------
def test_a_folder_of_transformers_loads() -> None:
    config, flat = load_gpt2(HF)
    assert config == CONFIG and flat.dtype == np.float32
    stored = load_file(HF / "model.safetensors")
    views = Layout(config).views(flat)
    assert {f"transformer.{name}" for name in views} == set(stored)
    assert all(np.array_equal(view, stored[f"transformer.{name}"]) for name, view in views.items())
    golden = load_file(GOLDEN / "gpt2_small.safetensors")
    logits = GPT.from_pretrained(HF, device="reference").logits(golden["x"][0])
    assert np.abs(logits - golden["logits"]).max() < 1e-5


def test_ours_is_what_the_official_reader_expects(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    save_gpt2(folder, *load_gpt2(HF))
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, HF))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    written, wanted = (json.loads((path / "config.json").read_text(encoding="utf-8")) for path in (folder, HF))
    for key in (written.keys() & wanted.keys()) - {"bos_token_id", "eos_token_id"}:
        assert written[key] == wanted[key], key


def test_transformers_loads_ours(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    save_gpt2(tmp_path, *load_gpt2(HF))
    model, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    golden = load_file(GOLDEN / "gpt2_small.safetensors")
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(golden["x"][0]).long()).logits.numpy()
    assert np.abs(logits - golden["logits"]).max() < 1e-4


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_round_trip(tmp_path: Path, dtype: str, unit: float) -> None:
    config, flat = load_gpt2(HF)
    save_gpt2(tmp_path, config, flat.astype(np.float64), dtype=dtype)
    loaded, again = load_gpt2(tmp_path)
    assert loaded == config
    assert (np.abs(again - flat) <= unit * np.abs(flat) + (2.0**-25 if dtype == "float16" else 0.0)).all()
    assert np.array_equal(again, flat) == (dtype == "float32")
    size = (tmp_path / "model.safetensors").stat().st_size - (4 if dtype == "float32" else 2) * flat.size
    assert 0 < size < 6000  # the header
    save_gpt2(tmp_path, loaded, again, dtype=dtype)
    assert np.array_equal(load_gpt2(tmp_path)[1], again)  # a second time, nothing more is lost


def test_dropout_and_end_of_text_are_kept(tmp_path: Path) -> None:
    config = GPTConfig(**{**CONFIG.to_dict(), "dropout": 0.25})
    save_gpt2(tmp_path, config, load_gpt2(HF)[1], eos_token_id=7)
    assert load_gpt2(tmp_path)[0] == config
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert written["eos_token_id"] == written["bos_token_id"] == 7


# ---- what other programs write ------------------------------------------------------------------------------------
def test_names_without_prefix_buffers_and_a_tied_head(folder: Path) -> None:
    def rename(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for i in range(2):
            tensors[f"h.{i}.attn.bias"] = np.ones((1, 1, 40, 40), np.bool_)
            tensors[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
        tensors["lm_head.weight"] = tensors["wte.weight"].copy()

    change_tensors(folder, rename)
    assert np.array_equal(load_gpt2(folder)[1], load_gpt2(HF)[1])


def test_a_head_without_its_embedding_is_the_embedding(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t.pop("transformer.wte.weight")}))
    assert np.array_equal(load_gpt2(folder)[1], load_gpt2(HF)[1])


def test_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    assert np.array_equal(load_gpt2(folder)[1], load_gpt2(HF)[1])

    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00003\.safetensors is missing"):
        load_gpt2(folder)
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../model.safetensors"}}), encoding="utf-8")
    with pytest.raises(UserError, match="names no files of this folder"):
        load_gpt2(folder)


def test_config_with_defaults_left_out(folder: Path) -> None:
    """The smallest config.json that transformers accepts too: sizes only."""
    sizes = dict(model_type="gpt2", vocab_size=131, n_positions=40, n_embd=36, n_layer=2, n_head=3)
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    assert load_gpt2(folder)[0] == GPTConfig(**{**CONFIG.to_dict(), "dropout": 0.1})


# ---- one clear line -----------------------------------------------------------------------------------------------
CONFIG_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama"}, "model_type is 'llama'"),
    ({"model_type": None}, "model_type is None"),
    ({"activation_function": "relu"}, "activation_function 'relu' is not supported"),
    ({"activation_function": "gelu"}, "activation_function 'gelu' is not supported"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true is not supported"),
    ({"scale_attn_weights": False}, "scale_attn_weights = false is not supported"),
    ({"add_cross_attention": True}, "add_cross_attention = true is not supported"),
    ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon 1e-06 is not supported"),
    ({"n_inner": 100}, "n_inner 100 is not supported"),
    ({"n_embd": 48}, r"has shape \(131, 36\), but config.json asks for \(131, 48\)"),
    ({"vocab_size": 128}, r"wte.weight has shape \(131, 36\), but config.json asks for \(128, 36\)"),
    ({"n_positions": 1024}, "wpe.weight has shape"),
    ({"n_layer": 3}, "the tensor h.2.attn.c_attn.weight is missing"),
    ({"n_layer": 1}, "the tensor h.1.attn.c_attn.bias has no place in a GPT-2"),
    ({"n_head": 5}, "n_embd 36 is not divisible by n_head 5"),
    ({"n_head": "3"}, "n_head must be a positive whole number"),
    ({"resid_pdrop": "none"}, "config.json: "),
]


@pytest.mark.parametrize(("changes", "message"), CONFIG_ERRORS, ids=[str(changes) for changes, _ in CONFIG_ERRORS])
def test_config_errors(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(UserError, match=message) as error:
        load_gpt2(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def _untie(tensors: dict[str, np.ndarray]) -> None:
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + np.float32(1e-3)


def _pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _poison(tensors: dict[str, np.ndarray], value: float) -> None:
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 4] = value


FOLDER_ERRORS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "there is no folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{'a': 1}"), "is not valid JSON"),
    "config not UTF-8": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "is not valid JSON"),
    "config nested": (lambda f: (f / "config.json").write_text("[" * 200_000), "is not valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "a pickle only": (_pickle_only, "as a pickle .* never opened: convert it"),
    "untied": (lambda f: change_tensors(f, _untie), "lm_head.weight differs from wte.weight"),
    "NaN": (lambda f: change_tensors(f, lambda t: _poison(t, np.nan)), "c_fc.weight has numbers that are not finite"),
    "infinity": (lambda f: change_tensors(f, lambda t: _poison(t, np.inf)), "not finite"),
    "a foreign tensor": (lambda f: change_tensors(f, lambda t: t.update(x=np.ones(1))), "the tensor x has no place"),
    "float64": (
        lambda f: change_tensors(f, lambda t: t.update({k: v.astype(np.float64) for k, v in t.items()})),
        "is stored as F64, which is not read here",
    ),
}


@pytest.mark.parametrize("what", FOLDER_ERRORS)
def test_folder_errors(folder: Path, what: str) -> None:
    spoil, message = FOLDER_ERRORS[what]
    spoil(folder)
    with pytest.raises(UserError, match=message) as error:
        load_gpt2(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


# ---- the file format ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("keep", [0, 4, 8, 9, 1000, -100_000, -1])
def test_truncated_at_any_place(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"truncated|not a safetensors file"):
        load_gpt2(folder)


def _file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(*offsets: int, shape: object = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "not a safetensors file"),
        (b"PK\x03\x04" + bytes(500), "not a safetensors file"),
        (_file(b"\x80\x04pickle"), "not a safetensors file"),
        (_file(b"{" + b'"a":[' * 100_000), "not a safetensors file"),
        (_file([1, 2]), "not a safetensors file"),
        (_file({"a": 1}), "not a safetensors file"),
        (_file({"a": _entry(0)}), "not a safetensors file"),
        (_file({"a": _entry(0, 8, shape=[-2])}, bytes(8)), "not a safetensors file"),
        (_file({"a": _entry(8, 0)}), "not a safetensors file"),
        (_file({"a": _entry(0, 12)}, bytes(12)), "does not fit its shape"),
        (_file({"a": _entry(4, 12)}, bytes(12)), "does not lie right after"),
        (_file({"a": _entry(0, 8), "b": _entry(4, 12)}, bytes(12)), "does not lie right after"),
        (_file({"a": _entry(0, 8)}, bytes(9)), "longer than its header says"),
    ],
)
def test_foreign_and_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        TensorFile(path)


def test_reading_in_parts_gives_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "CHUNK", 7)
    tensors = {name: np.random.default_rng(n).standard_normal((n, 5), np.float32) for name, n in [("a", 4), ("b", 9)]}
    for dtype in ("float32", "float16", "bfloat16"):
        write_tensors(tmp_path / "x.safetensors", tensors, dtype)
        with TensorFile(tmp_path / "x.safetensors") as file:
            for name, tensor in tensors.items():
                out = np.full(tensor.shape, np.nan, np.float32)
                file.read(name, out)
                np.testing.assert_allclose(out, tensor, rtol=2.0**-8)
                assert file.equals(name, out)
                out[-1, -1] += 1.0
                assert not file.equals(name, out)


def test_bfloat16_rounds_to_nearest_even() -> None:
    """Against the definition: of the two neighbours the nearer, of two equally near the one whose last bit is 0."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    bits[:5000] = (bits[:5000] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # ties
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) < 3e38)]
    below = (x.view(np.uint32) >> 16).astype(np.uint16)  # toward zero
    candidates = [from_bfloat16(below).astype(np.float64), from_bfloat16(below + np.uint16(1)).astype(np.float64)]
    distance = [np.abs(candidate - x) for candidate in candidates]
    even = np.where(below % 2 == 0, below, below + 1)
    want = np.where(distance[0] == distance[1], even, np.where(distance[0] < distance[1], below, below + 1))
    assert np.array_equal(to_bfloat16(x), want)
    special = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    special_bits = np.append(special, np.array([0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32))
    back = from_bfloat16(to_bfloat16(special_bits))
    assert np.array_equal(back[:2], special[:2]) and np.isnan(back[[2, 4, 5]]).all() and np.signbit(back[3])


# ---- writing ------------------------------------------------------------------------------------------------------
def test_what_cannot_be_saved_leaves_the_old_model(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    config, flat = load_gpt2(folder)
    large, diverged = flat.copy(), flat.copy()
    large[100], diverged[5000] = 1e5, np.nan
    for params, dtype, message in [
        (diverged, "float32", "not finite"),
        (large, "float16", "wte.weight holds numbers beyond float16's 65504"),
        (flat, "int8", "cannot store a model as 'int8'"),
        (flat[1:], "float32", "has 38268 parameters, not"),
    ]:
        with pytest.raises(UserError, match=message):
            save_gpt2(folder, config, params, dtype=dtype)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(UserError, match="cannot write"):
        save_gpt2(folder / "config.json", config, flat)  # a file stands where the folder should


def test_a_crash_while_writing_leaves_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    config, flat = load_gpt2(folder)
    calls = []

    def crash(name: str, part: np.ndarray, dtype: str) -> np.ndarray:
        calls.append(name)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        return part

    monkeypatch.setattr(safetensors_file, "_stored", crash)
    with pytest.raises(UserError, match="the disk is full while writing"):
        save_gpt2(folder, config, flat * 2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
