"""Every GPU kernel compiles for four generations of GPUs, at GPT-2 124M's shapes and within each one's limits."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from nanoeuler.ops.gpu.batch_decode import CUTS
from nanoeuler.ops.gpu.kernels import attention as att
from nanoeuler.ops.gpu.kernels import batch_decode as bat
from nanoeuler.ops.gpu.kernels import classifier as cls
from nanoeuler.ops.gpu.kernels import decode as dec
from nanoeuler.ops.gpu.kernels import decode_prepare as prep
from nanoeuler.ops.gpu.kernels import dropout as drp
from nanoeuler.ops.gpu.kernels import embedding as emb
from nanoeuler.ops.gpu.kernels import layernorm as ln
from nanoeuler.ops.gpu.kernels import linear as lin
from nanoeuler.ops.gpu.kernels import optimizer as opt
from nanoeuler.ops.gpu.kernels import reductions as red
from nanoeuler.ops.gpu.kernels import sampling as smp
from nanoeuler.ops.gpu.kernels import totals
from nanoeuler.ops.gpu.kernels.matmul import ROLES, matmul
from nanoeuler.ops.gpu.kernels.spec import Launch, Target

B, T, C, H, V = 16, 1024, 768, 12, 50257
N = B * T


@dataclass
class Shape:
    """An array as far as a plan looks at it."""

    shape: tuple[int, ...]
    dtype: str = "bf16"
    ptr: int = 0

    def __getitem__(self, rows: slice) -> Shape:
        return Shape((len(range(*rows.indices(self.shape[0]))), *self.shape[1:]), self.dtype)


def bf16(*shape: int) -> Shape:
    return Shape(shape)


def fp32(*shape: int) -> Shape:
    return Shape(shape, "fp32")


def i32(*shape: int) -> Shape:
    return Shape(shape, "i32")


def memory_bound(target: Target) -> Iterator[Launch]:
    x, c, n, scratch, ids = bf16(N, C), bf16(C), fp32(N), fp32(10**7), i32(B, T)
    yield from ln.layernorm(x, n, n, x, c, c, x, x, target=target)
    yield from ln.layernorm_backward(x, c, c, x, x, n, n, c, scratch, x, c, target=target)
    yield from emb.embedding(bf16(B, T, C), ids, bf16(V, C), bf16(T, C), target=target)
    yield from emb.sort_places(i32(N), ids, target=target)
    yield from emb.embedding_backward(fp32(V, C), fp32(T, C), bf16(B, T, C), ids, i32(N), target=target)
    yield from red.column_sums(fp32(3 * C), bf16(N, 3 * C), scratch, True, target=target)
    yield from drp.dropout(x, x, 0.1, i32(1), 3, target=target)
    flat, small = fp32(124_439_808), fp32(4)
    yield from opt.global_norm(small, flat, small, scratch, target=target)
    numbers = (124_318_464, 0.9, 0.95, 1e-8, 0.1)
    yield from opt.adamw(bf16(124_439_808), flat, flat, flat, flat, small, small, *numbers, target=target)
    yield from totals.sum_losses(small, n, 0.5, True, target=target)
    yield from totals.convert(bf16(999), fp32(999), target=target)
    yield from totals.guard(small, target=target)


def products(target: Target) -> Iterator[Launch]:
    x, hidden, scratch = bf16(N, C), bf16(N, 4 * C), fp32(10**8)
    up, down = bf16(C, 4 * C), bf16(4 * C, C)
    yield from lin.linear(hidden, x, up, bf16(4 * C), hidden, target=target)
    yield from lin.linear(x, hidden, down, bf16(C), residual=x, target=target)
    arrays = (hidden, None, x, down, scratch, hidden, hidden)
    yield from lin.linear_backward(*arrays, True, fp32(4 * C), target=target)
    yield from lin.weight_gradients([(fp32(4 * C, C), hidden, x)], scratch, True, target=target)
    yield from lin.weight_gradients([(fp32(C, C), x, x), (fp32(C, 4 * C), x, hidden)], scratch, target=target)
    logits = bf16(2048, cls.logits_stride(V))
    arrays = (fp32(N), x, bf16(V, C), i32(N), logits, scratch, x, fp32(V, C), fp32(1))
    yield from cls.classifier(*arrays, target=target)


def attention(target: Target) -> Iterator[Launch]:
    for D, p in ((64, 0.0), (128, 0.1)):
        qkv, out, lse, scratch = bf16(B, T, 3 * H * D), bf16(B, T, H * D), fp32(B, H, T), fp32(10**8)
        yield from att.attention(out, lse, qkv, H, p, i32(1), target=target)
        arrays = (qkv, out, out, lse, qkv, H, scratch, p, i32(1), 0, fp32(3 * H * D))
        yield from att.attention_backward(*arrays, target=target)


def roles(target: Target) -> Iterator[Launch]:
    """The product for Hopper, in all its forms."""
    x, hidden, up, down, sums = bf16(N, C), bf16(N, 4 * C), bf16(C, 4 * C), bf16(4 * C, C), fp32(N // 128, 4 * C)
    common: dict[str, Any] = {"tiles": ROLES, "target": target}
    yield from matmul(hidden, x, up, bias=bf16(4 * C), pre=hidden, gelu=1, **common)
    yield from matmul(x, hidden, down, bias=bf16(C), residual=x, **common)
    yield from matmul(hidden, x, down, b_t=True, pre=hidden, act=hidden, sums=sums, gelu=2, **common)
    yield from matmul(bf16(C, 4 * C), x, hidden, a_t=True, **common)


def decoding(target: Target) -> Iterator[Launch]:
    """The whole model for one token, with bfloat16 and int8 weights, and what prepares it."""
    L = 12
    for kind, bits, scales in (("bf16", 16, None), ("i8", 8, bf16(V, 12))):
        shape = dec.Shape(L, C, H, V, T, target.multiprocessors, bits)
        weights = dec.Weights(Shape((1,), "i8"), Shape((V, C), kind), bf16(T, C), bf16(13 * L * C + 2 * C), scales)
        arrays = (i32(dec.STATE), i32(T), fp32(V), bf16(1, L, 2, H, T, C // H), i32(2 * shape.exchange_words))
        yield from dec.decode(shape, weights, *arrays, 8, True, V, target=target)
        w, head = Shape((C, 3 * C), kind), Shape((V, C), kind)
        norm, stream = (bf16(C), bf16(C)), Shape((1,), "i8")
        first = prep.Product(w, False, scales and bf16(12, 3 * C), *norm, bf16(3 * C))
        yield from prep.pack(stream, first, shape.records[0], 0, shape.part_bytes, target=target)
        second = prep.Product(Shape((C, C), kind), False, scales and bf16(12, C), bias=bf16(C))
        yield from prep.pack(stream, second, shape.records[1], 0, shape.part_bytes, target=target)
        last = prep.Product(head, True, scales, *norm)
        yield from prep.pack(stream, last, shape.records[4], 0, shape.part_bytes, target=target)
    yield from prep.keep(bf16(1, L, 2, H, T, C // H), bf16(L, T, 3 * C), i32(1), target=target)
    yield from prep.row(bf16(1, C), bf16(T, C), i32(1), target=target)


def batched(target: Target) -> Iterator[Launch]:
    """One token of each of 64 sequences, and the choice of the next by top-k and top-p."""
    R, early = 64, target.sm >= 90
    x, h, qkv, places, c = fp32(R, C), bf16(R, C), bf16(R, 3 * C), i32(R), bf16(C)
    yield from bat.embed_norm(x, h, bf16(V, C), bf16(T, C), places, places, c, c, R, early, target=target)
    yield from bat.add_norm(x, h, fp32(6, R, C), c, c, c, R, early, target=target)
    up, bias, cut = bf16(C, 4 * C), bf16(4 * C), CUTS.fc
    for rows in (16, 64, 128):  # by other instructions, and the last one within what memory there is
        a = bf16(rows, C)
        yield from bat.row_product(bf16(rows, 4 * C), a, up, bias, True, cut=cut, early=early, target=target)
    logits = fp32(R, 50304)
    yield from bat.row_product(logits, h, bf16(V, C), w_t=True, columns=V, cut=CUTS.head, early=early, target=target)
    for n, splits in ((R, 1), (4, 16)):
        arrays = (h, qkv, bf16(R, 12, 2, H, T, C // H), fp32(n, H, splits, C // H + 2), i32(n, H), places, places)
        yield from bat.cached_attention(*arrays, 3, n, splits, early=early, target=target)
    scratch = {name: Shape(shape, dtype) for name, (shape, dtype) in smp.scratch_shapes(R, V).items()}
    arrays = (places, places, i32(64, R), fp32(R, 50304), Shape((2, R), "fp64"), i32(smp.CHOICES, R), scratch)
    yield from smp.sample(*arrays, R, V, V, True, True, target=target)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Compile everything, and leave nothing behind."""
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


