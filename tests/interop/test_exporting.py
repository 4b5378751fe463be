"""What a GPUArray offers: its protocols, and its operators with a CuPy array on the right."""

import gc
import operator

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
import bridge.autoinit
from bridge.interop import exporting

N = 1000


def zeros():
    return gpuarray.to_gpu(np.zeros(N, np.int32))


EXPORTS = {  # keywords, and what comes: a capsule's name or an error
    "": "dltensor",
    "stream=-1": "dltensor",
    "stream=1": "dltensor",
    "stream=2": "dltensor",
    "max_version=(1, 0)": "dltensor_versioned",
    "dl_device=(2, 0)": "dltensor",
    "dl_device=(1, 0)": "dltensor",
    "dl_device=(2, 7)": "BufferError",
    "copy=True": "BufferError",  # CuPy copies to the host only
    "stream=0": "ValueError",
    "stream=-2": "ValueError",
    "stream=True": "TypeError",
}


@pytest.mark.parametrize("keywords", EXPORTS)
def test_what_the_standard_asks_of_a_producer(keywords):
    a = zeros()
    assert tuple(a.__dlpack_device__()) == (2, 0)
    try:
        found = repr(eval(f"a.__dlpack__({keywords})")).split('"')[1]
    except (BufferError, TypeError, ValueError) as error:
        found = type(error).__name__
    assert found == EXPORTS[keywords]


def test_the_consumer_of_a_copy_waits_for_it():
    consumer, current = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with current, bridge.trace_order() as waits:
        zeros().__dlpack__(stream=consumer.ptr, dl_device=(1, 0))
    assert waits[-1].waiter.endswith(f" 0x{consumer.ptr:x}")
    assert waits[-1].awaited.endswith(f" 0x{current.ptr:x}")


def test_in_a_capture_the_default_stream_is_a_consumer_as_well():
    stream, writer, a = cupy.cuda.Stream(non_blocking=True), drv.Stream(1), zeros()
    drv.Context.synchronize()
    with stream:
        stream.begin_capture()
        with bridge.trace_order() as waits:
            a.__dlpack__(stream=1)
        stream.end_capture()
    awaited = "".join(one.awaited for one in waits if one.waiter == "the default stream")
    assert f" 0x{writer.handle:x}" in awaited


def test_the_export_keeps_the_array_and_lets_it_go():
    pool = DeviceMemoryPool()
    for convert in (cupy.asarray, cupy.from_dlpack):
        x = convert(gpuarray.GPUArray(N, np.int32, allocator=pool.allocate))
        gc.collect()
        assert pool.active_bytes == 4 * N
        del x
        assert pool.active_bytes == 0
    assert cupy.from_dlpack(gpuarray.GPUArray((0, 5), np.float32)).shape == (0, 5)


def test_pycudas_export_can_be_restored_and_replaced(capsys):
    a, replaced = zeros(), "GPUArray.__cuda_array_interface__"
    bridge.show_config()
    assert replaced in capsys.readouterr().out
    bridge.autoinit.restore_gpuarray()
    bridge.autoinit.restore_gpuarray()
    assert a.__cuda_array_interface__["stream"] is None
    assert not hasattr(a, "__dlpack__")
    bridge.show_config()
    assert replaced not in capsys.readouterr().out
    exporting.export_in_order()
    exporting.export_in_order()
    assert a.__cuda_array_interface__["stream"] == 1
    assert hasattr(a, "__dlpack__")


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ipow"]
OPERATORS = [*IN_PLACE, "add", "sub", "mul", "truediv", "pow", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_take_a_cupy_array_on_the_right(name):
    apply = getattr(operator, name)
    one, other = np.array([4, 9, 2, 8], "f4"), np.array([2, 9, 3, 4], "f4")
    expected = apply(one.copy(), other)
    a, x = gpuarray.to_gpu(one), cupy.asarray(other)
    result = apply(a, x)
    assert np.allclose(result.get(), expected)
    if name in IN_PLACE:
        assert result is a
    else:
        assert (type(result), result.dtype) == (cupy.ndarray, expected.dtype)
        assert np.array_equal(a.get(), one)


def test_a_cupy_array_is_assigned_to_a_part():
    a = gpuarray.to_gpu(np.zeros((2, 4), "f4"))
    a[...] = cupy.ones((2, 4), "f4")
    a[1, 2:] = cupy.arange(5, 7)  # converted, as in CuPy
    assert a.get().tolist() == [[1, 1, 1, 1], [1, 1, 5, 6]]
    with pytest.raises(ValueError, match="broadcast"):
        a[...] = cupy.ones(3, "f4")


def test_pycudas_operators_are_its_own_without_a_cupy_array():
    a, b = (gpuarray.to_gpu(np.arange(1, 5, dtype="f4")) for _ in range(2))
    bridge.use_nvrtc()
    try:
        a += b
        assert type(a == b) is gpuarray.GPUArray
    finally:
        bridge.use_nvrtc(False)
    a[2:] = b[2:]
    assert a.get().tolist() == [2, 4, 3, 4]
