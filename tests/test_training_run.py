"""The training loop: what it computes, how it stops, and that it goes on as if it had not."""

import json
import math
import signal
import threading

import numpy as np
import pytest
from training_runs import TINY, history, make_data, same_end

from nanoeuler.data.dataset import Dataset
from nanoeuler.data.loader import Loader
from nanoeuler.data.permutation import hash64
from nanoeuler.errors import UserError
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import CharTokenizer
from nanoeuler.training import TrainConfig, Trainer, TrainingDiverged, events, train
from nanoeuler.training.evaluate import evaluate
from nanoeuler.training.metrics import read_metrics


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


# ---- what a step is ------------------------------------------------------------------------------------
def adamw_by_the_book(data, config, steps):
    """Plain NumPy: one array a parameter, decay by a look at its shape; (losses, parameters) of ``steps`` steps."""
    model = GPT(config.model_config(Dataset.open(data).n_vocab), device="reference", seed=config.seed)
    loader = Loader(Dataset.open(data), config.batch_size, config.block_size, config.seed)
    names = list(model.p)
    m = {k: np.zeros_like(model.p[k]) for k in names}
    v = {k: np.zeros_like(model.p[k]) for k in names}
    losses = []
    for step in range(steps):
        g = {k: np.zeros_like(model.p[k]) for k in names}
        loss = 0.0
        for part in range(config.grad_accum):
            n = step * config.grad_accum + part
            loss += model.loss_and_grad(*loader.batch(n), seed=hash64(config.seed, n) & 0xFFFFFFFF)
            for k in names:
                g[k] += model.g[k] / config.grad_accum
        losses.append(loss / config.grad_accum)
        norm = math.sqrt(sum((a**2).sum() for a in g.values()))
        factor = min(1.0, config.grad_clip / (norm + 1e-6))
        for k in names:
            a, p = g[k] * factor, model.p[k]
            m[k] = config.beta1 * m[k] + (1 - config.beta1) * a
            v[k] = config.beta2 * v[k] + (1 - config.beta2) * a * a
            mean = m[k] / (1 - config.beta1 ** (step + 1))
            spread = np.sqrt(v[k] / (1 - config.beta2 ** (step + 1)))
            decay = config.weight_decay if p.ndim == 2 else 0.0
            p -= config.lr * (mean / (spread + config.eps) + decay * p)
    return losses, model.params


@pytest.mark.parametrize("changes", [{}, {"grad_accum": 3, "grad_clip": 0.05}, {"dropout": 0.2, "weight_decay": 0.5}])
def test_steps_are_adamw_by_the_book(data, out, changes):
    config = TrainConfig(**{**TINY, **changes, "schedule": "constant", "warmup": 0, "steps": 4}, data=data, out=out)
    losses, params = adamw_by_the_book(data, config, 4)
    trainer = Trainer.start(config)
    trainer.run()
    np.testing.assert_allclose([r["loss"] for r in history(out) if "loss" in r], losses, rtol=1e-12)
    np.testing.assert_allclose(trainer.model.params, params, rtol=1e-9, atol=1e-12)


def test_no_clipping_when_grad_clip_is_zero(data, out, tmp_path):
    train(**TINY, data=data, out=out, grad_clip=0.0)
    train(**TINY, data=data, out=tmp_path / "b", grad_clip=1e9)
    assert same_end(out, tmp_path / "b")


def test_it_learns_a_text_by_heart(tmp_path, out):
    data = make_data(tmp_path, "abcdefgh" * 60)
    result = train(**{**TINY, "steps": 80, "lr": 3e-2}, data=data, out=out)
    losses = [r["loss"] for r in history(out) if "loss" in r]
    assert losses[0] > 2.0 and losses[-1] < 0.15  # the first letter of a window could be any
    assert result.val_loss == result.best_val_loss < 0.2


def test_metrics_say_what_happened(data, out):
    seen = []
    train(**TINY, data=data, out=out, on_event=seen.append, log_every=3)
    lines = read_metrics(out / "metrics.jsonl")
    assert [r["step"] for r in lines if "loss" in r] == [3, 6, 9, 12]
    assert [r["step"] for r in lines if "val_loss" in r] == [5, 10, 12]
    steps = {e.step: e for e in seen if isinstance(e, events.Step)}
    assert sorted(steps) == list(range(1, 13))
    for r in lines:
        if "loss" in r:
            e = steps[r["step"]]
            assert (r["loss"], r["lr"], r["grad_norm"], r["tokens"]) == (e.loss, e.lr, e.grad_norm, r["step"] * 24)
    assert math.isclose(steps[1].loss, math.log(Dataset.open(data).n_vocab), rel_tol=0.05)  # it knows nothing yet
    assert [type(e).__name__ for e in seen if not isinstance(e, events.Step)] == [
        *("Started", "Saved"),
        *("Evaluating", "Saved", "Evaluated", "Saved", "Evaluating", "Saved", "Evaluated"),
        *("Evaluating", "Saved", "Evaluated", "Saved", "Finished"),
    ]  # fmt: skip


