"""``bench`` on a GPU without one: a driver whose clock always says half a millisecond, and kernels that do nothing."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import nullcontext

import pytest

pytest.importorskip("triton")

from fake_cuda import FakeCuda

import nanoeuler.model.gpt
import nanoeuler.ops
from nanoeuler.cli import bench_kernels
from nanoeuler.cli.main import run
from nanoeuler.model.config import GPTConfig
from nanoeuler.ops.gpu.engine import GpuOps, Runtime
from nanoeuler.ops.gpu.kernel_cases import Source, makers
from nanoeuler.ops.gpu.runtime.driver import Device
from nanoeuler.ops.gpu.runtime.picture import FAMILIES, family_of, picture
from nanoeuler.ops.gpu.runtime.profile import Span, by_kernel
from nanoeuler.ops.gpu.timing import PEAK_TFLOPS, Ceilings, peak_flops

CONFIG = GPTConfig.preset("demo")
B, T = 2, 64
N, C, V = B * T, CONFIG.n_embd, CONFIG.vocab_size
ARGS = ["--device", "gpu", "--batch-size", str(B), "--seq-len", str(T), "--seconds", "0.01"]


class Idle:
    """A launcher that launches nothing, but tells."""

    def __init__(self):
        self.on_launch, self.launched = None, []

    def __call__(self, launch):
        self.launched.append(launch)
        if self.on_launch is not None:
            self.on_launch(launch.name, launch)

    def planning(self):
        return nullcontext()


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """The GPU engine on a fake GPU, for all commands."""
    runtime = Runtime(Device(FakeCuda(memory=1 << 28)))
    runtime.launch = Idle()
    ops = GpuOps("gpu", runtime)
    monkeypatch.setattr(nanoeuler.model.gpt, "get_engine", lambda name: ops)
    monkeypatch.setattr(nanoeuler.ops, "get_engine", lambda name: ops)
    monkeypatch.setattr("nanoeuler.cli.compile_cache.notice", lambda device: None)  # which wants a real GPU
    monkeypatch.setenv("NANOEULER_CACHE_DIR", str(tmp_path))
    return ops


@pytest.fixture
def cli(capsys):
    def call(*args):
        code = run(list(args))
        return code, *capsys.readouterr()

    return call


def names(launches):
    return {launch.name for launch in launches}


def test_the_cases_are_all_that_a_step_launches(engine):
    cases = [case for maker in makers(engine, CONFIG, B, T).values() for case in maker(Source(engine))]
    timed = names(launch for case in cases for launch in case.launches)
    assert all(case.launches and case.bytes > 0 and case.peer for case in cases)
    assert (
        not engine.runtime.launch.launched[1:] or names(engine.runtime.launch.launched) <= timed
    )  # only attention ran

    engine.runtime.launch.launched.clear()
    model = nanoeuler.model.gpt.GPT(CONFIG, "gpu")
    a = model.activations(B, T, training=True)
    with engine.fusing():
        model.forward(a)
        model.backward(a, 1.0)
    engine.norm_and_clip(engine.zeros((2,), "fp32"), model.grads, 1.0)
    model.update(model.moments(), 1, 0.0)
    assert names(engine.runtime.launch.launched) - {"convert_kernel"} == timed


def test_bytes_and_operations_are_those_counted_by_hand(engine):
    cases = {case.name: case for maker in makers(engine, CONFIG, B, T).values() for case in maker(Source(engine))}
    n = CONFIG.n_params
    assert cases["AdamW"].bytes == 30 * n and cases["global norm"].bytes == 4 * n
    assert cases["add + layer norm"].bytes == 8 * N * C
    fc = 2 * N * C * 4 * C
    assert cases["c_fc + GELU"].flops == cases["c_fc dx"].flops == cases["mlp c_proj + residual"].flops == fc
    pair = cases["mlp c_proj dW and c_fc dW"]
    assert pair.flops == 2 * fc and pair.bytes == 2 * (2 * N * 5 * C) + 4 * 2 * C * 4 * C
    assert cases["c_fc + GELU"].bytes == 2 * (N * C + C * 4 * C + 2 * N * 4 * C)
    assert cases["attn c_proj + residual"].bytes == 2 * (3 * N * C + C * C)
    products = [case.flops for name, case in cases.items() if "logits" in name]
    assert products == [2 * N * C * V] * 3
    assert cases["attention"].flops == 2 * B * T * T * C


def test_bench_kernels_prints_shares_of_the_ceilings(engine, cli, monkeypatch):
    monkeypatch.setattr("nanoeuler.ops.gpu.timing.ceilings", lambda ops: Ceilings(1e9, 1e12))
    code, out, err = cli("bench", "kernels", *ARGS, "--no-peer")
    assert code == 0, err
    assert "bf16 on Fake GPU" in out and "peer" not in out
    code, out, _ = cli("bench", "kernels", *ARGS, "--no-peer", "--json")
    rows = {row["name"]: row for row in json.loads(out)["kernels"]}
    for row in rows.values():
        assert row["share"] == pytest.approx(max(row["bytes"] / 1e9, row["flops"] / 1e12) / row["seconds"])
        assert row["peer_seconds"] is None
    assert {"embedding", "c_attn", "attn c_proj dx", "mlp c_proj dW and c_fc dW", "logits dx", "AdamW"} < set(rows)


PEER = """
import json, sys
for line in sys.stdin:
    task = json.loads(line)
    known = task["op"] != "adamw"
    print(json.dumps({"what": "as " + task["dtype"], "seconds": 1e-3} if known else {"error": "not here"}), flush=True)
