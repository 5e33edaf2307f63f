"""The command line: help, and the commands that measure and tell; tiny settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Cli

from nanoeuler.cli.main import COMMANDS
from nanoeuler.model.gpt import GPT

SUBCOMMANDS = [
    "data prepare",
    "data stories",
    "data fetch",
    *[f"tokenizer {c}" for c in ["train", "encode", "decode", "info"]],
]


# ---- help ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["", *COMMANDS, *SUBCOMMANDS])
def test_help(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.code == 0 and result.err == ""
    assert result.out.startswith(f"Usage: nanoeuler {command}".strip())
    assert not command or "Example" in result.out
    assert max(map(len, result.out.splitlines())) <= 110


@pytest.mark.parametrize("command", [[], ["data"], ["tokenizer"]])
def test_no_arguments_show_the_help(cli: Cli, command: list[str]) -> None:
    result = cli(*command)
    assert result.code == 0 and result.out.startswith("Usage: nanoeuler")


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys, nanoeuler.cli.main as m\n"
        "m.run(['--help'])\n"
        "print([x for x in ('numpy', 'numba', 'rich') if x in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version(cli: Cli) -> None:
    assert re.fullmatch(r"nanoeuler \d+\.\d+\.\d+\n", cli("--version").out)


def test_every_training_setting_is_a_documented_flag(cli: Cli) -> None:
    from dataclasses import fields

    from nanoeuler.cli.config_options import setting_help
    from nanoeuler.training.config import TrainConfig

    text = cli("train", "--help").out
    names = [f.name for f in fields(TrainConfig)]
    assert [name for group in setting_help().values() for name in group] == names
    for name in names:
        assert f"--{name.replace('_', '-')} " in text


# ---- eval, check, plan, bench, info -------------------------------------------------------------------
def test_eval_of_prepared_data_and_of_the_text_itself(cli: Cli, world: Path, tmp_path: Path) -> None:
    common = ["--model", world / "run", "--device", "reference", "--json"]
    prepared = json.loads(cli("eval", world / "data", *common).out)
    assert 5 < prepared["loss"] < 6 and prepared["bits_per_byte"] > 1
    (tmp_path / "t.txt").write_text("Once upon a time, there was a cat.", encoding="utf-8")
    own = json.loads(cli("eval", tmp_path / "t.txt", *common).out)
    assert 0 < own["tokens"] < 34
    assert "perplexity" in cli("eval", tmp_path / "t.txt", *common[:-1]).out


def test_eval_grades_stories(cli: Cli, world: Path) -> None:
    args = ["eval", "--stories", 3, "--model", world / "run", "--device", "reference"]
    grades = json.loads(cli(*args, "--json").out)
    assert grades["corpus"]["total"] > 0.8 > 0.2 > grades["model"]["total"]
    assert grades["ratio"] == grades["model"]["total"] / grades["corpus"]["total"]
    assert "3 stories each" in cli(*args).out


def test_check(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("check", "--device", "reference", "--samples", 1)
    assert result.code == 0 and "wte.weight" in result.out and "all good" in result.out
    import nanoeuler.check as check

    monkeypatch.setattr(check, "gradient_check", lambda **kwargs: [check.TensorCheck("wte.weight", 1e-3)])
    result = cli("check", "--device", "reference")
    assert result.code == 1 and "FAILED" in result.out


def test_plan(cli: Cli) -> None:
    result = cli("plan", "--preset", "gpt2", "--batch-size", 4, "--seq-len", 64, "--device", "reference", "--memory", 8)
    assert result.code == 0 and "124,439,808" in result.out and "activations" in result.out
    assert re.search(r"fits into 8.0 GiB; largest batch_size: [1-9]", result.out)
    assert "vocabulary 65" in cli("plan", "--preset", "shakespeare-char", "--device", "reference").out


def test_plan_takes_the_size_of_the_model_to_go_on_from(
    cli: Cli, refuses: Callable[..., None], world: Path, tmp_path: Path
) -> None:
    n_params = GPT.from_pretrained(world / "run" / "best", device="reference").config.n_params
    result = cli("plan", "--init-from", world / "run", "--device", "reference")
    assert f"{n_params:,} parameters" in result.out
    refuses("tmp|nowhere", "plan", "--init-from", tmp_path / "nowhere")
    refuses("--memory must be", "plan", "--memory", "1e300")


def test_bench(cli: Cli) -> None:
    args = ["bench", "--batch-size", 1, "--seq-len", 16, "--seconds", 0.01, "--device", "reference"]
    result = cli(*args)
    assert result.code == 0 and "attention backward" in result.out and "tokens/s" in result.out
    timings = json.loads(cli(*args, "--json").out)["timings"]
    assert all(t["seconds"] > 0 for t in timings) and timings[-2]["name"] == "training step"
    train = cli("bench", "train", *args[1:]).out
    assert "ms a step" in train and "peak memory" in train and "MFU" not in train and "attention" not in train
    kernels = cli("bench", "kernels", *args[1:]).out
    assert "attention backward" in kernels and "training" not in kernels


def test_info(cli: Cli) -> None:
    result = cli("info")
    assert result.code == 0
    for word in ("python", "numba", "threads", "simd", "compile cache", "shipped model"):
        assert word in result.out
