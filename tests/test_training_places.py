"""Runs that are started from Python, shown, and taken up from another folder than they began in."""

import re
import shutil

import pytest
from training_runs import TINY, history, make_data

from nanoeuler.errors import UserError
from nanoeuler.training import events, train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_progress_shows_what_the_command_line_shows(data, tmp_path, capsys):
    seen = []
    train(**TINY, data=data, out=tmp_path / "silent")
    assert capsys.readouterr() == ("", "")
    train(**TINY, data=data, out=tmp_path / "run", progress=True, on_event=seen.append)
    shown = capsys.readouterr().out
    assert shown.startswith("model ") and "step     12" in shown and "val " in shown
    assert [type(event) for event in seen if not isinstance(event, events.Step)][-1] is events.Finished
    assert history(tmp_path / "silent") == history(tmp_path / "run")


def test_a_run_goes_on_from_any_folder(data, tmp_path, monkeypatch):
    monkeypatch.chdir(data.parent)
    (tmp_path / "elsewhere").mkdir()
    train(**TINY, data="data", out=tmp_path / "run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train(resume=tmp_path / "run", steps=14).step == 14


def test_data_that_is_no_longer_there(data, tmp_path, monkeypatch):
    moved = tmp_path / "moved"
    shutil.copytree(data, tmp_path / "data")
    train(**TINY, data=tmp_path / "data", out=tmp_path / "run")
    (tmp_path / "data").rename(moved)
    with pytest.raises(UserError, match=r"the run's data is no longer at .*data: name its place with --data"):
        train(resume=tmp_path / "run", steps=14)
    monkeypatch.chdir(tmp_path)
    assert train(resume=tmp_path / "run", steps=14, data="moved").step == 14
    file = tmp_path / "run" / "config.toml"
    assert f'data = "{moved.as_posix()}"' in file.read_text(encoding="utf-8").replace("\\\\", "/")
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub("(?m)^data = .*", 'data = "data"', text), encoding="utf-8")  # as earlier versions wrote it
    with pytest.raises(UserError, match="no longer at data, as seen from the folder in which the run began"):
        train(resume=tmp_path / "run", steps=15)
