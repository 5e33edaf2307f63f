"""The command line: every command once, on tiny settings, and every kind of bad input in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nanoeuler.cli import compile_cache
from nanoeuler.cli import demo as demo_module
from nanoeuler.cli.demo import DemoSettings, demo, new_folder
from nanoeuler.cli.main import COMMANDS, run
from nanoeuler.errors import UserError
from nanoeuler.model.gpt import GPT
from nanoeuler.training.events import Step

SIZES = {"n-layer": 1, "n-head": 2, "n-embd": 16, "block-size": 32, "batch-size": 2}
TINY = ["--device", "reference", *[str(part) for name, size in SIZES.items() for part in (f"--{name}", size)]]
SUBCOMMANDS = [
    "data prepare",
    "data stories",
    "data fetch",
    *[f"tokenizer {c}" for c in ["train", "encode", "decode", "info"]],
]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and terminals")


class Result(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process."""

    def call(*args: object) -> Result:
        capsys.readouterr()
        try:
            code = run([str(arg) for arg in args])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def refuses(cli: Cli) -> Callable[..., None]:
    """Assert that a command line ends in exit code 2 and one line that matches ``pattern``."""

    def check(pattern: str, *args: object) -> None:
        result = cli(*args)
        lines = result.err.strip().splitlines()
        assert result.code == 2, result
        assert lines[-1].startswith("error: ") and re.search(pattern, lines[-1]), result.err
        assert sum(line.startswith("error") for line in lines) == 1 and "Traceback" not in result.err

    return check


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stories.txt, data/ (BPE of 300 entries), and run/ (three steps of a tiny model)."""
    folder = tmp_path_factory.mktemp("world")
    text, data, out = folder / "stories.txt", folder / "data", folder / "run"
    assert run(["data", "stories", str(text), "-n", "40"]) == 0
    assert run(["data", "prepare", str(text), "--vocab-size", "300", "--out", str(data)]) == 0
    assert run(["train", "--data", str(data), "--out", str(out), "--steps", "3", *TINY]) == 0
    return folder


def shell(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    command = [sys.executable, "-m", "nanoeuler", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **kwargs)  # type: ignore[call-overload]


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


# ---- data and tokenizer -------------------------------------------------------------------------------
def test_data_stories(cli: Cli, tmp_path: Path) -> None:
    printed = cli("data", "stories", "-", "-n", 3)
    assert printed.out.count("<|endoftext|>") == 2
    assert cli("data", "stories", tmp_path / "s.txt", "-n", 3).code == 0
    written = (tmp_path / "s.txt").read_text(encoding="utf-8")
    assert written.removesuffix("\n<|endoftext|>\n") == printed.out.removesuffix("\n")


def test_data_prepare_says_what_it_made(cli: Cli, world: Path, tmp_path: Path) -> None:
    result = cli("data", "prepare", world / "stories.txt", "--tokenizer", "char", "-o", tmp_path / "c", "--val-docs", 2)
    assert result.code == 0
    assert "of 38 documents" in result.out and "of 2 documents" in result.out and "next: nanoeuler train" in result.out
    assert (tmp_path / "c" / "char_vocab.json").exists()


def test_data_fetch_lists_what_there_is(cli: Cli) -> None:
    assert "shakespeare" in cli("data", "fetch").out


def test_tokenizer_round_trip(cli: Cli) -> None:
    ids = cli("tokenizer", "encode", "Hello, world!").out
    assert ids == "15496 11 995 0\n"
    assert cli("tokenizer", "decode", *ids.split()).out == "Hello, world!\n"
    assert cli("tokenizer", "decode", "15496,11").out == "Hello,\n"
    assert cli("tokenizer", "encode", "<|endoftext|>", "--allow-special").out == "50256\n"
    assert cli("tokenizer", "encode", "Hi there", "--pieces").out == " 17250  'Hi'\n   612  ' there'\n"


def test_tokenizer_reads_standard_input() -> None:
    assert shell("tokenizer", "encode", "-", input="Hello").stdout == "15496\n"
    assert shell("tokenizer", "decode", "-", input="15496\n").stdout == "Hello\n"


def test_tokenizer_train_and_info(cli: Cli, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    assert "270 entries" in cli("tokenizer", "train", world / "stories.txt", "--vocab-size", 270, "-o", out).out
    assert "13" in cli("tokenizer", "info", out).out
    assert cli("tokenizer", "train", world / "stories.txt", "--char", "-o", tmp_path / "c").code == 0
    assert "kind            characters" in cli("tokenizer", "info", tmp_path / "c").out
    assert "vocabulary      300" in cli("tokenizer", "info", world / "run").out


# ---- train --------------------------------------------------------------------------------------------
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


# ---- sample -------------------------------------------------------------------------------------------
def sample(world: Path, *args: object) -> list[object]:
    return ["sample", "--model", world / "run", "--device", "reference", "--max-new-tokens", 5, *args]


def test_sample_streams_text_and_says_who_wrote_it(cli: Cli, world: Path) -> None:
    one, again = (cli(*sample(world, "Once upon", "--seed", 1)) for _ in range(2))
    assert one.code == 0 and one.out.startswith("Once upon") and one.out == again.out
    assert re.search(
        r"model: .*run.best \(GPT-2, .*trained 3 steps on 192 tokens, validation loss \d\.\d{3}\)", one.err
    )
    assert "seed:  1" in one.err
    assert cli(*sample(world, "Once upon", "--seed", 2)).out != one.out


def test_sample_hides_the_prompt_and_counts(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Once upon", "--hide-prompt", "-n", 3, "--seed", 1))
    assert "Once upon" not in result.out and result.out.count("---\n") == 2


def test_sample_json(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Once", "-n", 2, "--seed", 1, "--json"))
    texts = [json.loads(line) for line in result.out.splitlines()]
    streamed = cli(*sample(world, "Once", "-n", 2, "--seed", 1, "--hide-prompt")).out
    assert [t["sample"] for t in texts] == [0, 1] and texts[0]["seed"] == 1
    assert "\n---\n".join(t["text"] for t in texts) + "\n" == streamed


def test_sample_reads_the_prompt_from_file_and_standard_input(cli: Cli, world: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("Once\r\nupon é\n".encode())
    from_file = cli(*sample(world, "--file", tmp_path / "p.txt", "--seed", 1))
    assert from_file.out.startswith("Once\nupon é")
    piped = shell(
        *sample(world, "-", "--seed", 1), input="Once\nupon é\n", encoding="utf-8", env=os.environ | {"PYTHONUTF8": "1"}
    )
    assert piped.stdout == from_file.out


def test_sample_says_when_the_prompt_is_too_long(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Once upon a time. " * 20))
    assert result.code == 0 and "more than the model's context of 32" in result.err


def test_sample_stops_at_a_text(cli: Cli, world: Path) -> None:
    full = cli(*sample(world, "Once", "--seed", 3, "--hide-prompt")).out.removesuffix("\n")
    assert len(full) > 3
    cut = cli(*sample(world, "Once", "--seed", 3, "--hide-prompt", "--stop", full[2:4]))
    assert cut.out == full[: full.index(full[2:4])] + "\n" and "stop text reached" in cut.err


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
    assert "ms a step" in train and "no MFU: it is the share of a GPU's" in train and "attention" not in train
    kernels = cli("bench", "kernels", *args[1:]).out
    assert "attention backward" in kernels and "training" not in kernels


def test_info(cli: Cli) -> None:
    result = cli("info")
    assert result.code == 0
    for word in ("python", "numba", "threads", "simd", "compile cache", "shipped model"):
        assert word in result.out


# ---- demo ---------------------------------------------------------------------------------------------
SMALL_DEMO = DemoSettings(
    n_stories=60,
    n_tokenizer_stories=30,
    vocab_size=300,
    training=dict(n_layer=1, n_head=2, n_embd=16, block_size=32, batch_size=2),
    min_steps=2,
    max_steps=4,
    evaluations=2,
)


def test_demo_goes_the_whole_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo(str(tmp_path / "d"), None, None, 1, "reference", SMALL_DEMO)
    out, err = capsys.readouterr()
    assert "so 4 steps fit into" in out
    assert [n for n in "1234" if f"{n}. " in out] == list("1234")
    assert err.count("end:") == 3
    assert f"nanoeuler sample --model {tmp_path / 'd' / 'run'}" in out
    assert (tmp_path / "d" / "run" / "loss.png").exists()


def test_demo_never_writes_over_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_folder(None) == Path("nanoeuler-demo")
    for name in ("nanoeuler-demo", "nanoeuler-demo-2"):
        Path(name).mkdir()
    assert new_folder(None) == Path("nanoeuler-demo-3")
    assert new_folder("nanoeuler-demo") == Path("nanoeuler-demo")  # named, and empty
    Path("nanoeuler-demo", "file").touch()
    with pytest.raises(UserError, match="not empty"):
        new_folder("nanoeuler-demo")


def test_demo_plans_as_many_steps_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "seconds_per_step", lambda config: 0.1)
    settings = DemoSettings(overhead=1.25)
    now = time.perf_counter()
    planned = demo_module.plan_training(tmp_path, tmp_path, 1, "reference", None, 100.0, now - 20, settings)
    assert abs(planned.steps - 80 / 0.125) <= 2
    late = demo_module.plan_training(tmp_path, tmp_path, 1, "reference", None, 100.0, now - 200, settings)
    assert late.steps == settings.min_steps
    chosen = demo_module.plan_training(tmp_path, tmp_path, 1, "reference", 7, 0.0, now, settings)
    assert chosen.steps == 7


def test_demo_gives_up_steps_when_it_falls_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = demo_module.make_data(tmp_path, SMALL_DEMO)
    config = demo_module.plan_training(tmp_path, data, 1, "reference", 50, 0.0, 0.0, SMALL_DEMO)
    config = config.changed(save_every=5)
    result = demo_module.train_in_time(config, time.perf_counter() - 100, SMALL_DEMO)
    assert (result.step, result.steps, result.interrupted) == (6, 6, False)
    assert "another pace than measured: 6 steps" in capsys.readouterr().out


def test_ctrl_c_ends_a_demo_that_is_behind(tmp_path: Path) -> None:
    data = demo_module.make_data(tmp_path, SMALL_DEMO)
    config = demo_module.plan_training(tmp_path, data, 1, "reference", 50, 0.0, 0.0, SMALL_DEMO)
    stopped = []

    class Impatient(demo_module.Pace):
        def __call__(self, event: object) -> None:
            super().__call__(event)  # type: ignore[arg-type]
            if isinstance(event, Step) and event.step == 3:
                signal.raise_signal(signal.SIGINT)
                stopped.append(event.step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_module, "Pace", Impatient)
        result = demo_module.train_in_time(config, time.perf_counter() - 100, SMALL_DEMO)
    assert stopped == [3] and (result.step, result.steps, result.interrupted) == (3, 50, True)


# ---- bad input: exit code 2 and one line --------------------------------------------------------------
@pytest.mark.parametrize(
    ("pattern", "args"),
    [
        ("No such command 'trian'", ["trian"]),
        ("No such option '?:? ?'?--foo", ["train", "--foo"]),
        ("Missing argument 'FILE...'", ["data", "prepare", "--out", "x"]),
        ("Missing option '--out'", ["data", "prepare", "x"]),
        ("no such file or folder: nothing.txt", ["data", "prepare", "nothing.txt", "--out", "x"]),
        ("no tokenizer 'nothing'", ["data", "prepare", "nothing.txt", "--tokenizer", "nothing", "--out", "x"]),
        ("contradict", ["data", "prepare", "x", "--tokenizer", "gpt2", "--vocab-size", "300", "--out", "x"]),
        ("unknown corpus 'nothing'", ["data", "fetch", "nothing"]),
        ("at least 1, not 0", ["data", "stories", "-n", "0"]),
        ("at least 1, not -3", ["data", "stories", "-", "-n", "-3"]),
        ("token id 50257 is outside", ["tokenizer", "decode", "50257"]),
        ("'-1' is no token id|No such option", ["tokenizer", "decode", "-1"]),
        ("'x' is no token id", ["tokenizer", "decode", "1", "x"]),
        ("no tokenizer 'nothing'", ["tokenizer", "info", "nothing"]),
        ("n_embd 100 is not divisible by n_head 3", ["train", "--n-embd", "100", "--n-head", "3"]),
        ("n_embd 100 is not divisible by n_head 3", ["plan", "--n-embd", "100", "--n-head", "3"]),
        ("unknown preset 'gtp2'", ["train", "--preset", "gtp2"]),
        ("'--steps'.* 'many'|many", ["train", "--steps", "many"]),
        ("lr", ["train", "--lr", "nan"]),
        ("no run at nothing", ["train", "--resume", "nothing"]),
        ("leave --out out", ["train", "--resume", "nothing", "--out", "x"]),
        ("'--resume': it is empty", ["train", "--resume", ""]),
        ("'--out' / '-o': it is empty", ["data", "prepare", "x", "--out", ""]),
        ("'FILE...': it is empty", ["data", "prepare", "", "--out", "x"]),
        ("it is empty", ["data", "stories", ""]),
        ("it is empty", ["tokenizer", "train", "x", "--out", ""]),
        ("it is empty", ["sample", "--model", ""]),
        ("it is empty", ["demo", "--out", ""]),
        ("leave --preset and --config out", ["train", "--resume", "nothing", "--preset", "demo"]),
        ("cannot read the config nothing.toml", ["train", "--config", "nothing.toml"]),
        ("no data", ["train", "--out", "x"]),
        ("no data at nothing", ["train", "--data", "nothing", "--out", "x"]),
        ("no model at nothing", ["sample", "--model", "nothing"]),
        ("is a folder: to use the model in it, write --model", ["sample", "."]),
        ("contradict", ["sample", "text", "--file", "x"]),
        ("cannot read the prompt nothing.txt", ["sample", "--file", "nothing.txt"]),
        ("num_samples must be", ["sample", "-n", "0"]),
        ("either DATA to predict or --stories", ["eval"]),
        ("no model at nothing", ["eval", "x", "--model", "nothing"]),
        ("--samples must be at least 1", ["check", "--samples", "0"]),
        ("unknown device 'gpu9'", ["check", "--device", "gpu9"]),
        ("--memory must be above 0", ["plan", "--memory", "0"]),
        ("unknown model preset 'x'", ["bench", "--preset", "x"]),
        ("seq_len 1 to 256", ["bench", "--seq-len", "1000"]),
        ("--minutes must be above 0", ["demo", "--minutes", "0"]),
        ("contradict", ["demo", "--minutes", "1", "--steps", "1"]),
        ("unknown device 'gpu9'", ["demo", "--device", "gpu9"]),
        ("seed must not be negative", ["demo", "--seed", "-1"]),
    ],
)
def test_bad_arguments(
    refuses: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, args: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(pattern, *args)
    assert list(tmp_path.iterdir()) == []  # nothing is left half-written


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"", "is empty"),
        (b"text\0more", "binary.*byte offset 4"),
        (b"caf\xe9 au lait", "not UTF-8.*byte offset 3"),
        ("text".encode("utf-16"), "UTF-16"),
    ],
)
def test_bad_text_files(refuses: Callable[..., None], tmp_path: Path, content: bytes, pattern: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    refuses(pattern, "data", "prepare", tmp_path / "bad.txt", "--out", tmp_path / "x")
    refuses(f"({pattern})|no text", "tokenizer", "train", tmp_path / "bad.txt", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("content", "pattern"), [(b"caf\xe9", "not UTF-8 text"), (b"a\0b", "binary")])
def test_bad_prompt_files(
    refuses: Callable[..., None], world: Path, tmp_path: Path, content: bytes, pattern: str
) -> None:
    (tmp_path / "p.txt").write_bytes(content)
    refuses(pattern, *sample(world, "--file", tmp_path / "p.txt"))


@pytest.mark.parametrize(
    ("option", "value", "pattern"),
    [
        ("--temperature", "-1", "temperature must be"),
        ("--temperature", "nan", "temperature must be"),
        ("--top-k", "-1", "top_k must be"),
        ("--top-p", "0", "top_p must be"),
        ("--top-p", "2", "top_p must be"),
        ("--repetition-penalty", "0", "repetition_penalty must be"),
        ("--max-new-tokens", "-1", "max_new_tokens must be"),
        ("--seed", "-1", "seed must be"),
        ("--stop", "", "must not be empty"),
        ("--device", "tpu", "unknown device 'tpu'"),
    ],
)
def test_bad_sampling_settings(
    refuses: Callable[..., None], world: Path, option: str, value: str, pattern: str
) -> None:
    refuses(pattern, *sample(world, "Once", option, value))


def test_a_config_that_contradicts_the_checkpoint(refuses: Callable[..., None], world: Path, tmp_path: Path) -> None:
    refuses("n_layer is 1 in the run", "train", "--resume", world / "run", "--n-layer", 2)
    args = ["train", "--data", world / "data", "--out", tmp_path / "x", "--device", "reference"]
    refuses("n_embd 32 contradicts the model", *args, "--init-from", world / "run", "--n-embd", 32)
    refuses("already holds a run", "train", "--data", world / "data", "--out", world / "run", *TINY)


def test_sequences_longer_than_the_data(refuses: Callable[..., None], world: Path, tmp_path: Path) -> None:
    args = ["train", "--data", world / "data", "--out", tmp_path / "x", *TINY, "--block-size", 1_000_000]
    refuses("too short", *args)
    assert not (tmp_path / "x").exists()


def test_files_truncated_or_foreign(refuses: Callable[..., None], world: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(world / "run" / "best", tmp_path / "model")
    tensors = tmp_path / "model" / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    refuses("truncated", *sample(world, "x", "--model", tmp_path / "model"))
    (tmp_path / "tokens.bin").write_bytes(b"\1\2\3")
    refuses("odd size", "eval", tmp_path / "tokens.bin", "--model", world / "run", "--device", "reference")
    (tmp_path / "other").mkdir()
    refuses("no model in", *sample(world, "x", "--model", tmp_path / "other"))


def test_data_of_another_tokenizer(refuses: Callable[..., None], cli: Cli, world: Path, tmp_path: Path) -> None:
    cli("data", "prepare", world / "stories.txt", "--tokenizer", "char", "--out", tmp_path / "c")
    refuses("another tokenizer", "eval", tmp_path / "c", "--model", world / "run", "--device", "reference")


# ---- when the machine is the problem ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "code", "pattern"),
    [
        (MemoryError("Unable to allocate 9 TiB"), 2, "error: not enough memory .*9 TiB"),
        (OSError(28, "No space left on device", "x.bin"), 2, "error: the disk is full while writing x.bin"),
        (PermissionError(13, "Permission denied", "x.bin"), 2, "error: x.bin: Permission denied"),
        (UserError("two\nlines"), 2, "^error: two lines$"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_errors_become_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, pattern: str
) -> None:
    from nanoeuler.tokenizer import Tokenizer

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(Tokenizer, "encode", fail)
    result = cli("tokenizer", "encode", "x")
    assert result.code == code
    assert re.search(pattern, result.err.strip()) and len(result.err.strip().splitlines()) == 1


def test_a_bug_keeps_its_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from nanoeuler.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "encode", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("tokenizer", "encode", "x")


def test_notes_of_ours_are_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abab", encoding="utf-8")
    result = cli("tokenizer", "train", tmp_path / "t.txt", "--vocab-size", 400, "--out", tmp_path / "t")
    assert result.code == 0 and result.err.startswith("note: the text is too small")
    assert len(result.err.splitlines()) == 1


def test_package_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    from nanoeuler.ops.cpu.embedding import embedding

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    known = getattr(caching, "UserWideCacheLocator", None) or caching._UserWideCacheLocator  # before Numba 0.62
    theirs = known(embedding.py_func, embedding.py_func.__code__.co_filename).get_cache_path()
    assert compile_cache.folder() == Path(theirs)


@POSIX
def test_a_reader_that_goes_away() -> None:
    command = [sys.executable, "-m", "nanoeuler", "data", "stories", "-", "-n", "3000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


@POSIX
def test_training_outlives_its_reader(world: Path, tmp_path: Path) -> None:
    args = ["train", "--data", world / "data", "--out", tmp_path / "r", "--steps", 60, "--eval-every", 1, *TINY]
    command = [sys.executable, "-m", "nanoeuler", *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert json.loads((tmp_path / "r" / "last" / "trainer_state.json").read_text())["step"] == 60


@POSIX
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str) -> None:
    command = f'"{sys.executable}" -m nanoeuler tokenizer decode - {closed}'
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("threads", ["0", "-1", "many", "1000000"])
def test_number_of_threads(refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    refuses("NUMBA_NUM_THREADS must be a number from 1 to", "info")


@POSIX
def test_folder_that_is_gone(refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refuses("the current folder is no longer there", "info")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_on_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "nanoeuler", "data", "stories", "-", "-n", "300"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: the disk is full")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_terminals_that_know_few_characters(world: Path, tmp_path: Path, encoding: str) -> None:
    env = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = shell("tokenizer", "decode", "8582", "247", "224", env=env)
    assert (done.returncode, done.stdout) == (0, "?\n" if encoding == "cp1252" else "🙂\n")  # ASCII: click takes UTF-8
    out = tmp_path / "r"
    args = ["train", "--data", world / "data", "--out", out, "--steps", 2, *TINY]
    done = shell(*args, env=env, encoding=encoding)
    assert done.returncode == 0 and "+--" in done.stdout and "?" not in done.stdout


def test_module_and_exit_code() -> None:
    assert shell("--version").stdout.startswith("nanoeuler ")
    done = shell("nonsense")
    assert done.returncode == 2 and done.stderr == "error: No such command 'nonsense' (see: nanoeuler --help)\n"