def test_evaluation_is_the_mean_over_the_split(data):
    val = Dataset.open(data, "val")
    model = GPT(GPTConfig(val.n_vocab, 8, 1, 2, 8), device="reference")
    tokens = np.concatenate([f.tokens for f in val.files]).astype(np.int32)
    total, n = 0.0, 0
    for s in range(0, len(tokens) - 1, 8):
        window = tokens[s : s + 9]
        total += float(model.losses(window[None, :-1], window[None, 1:]).sum())
        n += len(window) - 1
    result = evaluate(model, val, batch_size=5, seq_len=8)
    assert result.tokens == n == len(tokens) - 1
    assert result.loss == pytest.approx(total / n, rel=1e-12)
    assert result.perplexity == pytest.approx(math.exp(total / n))
    assert result.bits_per_byte == pytest.approx(total / n / math.log(2) * val.n_tokens / val.n_bytes)


def test_best_is_the_model_of_the_lowest_validation_loss(tmp_path, out):
    # Learning by heart what validation contradicts: the loss there rises after a few steps.
    data = make_data(tmp_path, "ab" * 120 + "ba" * 6 + "aabb" * 6, val_fraction=0.16)
    result = train(**{**TINY, "eval_every": 3, "steps": 30, "lr": 3e-2}, data=data, out=out)
    values = {r["step"]: r["val_loss"] for r in history(out) if "val_loss" in r}
    assert result.best_step == min(values, key=values.__getitem__) < 30
    assert result.best_val_loss == values[result.best_step]
    model = GPT.from_pretrained(out / "best", device="reference")
    again = evaluate(model, Dataset.open(data, "val"), 3, 8, 64)
    assert again.loss == pytest.approx(result.best_val_loss, rel=1e-5)  # parameters were rounded to float32
    assert result.model_folder == out / "best"


def test_without_validation_data(tmp_path, out):
    result = train(**TINY, data=make_data(tmp_path, val_fraction=0.0), out=out)
    assert (result.val_loss, result.best_step, result.model_folder) == (None, None, out / "last")


def test_samples_do_not_change_the_run(data, out, tmp_path):
    seen = []
    train(**TINY, data=data, out=out, sample_every=4, sample_tokens=9, sample_prompt="cat", on_event=seen.append)
    train(**TINY, data=data, out=tmp_path / "b")
    samples = [e for e in seen if isinstance(e, events.Sampled)]
    assert [e.step for e in samples] == [4, 8, 12] and all(len(e.text) == 9 for e in samples)
    plain = [r for r in history(out) if "sample" not in r]
    assert plain == history(tmp_path / "b") and len(history(out)) == len(plain) + 3


def test_kept_models(data, out):
    train(**TINY, data=data, out=out, keep_every=6)
    assert sorted(p.name for p in out.iterdir() if p.is_dir()) == ["best", "last", "step_00000006", "step_00000012"]
    same = np.array_equal(
        GPT.from_pretrained(out / "step_00000012", device="reference").params,
        GPT.from_pretrained(out / "last", device="reference").params,
    )
    assert same


# ---- stop and go on ------------------------------------------------------------------------------------
def press(number, at, times=1):
    """An event handler that sends a signal to this process at the end of step ``at``."""

    def on_event(event):
        if isinstance(event, events.Step) and event.step == at:
            for _ in range(times):
                signal.raise_signal(number)

    return on_event


VARIANTS = [{}, {"dropout": 0.3, "grad_accum": 3, "schedule": "wsd", "sample_every": 5, "sample_tokens": 3}]


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(data, tmp_path, changes):
    settings = {**TINY, **changes, "data": data}
    train(**settings, out=tmp_path / "whole")
    for stop in (1, 4, 5, 10, 11, 12):  # the first, at a save, at an evaluation, at a sample, none of them, the last
        run = tmp_path / f"stop{stop}"
        result = train(**settings, out=run, on_event=press(signal.SIGINT, stop))
        assert (result.interrupted, result.step) == (True, stop)
        assert str(run) in result.resume_command
        result = train(resume=run)
        assert (result.interrupted, result.step) == (False, 12)
        assert same_end(run, tmp_path / "whole"), f"stopped at {stop}"


