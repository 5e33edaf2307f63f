"""Other ways to cut our kernels into tiles, timed beside the one in use: for tuning on another GPU or other sizes.

    python benchmarks/gpu_variants.py products attention --preset gpt2 --batch-size 16

The cases and the timing are those of ``nanoeuler bench kernels``. What does not fit into a GPU's shared memory, or is
no choice for a kernel, is left out. Nothing here checks results: the tests do, for what is in use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.gpu.engine import GpuOps
from nanoeuler.ops.gpu.kernel_cases import Maker, Source, makers
from nanoeuler.ops.gpu.kernels import attention, matmul
from nanoeuler.ops.gpu.kernels.matmul import ROLES, Tiles
from nanoeuler.ops.gpu.runtime.driver import CudaError
from nanoeuler.ops.gpu.timing import Stopwatch

LAYERS = ("c_attn", "attn c_proj", "c_fc", "mlp c_proj", "weights", "classifier")
PRODUCTS = {
    "128x256x64 s3": Tiles(128, 256, 64, 2, 1, 8, 3),
    "128x256x64 s4": Tiles(128, 256, 64, 2, 1, 8, 4),
    "256x128x64 s3": Tiles(256, 128, 64, 2, 1, 8, 3),
    "128x128x64 s3, two programs": Tiles(128, 128, 64, 2, 2, 4, 3),
    "128x128x32 s3": Tiles(128, 128, 32, 2, 1, 8, 3, False),
    "64x128x64 s3, two programs": Tiles(64, 128, 64, 2, 2, 4, 3, False),
    "128x256x64 stream": Tiles(128, 256, 64, 2, 1, 8, 3, schedule="stream"),
    "roles": ROLES,
}
ATTENTION = {  # queries, keys, warps, stages of the three kernels
    "forward 64 64 4 3": {"forward": (64, 64, 4, 3)},
    "forward 128 64 8 3": {"forward": (128, 64, 8, 3)},
    "forward 64 32 4 3": {"forward": (64, 32, 4, 3)},
    "queries 64 32 4 3": {"queries": (64, 32, 4, 3)},
    "queries 64 64 4 3": {"queries": (64, 64, 4, 3)},
    "queries 64 16 4 4": {"queries": (64, 16, 4, 4)},
    "keys 32 64 4 3": {"keys": (32, 64, 4, 3)},
    "keys 16 64 4 4": {"keys": (16, 64, 4, 4)},
    "keys 32 64 8 3": {"keys": (32, 64, 8, 3)},
}


@contextmanager
def products_cut(tiles: Tiles | None) -> Iterator[None]:
    """Inside, every matrix product is cut as ``tiles`` says; None: as usual."""
    usual = matmul.tiles_for
    if tiles is not None:
        matmul.tiles_for = lambda *args, **kwargs: tiles  # type: ignore[assignment]
    try:
        yield
    finally:
        matmul.tiles_for = usual


@contextmanager
def attention_cut(chosen: dict[str, tuple[int, int, int, int]] | None) -> Iterator[None]:
    """Inside, attention's kernels are cut as ``chosen`` says, the rest as usual."""
    usual = attention._tiles
    attention._tiles = lambda *args: {**usual(*args), **(chosen or {})}  # type: ignore[assignment]
    try:
        yield
    finally:
        attention._tiles = usual


def times(ops: GpuOps, maker: Maker, seconds: float) -> dict[str, float]:
    """Seconds of each of a maker's cases; those that cannot be compiled or launched are missing."""
    found = {}
    for case in maker(Source(ops)):

        def run(case: Any = case) -> None:
            for launch in case.launches:
                ops.runtime.launch(launch)

        try:
            found[case.name] = Stopwatch(ops, run).seconds(seconds)
        except (CudaError, UserError) as error:
            print(f"  {case.name}: {str(error)[:100]}", file=sys.stderr)
        except Exception as error:  # the compiler's own kinds
            print(f"  {case.name}: {type(error).__name__}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["products", "attention"])
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=0.05, help="how long to measure each")
    args = parser.parse_args()
    config, ops = GPTConfig.preset(args.preset), GpuOps()
    kinds = {"products": (LAYERS, products_cut, PRODUCTS), "attention": (("attention",), attention_cut, ATTENTION)}
    for what in args.what:
        parts, cut, variants = kinds[what]
        for part in parts:
            maker, rows = makers(ops, config, args.batch_size, args.seq_len)[part], {}
            for name, variant in {"in use": None, **variants}.items():
                try:
                    with cut(variant):
                        found = times(ops, maker, args.seconds)
                except (ValueError, AssertionError, UserError) as error:  # no plan for such a cut
                    print(f"  {part}, {name}: {error}", file=sys.stderr)
                    continue
                for case, took in found.items():
                    rows.setdefault(case, []).append(f"{name}: {1e6 * took:.1f}")
            for case, line in rows.items():
                print(f"{case}, us: " + "  ".join(line), flush=True)


if __name__ == "__main__":
    main()
