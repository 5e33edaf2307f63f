"""``nanoeuler demo``: the whole way, in time, and never over anything."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from nanoeuler.cli import demo as demo_module
from nanoeuler.cli.demo import DemoSettings, demo, new_folder
from nanoeuler.errors import UserError
from nanoeuler.training.events import Step

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
