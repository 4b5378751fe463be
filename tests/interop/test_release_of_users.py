"""A release waits for all who may use the memory: named streams, consumers and the GPU itself."""

import contextlib
import gc

import cupy
import cupyx
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import PageLockedMemoryPool
from races import reuse_cupys_block, reuse_pycudas_block

import bridge
import bridge.autoinit
from bridge.interop import host_memory

N = 1000
PUT = bridge.SourceModule(
    "__global__ void put(int *p, int n, int v) { for (int i = 0; i < n; i++) p[i] = v; }"
    "__global__ void copy(int *to, const int *from, int n)"
    " { for (int i = 0; i < n; i++) to[i] = from[i]; }"
)


class Unordered:
    """Exports an array without order, whatever the consumer says."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **keywords):
        return self.array.__dlpack__(stream=-1, **keywords)


def non_blocking():
    return cupy.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize("way", ["as_cupy(a, stream=s)", "-1"])
def test_a_block_of_pycudas_pool_is_reused_after_the_users_work(way, latch, put):
    """On whichever stream PyCUDA uses the block next."""
    here, s = non_blocking(), drv.Stream(1)

    def convert(a):
        if way == "as_cupy(a, stream=s)":
            return bridge.as_cupy(a, stream=s)
        return cupy.from_dlpack(Unordered(a))  # the consumer orders by itself

    assert reuse_pycudas_block(convert, here, latch, put, drv.Stream(1)) == {1}


def test_a_block_that_is_freed_is_reused_after_its_views():
    pool = cupy.cuda.MemoryPool()
    allocate = bridge.pycuda_allocator(pool)
    a = gpuarray.GPUArray(N, np.int32, allocator=allocate)
    x, pointer = bridge.as_cupy(a), int(a.gpudata)
    a.gpudata.free()
    assert int(allocate(4 * N)) != pointer
    del x
    assert pool.used_bytes() == 0


def block_of_an_allocator():
    """Return an allocator, an array of its, and what writes there, which is loaded."""
    allocate, function = bridge.pycuda_allocator(cupy.cuda.MemoryPool()), PUT.get_function("put")
    a = gpuarray.GPUArray(N, np.int32, allocator=allocate)
    function(a, N, 0, block=1)
    drv.Context.synchronize()
    return allocate, a, function


@pytest.mark.parametrize("named", ["CuPy's", "PyCUDA's"])
def test_a_launch_on_a_named_stream_uses_a_block_before_the_next_user(named, latch, put):
    """Of `pycuda_allocator`: "its memory is reused only after the kernel"."""
    allocate, a, function = block_of_an_allocator()
    named = non_blocking() if named == "CuPy's" else drv.Stream(1)
    pointer = int(a.gpudata)
    with latch.hold(named):
        with non_blocking():
            function(a, N, 7, block=1, stream=named)
        del a
        b = gpuarray.GPUArray(N, np.int32, allocator=allocate)
        assert int(b.gpudata) == pointer
        put(b.gpudata, N, 1, drv.Stream(1))
    assert {*b.get().tolist()} == {1}


@pytest.mark.parametrize("named", ["CuPy's", "PyCUDA's"])
def test_a_launch_on_a_named_stream_uses_a_block_after_the_last_user(named, latch, put):
    allocate, old, function = block_of_an_allocator()
    stream = drv.Stream(1)
    pointer = int(old.gpudata)
    with latch.hold(stream):
        put(old.gpudata, N, 7, stream)
        del old
        new = gpuarray.GPUArray(N, np.int32, allocator=allocate)
        assert int(new.gpudata) == pointer
        with non_blocking():
            function(
                new, N, 1, block=1, stream=non_blocking() if named == "CuPy's" else drv.Stream(1)
            )
    assert {*new.get().tolist()} == {1}


PINNED = {
    "CuPy's": lambda pool: cupyx.empty_pinned(N, np.int32),
    "PyCUDA's": lambda pool: pool.allocate((N,), np.int32),
}
READERS = {
    "f(y, h)": lambda y, h: PUT.get_function("copy")(y, h, N, block=1),
    "launch": lambda y, h: bridge.launch(
        PUT.get_function("copy"), y, h, np.int32(N), grid=1, block=1
    ),
    "view": lambda y, h: cupy.copyto(y, bridge.as_cupy(h)),
    "f(y, as_pycuda(h))": lambda y, h: PUT.get_function("copy")(y, bridge.as_pycuda(h), N, block=1),
    "PyCUDA's copy": lambda y, h: drv.memcpy_dtod_async(
        y.data.ptr, bridge.as_pycuda(h).gpudata, y.nbytes, None
    ),
    "kept": lambda y, h: PUT.get_function("copy")(y, h, N, block=1),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", PINNED)
def test_pinned_memory_goes_back_to_the_host_after_the_work(kind, reader, latch):
    """`kept` is the control: its address is not used again."""
    pool, copy = PageLockedMemoryPool(), PUT.get_function("copy")
    y = cupy.zeros(N, np.int32)
    pinned = PINNED[kind](pool)
    copy(y, pinned, N, block=1)
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


BARE = {
    "MemoryPointer": lambda x: bridge.as_pycuda(x.data, N, np.int32),
    "address": lambda x: bridge.as_pycuda(x.data.ptr, N, np.int32, owner=x),
}


@pytest.mark.parametrize("of_stream", [None, drv.Stream])
@pytest.mark.parametrize("convert", BARE)
def test_bare_memory_goes_back_to_cupys_pool_after_pycudas_work(convert, of_stream, latch, put):
    stream = of_stream(1) if of_stream else None
    found = reuse_cupys_block(lambda x, _: BARE[convert](x), non_blocking(), stream, latch, put)
    assert found == {1}


def test_host_memory_is_not_kept_for_longer():
    copy, y = PUT.get_function("copy"), cupy.zeros(N, np.int32)
    for _ in range(3):
        copy(y, cupyx.zeros_pinned(N, np.int32), N, block=1)
    drv.Context.synchronize()
    host_memory.release_done()
    assert not host_memory._kept


def test_host_memory_is_released_beside_a_capture_that_stays_whole():
    """To ask whether an event is done would invalidate it, were it not for the thread's mode."""
    copy, y = PUT.get_function("copy"), cupy.zeros(N, np.int32)
    x = cupyx.zeros_pinned(N, np.int32)
    copy(y, x, N, block=1)
    drv.Context.synchronize()
    stream = non_blocking()
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
    with contextlib.ExitStack() as stack:
        stack.callback(stream.end_capture)
        copy(y, x, N, block=1)
        copy(y, x, N, block=1)


def of_cupy():
    x = cupy.empty(N, np.int32)
    return [x, bridge.as_pycuda(x)]


def of_allocator():
    a = gpuarray.GPUArray(N, np.int32, allocator=bridge.pycuda_allocator())
    return [a, bridge.as_cupy(a)]


@pytest.mark.parametrize("make", [of_cupy, of_allocator])
def test_a_cycle_that_is_collected_beside_a_capture_keeps_its_memory(make):
    """The collector clears CuPy's arrays before the views end."""
    pool, captive = cupy.cuda.MemoryPool(), cupy.cuda.Stream()
    with cupy.cuda.using_allocator(pool.malloc), non_blocking():
        knot = make()
    held, other = pool.used_bytes(), drv.Stream(1)
    knot.append(knot)
    captive.begin_capture()
    try:
        del knot
        gc.collect()
        assert pool.used_bytes() == held
    finally:
        captive.end_capture()
    bridge.wait_stream(other, None)
    assert pool.used_bytes() == 0
