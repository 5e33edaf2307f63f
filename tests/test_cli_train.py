"""``nanoeuler train``: plain lines, a terminal, settings, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import POSIX, TINY, Cli


def test_train_shows_plain_lines(cli: Cli, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = cli("train", "--data", world / "data", "--out", out, "--steps", 4, "--eval-every", 2, *TINY)
    assert result.code == 0
    assert "\x1b" not in result.out and "\r" not in result.out
    assert re.search(r"step +1/4  loss \d\.\d{3}", result.out)
    assert len(re.findall(r"^step +\d+  loss .* val .* bits/byte", result.out, re.M)) == 2
    assert "┤" in result.out or "+" in result.out
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert f"nanoeuler sample --model {out}" in result.out


def test_train_takes_settings_from_file_and_flags(cli: Cli, world: Path, tmp_path: Path) -> None:
    toml = tmp_path / "my.toml"
    toml.write_text(
        f'preset = "demo"\ndata = {json.dumps(str(world / "data"))}\nsteps = 9\nlr = 1e-4\n', encoding="utf-8"
    )
    assert cli("train", "--config", toml, "--out", tmp_path / "r", "--steps", 1, *TINY).code == 0
    kept = (tmp_path / "r" / "config.toml").read_text(encoding="utf-8")
    assert "steps = 1\n" in kept and "lr = 0.0001\n" in kept and "beta2 = 0.99\n" in kept and "n_embd = 16\n" in kept


def test_train_goes_on(cli: Cli, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert cli("train", "--data", world / "data", "--out", out, "--steps", 2, *TINY).code == 0
    result = cli("train", "--resume", out, "--steps", 3)
    assert result.code == 0 and "going on from step 2" in result.out


@POSIX
def test_ctrl_c_saves_and_says_how_to_go_on(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["train", "--data", str(world / "data"), "--out", str(out), "--steps", "1000000", *TINY]
    process = subprocess.Popen(
        [sys.executable, "-m", "nanoeuler", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while "step" not in (line := process.stdout.readline()) or "/1,000,000" not in line:
        assert process.poll() is None and line
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert f"go on with: nanoeuler train --resume {out}" in rest
    assert (out / "last" / "model.safetensors").exists()


@POSIX
@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_a_living_line(world: Path, tmp_path: Path, no_color: bool) -> None:
    import pty

    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm-256color"}
    if no_color:
        env["NO_COLOR"] = "1"
    args = ["train", "--data", str(world / "data"), "--out", str(tmp_path / "r"), "--steps", "3", *TINY]
    process = subprocess.Popen([sys.executable, "-m", "nanoeuler", *args], stdout=slave, stderr=slave, env=env)
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 65536):
            output += chunk
    except OSError:  # how Linux says that the other side of a terminal is closed
        pass
    os.close(master)
    assert process.wait(timeout=60) == 0
    text = output.decode("utf-8", errors="replace")
    assert "\x1b[" in text and "tokens/s" in text and "3/3" in text
    coloured = re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", text) is not None
    assert coloured == (not no_color)
