"""Functions that a stream calls on the host: `launch_host_func` and `add_callback`."""

import threading
import time

import cupy
import numpy as np
import pytest


@pytest.fixture
def stream():
    return cupy.cuda.Stream(non_blocking=True)


def test_it_is_called_after_the_work_before_it_and_before_the_work_behind_it(stream):
    seen, host = [], cupy.cuda.alloc_pinned_memory(8)
    number = np.frombuffer(host, np.int64, 1)
    number[0] = 0
    with stream:
        x = cupy.full(1, 5, np.int64)
        x.get(out=number, blocking=False)
        stream.launch_host_func(lambda _: seen.append(int(number[0])), None)
        (x * 2).get(out=number, blocking=False)
        stream.launch_host_func(lambda _: seen.append(int(number[0])), None)
    stream.synchronize()
    assert seen == [5, 10]


def test_each_gets_what_was_given_in_the_order_of_the_stream(stream):
    seen = []
    for i in range(200):
        stream.launch_host_func(seen.append, i)
    stream.add_callback(lambda *given: seen.append(given), "last")
    stream.synchronize()
    assert seen == [*range(200), (stream, 0, "last")]


def test_a_program_may_wait_for_the_function_alone(stream):
    done = threading.Event()
    stream.launch_host_func(lambda _: done.set(), None)
    assert done.wait(10)


def test_who_polls_sees_the_end(stream):
    stream.launch_host_func(lambda _: time.sleep(0.05), None)
    end = stream.record()
    start = time.monotonic()
    while not (end.done and stream.done):
        time.sleep(0.001)
        assert time.monotonic() < start + 10


def test_another_thread_goes_on_meanwhile(stream):
    """One that holds a lock which the function wants, and calls the driver."""
    lock, begun, seen = threading.Lock(), threading.Event(), []

    def wanting(_):
        begun.set()
        with lock:
            seen.append("function")

    def holding():
        with lock:
            begun.wait()
            with cupy.cuda.Stream() as mine:
                seen.append(int(cupy.arange(5).sum()))
                mine.synchronize()

    thread = threading.Thread(target=holding)
    thread.start()
    stream.launch_host_func(wanting, None)
    stream.synchronize()
    thread.join()
    assert seen == [10, "function"]


def test_other_streams_wait_for_it_by_an_event(stream):
    seen = []
    stream.launch_host_func(lambda _: (time.sleep(0.05), seen.append(1)), None)
    event, other = stream.record(), cupy.cuda.Stream(non_blocking=True)
    other.wait_event(event)
    other.launch_host_func(lambda _: seen.append(2), None)
    other.synchronize()
    assert seen == [1, 2]


def test_it_may_not_call_cuda(stream):
    found = []

    def calls(_):
        try:
            cupy.cuda.runtime.malloc(8)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            found.append(str(error))

    stream.launch_host_func(calls, None)
    stream.synchronize()
    assert found == ["cudaErrorNotPermitted: operation not permitted"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_it_raises_is_printed_and_the_stream_goes_on(stream, capsys):
    seen = []
    stream.launch_host_func(lambda _: 1 / 0, None)
    stream.launch_host_func(seen.append, 1)
    stream.synchronize()
    assert seen == [1]


def test_a_captured_one_is_called_at_each_launch(stream):
    seen, x = [], cupy.zeros(1)
    cupy.cuda.Stream.null.synchronize()
    with stream:
        stream.begin_capture()
        x += 1
        stream.launch_host_func(seen.append, "called")
        x *= 2
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch()
    stream.synchronize()
    assert seen == ["called"] * 3
    assert x[0] == 14


def test_add_callback_is_not_for_captures(stream):
    stream.begin_capture()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="StreamCaptureUnsupported"):
        stream.add_callback(print, None)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        stream.end_capture()


MANY = """
import threading, cupy
counts, lock = [0] * 8, threading.Lock()
def add(i):
    with lock:
        counts[i] += 1
def work(i):
    for k in range(60):
        with cupy.cuda.Stream(non_blocking=k % 2 == 0) as s:
            x = cupy.arange(10)
            for _ in range(3):
                x = x + 1
                s.launch_host_func(add, i)
            with lock:
                cupy.cuda.runtime.memGetInfo()
            if k % 3 == 0:
                cupy.cuda.Device().synchronize()
            assert int(x.sum()) == 75
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for one in threads: one.start()
for one in threads: one.join()
cupy.cuda.Device().synchronize()
assert counts == [180] * 8, counts
cupy.cuda.Stream().launch_host_func(add, 0)  # the end comes before it
"""


@pytest.mark.parametrize("order", ["latest", "earliest", "random"])
def test_many_threads_and_streams(order, run_program):
    done = run_program(MANY, "--order", order)
    assert (done.returncode, done.stderr) == (0, "")
