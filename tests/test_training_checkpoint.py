"""Checkpoints: whole at any moment, never mixed, found without guessing."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from training_runs import TINY, make_data

from nanoeuler import durable
from nanoeuler.errors import UserError
from nanoeuler.model.gpt import GPT
from nanoeuler.training import TrainConfig, Trainer, events, find_model, train
from nanoeuler.training.checkpoint import load_state
from nanoeuler.training.runfolder import RunFolder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run that ended: last at step 12, best at one of 5, 10, 12."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(**TINY, data=data, out=out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(finished, tmp_path / "run")


# ---- a kill at any moment ------------------------------------------------------------------------------
class Camera:
    """Copies a folder before each call that changes a file system: the states in which a kill could leave it."""

    def __init__(self, monkeypatch, folder, album):
        self.folder, self.album, self.photos, self.on = folder, album, [], False
        for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real):
        def call(*args, **kw):
            if self.on:
                self.shoot()
            return real(*args, **kw)

        return call

    def shoot(self):
        self.on = False
        self.photos.append(shutil.copytree(self.folder, self.album / f"{len(self.photos):04d}"))
        self.on = True


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    trainer = Trainer.start(TrainConfig(**{**TINY, "steps": 3, "save_every": 1, "eval_every": 1}, data=data, out=out))
    camera = Camera(monkeypatch, out, tmp_path / "album")
    params = {}

    def on_event(event):
        if isinstance(event, events.Step):
            params[event.step] = trainer.model.params.astype(np.float32)
            camera.on = event.step == 3  # from the third step on: best and last are replaced

    trainer.emit = on_event
    trainer.run()
    camera.on = False
    assert len(camera.photos) > 30
    found, gaps = set(), 0
    for photo in camera.photos:
        gaps += not (photo / "last").exists() or not (photo / "best").exists()
        for kind in ("last", "best"):
            looked = find_model(photo, kind)  # as a reader beside it would
            model = GPT.from_pretrained(looked.folder, device="reference")
            np.testing.assert_array_equal(model.params, params[looked.step])
        recovered = RunFolder(photo)
        recovered.recover()
        state = load_state(recovered.last)
        assert state.step == find_model(photo, "last").step
        assert sorted(p.name for p in photo.iterdir() if p.is_dir()) == ["best", "last"]
        found.add(state.step)
    assert found == {2, 3} and gaps >= 2, "the album should show the old, the new, and moments between two renames"
    assert train(resume=camera.photos[len(camera.photos) // 2]).step == 3


def test_a_half_written_checkpoint_is_never_used(run):
    """Cut short in the middle of a file, with the older one still aside."""
    (run / "last").rename(run / "last.old")
    shutil.copytree(run / "last.old", run / "last.new")
    model = run / "last.new" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-100])
    assert find_model(run, "last").folder == run / "last.old"
    assert train(resume=run).step == 12
    assert not (run / "last.old").exists() and not (run / "last.new").exists()


def test_leftovers_of_an_interrupted_save_are_cleaned(run):
    (run / "last.new").mkdir()
    (run / "last.new" / "model.safetensors").write_bytes(b"half")
    train(resume=run, steps=13)
    assert sorted(p.name for p in run.iterdir() if p.is_dir()) == ["best", "last"]


# ---- a full disk ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", range(1, 8))
def test_a_full_disk_keeps_the_last_checkpoint(data, tmp_path, monkeypatch, at):
    """The ``at``-th file to reach the disk from step 8 on finds it full."""
    out, left = tmp_path / "run", [10**9]
    real = os.fsync

    def fsync(descriptor):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    def on_event(event):
        if isinstance(event, events.Step) and event.step == 8:
            left[0] = at

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match=r"the disk is full while writing|No space left on device") as error:
        train(**TINY, data=data, out=out, on_event=on_event)
    assert "\n" not in str(error.value)
    assert find_model(out, "last").step == 4
    assert train(resume=out).step == 12


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_under_the_metrics(data, tmp_path):
    trainer = Trainer.start(TrainConfig(**TINY, data=data, out=tmp_path / "run"))
    with Path("/dev/full").open("a", encoding="utf-8") as full:

        def on_event(event):
            if isinstance(event, events.Step) and event.step == 6:
                trainer.metrics._file = full

        trainer.emit = on_event
        with pytest.raises(UserError, match=r"the disk is full while writing .*metrics\.jsonl"):
            trainer.run()
    assert train(resume=tmp_path / "run").step == 12


def test_no_permission_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot write"), durable.write_errors(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_replacing_a_folder_leaves_it_alone_when_the_block_fails(tmp_path):
    folder = tmp_path / "x"
    with durable.replacing_folder(folder) as new:
        (new / "a").write_text("1", encoding="utf-8")
    with pytest.raises(ZeroDivisionError), durable.replacing_folder(folder) as new:
        (new / "a").write_text("2", encoding="utf-8")
        raise ZeroDivisionError
    assert (folder / "a").read_text(encoding="utf-8") == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


# ---- damage --------------------------------------------------------------------------------------------
def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def change_state(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: truncate(f / "model.safetensors"), r"model\.safetensors is truncated"),
        (lambda f: truncate(f / "optimizer.safetensors"), r"optimizer\.safetensors is truncated"),
        (lambda f: flip(f / "model.safetensors"), "damaged or belongs to another checkpoint"),
        (lambda f: flip(f / "optimizer.safetensors"), "damaged or belongs to another checkpoint"),
        (lambda f: (f / "optimizer.safetensors").unlink(), r"optimizer\.safetensors is missing"),
        (lambda f: (f / "char_vocab.json").unlink(), r"char_vocab\.json is missing"),
        (lambda f: (f / "trainer_state.json").unlink(), r"no checkpoint of a run: it has no trainer_state\.json"),
        (lambda f: (f / "trainer_state.json").write_text("{", encoding="utf-8"), r"trainer_state\.json is damaged"),
        (lambda f: (f / "trainer_state.json").write_text("[]", encoding="utf-8"), "was not written by this program"),
        (lambda f: change_state(f / "trainer_state.json", format="other"), "was not written by this program"),
        (lambda f: change_state(f / "trainer_state.json", step=-3), "damaged"),
        (lambda f: change_state(f / "trainer_state.json", step="many"), "damaged"),
        (lambda f: change_state(f / "trainer_state.json", files={"x": 3}), "damaged"),
        (lambda f: change_state(f / "trainer_state.json", files={"../../text.txt": {}}), "damaged"),
        (lambda f: change_state(f / "trainer_state.json", files={}), "damaged"),
    ],
)
def test_damage_is_noticed_and_named(run, damage, words):
    damage(run / "last")
    with pytest.raises(UserError, match=words) as error:
        train(resume=run, steps=13)
    assert "\n" not in str(error.value)


def test_old_and_new_files_do_not_mix(data, tmp_path, finished, run):
    train(**TINY, data=data, out=tmp_path / "other", seed=5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        shutil.copy(finished / "last" / name, run / "last" / name)
        shutil.copy(tmp_path / "other" / "last" / name, run / "last" / name)
        with pytest.raises(UserError, match=f"{name} is damaged or belongs to another checkpoint"):
            train(resume=run, steps=13)
        shutil.copy(finished / "last" / name, run / "last" / name)
    assert train(resume=run, steps=13).step == 13


# ---- finding a model -----------------------------------------------------------------------------------
def test_a_run_means_its_best_model_and_says_so(run):
    found = find_model(run)
    assert (found.folder, found.kind) == (run / "best", "best")
    assert str(found).startswith(str(run / "best")) and "validation loss" in str(found) and "step" in str(found)
    assert find_model(run, "last").folder == run / "last" and find_model(run, "last").step == 12
    shutil.rmtree(run / "best")
    assert find_model(run).kind == "last"
    with pytest.raises(UserError, match="has no best checkpoint"):
        find_model(run, "best")


def test_a_checkpoint_or_any_models_folder_means_itself(run, tmp_path):
    found = find_model(run / "last")
    assert (found.folder, found.kind, found.step) == (run / "last", "folder", 12)
    bare = tmp_path / "bare"  # as transformers writes it
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(run / "last" / name, bare / name)
    assert find_model(bare).step is None and str(find_model(bare)) == str(bare)
    (bare / "trainer_state.json").write_text('{"global_step": 3}', encoding="utf-8")  # of its Trainer
    assert find_model(bare).folder == bare
    with pytest.raises(UserError, match="is a model's own folder"):
        find_model(bare, "best")


def test_a_model_needs_no_optimizer_but_its_own_weights(run):
    (run / "last" / "optimizer.safetensors").unlink()
    assert find_model(run / "last").step == 12
    flip(run / "last" / "model.safetensors")
    with pytest.raises(UserError, match="damaged or belongs to another checkpoint"):
        find_model(run / "last")
    flip(run / "best" / "model.safetensors")
    with pytest.raises(UserError, match="damaged or belongs to another checkpoint"):
        find_model(run)  # never the other one in its place


def test_nothing_is_found_where_nothing_is(data, tmp_path, run):
    with pytest.raises(UserError, match="there is no such folder"):
        find_model(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a file"):
        find_model(run / "config.toml")
    with pytest.raises(UserError, match="neither a run folder"):
        find_model(data)
    shutil.rmtree(run / "best")
    shutil.rmtree(run / "last")
    with pytest.raises(UserError, match="has no checkpoint yet: start it again with --resume"):
        find_model(run)


def test_the_folder_is_free_again_after_an_error(run):
    truncate(run / "last" / "optimizer.safetensors")
    for _ in range(2):
        with pytest.raises(UserError, match="truncated"):
            train(resume=run, steps=13)
    lock = RunFolder(run)
    lock.lock()
    with pytest.raises(UserError, match="is in use"):
        train(resume=run, steps=13)
    lock.unlock()
