"""A GPT-2 as a folder in Hugging Face's layout: ``config.json`` and ``model.safetensors``.

The folder that ``transformers`` writes loads here, and the folder written here loads there. Tensors keep their names,
with or without ``transformer.`` in front, and their (in, out) layout. Pickles (``pytorch_model.bin``) are never opened.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.durable import write_errors, write_text
from nanoeuler.errors import UserError
from nanoeuler.formats.safetensors_file import STORED, TensorFile, write_tensors
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.parameters import Layout

CONFIG, MODEL, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PREFIX = "transformer."
GPT2_END_OF_TEXT = 50256
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")  # three names of one formula

# What a config.json may leave out, as transformers fills it in, and for the options what this GPT-2 computes.
DEFAULTS: dict[str, Any] = dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, resid_pdrop=0.1)
REQUIRED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
LAYER_NORM_EPSILON = 1e-5


def load_gpt2(folder: Path) -> tuple[GPTConfig, np.ndarray]:
    """Read a GPT-2 from ``folder``: its sizes and its parameters, flat float32 in the order of :class:`Layout`.

    float32, float16 and bfloat16 are read, from one file or from several with an index. ``config.dropout`` is the
    file's ``resid_pdrop``. Besides the parameters, one tensor at most is in memory, in part.

    Raises UserError, naming the file: a folder, file or tensor is missing; there is only a pickle; a file is truncated
    or foreign; it is not a GPT-2, or one with options or sizes that contradict ours; a parameter is not finite.
    """
    config = read_config(folder)
    layout = Layout(config)
    if int8_group(folder) is not None:
        return config, _load_int8(folder, layout)
    with ExitStack() as stack:
        found: dict[str, tuple[TensorFile, str]] = {}  # our name -> its file, and its name there
        for path in _tensor_files(folder):
            file = stack.enter_context(TensorFile(path))
            found |= {name.removeprefix(PREFIX): (file, name) for name in file.tensors}
        head = found.pop("lm_head.weight", None)
        if head is not None and "wte.weight" not in found:  # some tools keep only the first of two that share memory
            found["wte.weight"], head = head, None
        found = {name: place for name, place in found.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}
        _check_names_and_shapes(folder, layout, found)

        flat = np.empty(layout.n_params, np.float32)
        views = layout.views(flat)
        for name, (file, stored_name) in found.items():
            file.read(stored_name, views[name])
            _check_finite(views[name], f"{file.path}: {name}")
        if head is not None and not head[0].equals(head[1], views["wte.weight"]):
            raise UserError(
                f"{head[0].path}: lm_head.weight differs from wte.weight, but GPT-2's head is tied to its embedding: "
                "this model cannot be loaded"
            )
    return config, flat


def save_gpt2(
    folder: Path, config: GPTConfig, flat: np.ndarray, dtype: str = "float32", eos_token_id: int | None = None
) -> None:
    """Write a GPT-2 into ``folder`` so that ``transformers`` loads it unchanged; each file whole or not at all.

    ``flat`` (n_params,) of any float dtype is stored as ``dtype``: "float32", "float16" or "bfloat16".
    ``eos_token_id`` is end-of-text, if the vocabulary has one; known here only for GPT-2's own.

    Raises UserError when a parameter is not finite, ``dtype`` is unknown, or the folder cannot be written.

    >>> import tempfile
    >>> config = GPTConfig(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2(Path(folder), config, np.arange(config.n_params) / 100)
    ...     loaded, flat = load_gpt2(Path(folder))
    >>> loaded == config, flat[:3]
    (True, array([0.  , 0.01, 0.02], dtype=float32))
    """
    if dtype not in STORED:
        raise UserError(f"cannot store a model as '{dtype}': choose one of {', '.join(STORED)}")
    layout = Layout(config)
    if flat.shape != (layout.n_params,):
        raise UserError(f"this configuration has {layout.n_params} parameters, not {flat.shape}")
    views = layout.views(flat)
    for name, view in views.items():
        _check_finite(view, f"{folder} was not written: {name}")
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / MODEL, {PREFIX + name: view for name, view in views.items()}, dtype)
    write_text(folder / CONFIG, json.dumps(config_json(config, dtype, eos_token_id), indent=2) + "\n")


def config_json(config: GPTConfig, dtype: str = "float32", eos_token_id: int | None = None) -> dict[str, Any]:
    """The content of ``config.json`` for ``GPT2LMHeadModel``."""
    if eos_token_id is None and config.vocab_size in (50257, 50304):  # 50304: padded to a multiple of 128
        eos_token_id = GPT2_END_OF_TEXT
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.block_size,
        "n_ctx": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "initializer_range": config.init_std,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "tie_word_embeddings": True,
        "bos_token_id": eos_token_id,
        "eos_token_id": eos_token_id,
        "dtype": dtype,
        "torch_dtype": dtype,  # the same, for transformers before version 5
    }


def read_config(folder: Path) -> GPTConfig:
    """The sizes in ``folder``'s ``config.json``. Raises UserError if it is missing, damaged or not our GPT-2."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: check the path")
    path = folder / CONFIG
    d = {**DEFAULTS, **_read_json(path)}
    if d.get("model_type") != "gpt2":
        raise UserError(f"{path}: model_type is {d.get('model_type')!r}: only 'gpt2' can be loaded")
    if (activation := d.get("activation_function", "gelu_new")) not in TANH_GELU:
        raise UserError(f"{path}: activation_function {activation!r} is not supported: only 'gelu_new', as in GPT-2")
    for name, needed in REQUIRED.items():
        if d.get(name, needed) != needed:
            raise UserError(f"{path}: {name} = {json.dumps(d[name])} is not supported: only {json.dumps(needed)}")
    if (eps := d.get("layer_norm_epsilon", LAYER_NORM_EPSILON)) != LAYER_NORM_EPSILON:
        raise UserError(f"{path}: layer_norm_epsilon {eps!r} is not supported: only {LAYER_NORM_EPSILON}")
    if (inner := d.get("n_inner")) is not None and inner != 4 * d["n_embd"]:
        raise UserError(f"{path}: n_inner {inner!r} is not supported: only 4 x n_embd")
    sizes = {ours: d[ours] for ours in ("vocab_size", "n_embd", "n_layer", "n_head")}
    try:
        fresh = {"init_std": d["initializer_range"]} if "initializer_range" in d else {}
        return GPTConfig(**sizes, block_size=d["n_positions"], dropout=d["resid_pdrop"], **fresh)
    except (UserError, TypeError) as error:
        raise UserError(f"{path}: {error}") from None


def int8_group(folder: Path) -> int | None:
    """Weights that share a scale, if the folder's model is in 8 bits, as `nanoeuler quantize` writes it; else None.

    Raises UserError for one that another program quantized.
    """
    path = folder / CONFIG
    how = _read_json(path).get("quantization_config") if path.exists() else None
    if how is None:
        return None
    if not isinstance(how, dict) or how.get("quant_method") != "nanoeuler" or how.get("bits") != 8:
        raise UserError(f"{path}: weights quantized by another program cannot be read: load the model it was made from")
    size = how.get("group_size")
    if type(size) is not int:
        raise UserError(f"{path}: group_size must be a whole number, not {size!r}: make the folder again")
    return size


def _load_int8(folder: Path, layout: Layout) -> np.ndarray:
    """The parameters that a model in 8 bits stands for, flat float32."""
    from nanoeuler.formats.int8_folder import load_int8

    flat = np.empty(layout.n_params, np.float32)
    views = layout.views(flat)
    for name, values in load_int8(folder).state():
        views[name][...] = values
    return flat


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}: it is not a model folder") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): copy or download it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a JSON object: copy or download it again")
    return content