def test_several_stops(data, tmp_path):
    settings = {**TINY, "data": data}
    train(**settings, out=tmp_path / "whole")
    train(**settings, out=tmp_path / "run", on_event=press(signal.SIGTERM, 3))
    for stop in (4, 7, 10):
        assert train(resume=tmp_path / "run", on_event=press(signal.SIGINT, stop)).step == stop
    train(resume=tmp_path / "run")
    assert same_end(tmp_path / "run", tmp_path / "whole")


def test_a_resumed_run_on_the_cpu_engine(data, tmp_path):
    settings = {**TINY, "data": data, "device": "cpu", "dropout": 0.1, "grad_accum": 2}
    whole = train(**settings, out=tmp_path / "whole")
    train(**settings, out=tmp_path / "run", on_event=press(signal.SIGINT, 7))
    again = train(resume=tmp_path / "run")
    assert same_end(tmp_path / "run", tmp_path / "whole") and again.loss == whole.loss


def test_the_seed_fixes_everything_and_decides(data, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(**TINY, data=data, out=tmp_path / name, seed=seed)
    assert same_end(tmp_path / "a", tmp_path / "b")
    assert history(tmp_path / "a")[0]["loss"] != history(tmp_path / "c")[0]["loss"]


def test_lines_after_the_checkpoint_are_dropped(data, tmp_path):
    settings = {**TINY, "data": data}
    train(**settings, out=tmp_path / "whole")
    run = tmp_path / "run"
    train(**settings, out=run, on_event=press(signal.SIGINT, 6))
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:  # a kill later on would leave this
        file.write('{"step": 7, "loss": 1.0}\n{"step": 8, "lo')
    train(resume=run)
    assert same_end(run, tmp_path / "whole")


def test_killed_before_the_first_checkpoint(data, tmp_path):
    class Killed(BaseException):
        pass

    def kill(event):
        if isinstance(event, events.Step) and event.step == 2:
            raise Killed

    settings = {**TINY, "data": data}
    with pytest.raises(Killed):
        train(**settings, out=tmp_path / "run", on_event=kill)
    train(resume=tmp_path / "run")
    train(**settings, out=tmp_path / "whole")
    assert same_end(tmp_path / "run", tmp_path / "whole")


def test_a_second_ctrl_c_ends_at_once(data, out):
    with pytest.raises(KeyboardInterrupt):
        train(**TINY, data=data, out=out, on_event=press(signal.SIGINT, 6, times=2))
    assert train(resume=out).step == 12  # from the checkpoint of step 4


def test_ctrl_c_is_told_and_the_handlers_come_back(data, out):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen = []
    stop = press(signal.SIGINT, 3)
    train(**TINY, data=data, out=out, on_event=lambda e: (seen.append(e), stop(e)))
    assert [e.signal for e in seen if isinstance(e, events.Stopping)] == ["SIGINT"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_ctrl_c_during_an_evaluation(data, tmp_path):
    settings = {**TINY, "data": data}
    train(**settings, out=tmp_path / "whole")

    def stop(event):
        if isinstance(event, events.Evaluating) and event.step == 10:
            signal.raise_signal(signal.SIGINT)

    result = train(**settings, out=tmp_path / "run", on_event=stop)
    assert (result.step, result.interrupted) == (10, True)
    assert not any(r["step"] == 10 and "val_loss" in r for r in history(tmp_path / "run"))
    train(resume=tmp_path / "run")
    assert same_end(tmp_path / "run", tmp_path / "whole")


def test_it_trains_in_any_thread(data, out):
    results = []
    thread = threading.Thread(target=lambda: results.append(train(**TINY, data=data, out=out)))
    thread.start()
    thread.join()
    assert results[0].step == 12


def test_a_finished_run_can_go_on_for_longer(data, out):
    train(**TINY, data=data, out=out)
    assert train(resume=out).step == 12  # nothing left to do
    result = train(resume=out, steps=15, eval_every=2)
    assert (result.step, result.tokens) == (15, 15 * 24)
    assert [r["step"] for r in history(out) if "loss" in r] == list(range(1, 16))
    assert TrainConfig.load(toml=out / "config.toml").steps == 15


def test_a_run_folder_may_move(data, tmp_path):
    train(**TINY, data=data, out=tmp_path / "a", on_event=press(signal.SIGINT, 6))
    (tmp_path / "a").rename(tmp_path / "b")
    assert train(resume=tmp_path / "b").out == tmp_path / "b"
    assert not (tmp_path / "a").exists()


# ---- divergence ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("what", "value"), [("loss", math.nan), ("loss", math.inf), ("norm", math.inf)])
def test_it_stops_before_a_bad_number_touches_the_parameters(data, out, monkeypatch, what, value):
    trainer = Trainer.start(TrainConfig(**TINY, data=data, out=out))
    loss_and_grad, global_norm = trainer.model.loss_and_grad, trainer.model.ops.global_norm

    def bad_at_7(real):
        return lambda *args, **kw: value if trainer.state.step == 6 else real(*args, **kw)

    if what == "loss":
        monkeypatch.setattr(trainer.model, "loss_and_grad", bad_at_7(loss_and_grad))
    else:
        monkeypatch.setattr(trainer.model.ops, "global_norm", bad_at_7(global_norm))
    copies = {}
    trainer.emit = lambda e: copies.update({e.step: trainer.model.params.copy()}) if isinstance(e, events.Step) else 0
    with pytest.raises(TrainingDiverged, match=f"is {value} at step 7.*last is as it was.*lower lr") as error:
        trainer.run()
    assert error.value.step == 7 and "\n" not in str(error.value)
    np.testing.assert_array_equal(trainer.model.params, copies[6])
    monkeypatch.undo()
    assert train(resume=out).step == 12  # from step 4, with numbers that are finite again


def test_a_bad_validation_loss_stops_it_too(data, out, monkeypatch):
    trainer = Trainer.start(TrainConfig(**TINY, data=data, out=out))
    real = trainer.model.losses
    monkeypatch.setattr(trainer.model, "losses", lambda x, y: real(x, y) * (math.nan if trainer.state.step > 5 else 1))
    with pytest.raises(TrainingDiverged, match="validation loss is nan at step 10"):
        trainer.run()
    assert (trainer.state.best_step, history(out)[-1]["step"]) == (5, 10)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wild_learning_rate_diverges(data, out):
    with pytest.raises(TrainingDiverged):
        train(**{**TINY, "lr": 1e200, "steps": 50}, data=data, out=out)


# ---- going on from a model -----------------------------------------------------------------------------
def test_fine_tuning_starts_from_the_model_and_measures_it_first(data, tmp_path):
    first = train(**TINY, data=data, out=tmp_path / "a")
    sizes = {"n_layer", "n_head", "n_embd", "block_size"}
    settings = {k: v for k, v in TINY.items() if k not in sizes}
    train(**settings, data=data, out=tmp_path / "b", init_from=tmp_path / "a")
    start = history(tmp_path / "b")[0]
    assert start["step"] == 0
    assert start["val_loss"] == pytest.approx(first.best_val_loss, rel=1e-5)
    assert (tmp_path / "b" / "last" / "char_vocab.json").exists()


def test_fine_tuning_goes_on_bit_for_bit(data, tmp_path):
    train(**TINY, data=data, out=tmp_path / "a")
    settings = {**TINY, "data": data, "init_from": tmp_path / "a" / "last", "dropout": 0.1}
    train(**settings, out=tmp_path / "whole")
    for stop in (1, 6):
        run = tmp_path / f"stop{stop}"
        train(**settings, out=run, on_event=press(signal.SIGINT, stop))
        train(resume=run)
        assert same_end(run, tmp_path / "whole")


def test_fine_tuning_refuses_what_does_not_fit(data, tmp_path):
    train(**TINY, data=data, out=tmp_path / "a")
    other = make_data(tmp_path, "xyz " * 200)
    refused(r"n_layer 3 contradicts .* has 2", data, tmp_path, init_from=tmp_path / "a", n_layer=3)
    refused("prepared with another tokenizer", other, tmp_path, init_from=tmp_path / "a")
    refused("there is no such folder", data, tmp_path, init_from=tmp_path / "nowhere")


# ---- what it refuses -----------------------------------------------------------------------------------
def refused(words, data, tmp_path, **changes):
    """A start that must fail with ``words`` and leave no run folder."""
    out = tmp_path / "never"
    with pytest.raises(UserError, match=words) as error:
        train(**{**TINY, "data": data, "out": out, **changes})
    assert "\n" not in str(error.value) and not out.exists()


def test_starts_that_cannot_be(data, tmp_path):
    refused("no data at", tmp_path / "nowhere", tmp_path)
    refused("no data: give --data", "", tmp_path)
    refused("unknown device", data, tmp_path, device="tpu")
    refused("vocab_size 5 is less than the", data, tmp_path, vocab_size=5)
    refused("too short", data, tmp_path, block_size=5000)
    refused("character 'é'", data, tmp_path, sample_every=5, sample_prompt="é")
    with pytest.raises(UserError, match="give --out"):
        train(**TINY, data=data)


def test_tokens_without_a_tokenizer(tmp_path, out):
    ids = np.arange(600, dtype="<u2") % 50
    ids.tofile(tmp_path / "train.bin")
    refused("come without a tokenizer: give --vocab-size", tmp_path, tmp_path)
    refused("token id 49", tmp_path, tmp_path, vocab_size=49)
    refused("no tokenizer to write samples with", tmp_path, tmp_path, vocab_size=50, sample_every=1)
    assert train(**TINY, data=tmp_path, out=out, vocab_size=50).step == 12


def test_an_existing_folder_is_never_overwritten(data, tmp_path):
    train(**TINY, data=data, out=tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run: go on with --resume"):
        train(**TINY, data=data, out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="is not empty"):
        train(**TINY, data=data, out=tmp_path / "other")
    with pytest.raises(UserError, match="is a file"):
        train(**TINY, data=data, out=tmp_path / "other" / "thesis.txt")
    assert (tmp_path / "other" / "thesis.txt").read_text(encoding="utf-8") == "mine"


def test_resuming_refuses_contradictions(data, tmp_path, out):
    with pytest.raises(UserError, match="no run at"):
        train(resume=tmp_path / "nowhere")
    with pytest.raises(UserError, match="is no run folder"):
        train(resume=data)
    train(**TINY, data=data, out=out, on_event=press(signal.SIGINT, 6))
    for name, value in {"lr": 1.0, "seed": 5, "n_layer": 3, "batch_size": 4, "grad_accum": 2, "dropout": 0.5}.items():
        with pytest.raises(UserError, match=rf"{name} is .* and cannot become .* --init-from"):
            train(resume=out, **{name: value})
    with pytest.raises(UserError, match="unknown setting 'stps'"):
        train(resume=out, stps=5)
    with pytest.raises(UserError, match="steps 5 is less than the 6 already done"):
        train(resume=out, steps=5)
    with pytest.raises(UserError, match="has its settings already"):
        train(TrainConfig(), resume=out)
    with pytest.raises(UserError, match=r"is not what the run .* was trained on"):
        train(resume=out, data=make_data(tmp_path, "cat 1 sat on mat 2.\n" * 200))
    assert train(resume=out, lr=TINY["lr"], eval_every=3).step == 12  # the same value is no contradiction


def test_resuming_notices_a_changed_config(data, out):
    train(**TINY, data=data, out=out, on_event=press(signal.SIGINT, 6))
    path = out / "config.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("lr = 0.01", "lr = 0.02"), encoding="utf-8")
    with pytest.raises(UserError, match=r"lr is 0\.02 in .*config\.toml, but the checkpoint .* 0\.01: set it back"):
        train(resume=out)


def test_two_processes_cannot_share_a_run(data, out):
    trainer = Trainer.start(TrainConfig(**TINY, data=data, out=out))
    with pytest.raises(UserError, match="is in use"):
        train(resume=out)
    trainer.run()
    assert train(resume=out).step == 12


def test_config_and_state_are_kept_in_full(data, out):
    train(**TINY, data=data, out=out)
    config = TrainConfig.load(toml=out / "config.toml")
    assert None not in config.to_dict().values()
    state = json.loads((out / "last" / "trainer_state.json").read_text(encoding="utf-8"))
    assert (state["step"], state["tokens"], state["seed"]) == (12, 12 * 24, config.seed)
    assert set(state["files"]) == {
        "model.safetensors", "config.json", "optimizer.safetensors", "char_vocab.json"
    }  # fmt: skip
    assert CharTokenizer.load(out / "last").n_vocab == config.vocab_size


def test_a_profile_needs_a_gpu(tmp_path):
    settings = {**TINY, "data": make_data(tmp_path)}
    with pytest.raises(UserError, match="profile times the kernels of a GPU"):
        train(**settings, out=tmp_path / "run", profile=True)
    assert not (tmp_path / "run").exists()
    train(**settings, out=tmp_path / "run")
    with pytest.raises(UserError, match="profile times the kernels of a GPU"):
        train(resume=tmp_path / "run", steps=20, profile=True)
