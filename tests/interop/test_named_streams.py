"""Streams that are named; `test_unnamed_streams` has the order of those that are not."""

import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import answering
from gpus import ON_GPU
from latch import put
from pycuda import gpuarray

import bridge
from bridge.interop import ordering, streams

if not ON_GPU:
    import hostcuda

N = 1000


@pytest.mark.parametrize("event_of", ["cupy", "pycuda"])
@pytest.mark.parametrize("reader_of", ["cupy", "pycuda"])
def test_wait_stream_waits_for_events(event_of, reader_of, latch):
    held, other = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    reader = drv.Stream(1) if reader_of == "pycuda" else other
    a, y = gpuarray.zeros(N, np.int32), gpuarray.zeros(N, np.int32)
    event = drv.Event() if event_of == "pycuda" else cupy.cuda.Event()
    with latch.hold(held):
        put(a.gpudata, N, 7, held)
        event.record(held if event_of == "pycuda" else bridge.as_cupy_stream(held))
        bridge.wait_stream(reader, event)
        handle = bridge.as_cupy_stream(reader).ptr
        cupy.cuda.runtime.memcpyAsync(int(y.gpudata), int(a.gpudata), a.nbytes, 3, handle)
    reader.synchronize()
    assert (y.get() == 7).all()


def test_pycudas_streams_have_the_protocol_of_streams():
    stream = drv.Stream()
    assert stream.__cuda_stream__() == (0, stream.handle)


def test_ordered_needs_a_block():
    with pytest.warns(UserWarning, match=r"orders nothing by itself: write `with bridge.ordered"):
        bridge.ordered()

    @bridge.ordered()
    def answer():
        return 42

    assert answer() == answer() == 42


def test_as_cupy_stream_of_other_streams():
    own, stream = cupy.cuda.Stream(), drv.Stream()
    assert bridge.as_cupy_stream(own) is own
    assert bridge.as_cupy_stream(answering((0, stream.handle))).ptr == stream.handle
    for default in (None, answering((0, 1))):
        assert bridge.as_cupy_stream(default) is cupy.cuda.Stream.null
    for broken in (None, (0, 1, 2)):
        with pytest.raises(TypeError, match=r"whose __cuda_stream__\(\) returns "):
            bridge.as_cupy_stream(answering(broken))
    alive = weakref.ref(stream)
    wrapped = bridge.as_cupy_stream(stream)
    del stream
    assert wrapped.ptr == alive().handle
    del wrapped
    assert alive() is None


def test_an_error_of_another_kind_is_no_unknown_stream():
    assert type(ordering.not_ordered(304, 0, 5)) is cupy.cuda.driver.CUDADriverError


@pytest.mark.parametrize("convert", [bridge.as_cupy, bridge.as_pycuda])
def test_an_array_that_is_refused_orders_nothing(convert):
    refused, stream = cupy.broadcast_to(cupy.zeros(1), (4,)), drv.Stream(1)
    if convert is bridge.as_cupy:
        refused = gpuarray.GPUArray(4, np.float32)
        refused.gpudata = None
    with bridge.trace_order() as waits, pytest.raises(ValueError, match="repeats|has no memory"):
        convert(refused, stream=stream)
    assert not waits


def test_a_fence_waits_without_the_interpreters_lock(latch, monkeypatch):
    """On the host driver, where a call waits for one that runs a kernel; on a GPU, for a queue."""
    stream, other = drv.Stream(1), drv.Stream(1)
    monkeypatch.setattr(latch, "_patience", np.int32(2_000_000_000))

    def open_the_latch():
        time.sleep(0.05)
        latch._state[0] = 1

    with latch.hold(stream), ThreadPoolExecutor(2) as threads:
        threads.submit(stream.synchronize)
        threads.submit(open_the_latch)
        time.sleep(0.01)
        assert streams.fence(other.handle, 0) == 0


def test_events_are_used_again_on_their_own_device(run):
    script = """
        from bridge.interop import streams
        stream = drv.Stream(1)
        with bridge.primary_context(1):
            other = drv.Stream(1)
            print(streams.fence(other.handle, 0))
        print(*[streams.fence(stream.handle, 0) for _ in range(3)])
        with bridge.primary_context(1):
            del other
    """
    assert run(script, devices=2).split() == ["0"] * 4


if not ON_GPU:  # whose driver does not count its calls
    # 0: the default stream; b: a blocking one; n: a non-blocking one; -: no order
    CALLS = {"00": 0, "nn": 0, "-n": 0, "b0": 4, "n0": 4, "0b": 4, "bn": 4}

    @pytest.mark.parametrize(("pair", "calls"), CALLS.items())
    def test_what_an_order_asks_of_cuda(pair, calls):
        """Events are used again, and nothing is queued where a stream would wait for itself."""
        kept = {"b": drv.Stream(), "n": drv.Stream(1)}
        handles = {"0": 0, "-": -1, **{name: stream.handle for name, stream in kept.items()}}
        waiter, awaited = (handles[name] for name in pair)
        ordering.order(waiter, awaited)
        before = hostcuda.calls()
        for _ in range(100):
            assert ordering.order(waiter, awaited) == 0
        assert hostcuda.calls() - before == 100 * calls