def _tensor_files(folder: Path) -> list[Path]:
    """The files that hold the tensors: one, or those that the index names."""
    if (folder / MODEL).exists():
        return [folder / MODEL]
    if (folder / INDEX).exists():
        weight_map = _read_json(folder / INDEX).get("weight_map")
        names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise UserError(f"{folder / INDEX} names no files of this folder: copy or download it again")
        for name in sorted(names):
            if not (folder / name).is_file():
                raise UserError(f"{folder / name} is missing, but {INDEX} names it: copy or download it too")
        return [folder / name for name in sorted(names)]
    if any(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"{folder} holds its weights as a pickle (pytorch_model.bin), which could run any code, so it is never "
            "opened: convert it where you trust it, with transformers: "
            "GPT2LMHeadModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    raise UserError(f"{folder} has no {MODEL}: it is not a model folder, or not all of it was copied")


def _check_names_and_shapes(folder: Path, layout: Layout, found: dict[str, tuple[TensorFile, str]]) -> None:
    for spec in layout:
        if spec.name not in found:
            raise UserError(f"{folder}: the tensor {spec.name} is missing, but {CONFIG} asks for it")
        file, stored_name = found[spec.name]
        if (shape := file.tensors[stored_name].shape) != spec.shape:
            raise UserError(f"{file.path}: {spec.name} has shape {shape}, but {CONFIG} asks for {spec.shape}")
    known = {spec.name for spec in layout}
    if extra := sorted(set(found) - known):
        raise UserError(f"{folder}: the tensor {extra[0]} has no place in a GPT-2 of the sizes in {CONFIG}")


def _check_finite(view: np.ndarray, where: str) -> None:
    with np.errstate(invalid="ignore"):
        total = float(view.sum(dtype=np.float64))  # finite just if all terms are: no sum of float32 overflows float64
    if not math.isfinite(total):
        raise UserError(f"{where} has numbers that are not finite (training diverged): use an earlier checkpoint")
