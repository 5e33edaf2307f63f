"""On a real GPU: every command with ``--device gpu``, each in a process that must import neither PyTorch nor Numba."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from training_runs import make_data  # noqa: E402

pytestmark = pytest.mark.gpu

COMMAND = """
import sys
from nanoeuler.cli.main import run
code = run(sys.argv[1:])
if found := [name for name in ("torch", "numba", "jax", "cupy") if name in sys.modules]:
    sys.exit(f"imported: {found}")
sys.exit(code)
"""
SIZES = ["--n-layer=2", "--n-head=3", "--n-embd=192", "--block-size=100", "--batch-size=4", "--warmup=2"]


def start(*args, **env):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, "-c", COMMAND, *map(str, args)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*args, code=0, **env):
    """What a command printed; it must end with ``code``."""
    process = start(*args, **env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
    return out + err if code else out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with data, a text and a run; and what training printed."""
    folder = tmp_path_factory.mktemp("cli")
    make_data(folder)
    args = ("train", "--device", "gpu", "--data", folder / "data", "--out", folder / "run", *SIZES, "--steps", 40)
    return folder, run(*args, "--profile", "--sample-every", 20, "--sample-tokens", 8)


def test_train_writes_a_profile(trained):
    folder, out = trained
    assert re.search(r"adamw_kernel +1 +0\.\d+ +\d", out) and "step     40" in out and "written at step 20" in out
    assert "adamw_kernel" in (folder / "run" / "profile.svg").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 40 and losses[-1] < losses[0] - 1


def test_resume_trains_on(trained):
    folder, _ = trained
    assert "going on from step 40" in run("train", "--resume", folder / "run", "--steps", 45, "--recompute", "full")


def test_ctrl_c_saves_and_the_run_goes_on(trained):
    folder, _ = trained
    process = start("train", "--device", "gpu", "--data", folder / "data", "--out", folder / "long", *SIZES,
                    "--steps", 10**6)  # fmt: skip
    metrics = folder / "long" / "metrics.jsonl"
    end = time.monotonic() + 60
    while not (metrics.is_file() and metrics.stat().st_size > 1000) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    stopped = int(re.search(r"stopped after step ([\d,]+) of", out)[1].replace(",", ""))
    assert (folder / "long" / "last" / "model.safetensors").is_file()
    out = run("train", "--resume", folder / "long", "--steps", stopped + 3)
    assert f"going on from step {stopped:,}" in out


def test_eval_agrees_with_float32(trained):
    folder, _ = trained
    loss = {}
    for device in ("gpu", "gpu-fp32"):
        out = run("eval", folder / "text.txt", "--model", folder / "run", "--device", device, "--json")
        loss[device] = json.loads(out)["loss"]
    assert loss["gpu"] == pytest.approx(loss["gpu-fp32"], rel=5e-3)


def test_sample_writes(trained):
    folder, _ = trained
    args = ("sample", "--model", folder / "run", "--device", "gpu", "--seed", 3, "--max-new-tokens", 40, "cat")
    assert len(run(*args)) > 20
    assert run(*args) == run(*args)
    assert len(run("sample", "--device", "gpu", "--seed", 3, "--max-new-tokens", 20, "Once upon a time")) > 20


def test_plan_and_info_know_the_gpu():
    out = run("plan", "--preset", "gpt2", "--device", "gpu", "--batch-size", 16)
    assert "fits into" in out and "--recompute full" in out
    assert "compute capability" in start("info").communicate(timeout=60)[0]


def test_bench_measures_and_draws(tmp_path):
    out = run("bench", "--device", "gpu", "--preset", "demo", "--seconds", 0.02, "--profile", tmp_path / "p.svg")
    assert "tokens/s" in out and "of the best" in out and (tmp_path / "p.svg").is_file()


@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        (("sample", "--device", "gpu", "a"), {"CUDA_VISIBLE_DEVICES": ""}, "found no NVIDIA GPU"),
        (("train", "--device", "gpu", "--batch-size", 10**7), {}, r"GiB are free: batch_size \d+ fits"),
        (("train", "--device", "gpu", "--seq-len", 200), {}, "seq_len 200 is longer than block_size 100"),
        (("train", "--device", "gpu", "--recompute", "some"), {}, "unknown recompute 'some'"),
        (("train", "--device", "reference", "--profile"), {}, "profile times the kernels of a GPU"),
    ],
)
def test_errors_are_one_line(trained, tmp_path, args, env, says):
    folder, _ = trained
    if args[0] == "train":  # the last of two flags counts
        args = ("train", "--data", folder / "data", "--out", tmp_path / "run", *SIZES, *args[1:])
    out = run(*args, code=2, **env)
    assert out.startswith("error: ") and out.count("\n") == 1 and re.search(says, out), out
