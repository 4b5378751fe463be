"""Streams that are named; `test_unnamed_streams` has the order of those that are not."""

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import answering
from gpus import ON_GPU
from pycuda import gpuarray
from races import UNORDERED, as_plain_array, every_pair, read_through_cupy, read_through_pycuda

import bridge
from bridge.interop import ordering as streams, streams as handles

if not ON_GPU:
    import hostcuda

N = 1000


def test_a_named_stream_is_ordered(latch, put, copy_kernel):
    current, stream = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    to_cupy, to_pycuda = bridge.as_cupy, bridge.as_pycuda
    for convert in (  # events are used again
        *[lambda a, used: to_cupy(a, stream=used)] * 20,
        lambda a, used: to_cupy(to_cupy(a, stream=-1), stream=used),
    ):
        assert read_through_cupy(convert, current, stream, latch, put) == {7}
    for convert in (
        *[lambda x, used: to_pycuda(x, stream=used)] * 20,
        lambda x, used: to_pycuda(to_pycuda(x, stream=-1), stream=used),
    ):
        assert read_through_pycuda(convert, current, stream, latch, copy_kernel) == {7}


@pytest.mark.parametrize("named", [lambda: drv.Stream(1), lambda: -1], ids=["a stream", "-1"])
def test_no_other_stream_is_ordered_then(named, latch, put, copy_kernel):
    current, named, other = cupy.cuda.Stream(non_blocking=True), named(), drv.Stream(1)
    finish = current.synchronize, other.synchronize
    used = current, other, latch
    to_cupy, to_pycuda = (
        lambda a, _: bridge.as_cupy(a, stream=named),
        lambda x, _: bridge.as_pycuda(x, stream=named),
    )
    assert read_through_cupy(to_cupy, *used, put, finish[0]) == {0}
    assert read_through_pycuda(to_pycuda, *used, copy_kernel, finish[1]) == {0}


def test_beside_a_kernel_that_spins_calls_must_name_streams(latch):
    """It may spin until the host acts, or for work of a later line."""
    held, other, current = drv.Stream(1), drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    a, done = gpuarray.to_gpu(np.zeros(N, np.int32)), []
    for naming in ({}, {"stream": other}):
        with latch.hold(held), current:
            x = bridge.as_cupy(a, **naming)
            x.data.memset_async(1, x.nbytes, current)
            if naming:
                current.synchronize()  # the latch would say that the host waited for it
            done.append(current.done)
    assert done == [False, True]


def test_a_capture_makes_the_default_stream_wait_for_earlier_work(latch):
    idle, held = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    default, done = cupy.cuda.Stream.null, []
    with latch.hold(held):
        for stream in (idle, held):
            stream.begin_capture()
            stream.end_capture()
            if stream is idle:
                default.synchronize()
            done.append(default.done)
    assert done == [True, False]


def test_ordered_needs_a_block():
    with pytest.warns(UserWarning, match=r"orders nothing by itself: write `with bridge.ordered"):
        bridge.ordered()

    @bridge.ordered()
    def answer():
        return 42

    assert answer() == answer() == 42


def on_a_thread(call):
    with ThreadPoolExecutor(1) as threads:
        threads.submit(bridge.primary_context()(call)).result()


@pytest.mark.parametrize("meanwhile", [lambda call: call(), on_a_thread], ids=["here", "thread"])
def test_each_block_of_one_ordered_object_is_ordered_on_its_own_stream(meanwhile, latch):
    used, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    reader, shared = drv.Stream(1), bridge.ordered()
    a, read = gpuarray.zeros(N, np.int32), drv.pagelocked_zeros(N, np.int32)

    def enter_and_leave():
        with other, shared:
            pass

    bridge.as_cupy(a)[:] = 1  # loads the kernel, for which the host waits
    with latch.hold(used):
        with used, shared:
            meanwhile(enter_and_leave)
            bridge.as_cupy(a, stream=-1)[:] = 7
        drv.memcpy_dtoh_async(read, a.gpudata, reader)
    assert {*read.tolist()} == {7}


async def coroutine():
    """Await nothing."""


async def asynchronous_generator():
    yield


def generator():
    yield


@pytest.mark.parametrize("function", [coroutine, asynchronous_generator, generator])
def test_ordered_decorates_no_function_whose_body_runs_later(function):
    with pytest.raises(TypeError, match=r"write `with bridge\.ordered\(\):` around the work in"):
        bridge.ordered()(function)


