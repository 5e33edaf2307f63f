"""Compiling without a GPU, the cache on disk, and what a launch hands to the driver."""

import ctypes
import gc

import numpy as np
import pytest
from fake_cuda import FakeCuda

pytest.importorskip("triton")

import triton
import triton.language as tl

from nanoeuler import check
from nanoeuler.ops.gpu.engine import GpuOps, Runtime
from nanoeuler.ops.gpu.runtime import compiler
from nanoeuler.ops.gpu.runtime.compiler import Binary, Source, compile_all, compile_source
from nanoeuler.ops.gpu.runtime.driver import Device
from nanoeuler.ops.gpu.runtime.graph import Graph
from nanoeuler.ops.gpu.runtime.launch import Launcher
from nanoeuler.ops.gpu.runtime.memory import Memory


@triton.jit
def axpy(y, x, a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, a * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


class Call:
    """A ``Launch`` as the kernels' plans make them."""

    def __init__(self, y, x, a, n, block=256):
        self.fn, self.args, self.constexprs = axpy, {"y": y, "x": x, "a": a, "n": n}, {"BLOCK": block}
        self.grid, self.num_warps, self.num_stages = (-(-n // block), 1, 1), 4, 3
        self.early = False


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOEULER_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


@pytest.fixture
def compiled(monkeypatch):
    """The sources that were really compiled, not taken from the cache."""
    done = []
    true = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda source: (done.append(source), true(source))[1])
    return done


def source(sm=90, block=256, aligned=(0, 1)):
    signature = (("y", "*fp32"), ("x", "*fp32"), ("a", "fp32"), ("n", "i32"))
    return Source(axpy, signature, aligned, (("BLOCK", block),), (("num_warps", 4), ("num_stages", 3)), sm)


def test_compiles_once_and_then_comes_from_the_cache(cache, compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    first = compile_source(source())
    assert first.meta["name"] == "axpy" and first.meta["num_warps"] == 4
    assert first.cubin[:4] == b"\x7fELF"
    again = compile_source(source())
    assert again == first and len(compiled) == 1
    assert [path.suffix for path in cache.iterdir()] == [".kernel"]
    assert not (tmp_path / "triton").exists()


def test_whatever_decides_the_code_is_in_the_key(cache):
    sources = [source(), source(sm=80), source(block=128), source(aligned=())]
    assert len({s.key() for s in sources}) == len(sources)
    binaries = compile_all([*sources, sources[0]])
    assert len({b.cubin for b in binaries[:4]}) == 4 and binaries[4] == binaries[0]
    assert b"sm_80" not in binaries[0].cubin and len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"no json\nELF", b'{"meta": {}, "sha256": "0"}\nELF', b"[]\n"])
def test_a_damaged_file_is_made_again(cache, compiled, damage):
    good = compile_source(source())
    [path] = cache.iterdir()
    path.write_bytes(damage)
    assert compile_source(source()) == good and len(compiled) == 2
    assert compile_source(source()) == good and len(compiled) == 2


def test_a_folder_that_cannot_be_written_is_no_error(compiled, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NANOEULER_CACHE_DIR", str(tmp_path / "file"))
    assert compile_source(source()).cubin
    assert len(compiled) == 1


@pytest.fixture
def launcher(cache):
    device = Device(FakeCuda())
    return Launcher(device, Memory(device))


def passed(launch, n):
    """The first ``n`` 64-bit arguments behind the table of a launch."""
    addresses = (ctypes.c_uint64 * n).from_address(launch[3])
    return [ctypes.c_uint64.from_address(address).value for address in addresses]


def test_a_launch_passes_each_argument_by_address(launcher, compiled):
    x, y = (launcher.memory.zeros((1000,), "fp32") for _ in range(2))
    launcher(Call(y, x, 2.0, 1000))
    [launch] = launcher.device.cuda.bindings.launches
    assert launch[:3] == ("axpy", (4, 1, 1), 128)
    a = int(np.array([2.0], np.float32).view(np.uint32)[0])
    assert passed(launch, 6) == [y.ptr, x.ptr, a, 1000, 0, 0]
    launcher(Call(x, y, -1.0, 960))  # 960 is a multiple of 16: other code
    launcher(Call(x, y, -1.0, 1001))
    assert len(compiled) == 2 and len(launcher.device.cuda.bindings.launches) == 3


def test_a_kernel_may_begin_before_the_one_before_has_ended(launcher, compiled):
    x = launcher.memory.zeros((1000,), "fp32")
    call = Call(x, x, 2.0, 1000)
    call.early = True
    launcher(call)
    cuda = launcher.device.cuda.bindings
    [launch] = cuda.launches
    assert launch[:3] == ("axpy", (4, 1, 1), 128) and passed(launch, 1) == [x.ptr]
    assert cuda.early == [["CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"]]


def test_planning_compiles_and_launches_nothing(launcher, compiled):
    x = launcher.memory.zeros((64,), "fp32")
    with launcher.planning():
        for block in (64, 128, 64):
            launcher(Call(x, x, 1.0, 64, block))
        assert not compiled
    assert len(compiled) == 2 and not launcher.device.cuda.bindings.launches
    launcher(Call(x, x, 1.0, 64, 64))
    assert len(compiled) == 2


def test_a_failed_capture_ends_the_capture(launcher):
    def record():
        raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        Graph(launcher.device, record)
    assert launcher.device.cuda.bindings.calls[-1] == "cuStreamEndCapture"


def test_no_garbage_is_collected_while_a_graph_is_captured(launcher):
    """What it gives back, such as memory of an earlier run, would end the capture."""
    cuda = launcher.device.cuda.bindings

    held = [launcher.memory.zeros((8,), "fp32"), launcher.device.pinned((8,), np.float32)]

    def record():
        while held:
            cycle = [held.pop()]
            cycle.append(cycle)  # only the collector can free it
        for _ in range(2000):  # enough for the collector to start, if it could
            cycle = []
            cycle.append(cycle)

    threshold = gc.get_threshold()
    gc.set_threshold(10)
    try:
        Graph(launcher.device, record)
    finally:
        gc.set_threshold(*threshold)
    assert cuda.freed_while_recording == 0
    gc.collect()
    assert cuda.used == 0 and not cuda.pinned


@pytest.mark.parametrize("enabled", [True, False])
def test_a_capture_leaves_the_collector_as_it_was(launcher, enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        Graph(launcher.device, lambda: None)
        assert gc.isenabled() == enabled
        with pytest.raises(ZeroDivisionError):
            Graph(launcher.device, lambda: 1 / 0)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_a_check_compiles_side_by_side_before_it_begins(monkeypatch):
    """One by one it takes minutes."""
    batches = []

    def compile_nothing(sources):
        batches.append(len(list(sources)))
        meta = {"name": "k", "shared": 0, "num_warps": 4, "global_scratch_size": 0, "tensordesc_meta": None}
        return [Binary(b"", meta)] * batches[-1]

    monkeypatch.setattr("nanoeuler.ops.gpu.runtime.launch.compile_all", compile_nothing)
    runtime = Runtime(Device(FakeCuda(memory=1 << 26, sm=80)))
    monkeypatch.setattr(check, "get_engine", lambda name: GpuOps(name, runtime))
    assert not all(op.ok for op in check.engine_check("gpu"))  # nothing is computed
    assert batches[0] > 100 and len(batches) == 1