"""


def test_a_peer_is_asked_in_a_process_of_its_own(engine, cli, monkeypatch, tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    monkeypatch.setattr(bench_kernels, "find_peer", lambda: script)
    code, out, err = cli("bench", "kernels", *ARGS)
    assert code == 0, err
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert re.search(r"1000\.0 +\d+\.\d\d +as bf16$", lines["global norm"])
    assert lines["AdamW"].split()[-4:] == ["-", "-", "not", "here"]
    script.write_text("import sys; sys.exit(1)")
    code, _, err = cli("bench", "kernels", *ARGS)
    assert code == 2 and err.strip().endswith("try --no-peer")
    assert "torch" not in sys.modules


def test_bench_train_says_the_formula_of_mfu(engine, cli, monkeypatch):
    code, out, _ = cli("bench", "train", *ARGS)
    assert code == 0 and "ms a step" in out and "peak memory 0." in out
    assert "MFU unknown: the bfloat16 matrix rate of Fake GPU is not in the table" in out
    monkeypatch.setitem(PEAK_TFLOPS, "Fake GPU", 2.0)
    _, out, _ = cli("bench", "train", *ARGS)
    assert f"(6 x {CONFIG.n_params:,} + 6 x {CONFIG.n_layer} x {C} x {T}) operations a token, of the 2 TFLOP/s" in out
    _, out, _ = cli("bench", "train", *ARGS, "--json")
    training = json.loads(out)["training"]
    per_token = 6 * CONFIG.n_params + 6 * CONFIG.n_layer * C * T
    assert training["mfu"] == pytest.approx(per_token * training["tokens_per_s"] / 2e12)
    assert training["peak_bytes"] == engine.memory.peak


def test_profile_writes_a_table_and_a_picture(engine, cli, tmp_path):
    path = tmp_path / "step.svg"
    code, out, err = cli("bench", "train", *ARGS, "--profile", str(path))
    assert code == 0, err
    rows = [line.split() for line in out[out.index("kernel  ") :].splitlines()[1:]]
    total = next(row for row in rows if row and row[0] == "all")
    launches = int(total[1])
    assert float(total[2]) == launches * 0.5
    drawn = ElementTree.fromstring(path.read_text())
    strip = [r for r in drawn.iter("{http://www.w3.org/2000/svg}rect") if len(r)]
    assert len(strip) == launches
    assert "layernorm" in path.read_text()


@pytest.mark.parametrize("args", [["--device", "cpu"], ["--json"], ["kernels"]])
def test_a_profile_needs_a_gpus_step(cli, args):
    code, _, err = cli("bench", *args, *([] if "cpu" in args else ["--device", "gpu"]), "--profile", "x.svg")
    assert code == 2 and "--profile times a GPU's kernels" in err


def test_products_of_each_size_are_rows_of_their_own():
    spans = [Span("matmul", "8x4x2", 1.0), Span("norm", "", 0.25), Span("matmul", "4x4x2", 2.0), Span("norm", "", 0.5)]
    assert by_kernel(spans) == [("matmul 4x4x2", 1, 2.0), ("matmul 8x4x2", 1, 1.0), ("norm", 2, 0.75)]
    svg = ElementTree.fromstring(picture(spans, "a < b"))
    widths = [float(r.get("width")) for r in svg.iter("{http://www.w3.org/2000/svg}rect") if len(r)]
    assert widths[0] == pytest.approx(4 * widths[1], rel=1e-2) and sum(widths) == pytest.approx(920, rel=1e-2)


def test_every_kernel_has_a_kind(engine):
    cases = [case for maker in makers(engine, CONFIG, B, T).values() for case in maker(Source(engine))]
    kinds = {family_of(launch.name) for case in cases for launch in case.launches}
    assert kinds == set(FAMILIES)


@pytest.mark.parametrize(
    ("gpu", "tflops"),
    [("H100 80GB HBM3", 989), ("H100 PCIe", 756), ("L40S", 362), ("GeForce RTX 4090", 165.2), ("A100-SXM4-80GB", 312)],
)
def test_known_chips_have_a_peak(gpu, tflops):
    assert peak_flops(f"NVIDIA {gpu}") == tflops * 1e12


@pytest.mark.parametrize("gpu", ["GeForce RTX 4090 Laptop GPU", "RTX A4000", "GeForce RTX 4080 SUPER", "Tesla T4"])
def test_similar_names_have_none(gpu):
    assert peak_flops(f"NVIDIA {gpu}") is None
