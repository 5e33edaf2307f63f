"""From a Triton function to machine code (a *cubin*), without PyTorch, kept on disk.

Triton translates the Python text of a kernel through its own intermediate languages to PTX, NVIDIA's portable assembly,
and ``ptxas`` turns that into the instructions of one GPU generation. All of it runs on the host: a kernel for an H100
compiles on a laptop. What comes out depends on

- the function's text and that of all it calls,
- the *signature*: dtype of each argument, and which pointers and numbers are multiples of 16 (those allow wide loads),
- the *constexprs*: numbers that are fixed when compiling, such as tile sizes,
- warps a program, pipeline stages, the GPU generation, and Triton's version,

so these make the key under which it is kept. A kernel takes a second or so to compile; from the cache, a millisecond.
The folder is ``NANOEULER_CACHE_DIR``, by default ``nanoeuler`` in the user's cache folder; deleting it does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError

KEPT = (
    *("name", "shared", "num_warps", "num_ctas"),
    *("global_scratch_size", "global_scratch_align", "profile_scratch_size", "tensordesc_meta", "launch_pdl"),
)
"""What a launch needs to know, of all that Triton says about a kernel."""


@dataclass(frozen=True)
class Source:
    """All that machine code is made from. ``signature``: (parameter, type) in order; ``aligned``: the positions of
    the parameters that are multiples of 16."""

    fn: Any  # the @triton.jit function
    signature: tuple[tuple[str, str], ...]
    aligned: tuple[int, ...]
    constexprs: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]  # num_warps, num_stages, ...
    sm: int

    def key(self) -> str:
        """SHA-256 of everything that decides the machine code."""
        import triton

        fixed = [(name, getattr(value, "cache_key", value)) for name, value in self.constexprs]  # functions, by text
        what = (self.fn.cache_key, self.signature, self.aligned, fixed, self.options, self.sm, triton.__version__)
        return hashlib.sha256(repr(what).encode()).hexdigest()


@dataclass(frozen=True)
class Binary:
    """Machine code and what a launch needs to know of it: the names in :data:`KEPT`."""

    cubin: bytes
    meta: dict[str, Any]


def cache_folder() -> Path:
    """Where machine code is kept."""
    if chosen := os.environ.get("NANOEULER_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nanoeuler"


def compile_source(source: Source) -> Binary:
    """Machine code for ``source``, from the cache where it is there."""
    [binary] = compile_all([source])
    return binary


def compile_all(sources: Iterable[Source]) -> list[Binary]:
    """Machine code for each of ``sources``; what is not in the cache is compiled on all cores, and put there.

    UserError when the GPU is newer than the Triton installed can compile for.
    """
    sources = list(sources)
    keys = [source.key() for source in sources]
    found = {key: _load(key) for key in dict.fromkeys(keys)}
    missing = {key: source for key, source in zip(keys, sources) if found[key] is None}
    if missing:
        # ptxas, which takes most of the time, is a program of its own, so threads are enough.
        with _own_triton_cache(), ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as threads:
            for key, made in zip(missing, threads.map(_compile, missing.values())):
                found[key] = made
                _save(key, made)
    return [binary for key in keys if (binary := found[key]) is not None]


def _compile(source: Source) -> Binary:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    constexprs = dict(source.constexprs)
    signature = {**dict(source.signature), **dict.fromkeys(constexprs, "constexpr")}
    ordered = {name: signature[name] for name in source.fn.arg_names}
    index = {name: i for i, name in enumerate(ordered)}
    attrs = {(index[source.signature[i][0]],): [["tt.divisibility", 16]] for i in source.aligned}
    ast = (GluonASTSource if source.fn.is_gluon() else ASTSource)(source.fn, ordered, constexprs, attrs)
    try:
        options = {"enable_fp_fusion": True, **dict(source.options)}  # said, since newer Tritons change the default
        kernel = triton.compile(ast, target=GPUTarget("cuda", source.sm, 32), options=options)
    except Exception as error:
        if "is not defined for option" in str(error) or "not a recognized processor" in str(error):
            raise UserError(
                f"Triton {triton.__version__} cannot compile for this GPU (sm_{source.sm}): pip install -U triton"
            ) from error
        raise
    return Binary(kernel.asm["cubin"], {name: getattr(kernel.metadata, name, None) for name in KEPT})


@contextlib.contextmanager
def _own_triton_cache() -> Any:
    """Triton insists on keeping each intermediate text too: give it a folder that goes away again."""
    import triton

    with tempfile.TemporaryDirectory(prefix="nanoeuler-triton-") as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        yield


# ---- the cache: one file a kernel, a line of JSON and then the cubin ----------------------------------------


def _path(key: str) -> Path:
    return cache_folder() / "kernels" / f"{key}.kernel"


def _load(key: str) -> Binary | None:
    """What is kept under ``key``; None if nothing, or if the file is damaged."""
    try:
        header, _, cubin = _path(key).read_bytes().partition(b"\n")
        content = json.loads(header)
        if content.pop("sha256") == hashlib.sha256(cubin).hexdigest():
            return Binary(cubin, content["meta"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _save(key: str, binary: Binary) -> None:
    """Keep ``binary``; a reader sees all of the file or none. Where nothing can be written, nothing is kept."""
    header = json.dumps({"meta": binary.meta, "sha256": hashlib.sha256(binary.cubin).hexdigest()})
    path = _path(key)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(header.encode() + b"\n" + binary.cubin)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
