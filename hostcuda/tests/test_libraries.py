"""What libraries with their own GPU code do: work that is a Python function, and its order."""

import gc
import signal
import subprocess
import sys
import time

import cupy
import numpy as np
import pytest

import hostcuda
from hostcuda import _work


@pytest.fixture(autouse=True)
def stream():
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        yield stream
        hostcuda.revive()
        stream.synchronize()


def doubling(x, y):
    """Queue y = 2 * x."""
    a, b = (_work.view(v.data.ptr, v.dtype, v.shape) for v in (x, y))

    def double():
        np.multiply(a, 2, out=b)

    assert not _work.queue("double", double, [a], [b])
    return b


def test_a_function_runs_when_its_stream_does(stream):
    x, y = cupy.arange(4.0), cupy.zeros(4)
    stream.synchronize()
    memory = doubling(x, y)
    assert hostcuda.pending(stream.ptr) == 1
    assert not memory.any()
    stream.synchronize()
    assert memory.tolist() == [0, 2, 4, 6]


def test_a_function_is_a_node_of_a_graph(stream):
    x, y = cupy.arange(4.0), cupy.zeros(4)
    stream.synchronize()
    stream.begin_capture()
    memory = doubling(x, y)
    graph = stream.end_capture()
    stream.synchronize()
    assert not memory.any()
    for value in 1, 5:
        x[1] = value
        graph.launch(stream)
        assert y.tolist()[1] == 2 * value


def raises():
    raise ZeroDivisionError("no zeros")


@pytest.mark.damages
@pytest.mark.parametrize(
    ("function", "view", "error", "message"),
    [
        (raises, [], "LaunchFailure", "double: ZeroDivisionError: no zeros"),
        (
            None,
            [_work.view(1 << 42, "d", (3,))],
            "IllegalAddress",
            "double: writes 24 bytes at 0x4",
        ),
    ],
    ids=["raises", "elsewhere"],
)
def test_a_function_that_fails_ends_the_context(stream, function, view, error, message, capfd):
    _work.queue("double", function, [], view)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=error):
        stream.synchronize()
    assert hostcuda.failures(untold=False)[0].startswith(message)


def test_an_exception_outlives_the_work_that_runs_meanwhile():
    import pycuda.autoprimaryctx  # noqa: F401
    import pycuda.driver as drv

    x, y = cupy.arange(4.0), cupy.zeros(4)
    memory = doubling(x, y)
    with pytest.raises(ValueError, match="not in list"):
        [].remove(drv.mem_alloc(8))  # freed while the exception is on its way
    assert memory.tolist() == [0, 2, 4, 6]


def test_no_destructor_calls_the_driver_within_the_work(stream):
    runs, seen = [], []

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            seen.append(list(runs))

    def function():
        runs.append(True)
        Cycle()
        [[] for _ in range(100_000)]  # the garbage collector would run
        runs.clear()

    _work.queue("work", function, [], [])
    stream.synchronize()
    gc.collect()
    assert seen == [[]]


def test_numbers_that_overflow_are_no_warnings():
    x, y = cupy.full(4, 1e300), cupy.zeros(4)
    a, b = (_work.view(v.data.ptr, v.dtype, v.shape) for v in (x, y))
    _work.queue("square", lambda: np.multiply(a, a, out=b), [a], [b])
    assert y.tolist() == [np.inf] * 4


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.damages
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_of_the_work_interrupts_the_program(stream):
    _work.queue("work", lambda: signal.raise_signal(signal.SIGINT), [], [])
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="LaunchFailure"):
            stream.synchronize()
        time.sleep(1)
    assert hostcuda.failures(untold=False) == ["work: was interrupted"]


def test_views_tell_the_bytes_that_they_use():
    def bytes_of(view):
        return [(int(start) - 4096, int(size)) for start, size in _work.area(view)]

    assert bytes_of(_work.view(4096, "f", (2, 3), (1, 5))) == [(0, 8), (20, 8), (40, 8)]
    assert bytes_of(_work.view(4096, "f", (5, 3), (1, 5))) == [(0, 60)]
    assert bytes_of(_work.vector(4096, "d", 3, -2)) == [(0, 8), (16, 8), (32, 8)]
    assert bytes_of(_work.view(4096, "d", (0, 3))) == []


# ---- threads ------------------------------------------------------------------------------------

START = """
import os, sys, threading, time
import cupy, hostcuda, pycuda.autoprimaryctx, pycuda.driver as drv
from hostcuda import _work

sys.setswitchinterval(1e-5)
x = cupy.arange(600.0)
view, context = _work.view(x.data.ptr, "d", (600,)), drv.Context.get_current()
cupy.cuda.Device().synchronize()
"""

THREADS = """
class Cycle:  # freed by the garbage collector
    def __init__(self):
        self.me, self.array = self, cupy.arange(9.0)
    def __del__(self):
        self.array.sum().get()

def of_cupy():
    with cupy.cuda.Stream(non_blocking=True) as s:
        for i in range(200):
            _work.queue("work", lambda: [view + i for i in range(50)], [view], [])
            x * 2
            Cycle()
            if i % 7 == 0:
                s.synchronize()

def of_pycuda():  # without Python's lock
    context.push()
    for i in range(200):
        context.synchronize()
        drv.mem_alloc(8)  # with it
    context.pop()

threads = [threading.Thread(target=target) for target in (of_cupy, of_pycuda) * 2]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

FORK = """
_work.queue("work", lambda: time.sleep(1), [view], [])
thread = threading.Thread(target=cupy.cuda.Device(0).synchronize)
thread.start()
time.sleep(0.3)  # now the thread has the driver's lock
child = os.fork()
if not child:
    try:
        cupy.zeros(3)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        os._exit("cudaErrorInitializationError" not in str(error))
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

EXIT = """
def work_for_ever():
    while True:
        _work.queue("work", lambda: time.sleep(0.01), [view], [])
        cupy.cuda.Device(0).synchronize()

class Late:  # calls the driver when the threads cannot get Python's lock any more
    def __del__(self, call=hostcuda.pending):
        call()

for _ in range(3):
    threading.Thread(target=work_for_ever, daemon=True).start()
time.sleep(0.5)
late = Late()
"""


@pytest.mark.parametrize("order", ["latest", "random"])
@pytest.mark.parametrize("program", [THREADS, FORK, EXIT], ids=["run", "fork", "exit"])
def test_threads_do_not_wait_for_each_other_for_ever(program, order, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(START + program)
    command = [sys.executable, "-m", "hostcuda", "--order", order, "--no-pool", path]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
