"""The work of a PyCUDA stream stays in order, however and wherever the stream ends."""

import gc
import queue
import threading

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
import bridge.autoinit
from bridge.interop import live_streams

N = 1000


class Owner:
    """Has a stream, and works on it in its finalizer."""

    def __init__(self, stream, work):
        self.stream, self.work, self.me = stream, work, self

    def __del__(self):
        self.work(self.stream)


class Twice(drv.Stream):
    """Its ``__init__`` runs twice, as in a diamond of classes without ``super``."""

    def __init__(self):
        super().__init__(1)
        super().__init__(1)


class Saved(drv.Stream):
    """Its finalizer gives it to a program's pool of streams."""

    pool = []  # noqa: RUF012

    def __del__(self):
        self.pool.append(self)


def dropped(streams, work):
    work(streams.pop())


def dropped_and_blocking(streams, work):
    dropped(streams, work)


def on_a_thread_that_returns(streams, work):
    thread = threading.Thread(target=bridge.primary_context()(dropped), args=(streams, work))
    thread.start()
    thread.join()


def in_a_cycle(streams, work):
    owner = Owner(streams.pop(), work)
    del owner
    gc.collect()


def with_a_finalizer_of_later(streams, work):
    type(streams[0]).__del__ = lambda self: None
    dropped(streams, work)


def saved_and_dropped(streams, work):
    dropped(streams, work)
    Saved.pool.clear()


ENDS = {
    dropped: lambda: drv.Stream(1),
    dropped_and_blocking: drv.Stream,
    on_a_thread_that_returns: lambda: drv.Stream(1),
    in_a_cycle: lambda: drv.Stream(1),
    with_a_finalizer_of_later: lambda: type("Late", (drv.Stream,), {})(1),
    saved_and_dropped: lambda: Saved(1),
}


def zeros():
    return gpuarray.to_gpu(np.zeros(N, np.int32))


def copy_of(a):
    """Queue a copy, on a stream that CUDA orders with no other."""
    with cupy.cuda.Stream(non_blocking=True) as here:
        x = bridge.as_cupy(a)
        copy = cupy.empty_like(x)
        copy.data.copy_from_device_async(x.data, x.nbytes, here)
    return copy


@pytest.mark.parametrize("end", [*ENDS, Twice], ids=lambda end: end.__name__)
def test_the_work_is_ordered(end, latch, put):
    a = zeros()
    streams = [ENDS[end]() if end in ENDS else Twice()]
    copy_of(a)  # lets go of what was kept for the end of earlier captures, and its streams
    gc.collect()
    before = live_streams.count_streams()
    with latch.hold(streams[0]):
        (end if end in ENDS else dropped)(streams, lambda stream: put(a.gpudata, N, 7, stream))
        copy = copy_of(a)
    assert {*copy.get().tolist()} == {7}
    assert live_streams.count_streams() == before - 1 - (end is Twice)


def test_a_stream_that_its_finalizer_saves_goes_on(latch, put):
    a, streams = zeros(), [Saved(1)]
    streams.clear()
    with latch.hold(Saved.pool[0]):
        put(a.gpudata, N, 7, Saved.pool[0])
        copy = copy_of(a)
    assert {*copy.get().tolist()} == {7}
    before = live_streams.count_streams()
    Saved.pool.clear()
    assert live_streams.count_streams() == before - 1


def test_in_a_race_with_its_end(put):
    """Whoever orders meets the stream, or what the default stream waits for in its place."""
    arrays, turns = queue.SimpleQueue(), 20
    alive = [zeros() for _ in range(turns)]  # freeing memory would let the host wait
    slow = bridge.SourceModule(
        "__global__ void slow(int *p, int n, int us) { while (us-- > 0) __nanosleep(1000);"
        " for (int i = 0; i < n; i++) p[i] = 7; }"
    ).get_function("slow")
    slow.prepare("Pii")

    @bridge.primary_context()
    def produce(a):
        try:
            stream = drv.Stream(1)
            slow.prepared_async_call((1, 1), (1, 1, 1), stream, a.gpudata, N, 200)
        finally:
            arrays.put(a)

    copies = []
    for a in alive:
        thread = threading.Thread(target=produce, args=(a,))
        thread.start()
        copies.append(copy_of(arrays.get()))
        thread.join()
    assert [{*copy.get().tolist()} for copy in copies] == [{7}] * turns


def test_beside_the_capture_of_a_blocking_stream(latch, put):
    """CUDA accepts no work on the default stream then, so it waits after the capture."""
    a, streams, captive = zeros(), [drv.Stream(1)], cupy.cuda.Stream()
    drv.Context.synchronize()
    with latch.hold(streams[0]):
        put(a.gpudata, N, 7, streams[0])
        captive.begin_capture()
        streams.clear()
        captive.end_capture()
        copy = copy_of(a)
    assert {*copy.get().tolist()} == {7}


def test_in_a_context_that_was_not_met(python):
    """Of a program that makes it itself, and its streams before and after the import."""
    done = python(
        """
        import pycuda.autoprimaryctx
        import pycuda.driver as drv
        early = [drv.Stream(1)]
        import bridge, races
        bridge.as_cupy
        from latch import Latch, compile_plain, putting
        latch, put = Latch(compile_plain), putting(compile_plain)
        late = [drv.Stream(1)]
        print(*[races.is_read(streams, latch, put, ends=True) for streams in (early, late)])
        """
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_all_streams_that_used_an_exported_array_are_waited_for(latch, put):
    """However many there are."""
    pool, here = DeviceMemoryPool(), [cupy.cuda.Stream(non_blocking=True) for _ in range(12)]
    a = gpuarray.GPUArray(N, np.int32, allocator=pool.allocate)
    pointer = int(a.gpudata)
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    with here[0]:
        x = cupy.asarray(a)
    for stream in here[1:]:
        with stream:
            other = cupy.asarray(a)
    with latch.hold(here[0]):
        x.data.copy_from_device_async(sevens.data, x.nbytes, here[0])
        del a, x, other
        b = gpuarray.GPUArray(N, np.int32, allocator=pool.allocate)
        assert int(b.gpudata) == pointer
        put(b.gpudata, N, 1, drv.Stream(1))
    assert {*b.get().tolist()} == {1}
