"""Checkpoints: a folder that ``transformers`` loads as it is, and beside the model what training needs to go on.

    RUN/last/config.json, model.safetensors   the model, in Hugging Face's layout
    RUN/last/vocab.json, merges.txt, ...      its tokenizer
    RUN/last/optimizer.safetensors            AdamW's two moments, ``m.NAME`` and ``v.NAME`` for each parameter
    RUN/last/trainer_state.json               step, tokens, best loss, and size and SHA-256 of each file
    RUN/best/...                              the model of the lowest validation loss, without the optimizer

The state lists the other files, so that a mix of two checkpoints, or a damaged file, is noticed and not loaded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nanoeuler import __version__
from nanoeuler.durable import replacing_folder, write_bytes
from nanoeuler.errors import UserError
from nanoeuler.formats.huggingface import save_gpt2
from nanoeuler.formats.safetensors_file import write_tensors
from nanoeuler.model.gpt import GPT
from nanoeuler.ops.table import Array
from nanoeuler.tokenizer import BaseTokenizer

FORMAT = "nanoeuler-run-1"
STATE_FILE, OPTIMIZER_FILE, MODEL_FILE = "trainer_state.json", "optimizer.safetensors", "model.safetensors"


@dataclass
class TrainerState:
    """How far a run is: everything that a step depends on besides parameters and moments.

    ``pending``: what is due after ``step`` (evaluation, sample) is still to come. ``settings``: those that must not
    change when the run goes on. ``data``: what the tokens were. ``val_loss``: of this very model, where measured.
    """

    step: int = 0
    tokens: int = 0
    seed: int = 0
    seconds: float = 0.0
    best_val_loss: float | None = None
    best_step: int | None = None
    val_loss: float | None = None
    pending: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    format: str = FORMAT
    version: str = __version__
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def save_checkpoint(
    folder: Path,
    model: GPT,
    tokenizer: BaseTokenizer | None,
    state: TrainerState,
    moments: tuple[Array, Array] | None = None,
) -> None:
    """Replace ``folder`` by the model, its tokenizer, ``state`` and, if given, the moments ``(m, v)``, each flat.

    At any moment the old checkpoint or the new one is there, whole. Raises UserError (disk full, no permission).
    """
    with replacing_folder(folder) as new:
        eot_id = None if tokenizer is None else tokenizer.eot_id
        save_gpt2(new, model.config, _on_host(model, model.master), eos_token_id=eot_id)
        if tokenizer is not None:
            tokenizer.save(new)
        if moments is not None:
            _save_optimizer(new / OPTIMIZER_FILE, model, moments)
        files = {path.name: _fingerprint(path) for path in sorted(new.iterdir())}
        content = {**asdict(state), "files": files}
        text = json.dumps({**content, "sha256": _digest(content)}, indent=2) + "\n"
        (new / STATE_FILE).write_text(text, encoding="utf-8", newline="\n")


def _save_optimizer(path: Path, model: GPT, moments: tuple[Array, Array]) -> None:
    flat = {"m": moments[0], "v": moments[1]}
    exact = model.ops.storage.exact_bytes == 4
    if not exact:  # model.safetensors is float32: keep here what the engine really has
        flat["param"] = model.master
    tensors = {
        f"{kind}.{name}": view
        for kind, buffer in flat.items()
        for name, view in model.layout.views(_on_host(model, buffer)).items()
    }
    if exact:
        write_tensors(path, tensors)  # piece by piece: save_file would first copy all of it
    else:
        write_bytes(path, save(tensors))


def _on_host(model: GPT, array: Array) -> np.ndarray:
    """``array`` for reading: itself where it already lies in host memory, for a copy can be gigabytes."""
    return array if isinstance(array, np.ndarray) else model.ops.download(array)


def has_state(folder: Path) -> bool:
    """Whether ``folder`` holds a ``trainer_state.json`` of ours (``transformers`` has a file of that name too)."""
    try:
        content = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and str(content.get("format")).startswith("nanoeuler-run-")


def load_state(folder: Path, with_optimizer: bool = True) -> TrainerState:
    """Read ``trainer_state.json`` and check that the files beside it are the ones it was written with.

    Without ``with_optimizer`` the optimizer's file may be missing: a model needs none to write. Raises UserError,
    naming the file, when one is missing, truncated, damaged or from another checkpoint.
    """
    path = folder / STATE_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} is no checkpoint of a run: it has no {STATE_FILE}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): go on from another checkpoint with --init-from") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} was not written by this program: go on from the model with --init-from {folder}")
    if content.pop("sha256", None) != _digest(content):
        raise UserError(f"{path} is damaged or was edited: go on from another checkpoint with --init-from")
    known = {f.name for f in fields(TrainerState)}
    state = TrainerState(**{k: v for k, v in content.items() if k in known})
    for name, expected in state.files.items():
        if with_optimizer or name != OPTIMIZER_FILE:
            _check_file(folder / name, expected)
    return state


def _digest(content: dict[str, Any]) -> str:
    """SHA-256 of the state itself, so that no damaged number passes for a right one."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _check_file(path: Path, expected: dict[str, Any]) -> None:
    mend = f"copy the checkpoint {path.parent} again as a whole, or go on from another one with --init-from"
    if not path.is_file():
        raise UserError(f"{path} is missing: {mend}")
    if (size := path.stat().st_size) != expected["bytes"]:
        state = "truncated" if size < expected["bytes"] else "not the one that was saved"
        raise UserError(f"{path} is {state} ({size} bytes, saved were {expected['bytes']}): {mend}")
    if _fingerprint(path) != expected:
        raise UserError(f"{path} is damaged or belongs to another checkpoint: {mend}")


def is_whole(folder: Path) -> bool:
    """Whether ``folder`` holds a checkpoint with all its files as they were written."""
    try:
        load_state(folder)
    except UserError:
        return False
    return True


def load_optimizer(folder: Path, model: GPT, moments: tuple[Array, Array]) -> None:
    """Read the moments into ``moments``, and into ``model`` the parameters where the file has them more exactly.

    Raises UserError when the file is not that of ``model``.
    """
    path = folder / OPTIMIZER_FILE
    try:
        with safe_open(path, framework="np") as tensors:
            names = set(tensors.keys())
            flat = {"m": moments[0], "v": moments[1]}
            if any(name.startswith("param.") for name in names):
                flat["param"] = model.master
            for kind, buffer in flat.items():
                for name, view in model.layout.views(buffer).items():
                    if f"{kind}.{name}" not in names:
                        raise UserError(f"{path} lacks {kind}.{name}: it belongs to another model")
                    tensor = tensors.get_tensor(f"{kind}.{name}")
                    if tensor.shape != tuple(view.shape):
                        raise UserError(f"{path}: {kind}.{name} is {tensor.shape}, the model needs {tuple(view.shape)}")
                    model.ops.upload(view, tensor)
        model.round_parameters()
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
