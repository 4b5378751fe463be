"""PyCUDA's streams are followed from their begin to their end, however and wherever they end."""

import gc
from types import SimpleNamespace

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray

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

    def __init__(self, flags):
        super().__init__(flags)
        super().__init__(flags)


class Saved(drv.Stream):
    """Its finalizer gives it to a program's pool of streams."""

    pool = []  # noqa: RUF012

    def __del__(self):
        self.pool.append(self)


def dropped(streams, work):
    work(streams.pop())


def in_a_cycle(streams, work):
    owner = Owner(streams.pop(), work)
    del owner
    gc.collect()


def with_a_finalizer_of_later(streams, work):
    drv.Stream.__del__ = work
    streams.clear()
    del drv.Stream.__del__


def saved_and_dropped(streams, work):
    streams.clear()
    work(Saved.pool[0])
    Saved.pool.clear()


def copy_of(a):
    """Queue a copy, on a stream that CUDA orders with no other."""
    with cupy.cuda.Stream(non_blocking=True) as here:
        x = bridge.as_cupy(a)
        copy = cupy.empty_like(x)
        copy.data.copy_from_device_async(x.data, x.nbytes, here)
    return copy


ENDS = {in_a_cycle: drv.Stream, dropped: Twice, saved_and_dropped: Saved}
ENDS[with_a_finalizer_of_later] = drv.Stream


@pytest.mark.parametrize(("end", "kind"), ENDS.items())
def test_the_work_is_ordered(kind, end, latch, put):
    a, streams = gpuarray.to_gpu(np.zeros(N, np.int32)), [kind(1)]
    copy_of(a)  # lets go of what was kept for the end of earlier captures, and its streams
    gc.collect()
    before = live_streams.count_streams()
    with latch.hold(streams[0]):
        end(streams, lambda stream: put(a.gpudata, N, 7, stream))
        after = live_streams.count_streams()  # a later stream may have the handle
        copy = copy_of(a)
    assert {*copy.get().tolist()} == {7}
    assert after == before - 1 - (kind is Twice)


@pytest.mark.parametrize("case", ["alive", "ends", "captured"])
def test_streams_from_before_the_import_are_followed(case, python):
    """Also those of a context that `bridge` has not met; of a captured one, CUDA tells no flags."""
    done = python(
        f"""
        import cupy, pycuda.autoprimaryctx
        import pycuda.driver as drv
        from pycuda.driver import Stream
        early, runtime = [Stream(1)], cupy.cuda.runtime
        if {case!r} == "captured":
            runtime.streamBeginCapture(early[0].handle, runtime.streamCaptureModeGlobal)
        import bridge, races
        bridge.as_cupy
        if {case!r} == "captured":
            runtime.streamEndCapture(early[0].handle)
        from latch import Latch, compile_plain
        used = Latch(compile_plain), {case!r} == "ends"
        print(*[races.is_read(streams, *used) for streams in (early, [Stream(1)])])
        """
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


@pytest.mark.starts
def test_a_blocking_stream_begins_after_the_block_that_it_reuses(run):
    """CUDA orders it with work on the default stream, which has only waited."""
    run("""
        from latch import Latch, compile_plain, put

        latch, reader = Latch(compile_plain), cupy.cuda.Stream()
        n = 1000
        x, y = cupy.full(n, 7, np.int32), cupy.zeros(n, np.int32)
        pointer, allocate = x.data.ptr, bridge.pycuda_allocator()
        with latch.hold(reader):
            y.data.copy_from_device_async(x.data, x.nbytes, reader)
            del x
            a = gpuarray.GPUArray(n, np.int32, allocator=allocate)
            assert int(a.gpudata) == pointer
            stream = drv.Stream()
            put(a.gpudata, n, 1, stream)
        assert {*y.get().tolist()} == {7}
    """)


def test_a_stream_is_followed_until_its_last_object_ends():
    """Or until the one ends that destroys it."""
    gc.collect()
    before = live_streams.count_streams()
    handle = cupy.cuda.runtime.streamCreateWithFlags(1)
    foreign = SimpleNamespace(__cuda_stream__=lambda: (0, handle))
    of_pycuda, of_cupy = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    same = SimpleNamespace(__cuda_stream__=lambda: (0, of_cupy.ptr))
    streams = {"PyCUDA's": of_pycuda, "CuPy's": same, "foreign": foreign}
    counts, waits = [], {}
    objects = {name: [bridge.as_cupy_stream(one)] for name, one in streams.items()}
    for name, one in streams.items():
        with bridge.trace_order() as found:
            objects[name].append(bridge.as_cupy_stream(one))
        waits[name] = len(found)
    for name, one in objects.items():
        if name == "CuPy's":
            del of_cupy, same
            streams.clear()
            counts.append(live_streams.count_streams() - before)
        while one:
            one.pop()
            counts.append(live_streams.count_streams() - before)
    cupy.cuda.runtime.streamDestroy(handle)
    assert counts == [3, 3, 2, 2, 2, 2, 1]
    assert waits == {"PyCUDA's": 0, "CuPy's": 1, "foreign": 1}


def test_thousands_of_streams_leave_nothing_behind():
    before = live_streams.count_streams()
    kept = [drv.Stream(i % 2) for i in range(10)]
    for i in range(3000):
        drv.Stream(i % 2)
    assert live_streams.count_streams() == before + 10
    bridge.as_pycuda(cupy.zeros(N))  # orders those that are kept, and keeps none
    del kept
    assert live_streams.count_streams() == before
