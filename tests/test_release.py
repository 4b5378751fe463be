"""A block goes back to its pool only after the other library's last queued use."""

from __future__ import annotations

import gc
import threading

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from test_streams import CUPY_STREAMS, PYCUDA_STREAMS, UNORDERED, every_pair

import bridge

N = 1000


def reuse_cupys_block(
    convert, cupy_stream, pycuda_stream, latch, put, before_release=None, drop=list.clear
):
    """Write 7 behind a latch into a view of CuPy's block, drop it, let CuPy reuse the block."""
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    with cupy.cuda.using_allocator(pool.malloc), cupy_stream:
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(pycuda_stream):
            a = convert(x, pycuda_stream)
            put(a.gpudata, N, 7, pycuda_stream)
            views = [a, x]
            del a, x
            drop(views)
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer, "the pool did not hand out the same block"
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy_stream)
            if before_release:
                before_release()
        return set(y.get().tolist())


@every_pair
def test_cupys_block_is_not_reused_before_pycudas_work(cupy_kind, pycuda_kind, latch, put):
    read = reuse_cupys_block(
        lambda x, stream: bridge.as_pycuda(x, stream=stream),
        CUPY_STREAMS[cupy_kind](),
        PYCUDA_STREAMS[pycuda_kind](),
        latch,
        put,
    )
    assert read == {1}


@every_pair
def test_the_plain_constructor_lets_the_block_go_too_early(cupy_kind, pycuda_kind, latch, put):
    cupy_stream = CUPY_STREAMS[cupy_kind]()
    early = (cupy_kind, pycuda_kind) in UNORDERED
    read = reuse_cupys_block(
        lambda x, _: gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x),
        cupy_stream,
        PYCUDA_STREAMS[pycuda_kind](),
        latch,
        put,
        cupy_stream.synchronize if early else None,
    )
    assert read == ({7} if early else {1})


def test_a_block_of_the_default_stream_used_on_another_is_not_reused_early(latch, put):
    """Allocated on the null stream, handed to PyCUDA under a stream of the user's."""
    stream = drv.Stream(1)
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(stream):
            with bridge.use_stream(stream):
                a = bridge.as_pycuda(x, stream=stream)
                put(a.gpudata, N, 7, stream)
                del a, x
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.Stream.null)
        assert (y.get() == 1).all()


def reuse_pycudas_block(convert, cupy_stream, latch, put, before_release=None):
    """Write 7 with CuPy into a view of PyCUDA's block, drop it, let PyCUDA reuse the block."""
    pool = DeviceMemoryPool()
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    a = gpuarray.GPUArray((N,), np.int32, allocator=pool.allocate)
    pointer = int(a.gpudata)
    with latch.hold(cupy_stream):
        with cupy_stream:
            x = convert(a)
            x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        del a, x
        b = gpuarray.GPUArray((N,), np.int32, allocator=pool.allocate)
        assert int(b.gpudata) == pointer, "the pool did not hand out the same block"
        put(b.gpudata, N, 1)
        if before_release:
            before_release()
    return set(b.get().tolist())


@pytest.mark.parametrize("kind", CUPY_STREAMS)
def test_pycudas_block_is_not_reused_before_cupys_work(kind, latch, put):
    assert reuse_pycudas_block(bridge.as_cupy, CUPY_STREAMS[kind](), latch, put) == {1}


def test_cupy_asarray_lets_pycudas_block_go_too_early(latch, put):
    cupy_stream = CUPY_STREAMS["non-blocking"]()
    null = cupy.cuda.Stream.null
    assert reuse_pycudas_block(cupy.asarray, cupy_stream, latch, put, null.synchronize) == {7}


def test_work_on_a_view_is_seen_by_cupy_once_the_view_is_gone(latch, put):
    stream = drv.Stream(1)
    x = cupy.zeros(N, np.int32)
    copied = cupy.zeros(N, np.int32)
    reader = cupy.cuda.Stream(non_blocking=True)
    with latch.hold(stream), reader:
        a = bridge.as_pycuda(x, stream=stream)
        put(a.gpudata, N, 7, stream)
        del a
        copied.data.copy_from_device_async(x.data, x.nbytes, reader)
    assert (copied.get() == 7).all()


