"""Device arrays and memory, on a driver that keeps "device" memory in host memory."""

import gc

import numpy as np
import pytest
from fake_cuda import FakeCuda, Result

from nanoeuler.errors import UserError
from nanoeuler.formats.safetensors_file import from_bfloat16, to_bfloat16
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.parameters import Layout, init_parameters
from nanoeuler.ops.gpu.runtime.driver import Device, OutOfMemory
from nanoeuler.ops.gpu.runtime.memory import DeviceArray, Memory


@pytest.fixture
def memory():
    return Memory(Device(FakeCuda()))


def test_views_are_those_of_numpy(memory):
    host = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    array = memory.empty(host.shape, np.float32)
    memory.upload(array, host)
    for index in (0, -1, slice(1, 3), (slice(None), -1), (1, 2), (..., slice(1, 3)), (slice(None), 1, slice(None))):
        expected, view = host[index], array[index]
        assert view.shape == expected.shape
        assert view.contiguous == expected.flags.c_contiguous
        if expected.ndim <= 2 and (view.contiguous or expected.ndim == 2):
            np.testing.assert_array_equal(memory.download(view), expected)
    np.testing.assert_array_equal(memory.download(array.reshape(-1, 4)[2:5]), host.reshape(-1, 4)[2:5])
    np.testing.assert_array_equal(memory.download(array.reshape(-1)[4:8].view(np.int32)), host.view(np.int32)[0, 1])


def test_views_that_would_need_a_copy_are_refused(memory):
    array = memory.empty((4, 6), "bf16")
    with pytest.raises(ValueError, match="reshape"):
        array[:, 2:4].reshape(-1)
    with pytest.raises(ValueError, match="reshape"):
        array.reshape(5, -1)
    with pytest.raises(IndexError, match="step"):
        array[::2]
    with pytest.raises(IndexError, match="outside"):
        array[4]
    with pytest.raises(ValueError, match="view"):
        array.reshape(-1)[1:4].view(np.float32)


def test_bfloat16_is_rounded_on_the_way_in_and_exact_on_the_way_out(memory):
    x = np.random.default_rng(0).normal(size=(7, 5))
    array = memory.empty(x.shape, "bf16")
    memory.upload(array, x)
    np.testing.assert_array_equal(memory.download(array), from_bfloat16(to_bfloat16(x)))
    assert array.nbytes == 70


def test_the_parameter_layout_makes_its_views(memory):
    config = GPTConfig(vocab_size=11, block_size=5, n_layer=1, n_head=1, n_embd=4)
    layout, flat = Layout(config), init_parameters(config, 3)
    device = memory.empty(flat.shape, "fp32")
    memory.upload(device, flat)
    host = layout.views(flat)
    for name, view in layout.views(device).items():
        np.testing.assert_array_equal(memory.download(view), host[name])


def test_memory_lives_as_long_as_its_views_and_is_counted(memory):
    cuda = memory.device.cuda.bindings
    array = memory.zeros((100,), "fp32")
    view = array[10:20]
    del array
    gc.collect()
    assert memory.live == 400 and cuda.used == 400
    assert not memory.download(view).any()
    del view
    gc.collect()
    assert (memory.live, memory.peak, cuda.used) == (0, 400, 0)


def test_pinned_memory_is_given_back(memory):
    host = memory.device.pinned((3, 5), np.int32)
    assert host.shape == (3, 5) and host.dtype == np.int32 and not host.any()
    pinned = memory.device.cuda.bindings.pinned
    row = host[1]
    del host
    gc.collect()
    assert len(pinned) == 1
    del row
    gc.collect()
    assert not pinned


def test_a_full_gpu_is_one_line(memory):
    with pytest.raises(OutOfMemory, match=r"2\.00 GiB more are needed, 0\.00 GiB of 0\.00 GiB are free") as caught:
        memory.empty((1 << 31,), "u8")
    assert "\n" not in str(caught.value)
    assert memory.live == 0


@pytest.mark.parametrize(
    ("fake", "says"),
    [
        (FakeCuda(sm=75), "Fake GPU has compute capability 7.5, and 8.0 or newer"),
        (FakeCuda(gpus=0), "found no NVIDIA GPU"),
        (FakeCuda(init=Result.CUDA_ERROR_NO_DEVICE), "found no NVIDIA GPU .CUDA_ERROR_NO_DEVICE."),
    ],
)
def test_no_usable_gpu_is_one_line(fake, says):
    with pytest.raises(UserError, match=says) as caught:
        Device(fake)
    assert "\n" not in str(caught.value) and "--device cpu" in str(caught.value)


def test_no_driver_is_one_line():
    class NoDriver(FakeCuda):
        def cuInit(self, flags):
            raise RuntimeError("libcuda.so.1 is not there\nand more")

    with pytest.raises(UserError, match=r"no NVIDIA driver .libcuda.so.1 is not there.: install") as caught:
        Device(NoDriver())
    assert "\n" not in str(caught.value)


def test_repr_says_what_it_is():
    assert repr(DeviceArray(0x1000, (2, 3), "bf16")) == "DeviceArray(2x3 bf16 at 0x1000)"
