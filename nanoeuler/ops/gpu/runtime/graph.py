"""CUDA graphs: a whole training step as one thing to launch.

A step is some hundreds of kernels, and telling the driver of each takes the host several microseconds: a small model's
step would wait for Python. A graph is that list of kernels, written down once while nothing runs (*capture*), which
the GPU then works off by itself, as often as it is told to (*replay*). What is captured are the addresses, sizes and
numbers of each launch, so whatever changes from step to step (tokens, learning rate, step number) must lie in device
memory, at an address that stays.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from nanoeuler.ops.gpu.runtime.driver import Device


class Graph:
    """What ``record`` puts into the device's stream, captured: it runs at each :meth:`replay`, not now.

    ``record`` must not wait for the GPU, nor allocate memory or give it back. Python's garbage collector could do the
    latter at any moment, with what an earlier run has left behind: so it rests meanwhile.
    """

    def __init__(self, device: Device, record: Callable[[], Any]) -> None:
        self.device = device
        cuda = device.cuda
        collecting = gc.isenabled()
        gc.disable()
        try:
            cuda.cuStreamBeginCapture(device.stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                record()
            except BaseException:
                cuda.bindings.cuStreamEndCapture(device.stream)  # leave the stream usable; its complaint is no news
                raise
            graph = cuda.cuStreamEndCapture(device.stream)
        finally:
            if collecting:
                gc.enable()
        self.n_nodes = int(cuda.cuGraphGetNodes(graph, 0)[1])
        self._executable = cuda.cuGraphInstantiate(graph, 0)
        cuda.cuGraphDestroy(graph)
        cuda.cuGraphUpload(self._executable, device.stream)

    def replay(self) -> None:
        """Put the whole list into the stream; returns at once."""
        self.device.cuda.cuGraphLaunch(self._executable, self.device.stream)

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            self.device.cuda.bindings.cuGraphExecDestroy(self._executable)