def compile_for(launch: Launch, target: Target) -> Any:
    source = (GluonASTSource if launch.fn.is_gluon() else ASTSource)(
        launch.fn, launch.signature(), launch.constexprs, launch.attributes()
    )
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", target.sm, 32), options=options)


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers a thread, and bytes of its stack (spilled registers among them), by NVIDIA's cuobjdump."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, _, value in (word.partition(":") for word in text.split()) if value.isdigit()}


@pytest.mark.parametrize("sm", [80, 89, 90, 120])
@pytest.mark.parametrize("kernels", [memory_bound, products, attention, roles, decoding, batched])
def test_kernels_compile_within_limits(kernels, sm, tmp_path):
    if kernels is roles and sm != 90:
        pytest.skip("only for Hopper")
    target = Target(sm)
    calls = {
        (call.name, str(call.constexprs), str(call.signature()), str(call.attributes())): call
        for call in kernels(target)
    }
    for (name, constexprs, *_), call in calls.items():
        compiled = compile_for(call, target)
        assert compiled.metadata.shared <= target.shared_memory, (name, constexprs)
        if name == "decode_kernel":  # its own plan of shared memory begins at 0: nothing else may lie there
            assert compiled.metadata.shared == call.constexprs["SHARED"]
        used = resources(compiled.asm["cubin"], tmp_path)
        assert used["REG"] * 32 * compiled.metadata.num_warps <= 65536, (name, used)
        assert used["STACK"] <= 64, f"{name} {constexprs}: spills {used}"


def test_every_kernel_is_compiled():
    """What is here is what there is: a kernel that nobody plans is caught."""
    makers = (memory_bound, products, attention, roles, decoding, batched)
    seen = {call.name for sm in (80, 90) for kernels in makers for call in kernels(Target(sm))}
    folder = Path(att.__file__).parent
    names = [
        line.removeprefix("def ").partition("(")[0]
        for file in folder.glob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("def ") and line.partition("(")[0].endswith("_kernel")
    ]
    assert sorted(names) == sorted(seen)
