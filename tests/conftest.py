"""How the tests are run: the whole suite on all cores, and those marked ``gpu`` where there is a GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import TINY, Cli, Result

from nanoeuler.errors import UserError
from nanoeuler.ops.gpu.runtime.driver import open_device


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in a process a core, where pytest-xdist is installed (the extra ``test`` brings it).

    Not for files or tests that are named, which are started quicker than a second process is; not where -n says
    something else (``-n 0``: all in one process); and not where there is a GPU, whose memory the tests want whole.
    """
    options = config.option
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not is_whole or "PYTEST_XDIST_WORKER" in os.environ or not config.pluginmanager.has_plugin("xdist"):
        return
    watched = options.usepdb or options.capture == "no"  # a debugger, or -s: in one process
    if options.numprocesses is None and options.dist == "no" and not watched and why_no_gpu():
        options.numprocesses = "auto"
        options.dist = "worksteal"  # neighbours stay together, so that few fixtures are made twice
        if not config.option.collectonly:
            compile_kernels()


def compile_kernels() -> None:
    """Compile what writes and, in a second process, what trains, lest each of the processes does it."""
    from nanoeuler.inference.generator import Generator
    from nanoeuler.ops.cpu import warmup

    Generator.from_pretrained().generate("Once", max_new_tokens=2)
    warmup.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (why := why_no_gpu()):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=why))


def why_no_gpu() -> str | None:
    """What is missing to run on a GPU here, or None."""
    try:
        open_device()
    except UserError as error:
        return str(error)
    return None


# ---- the command line ---------------------------------------------------------------------------------
@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process."""
    from nanoeuler.cli.main import run

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


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stories.txt, data/ (BPE of 300 entries), and run/ (three steps of a tiny model)."""
    from nanoeuler.cli.main import run

    folder = tmp_path_factory.mktemp("world")
    text, data, out = folder / "stories.txt", folder / "data", folder / "run"
    assert run(["data", "stories", str(text), "-n", "40"]) == 0
    assert run(["data", "prepare", str(text), "--vocab-size", "300", "--out", str(data)]) == 0
    assert run(["train", "--data", str(data), "--out", str(out), "--steps", "3", *TINY]) == 0
    return folder
