"""Make the model that ships in the package, from nothing: stories, tokenizer, training, export.

    python tools/make_pretrained.py [FOLDER]     # about ten minutes on two cores; writes nanoeuler/pretrained/

Each line it prints with a ``$`` is a command that anyone can run. The export stores the weights as float16, half the
size; the trainer's state stays beside them so that ``nanoeuler sample`` can say how much the model was trained.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import load_tokenizer

STEPS = 16_000
COMMANDS = (
    "nanoeuler data stories {0}/stories.txt --count 80000",
    "nanoeuler data prepare {0}/stories.txt --vocab-size 1024 --val-docs 500 --out {0}/data",
    f"nanoeuler train --preset demo --data {{0}}/data --out {{0}}/run --steps {STEPS} --eval-every 1000 "
    "--save-every 1000",
)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "pretrained-build")
    folder.mkdir(parents=True, exist_ok=True)
    for command in COMMANDS:
        line = command.format(folder.as_posix())
        print("$", line, flush=True)
        subprocess.run([sys.executable, "-m", *line.split()], check=True)
    best = folder / "run" / "best"
    out = Path(__file__).resolve().parents[1] / "nanoeuler" / "pretrained"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tokenizer = load_tokenizer(best)
    GPT.from_pretrained(best).save_pretrained(out, dtype="float16", eos_token_id=tokenizer.eot_id)
    tokenizer.save(out)
    state = json.loads((best / "trainer_state.json").read_text(encoding="utf-8"))
    kept = {name: state[name] for name in ("step", "tokens", "val_loss") if name in state}
    (out / "trainer_state.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")
    print("written to", out, f"{sum(f.stat().st_size for f in out.iterdir()) / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
