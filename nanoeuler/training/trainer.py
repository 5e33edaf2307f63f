"""The training loop.

A step is a pure function of (parameters, moments, step number): the batches, the dropout masks and the learning rate
are computed from the step number and the seed. So a run that stops and goes on from its checkpoint makes, bit for bit,
the numbers of a run that never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from nanoeuler.data.loader import Batch
from nanoeuler.durable import write_text
from nanoeuler.errors import UserError
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import BaseTokenizer
from nanoeuler.training import events
from nanoeuler.training.checkpoint import TrainerState, load_optimizer, load_state, save_checkpoint
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.evaluate import evaluate
from nanoeuler.training.metrics import MetricsFile, read_metrics
from nanoeuler.training.plot import loss_curves, write_png
from nanoeuler.training.runfolder import RunFolder
from nanoeuler.training.schedule import learning_rate
from nanoeuler.training.setup import (
    Data,
    changed_for_resume,
    check_same_run,
    fixed_settings,
    new_loader,
    new_model,
    open_data,
    where_data_is,
    with_full_paths,
)
from nanoeuler.training.signals import StopRequest
from nanoeuler.training.speed import Speed
from nanoeuler.training.step import StepDone, new_stepper

PLOT_EVERY_S = 60.0  # at most so often while training; at the end in any case

OnEvent = Callable[[events.Event], None]


class TrainingDiverged(UserError):
    """The loss or the gradient is no longer a finite number. ``step`` counts from 1; it changed no parameters."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class _Stopped(Exception):
    """Ctrl-C during an evaluation: leave it, it comes again when the run goes on."""