def test_a_slice_holds_the_release_back(latch, put):
    stream = drv.Stream(1)
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.zeros(N, np.int32)
        a = bridge.as_pycuda(x, stream=stream)
        part = a[10:20]
        pointer = x.data.ptr
        del x, a
        gc.collect()
        assert pool.used_bytes() > 0
        assert cupy.empty(N, np.int32).data.ptr != pointer
        del part
        assert pool.used_bytes() == 0


@pytest.fixture(scope="module")
def second_context():
    context = drv.Device(0).make_context()
    context.pop()
    yield context
    context.detach()


@pytest.fixture(params=["on another thread", "under another context", "during an exception"])
def drop(request, second_context):
    """Clear a list of views in a place where the primary context may not be current."""

    def on_another_thread(views):
        thread = threading.Thread(target=views.clear)
        thread.start()
        thread.join()

    def under_another_context(views):
        second_context.push()
        views.clear()
        second_context.pop()

    def during_an_exception(views):
        def fail(*_):
            raise ValueError

        try:
            fail(*views)
        except ValueError:
            views.clear()

    return locals()[request.param.replace(" ", "_")]


@pytest.mark.parametrize("pycuda_kind", ["Stream()", "Stream(1)"])
@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_the_release_is_ordered_wherever_it_happens(cupy_kind, pycuda_kind, drop, latch, put):
    read = reuse_cupys_block(
        lambda x, stream: bridge.as_pycuda(x, stream=stream),
        CUPY_STREAMS[cupy_kind](),
        PYCUDA_STREAMS[pycuda_kind](),
        latch,
        put,
        drop=drop,
    )
    assert read == {1}


@pytest.mark.parametrize("cupy_kind", CUPY_STREAMS)
def test_pycudas_block_is_ordered_wherever_it_is_released(cupy_kind, drop, latch, put):
    cupy_stream, pycuda_stream = CUPY_STREAMS[cupy_kind](), drv.Stream()
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    block = drv.mem_alloc(4 * N)
    a = gpuarray.GPUArray((N,), np.int32, gpudata=int(block))
    with latch.hold(cupy_stream):
        with cupy_stream:
            x = bridge.as_cupy(a, stream=pycuda_stream)
            x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        views = [x]
        del x
        drop(views)
        put(block, N, 1, pycuda_stream)  # as the block's next user would
    assert (a.get() == 1).all()


@pytest.mark.parametrize("kept", [True, False], ids=["stream kept", "stream in the cycle"])
def test_the_release_in_a_reference_cycle_is_ordered(kept, latch, put):
    """The collector may run the finalizer of the CuPy stream before that of the view."""
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    keep = [current] if kept else []
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(stream):
            with current:
                a = bridge.as_pycuda(x, stream=stream)
            put(a.gpudata, N, 7, stream)
            a.itself = a
            del a, x, current
            gc.collect()
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy.cuda.Stream.null)
        assert (y.get() == 1).all()
    assert len(keep) == kept


def test_a_stream_named_later_orders_the_release_too(latch, put):
    read = reuse_cupys_block(
        lambda x, stream: bridge.as_pycuda(bridge.as_pycuda(x), stream=stream),
        cupy.cuda.Stream.null,
        drv.Stream(1),
        latch,
        put,
    )
    assert read == {1}


def test_leases_leave_no_streams_behind():
    from bridge import streams

    before = len(streams._leased)
    x = cupy.zeros(N)
    for _ in range(100):
        bridge.as_pycuda(x, stream=drv.Stream(1))
    gc.collect()
    assert len(streams._leased) == before


def test_release_in_a_reference_cycle():
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        a = bridge.as_pycuda(cupy.zeros(N, np.int32), stream=drv.Stream(1))
        a.itself = a
        del a
        assert pool.used_bytes() > 0
        gc.collect()
        assert pool.used_bytes() == 0
