"""Kill a training run again and again, and check each time that its checkpoint loads and that it goes on.

    python tools/kill_test.py --kills 50

A child process trains a small model and saves after every step, so that most of its time goes into saving; it is
killed (SIGKILL) after a random time. After each kill ``last/`` must load as a model and as a state, no older than
before, and the next child must go on from it. In the end the run that was killed so often must equal, bit for bit, one
that never was: the same metrics, parameters and moments.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanoeuler.data.prepare import prepare
from nanoeuler.errors import UserError
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import CharTokenizer
from nanoeuler.training import TrainConfig, find_model, train
from nanoeuler.training.metrics import TIMING, read_metrics
from nanoeuler.training.runfolder import RunFolder

CHILD = """
import sys
from nanoeuler.training import events, train

begun = False
def on_event(event):
    global begun
    if isinstance(event, events.Step) and not begun:
        begun = True
        print("training", flush=True)

train(resume=sys.argv[1], on_event=on_event)
"""
ENDLESS = 1_000_000  # steps


def kill_test(
    folder: Path, kills: int, seed: int = 0, device: str = "reference", say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Kill a run in ``folder`` ``kills`` times; returns what the kills met. AssertionError if one did harm."""
    rng = random.Random(seed)
    config = _config(folder, device)
    run = RunFolder(folder / "run")
    _prepare_run(run, config)
    counts = {"kills": 0, "gaps": 0, "leftovers": 0}
    step = 0
    while counts["kills"] < kills:
        with subprocess.Popen([sys.executable, "-c", CHILD, str(run.path)], stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None and child.stdout.readline(), "the child does not train"
                time.sleep(rng.uniform(0.0, 0.2))
            finally:
                child.kill()
        counts["kills"] += 1
        beside = {p.name for p in run.path.iterdir() if p.name.endswith((".new", ".old"))}
        counts["leftovers"] += bool(beside)
        counts["gaps"] += not run.last.exists()
        try:
            found = find_model(run.path, "last")
        except UserError:
            assert step == 0, "the checkpoint is gone"
            say(f"kill {counts['kills']:3} before the first checkpoint")
            continue
        GPT.from_pretrained(found.folder, device=device)
        assert found.step is not None and found.step >= step, f"went back from step {step} to {found.step}"
        step = found.step
        say(f"kill {counts['kills']:3} at step {step:4}  {', '.join(sorted(beside)) or 'nothing left over'}")
    counts["steps"] = step + 3
    train(resume=run.path, steps=step + 3)
    whole = RunFolder(folder / "whole")
    train(config.changed(out=whole.path, steps=step + 3))
    _compare(run, whole)
    return counts


def _config(folder: Path, device: str) -> TrainConfig:
    text = "".join(f"cat {i % 7} sat on mat {i * i % 5}.\n" for i in range(200))
    source = folder / "text.txt"
    source.write_text(text, encoding="utf-8", newline="\n")
    prepare([source], folder / "data", CharTokenizer("".join(sorted(set(text)))))
    sizes = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, batch_size=2, dropout=0.1)
    # A constant rate, so that the length of the run decides nothing but its end; the middle of it is then comparable.
    often = dict(save_every=1, eval_every=2, eval_tokens=64, schedule="constant", warmup=0, lr=1e-3, steps=ENDLESS)
    return TrainConfig(data=str(folder / "data"), device=device, **sizes, **often)  # type: ignore[arg-type]


def _prepare_run(run: RunFolder, config: TrainConfig) -> None:
    """A run folder as it is before the first step."""
    config = config.changed(out=run.path)
    tokenizer = CharTokenizer.load(config.data)
    run.create(config.resolved(config.model_config(tokenizer.n_vocab)))
    run.unlock()


def _compare(run: RunFolder, whole: RunFolder) -> None:
    def history(folder: RunFolder) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.items() if k not in TIMING} for r in read_metrics(folder.metrics_file)]

    assert history(run) == history(whole), "the metrics differ from those of a run that was never killed"
    for name in ("last/model.safetensors", "last/optimizer.safetensors", "best/model.safetensors"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes(), f"{name} differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="reference")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = kill_test(Path(folder), arguments.kills, arguments.seed, arguments.device)
    print(json.dumps(counts))
    print("every checkpoint loaded; the run equals the one that was never killed, bit for bit")


if __name__ == "__main__":
    main()
