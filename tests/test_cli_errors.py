"""Bad input and machines that are the problem: exit code 2 and one line, whatever the command."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import POSIX, TINY, Cli, sample, shell

from nanoeuler.cli import compile_cache
from nanoeuler.errors import UserError


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


# ---- numbers that nobody means ------------------------------------------------------------------------
HUGE = 10**30


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "data", "--max-tokens"),
        ("eval", "data", "--batch-size"),
        ("eval", "--stories"),
        ("sample", "-n"),
        ("sample", "--max-new-tokens"),
        ("chat", "--max-new-tokens"),
        ("bench", "train", "--batch-size"),
        ("quantize", "--out", "new", "--max-tokens"),
        ("check", "--samples"),
        ("data", "stories", "new.txt", "-n"),
        ("data", "prepare", "a.txt", "--out", "new", "--vocab-size"),
    ],
)
def test_huge_numbers(
    refuses: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(r"a number of 31 digits is too large: at most [\d,]+", *command, HUGE)
    assert not [*tmp_path.iterdir()]


def test_numbers_just_too_large(refuses: Callable[..., None]) -> None:
    refuses("1,000,000,000,000 is too large: at most 1,000,000", "sample", "-n", 10**12)
    refuses("--memory must be above 0 and at most", "plan", "--preset", "demo", "--memory", "1e30")


def test_a_benchmark_that_cannot_fit(refuses: Callable[..., None]) -> None:
    refuses(r"this run needs [\d,.]+ GiB of memory and", "bench", "train", "--batch-size", 10**6)


# ---- everything is checked before anything is done ----------------------------------------------------
@pytest.mark.parametrize(("option", "value"), [("--weights", "foo"), ("--temperature", -1), ("--device", "nonsense")])
def test_no_prompt_before_an_error(cli: Cli, world: Path, option: str, value: object) -> None:
    result = cli("sample", "Hi", "--model", world / "run", option, value)
    assert result.code == 2 and result.out == "" and result.err.splitlines()[-1].startswith("error: ")


def test_weights_that_the_device_does_not_have(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Hi", "--weights", "int8"))
    assert result.code == 2 and result.out == ""
    assert result.err.splitlines()[-1].startswith("error: the device reference cannot write with weights int8")


def test_check_begins_with_the_device(cli: Cli) -> None:
    result = cli("check", "--device", "nonsense")
    assert result.code == 2 and result.out == "" and result.err.startswith("error: unknown device 'nonsense'")


def no_gpu() -> None:
    raise UserError("there is no GPU here")


def test_nothing_is_compiled_for_a_gpu_that_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoeuler.ops.gpu.runtime.driver.open_device", no_gpu)
    result = cli("sample", "Hi", "--device", "gpu")
    assert result.code == 2 and result.err == "error: there is no GPU here\n"


def test_info_tells_which_devices_run_here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoeuler.ops.gpu.runtime.driver.open_device", no_gpu)
    out = cli("info").out
    assert re.search(r"^devices +cpu, reference; not gpu and gpu-fp32: see gpu$", out, re.M)
    assert re.search(r"^gpu +none \(there is no GPU here\)$", out, re.M)


# ---- Ctrl-C -------------------------------------------------------------------------------------------
@POSIX
def test_ctrl_c_while_the_command_line_loads(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from nanoeuler.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_inside_a_compiler_that_cannot_raise_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Numba, whose LLVM calls back into Python: the interrupt is lost, and what was asked for is missing."""

    def compiled(*args: object) -> None:
        @ctypes.CFUNCTYPE(None)
        def callback() -> None:
            raise KeyboardInterrupt

        callback()
        raise RuntimeError("no compiled object yet")

    monkeypatch.setattr("nanoeuler.training.plan.plan", compiled)
    result = cli("plan", "--preset", "demo")
    assert (result.code, result.out, result.err) == (130, "", "stopped\n")
