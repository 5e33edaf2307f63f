"""The whole training step as one CUDA graph: forward, backward, clipping and AdamW, replayed from then on.

What changes from step to step lies in device memory. A batch comes with all of it in one small parcel::

    token ids (N) | targets (N) | seed of the dropout masks | learning rate, two bias corrections

It travels through page-locked memory on a stream of its own, into one of two waiting places on the GPU, while the
step before it still computes; at the step's start it is copied to the place that the graph reads, which takes
microseconds. Loss and norm come back the same way. So the host stays one step ahead and the GPU never waits for it. The
price: a step's loss is known only when the next step has been handed over.

With gradients summed over several batches there are three graphs: the first batch, one in the middle (replayed as often
as needed), and the last one with the update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from nanoeuler.data.loader import Batch
from nanoeuler.errors import UserError
from nanoeuler.model.gpt import GPT, spread
from nanoeuler.ops.gpu.engine import DeviceSeed, GpuOps, step_numbers
from nanoeuler.ops.gpu.runtime.driver import OutOfMemory
from nanoeuler.ops.gpu.runtime.graph import Graph
from nanoeuler.ops.gpu.runtime.memory import DeviceArray
from nanoeuler.ops.gpu.runtime.profile import Span, timeline
from nanoeuler.training.config import TrainConfig
from nanoeuler.training.step import Fetch, StepDone, dropout_seed

SLOTS = 2  # batches under way: one computing, one travelling


class RecordedStep:
    """Runs steps on a GPU: :class:`nanoeuler.training.step.Stepper`. Recorded at the first step.

    A step whose loss or gradient is not finite leaves the parameters as they were, and so do all later ones, for one
    has been handed over before that is known.
    """

    def __init__(
        self, model: GPT, moments: tuple[DeviceArray, DeviceArray], config: TrainConfig, T: int, fetch: Fetch
    ) -> None:
        assert isinstance(model.ops, GpuOps)
        self.model, self.moments, self.config, self.fetch = model, moments, config, fetch
        self.ops: GpuOps = model.ops
        self.B, self.T = config.batch_size, T
        self._graphs: list[Graph] = []
        self._waiting: deque[tuple[int, float]] = deque()  # steps handed over: (step, lr)

    # ---- running --------------------------------------------------------------------------------------
    def run(self, step: int, lr: float) -> list[StepDone]:
        c = self.config
        if not self._graphs:
            self._prepare()
        first, middle, last = self._graphs[0], self._graphs[len(self._graphs) // 2], self._graphs[-1]
        for i in range(c.grad_accum):
            self._send((step - 1) * c.grad_accum + i, step, lr)
            (last if i == c.grad_accum - 1 else middle if i else first).replay()
        self._ask_result(step)
        self._waiting.append((step, lr))
        return [self._result()] if len(self._waiting) == SLOTS else []

    def finish(self) -> list[StepDone]:
        return [self._result() for _ in range(len(self._waiting))]

    def profile(self) -> list[Span]:
        """GPU time of each launch, in order, of a step on the batch sent last: no step of the run, but one after it.

        The parameters change by one more update, so call it when the run is over.
        """
        assert self._graphs, "run a step first"
        return timeline(self.ops.device, self.ops.runtime.launch, lambda: self._batch(False, True))

    # ---- recording ------------------------------------------------------------------------------------
    def _prepare(self) -> None:
        """Allocate everything, compile all kernels, and record the graphs."""
        try:
            self._allocate()
            with self.ops.planning():
                self._record_all(self._batch)
            self.ops.keep_scratch()
            self.model.held = self._activations
            self._record_all(lambda *which: self._graphs.append(Graph(self.ops.device, lambda: self._batch(*which))))
        except OutOfMemory as error:
            error.__traceback__ = None  # the functions in which it happened hold arrays
            self._give_back()
            raise _with_plan(error, self) from None

    def _give_back(self) -> None:
        """Let go of what a failed attempt has allocated."""
        model = self.model
        model.held = model._acts = None
        self.ops.drop_scratch()
        for name in ("_activations", "_inbox", "_seed", "_hyper", "_travelling", "_results", "_loss", "_norm"):
            self.__dict__.pop(name, None)

    def _record_all(self, record: Callable[[bool, bool], object]) -> None:
        """Call ``record(accumulate, update)`` for each graph."""
        if self.config.grad_accum == 1:
            record(False, True)
            return
        record(False, False)
        if self.config.grad_accum > 2:
            record(True, False)
        record(True, True)

    def _batch(self, accumulate: bool, update: bool) -> None:
        """One batch's gradients and, after the last batch, the update: what a graph holds."""
        c, model, ops, a = self.config, self.model, self.ops, self._activations
        n = c.grad_accum * self.B * self.T  # all targets count: training batches have no padding
        dropout = (model.config.dropout, DeviceSeed(self._seed))
        with ops.fusing():
            model.forward(a, *dropout)
            model.backward(a, 1.0 / n, *dropout, accumulate)
        ops.sum_losses(self._loss, a.losses, 1.0 / n, accumulate)
        if not update:
            return
        assert model.grads is not None
        ops.norm_and_clip(self._norm, model.grads, c.grad_clip)
        ops.guard(self._results)
        rounded = None if model.params is model.master else model.params
        numbers = (c.beta1, c.beta2, c.eps, c.weight_decay)
        ops.adamw_recorded(
            model.master, model.grads, *self.moments, model.layout.n_decay, self._hyper, self._norm, *numbers, rounded
        )

    # ---- parcels --------------------------------------------------------------------------------------
    def _allocate(self) -> None:
        device, N = self.ops.device, self.B * self.T
        self._activations = a = self.model.activations(self.B, self.T, training=True)
        size = -(-2 * N // 4) * 4 + 4  # whole pieces of 16 bytes
        self._inbox = self.ops.empty((size,), np.int32)
        a.idx, a.targets = self._inbox[:N].reshape(self.B, self.T), self._inbox[N : 2 * N]
        self._seed, self._hyper = self._inbox[size - 4 : size - 3], self._inbox[size - 3 :].view(np.float32)
        self._host = [device.pinned((size,), np.int32) for _ in range(SLOTS)]
        self._travelling = [self.ops.empty((size,), np.int32) for _ in range(SLOTS)]
        self._arrived = [device.event() for _ in range(SLOTS)]
        self._taken = [device.event() for _ in range(SLOTS)]
        self._sent = 0
        self._results = self.ops.zeros((4,), np.float32)  # loss, norm, clipping factor, whether to stop
        self._loss, self._norm = self._results[0:1], self._results[1:3]
        self._host_results = [device.pinned((4,), np.float32) for _ in range(SLOTS)]
        self._done = [device.event() for _ in range(SLOTS)]
        device.synchronize()  # memory is there in the order of the arithmetic; now for the other stream, too

    def _send(self, n: int, step: int, lr: float) -> None:
        """Batch ``n`` on its way to the GPU, behind what it is computing now."""
        device, cuda, slot, N = self.ops.device, self.ops.device.cuda, self._sent % SLOTS, self.B * self.T
        self._sent += 1
        cuda.cuEventSynchronize(self._arrived[slot])  # the host may write into its side again
        parcel = self._host[slot]
        batch = parcel[:N].reshape(self.B, self.T), parcel[N : 2 * N].reshape(self.B, self.T)
        self.fetch(n, batch)
        self._check(batch)
        parcel[-4] = np.uint32(spread(dropout_seed(self.config.seed, n))).view(np.int32)
        parcel[-3:] = np.array(step_numbers(step, lr, self.config.beta1, self.config.beta2), np.float32).view(np.int32)
        cuda.cuStreamWaitEvent(device.copies, self._taken[slot], 0)
        cuda.cuMemcpyHtoDAsync(self._travelling[slot].ptr, parcel.ctypes.data, parcel.nbytes, device.copies)
        cuda.cuEventRecord(self._arrived[slot], device.copies)
        cuda.cuStreamWaitEvent(device.stream, self._arrived[slot], 0)
        self.ops.memory.copy(self._inbox, self._travelling[slot])
        cuda.cuEventRecord(self._taken[slot], device.stream)

    def _check(self, batch: Batch) -> None:
        x, y = batch
        V = self.model.config.vocab_size
        low, high = min(int(x.min()), int(y.min())), max(int(x.max()), int(y.max()))
        if low < 0 or high >= V:
            bad = high if high >= V else low
            raise UserError(f"token id {bad} is outside the model's vocabulary of {V}: is this the right tokenizer?")

    def _ask_result(self, step: int) -> None:
        device, slot = self.ops.device, step % SLOTS
        to = self._host_results[slot]
        device.cuda.cuMemcpyDtoHAsync(to.ctypes.data, self._results.ptr, to.nbytes, device.stream)
        device.cuda.cuEventRecord(self._done[slot], device.stream)

    def _result(self) -> StepDone:
        """Wait for the oldest step handed over."""
        step, lr = self._waiting.popleft()
        self.ops.device.cuda.cuEventSynchronize(self._done[step % SLOTS])
        loss, norm = self._host_results[step % SLOTS][:2]
        return StepDone(step, float(loss), float(norm), lr)


def _with_plan(error: OutOfMemory, step: RecordedStep) -> UserError:
    """The error with what a step needs, and the batch that would fit, in one line."""
    from nanoeuler.training.plan import CONTEXT_BYTES, advice, plan

    model = step.model
    held = sum({a.ptr: a.nbytes for a in (model.master, model.params, model.grads, *step.moments) if a}.values())
    budget = step.ops.device.memory_info()[0] + held + CONTEXT_BYTES
    made = plan(step.model.config, step.B, step.T, step.config.device, budget, step.config.recompute)
    rows = ", ".join(f"{row.name} {row.bytes / 2**30:.2f}" for row in made.rows if row.bytes >= 2**20)
    return UserError(
        f"out of GPU memory: batches of {step.B} x {step.T} tokens need {made.total / 2**30:.2f} GiB ({rows}) and "
        f"{budget / 2**30:.2f} of the GPU's {error.total / 2**30:.2f} are free: {advice(made)}"
    )