@every_pair
def test_the_plain_constructor_reads_stale_data_where_cuda_does_not_order(
    cupy_kind, pycuda_kind, cupy_stream, pycuda_stream, latch, copy_kernel
):
    stale = (cupy_kind, pycuda_kind) in UNORDERED
    finish = (pycuda_stream or cupy.cuda.Stream.null).synchronize if stale else None
    used = cupy_stream, pycuda_stream, latch, copy_kernel, finish
    assert read_through_pycuda(as_plain_array, *used) == ({0} if stale else {7})


@pytest.fixture(scope="module")
def kept():
    """Streams: 0, a blocking one b, another one c, and n, a non-blocking one."""
    blocking = {name: cupy.cuda.Stream() for name in "bc"}
    return {"0": cupy.cuda.Stream.null, **blocking, "n": cupy.cuda.Stream(non_blocking=True)}


def test_wait_stream_orders_any_two_streams(latch, put, pycudas_export):
    waiter, awaited = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)

    def convert(a, stream):
        bridge.wait_stream(waiter, stream)
        return cupy.asarray(a)

    assert read_through_cupy(convert, waiter, awaited, latch, put) == {7}


def test_as_cupy_stream_runs_cupy_on_the_stream_of_pycuda(latch, put, pycudas_export):
    stream = drv.Stream(1)
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    copy = cupy.zeros(N, np.int32)
    with latch.hold(stream), bridge.as_cupy_stream(stream):
        assert cupy.cuda.get_current_stream().ptr == stream.handle
        put(a.gpudata, N, 7, stream)
        copy[...] = cupy.asarray(a)
    assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null
    assert (copy.get() == 7).all()


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
    assert type(streams.not_ordered(304, 0, 5)) is cupy.cuda.driver.CUDADriverError


@pytest.mark.parametrize("convert", [bridge.as_cupy, bridge.as_pycuda])
def test_an_array_that_is_refused_orders_nothing(convert):
    array, said = cupy.broadcast_to(cupy.zeros(1), (4,)), "repeats"
    if convert is bridge.as_cupy:
        array, said = gpuarray.GPUArray(4, np.float32), "the array has no memory"
        array.gpudata = None
    here, there = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    captive, other = (there, here) if convert is bridge.as_cupy else (here, there)
    captive.begin_capture()
    try:
        with here, pytest.raises(ValueError, match=said):
            convert(array, stream=there)
        assert not other.is_capturing()
    finally:
        captive.end_capture()


def test_a_fence_waits_without_the_interpreters_lock(latch, monkeypatch):
    """On the host driver, where a call waits for one that runs a kernel; on a GPU, for a queue."""
    stream, other = drv.Stream(1), drv.Stream(1)
    monkeypatch.setattr(latch, "_patience", np.int32(2_000_000_000))

    def open_the_latch():
        time.sleep(0.05)
        latch._state[0] = 1

    with latch.hold(stream):
        threads = [threading.Thread(target=run) for run in (stream.synchronize, open_the_latch)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        assert handles.fence(other.handle, 0) == 0
        for thread in threads:
            thread.join()


def test_events_are_used_again_on_their_own_device(run):
    script = """
        from bridge.interop import streams as handles
        stream = drv.Stream(1)
        with bridge.primary_context(1):
            other = drv.Stream(1)
            print(handles.fence(other.handle, 0))
        print(*[handles.fence(stream.handle, 0) for _ in range(3)])
        with bridge.primary_context(1):
            del other
    """
    assert run(script, devices=2).split() == ["0"] * 4


if not ON_GPU:  # whose driver does not count its calls

    @pytest.mark.parametrize(
        ("pair", "calls"), {"00": 0, "bb": 0, "-n": 0, "b0": 4, "n0": 4, "0b": 4, "bc": 4}.items()
    )
    def test_what_an_order_asks_of_cuda(pair, calls, kept):
        """Events are used again, and nothing is queued where CUDA orders the two streams."""
        waiter, awaited = (kept[name].ptr if name in kept else -1 for name in pair)
        streams.order(waiter, awaited)
        before = hostcuda.calls()
        for _ in range(100):
            assert streams.order(waiter, awaited) == 0
        assert hostcuda.calls() - before == 100 * calls
