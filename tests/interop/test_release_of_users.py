"""Memory that the host uses again at once: it is released when the device has done its work."""

import contextlib

import cupy
import cupyx
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import PageLockedMemoryPool

import bridge
import bridge.autoinit
from bridge.interop import host_memory

N = 1000
COPY = bridge.SourceModule(
    "__global__ void copy(int *to, const int *from, int n)"
    " { for (int i = 0; i < n; i++) to[i] = from[i]; }"
).get_function("copy")


def test_a_block_that_is_freed_is_reused_after_its_views():
    pool = cupy.cuda.MemoryPool()
    allocate = bridge.pycuda_allocator(pool)
    a = gpuarray.GPUArray(N, np.int32, allocator=allocate)
    x, pointer = bridge.as_cupy(a), int(a.gpudata)
    a.gpudata.free()
    assert int(allocate(4 * N)) != pointer
    del x
    assert pool.used_bytes() == 0


PINNED = {
    "CuPy's": lambda pool: cupyx.empty_pinned(N, np.int32),
    "PyCUDA's": lambda pool: pool.allocate((N,), np.int32),
}
READERS = {
    "f(y, h)": lambda y, h: COPY(y, h, N, block=1),
    "launch": lambda y, h: bridge.launch(COPY, y, h, np.int32(N), grid=1, block=1),
    "view": lambda y, h: cupy.copyto(y, bridge.as_cupy(h)),
    "f(y, as_pycuda(h))": lambda y, h: COPY(y, bridge.as_pycuda(h), N, block=1),
    "PyCUDA's copy": lambda y, h: drv.memcpy_dtod_async(
        y.data.ptr, bridge.as_pycuda(h).gpudata, y.nbytes, None
    ),
    "kept": lambda y, h: COPY(y, h, N, block=1),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", PINNED)
def test_pinned_memory_goes_back_to_the_host_after_the_work(kind, reader, latch):
    """`kept` is the control: its address is not used again."""
    pool, y = PageLockedMemoryPool(), cupy.zeros(N, np.int32)
    pinned = PINNED[kind](pool)
    COPY(y, pinned, N, block=1)
    bridge.as_cupy(pinned)
    drv.Context.synchronize()
    host_memory.release_done()  # to free memory of an earlier test would let the host wait
    pinned[:] = 7
    address = pinned.ctypes.data
    with latch.hold(None):
        READERS[reader](y, pinned)
        if reader != "kept":
            del pinned
        again = PINNED[kind](pool)
        again[:] = -1
        assert again.ctypes.data != address
    assert {*y.get().tolist()} == {7}


@pytest.mark.parametrize("of_stream", [None, drv.Stream])
@pytest.mark.parametrize("convert", [bridge.as_cupy, bridge.as_pycuda])
def test_bare_pinned_memory_goes_back_to_the_host_after_the_work(convert, of_stream, latch):
    """Also if the stream begins after the conversion."""
    y = gpuarray.zeros(N, np.int32)
    memory = cupy.cuda.alloc_pinned_memory(4 * N)
    np.frombuffer(memory, np.int32, N)[:] = 7
    drv.Context.synchronize()
    host_memory.release_done()
    address, x = memory.ptr, convert(memory, (N,), np.int32)
    stream = of_stream(1) if of_stream else None
    pointer = bridge.as_pycuda(x).gpudata
    with latch.hold(stream):
        drv.memcpy_dtod_async(y.gpudata, pointer, 4 * N, stream)
        del x, memory
        again = cupy.cuda.alloc_pinned_memory(4 * N)
        np.frombuffer(again, np.int32, N)[:] = -1
        assert again.ptr != address
    assert {*y.get().tolist()} == {7}


def test_host_memory_is_not_kept_for_longer():
    y = cupy.zeros(N, np.int32)
    for _ in range(3):
        COPY(y, cupyx.zeros_pinned(N, np.int32), N, block=1)
    drv.Context.synchronize()
    host_memory.release_done()
    assert not host_memory._kept


def test_host_memory_is_released_beside_a_capture_that_stays_whole():
    """To ask whether an event is done would invalidate it, were it not for the thread's mode."""
    y = cupy.zeros(N, np.int32)
    x = cupyx.zeros_pinned(N, np.int32)
    COPY(y, x, N, block=1)
    drv.Context.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
    with contextlib.ExitStack() as stack:
        stack.callback(stream.end_capture)
        COPY(y, x, N, block=1)
        COPY(y, x, N, block=1)