class Trainer:
    """One run: its model, optimizer state, data and folder. Made by :meth:`start` or :meth:`resume`."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunFolder,
        model: GPT,
        tokenizer: BaseTokenizer | None,
        data: Data,
        state: TrainerState,
        on_event: OnEvent | None = None,
    ) -> None:
        self.config, self.run_folder, self.model, self.tokenizer = config, run, model, tokenizer
        self.data, self.state = data, state
        self.emit: OnEvent = on_event or (lambda event: None)
        B, T = config.batch_size, config.seq_len or model.config.block_size
        self.B, self.T = B, T
        self.loader = new_loader(config, data, T)
        self.moments = model.moments()
        self.stepper = new_stepper(model, self.moments, config, T, self._fetch)
        self.profile = False
        self.stop = StopRequest()
        self.speed = Speed()
        self._told = False  # that Ctrl-C was heard
        self._plotted = perf_counter()

    @classmethod
    def start(cls, config: TrainConfig, on_event: OnEvent | None = None) -> Trainer:
        """A new run in the new folder ``config.out``."""
        if not config.out:
            raise UserError("no folder for the run: give --out FOLDER")
        run = RunFolder(config.out)
        run.check_new()
        data = open_data(config)
        model, tokenizer = new_model(config, data)
        config = with_full_paths(config.resolved(model.config))
        run.create(config)
        return cls(config, run, model, tokenizer, data, _first_state(config, data), on_event)

    @classmethod
    def resume(
        cls, folder: str | Path, changes: Mapping[str, Any] | None = None, on_event: OnEvent | None = None
    ) -> Trainer:
        """The run in ``folder``, where its last checkpoint left it (or at its start, if it has none yet)."""
        run = RunFolder(folder)
        config = changed_for_resume(run, run.read_config(), {**(changes or {}), "out": str(folder)})
        config = where_data_is(config, given="data" in (changes or {}))
        data = open_data(config)
        run.lock()
        try:
            return cls._reopen(run, config, data, on_event)
        except BaseException:
            run.unlock()
            raise

    @classmethod
    def _reopen(cls, run: RunFolder, config: TrainConfig, data: Data, on_event: OnEvent | None) -> Trainer:
        run.recover()
        if not run.last.exists():
            model, tokenizer = new_model(config, data)
            run.write_config(config)
            return cls(config, run, model, tokenizer, data, _first_state(config, data), on_event)
        state = load_state(run.last)
        check_same_run(run, config, data, state)
        model, tokenizer = new_model(replace(config, init_from=str(run.last)), data)
        trainer = cls(config, run, model, tokenizer, data, state, on_event)
        load_optimizer(run.last, model, trainer.moments)
        run.write_config(config)
        return trainer

    # ---- the loop -------------------------------------------------------------------------------------
    def run(self) -> events.TrainResult:
        """Train to the last step, or until Ctrl-C."""
        s = self.state
        self._began = perf_counter() - s.seconds
        self.metrics = MetricsFile(self.run_folder.metrics_file, s.step, s.pending)
        try:
            with self.stop:
                self.emit(self._started())
                interrupted = not self._loop()
                if interrupted:
                    self._save_last()
                self._plot()
                if self.profile and not interrupted:
                    self._profile()
        except TrainingDiverged:
            self._plot()
            raise
        finally:
            self.metrics.close()
            self.run_folder.unlock()
        result = self._result(interrupted)
        self.emit(events.Finished(result))
        return result

    def _loop(self) -> bool:
        """Steps and what is due after each, until all are done (True) or Ctrl-C (False)."""
        s = self.state
        if s.pending and not self._after_step():
            return False
        self.speed.restart()
        while s.step < self.config.steps:
            self._train_step()
            s.pending = True
            if self._hear_stop() or not self._after_step():
                return False
        self._wait()
        return True

    def _hear_stop(self) -> bool:
        """Whether Ctrl-C was pressed; tells so the first time."""
        if self.stop and not self._told:
            self._told = True
            self.emit(events.Stopping(str(self.stop.signal)))
        return bool(self.stop)

    def _due(self, every: int) -> bool:
        return every > 0 and self.state.step > 0 and self.state.step % every == 0

    def _train_step(self) -> None:
        """One step of the optimizer; what it came to may be known only during the next one."""
        c, s = self.config, self.state
        done = self.stepper.run(s.step + 1, learning_rate(c, s.step))
        self._require_finite_steps(done)
        s.step, s.val_loss = s.step + 1, None
        s.tokens += c.tokens_per_step
        self._report(done)

    def _fetch(self, n: int, out: Batch) -> None:
        """Write batch ``n`` into ``out``."""
        self._hear_stop()
        self.loader.batch(n, out=out)

    def _wait(self) -> None:
        """Report all steps up to this one: before anything else is reported or saved."""
        done = self.stepper.finish()
        self._require_finite_steps(done)
        self._report(done)

    def _require_finite_steps(self, done: list[StepDone]) -> None:
        for d in done:
            self._require_finite("loss", d.loss, d.step)
            self._require_finite("norm of the gradient", d.norm, d.step)

    def _require_finite(self, what: str, value: float, step: int) -> None:
        if math.isfinite(value):
            return
        last = self.run_folder.last
        kept = f"; {last} is as it was" if last.exists() else ""
        raise TrainingDiverged(
            f"the {what} is {value} at step {step}, so training stopped{kept}: "
            f"try again with a lower lr (it was {self.config.lr:g}) or a longer warmup",
            step,
        )

    def _report(self, done: list[StepDone]) -> None:
        c, s = self.config, self.state
        for d in done:
            self.speed.step()
            s.seconds = perf_counter() - self._began
            per_second = c.tokens_per_step / self.speed.seconds_per_step
            tokens = s.tokens - (s.step - d.step) * c.tokens_per_step
            if d.step % c.log_every == 0 or d.step == c.steps:
                self.metrics.write(
                    step=d.step,
                    loss=d.loss,
                    lr=d.lr,
                    grad_norm=d.norm,
                    tokens=tokens,
                    tokens_per_s=round(per_second, 1),
                    seconds=round(s.seconds, 3),
                )
            left = self.speed.seconds_for(c.steps - d.step)
            self.emit(events.Step(d.step, d.loss, d.lr, d.norm, tokens, per_second, left))

    # ---- between steps ----------------------------------------------------------------------------------
    def _after_step(self) -> bool:
        """The evaluation, sample and checkpoint due after this step. False if Ctrl-C came during the evaluation."""
        c, s = self.config, self.state
        try:
            if self.data.val is not None and (self._due(c.eval_every) or s.step in (0, c.steps)):
                self._evaluate()
        except _Stopped:
            return False
        if self._due(c.sample_every):
            self._sample()
        s.pending = False
        if self._due(c.save_every) or s.step == c.steps:
            self._save_last()
        if self._due(c.keep_every):
            self._save(self.run_folder.kept(s.step), "kept")
        return True

    def _evaluate(self) -> None:
        s = self.state
        self._wait()
        assert self.data.val is not None
        self.emit(events.Evaluating(s.step))
        tokens = self.config.eval_tokens or None
        result = evaluate(self.model, self.data.val, self.B, self.T, tokens, on_batch=self._stop_here)
        self._require_finite("validation loss", result.loss, s.step)
        self.metrics.write(step=s.step, val_loss=result.loss, bits_per_byte=result.bits_per_byte)
        best = s.best_val_loss is None or result.loss < s.best_val_loss
        s.val_loss = result.loss
        if best:
            s.best_val_loss, s.best_step = result.loss, s.step
            self._save(self.run_folder.best, "best")
        self.emit(events.Evaluated(s.step, result.loss, result.bits_per_byte, best))
        self.speed.restart()
        if perf_counter() - self._plotted > PLOT_EVERY_S:
            self._plot()

    def _stop_here(self, tokens: int) -> None:
        if self._hear_stop():
            raise _Stopped

    def _sample(self) -> None:
        from nanoeuler.training.sample import write_sample

        c, s = self.config, self.state
        assert self.tokenizer is not None
        self._wait()
        text = write_sample(self.model, self.tokenizer, c.sample_prompt, c.sample_tokens, seed=c.seed + s.step)
        self.metrics.write(step=s.step, prompt=c.sample_prompt, sample=text)
        self.emit(events.Sampled(s.step, c.sample_prompt, text))
        self.speed.restart()

    def _save_last(self) -> None:
        self._wait()
        self.metrics.sync()
        self._save(self.run_folder.last, "last")

    def _save(self, folder: Path, kind: Any) -> None:
        s = self.state
        self._wait()
        state = replace(s, seconds=perf_counter() - self._began)
        save_checkpoint(folder, self.model, self.tokenizer, state, self.moments if kind == "last" else None)
        self.emit(events.Saved(s.step, folder, kind))
        self.speed.restart()

    def _profile(self) -> None:
        """Time the kernels of one more step, which changes the model: all is saved by now."""
        from nanoeuler.ops.gpu.runtime.picture import picture
        from nanoeuler.ops.gpu.runtime.profile import by_kernel

        spans = self.stepper.profile()  # type: ignore[attr-defined]
        title = f"{self.run_folder.path.resolve().name}, a training step of {self.B} x {self.T} tokens"
        write_text(self.run_folder.profile_file, picture(spans, title))
        self.emit(events.Profiled(by_kernel(spans), self.run_folder.profile_file))

    # ---- what it tells ----------------------------------------------------------------------------------
    def _started(self) -> events.Started:
        c, data = self.config, self.data
        return events.Started(
            config=c,
            model=self.model.config,
            out=self.run_folder.path,
            step=self.state.step,
            train_tokens=data.train.n_tokens,
            val_tokens=data.val.n_tokens if data.val else None,
            tokens_per_step=c.tokens_per_step,
            epochs=self.loader.epoch(c.steps * c.grad_accum),
        )

    def _plot(self) -> None:
        """Draw what ``metrics.jsonl`` says into ``loss.png``."""
        curves = loss_curves(read_metrics(self.run_folder.metrics_file))
        name = self.run_folder.path.resolve().name
        title = f"{name}: {self.model.config.n_params:,} parameters, step {self.state.step:,} of {self.config.steps:,}"
        write_png(self.run_folder.plot_file, curves, title)
        self._plotted = perf_counter()

    def _result(self, interrupted: bool) -> events.TrainResult:
        s, run = self.state, self.run_folder
        record: dict[str, Any] = {}
        for line in read_metrics(run.metrics_file):
            record |= line
        return events.TrainResult(
            out=run.path,
            step=s.step,
            steps=self.config.steps,
            tokens=s.tokens,
            seconds=s.seconds,
            loss=record.get("loss"),
            val_loss=record.get("val_loss"),
            bits_per_byte=record.get("bits_per_byte"),
            best_val_loss=s.best_val_loss,
            best_step=s.best_step,
            model_folder=run.best if run.best.exists() else run.last,
            interrupted=interrupted,
        )


def _first_state(config: TrainConfig, data: Data) -> TrainerState:
    """Before the first step. A model that is trained on is evaluated first, to know how good it was."""
    pending = config.init_from != "scratch"
    return TrainerState(seed=config.seed, settings=fixed_settings(config), data=data.fingerprint(), pending=pending)
