"""``nanoeuler info``: what a bug report needs, and what decides the speed."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from nanoeuler.cli import compile_cache
from nanoeuler.cli.console import human_bytes

PACKAGES = ("numpy", "numba", "llvmlite", "safetensors", "click", "rich")
SIMD = ("sse4.2", "avx", "avx2", "fma", "avx512f", "avx512vnni", "avx512bf16", "amx-bf16", "amx-int8", "neon")


@click.command()
def command() -> None:
    """Show versions, processor, threads, caches and the shipped model.

    \b
    Example:
      nanoeuler info
    """
    from nanoeuler import __version__

    lines = {
        "nanoeuler": f"{__version__} in {Path(__file__).parents[1]}",
        "python": f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        **_processor(),
        "threads": _threads(),
        "devices": _devices(),
        "gpu": _gpu(),
        "compile cache": _cache(),
        "shipped model": _shipped(),
    }
    for name, value in lines.items():
        click.echo(f"{name:14} {value}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _processor() -> dict[str, str]:
    """What the compiler sees: the processor's name, and those of its vector instructions that matter here."""
    try:
        from llvmlite import binding

        features = binding.get_host_cpu_features()
        name = binding.get_host_cpu_name()
    except (ImportError, RuntimeError):
        return {"processor": platform.processor() or "unknown"}
    return {
        "processor": f"{name}, {os.cpu_count()} logical cores",
        "simd": ", ".join(feature for feature in SIMD if features.get(feature)) or "none known",
    }


def _threads() -> str:
    try:
        import numba
    except ImportError:
        return "none: the CPU engine needs Numba"
    settings = [f"{k}={os.environ[k]}" for k in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS") if k in os.environ]
    return f"{numba.get_num_threads()} ({', '.join(settings) or 'set NUMBA_NUM_THREADS to change'})"


def _devices() -> str:
    """The engines that run here, and those that do not."""
    from nanoeuler.errors import UserError
    from nanoeuler.ops import DEVICES
    from nanoeuler.ops.gpu.runtime.driver import open_device

    try:
        open_device()
    except UserError:
        here, not_here = ([name for name in DEVICES if name.startswith("gpu") is on_gpu] for on_gpu in (False, True))
        return f"{', '.join(here)}; not {' and '.join(not_here)}: see gpu"
    return ", ".join(DEVICES)


def _gpu() -> str:
    """The GPU and what the GPU engine needs, or why it cannot be used here."""
    from nanoeuler.errors import UserError
    from nanoeuler.ops.gpu.runtime.driver import open_device

    try:
        gpu = open_device()
        free, total = gpu.memory_info()
    except UserError as error:
        return f"none ({error})"
    size = compile_cache.size("gpu")
    kernels = f"{human_bytes(size)} of kernels in {compile_cache.folder('gpu')}" if size else "no kernels compiled yet"
    packages = ", ".join(f"{name} {_version(name)}" for name in ("triton", "cuda-bindings"))
    return (
        f"{gpu.name}, compute capability {gpu.sm / 10:.1f}, {human_bytes(free)} of {human_bytes(total)} free; "
        f"{packages}; {kernels}"
    )


def _cache() -> str:
    try:
        size, where = compile_cache.size(), compile_cache.folder()
    except ImportError:  # no Numba, so nothing is compiled
        return "none"
    return f"{human_bytes(size)} in {where}" if size else f"empty ({where}): the first run compiles"


def _shipped() -> str:
    from nanoeuler.errors import UserError
    from nanoeuler.formats.huggingface import read_config
    from nanoeuler.inference.pretrained import describe, shipped_model

    try:
        folder = shipped_model()
        return describe(folder, read_config(folder))
    except UserError as error:
        return f"none ({error})"
