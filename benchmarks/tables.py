"""GPU results as the Markdown tables of ``docs/gpu-benchmarks.md``.

    python benchmarks/tables.py benchmarks/results/kernels-*.json benchmarks/results/train_gpu-*.json

``kernels-*.json`` is what ``nanoeuler bench kernels --json`` prints, ``train_gpu-*.json`` what ``train_gpu.py`` writes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def kernels(record: dict) -> list[str]:
    best = record["ceilings"]
    lines = [f"Copies {best['bandwidth'] / 1e12:.2f} TB/s, products {best['flops'] / 1e12:.0f} TFLOP/s.", ""]
    lines += ["| kernel | us | MB | TB/s | GFLOP | TFLOP/s | share | peer us | ratio | peer |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for k in record["kernels"]:
        took, theirs = k["seconds"], k["peer_seconds"]
        cells = [k["name"], f"{1e6 * took:.1f}", f"{k['bytes'] / 1e6:.0f}", f"{k['bytes'] / took / 1e12:.2f}"]
        cells += [f"{k['flops'] / 1e9:.0f}", f"{k['flops'] / took / 1e12:.0f}"] if k["flops"] else ["", ""]
        cells += [f"{k['share']:.0%}", *([f"{1e6 * theirs:.1f}", f"{theirs / took:.2f}"] if theirs else ["", ""])]
        lines.append("| " + " | ".join([*cells, k["peer"]]) + " |")
    return lines


def training(records: list[tuple[str, dict]]) -> list[str]:
    lines = ["| model, batch | who | ms a step (rounds) | tokens/s | MFU | peak memory | times as fast |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, record in sorted(records, key=lambda item: item[1]["flops_per_token"]):
        ours = record["results"]["ours"]["ms_per_step"]
        for who, r in record["results"].items():
            rounds, mfu = r["ms_per_step_rounds"], f"{r['mfu']:.3f}" if r["mfu"] else ""
            cells = [name, who, f"{r['ms_per_step']:.1f} ({min(rounds):.1f} to {max(rounds):.1f})"]
            cells += [f"{r['tokens_per_s']:,.0f}", mfu, f"{r['peak_bytes'] / 1e9:.2f} GB"]
            cells.append("" if who == "ours" else f"{r['ms_per_step'] / ours:.2f}")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    steps = []
    for path in map(Path, sys.argv[1:]):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "kernels" in record and "ceilings" in record:
            print(*kernels(record), "", sep="\n")
        else:
            steps.append((re.sub(r"train_gpu-|-\d{4}-\d\d-\d\d.*", "", path.stem).replace("-", " "), record))
    if steps:
        print(*training(steps), sep="\n")


if __name__ == "__main__":
    main()
