"""Processes and their ends: each case in interpreters of its own, exit status and empty stderr."""

from __future__ import annotations

import pathlib
import sys
import textwrap

import pytest
from conftest import install

import bridge

pytestmark = pytest.mark.starts

USE = """
import os, sys, threading, warnings
import numpy as np, cupy, pycuda.driver as drv, bridge
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

# Of fork() beside the threads of NumPy and of CUDA, since Python 3.12.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

ADD = "__global__ void add(float *x, float a) { x[threadIdx.x] += a; }"

def use(start=0):
    a = gpuarray.to_gpu(np.arange(start, start + 4, dtype=np.float32))
    x = bridge.as_cupy(a)
    add = bridge.SourceModule(ADD).get_function("add")
    add(x, 2, block=4)
    b = bridge.as_pycuda(x * 2)
    add(b, 1, block=4)
    return b.get().tolist()
"""
RESULT = [5.0, 7.0, 9.0, 11.0]  # of `use()`


def ends(done, status=0, stdout=None):
    """Assert how a process ended, and return what it printed."""
    assert (done.returncode, done.stderr) == (status, "")
    assert stdout is None or done.stdout == stdout
    return done.stdout


@pytest.fixture
def script(python, tmp_path):
    """Run a script that has a file: processes that are spawned import it."""

    def script(text, **keywords):
        file = tmp_path / "script.py"
        file.write_text(install() + textwrap.dedent(USE) + textwrap.dedent(text))
        return python(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')")

    return script


# ---- fork ----------------------------------------------------------------------------------------


WAYS_TO_FORK = {
    "os.fork": """
def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
""",
    "multiprocessing": """
import multiprocessing
def fork(child):
    def target():
        child()
        sys.stdout.flush()
        sys.exit(3)
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    return process.exitcode
""",
}


def test_a_child_forked_before_cuda_is_used_works(python):
    done = python(
        USE
        + WAYS_TO_FORK["multiprocessing"]
        + """
def child():
    with bridge.primary_context():
        print(use(), flush=True)
print(fork(child), flush=True)
child()
"""
    )
    ends(done, stdout=f"{RESULT}\n3\n{RESULT}\n")


BEFORE_THE_FORK = {
    "bridge.autoinit": "import bridge.autoinit",
    "pycuda.autoprimaryctx": "import pycuda.autoprimaryctx",
    "under primary_context": "left = bridge.primary_context(); left.__enter__()",
    "after primary_context": "",
    # One that lives: the child's first new thread gets its id.
    "another thread's context": """
def make_context():
    with bridge.primary_context():
        pass
    made.set()
    stop.wait()
made, stop = threading.Event(), threading.Event()
threading.Thread(target=make_context).start()
made.wait()
""",
}
INHERIT = """
with bridge.primary_context():
    stream, pool = drv.Stream(1), DeviceMemoryPool()
    a = gpuarray.to_gpu(np.arange(4.0))
    p = gpuarray.to_gpu(np.arange(4.0), allocator=pool.allocate)
    module = bridge.SourceModule(ADD)
    add, again = module.get_function("add"), module.get_function("add").prepare("Pf")
    views = [
        bridge.as_cupy(a), bridge.as_cupy(a, stream=stream), bridge.as_cupy(p),
        bridge.as_pycuda(cupy.zeros(4), stream=stream), bridge.as_pycuda(a, stream=stream),
        bridge.as_cupy(gpuarray.to_gpu(np.arange(4.0), allocator=bridge.pycuda_allocator())),
    ]
    kept = bridge.as_cupy(gpuarray.zeros_like(a)), bridge.as_pycuda(cupy.zeros(4), stream=stream)
    single = cupy.zeros(4, np.float32)
    again(single, 1, grid=(1, 1), block=(4, 1, 1))
    again.prepared_call((1, 1), (4, 1, 1), single.data.ptr, 1)

def child():
    for action in (
        lambda: bridge.as_pycuda(views[0]),
        lambda: bridge.as_cupy(a),
        lambda: add(kept[0], 1, block=4),
        lambda: again(single, 1, grid=(1, 1), block=(4, 1, 1)),
        lambda: again(single, 1, grid=(1, 1), block=(4, 1, 1), stream=stream),
        lambda: again.prepared_call((1, 1), (4, 1, 1), single.data.ptr, 1),
        lambda: bridge.SourceModule(ADD),
        bridge.primary_context().__enter__,
        lambda: bridge.wait_stream(stream, None),
        lambda: bridge.pycuda_allocator()(8),
        bridge.show_memory,
    ):
        try:
            action()
        except bridge.ContextError as error:
            assert "CUDA does not survive fork()" in str(error), error
            assert "multiprocessing.get_context('spawn')" in str(error)
        else:
            raise AssertionError("it worked")
    views.clear()
"""


FORKS = [("bridge.autoinit", "multiprocessing"), *((name, "os.fork") for name in BEFORE_THE_FORK)]


@pytest.mark.parametrize(("before", "way"), FORKS)
def test_a_child_forked_after_cuda_was_used_gets_an_error_and_ends(before, way, python):
    done = python(
        USE
        + BEFORE_THE_FORK[before]
        + INHERIT
        + WAYS_TO_FORK[way]
        + """
print(fork(child))
with bridge.primary_context():  # the parent goes on
    views.clear()
    print(use())
    del stream, pool, a, p, kept, module, single
if "left" in globals():
    drv.Context.pop()
if "stop" in globals():
    stop.set()
"""
    )
    ends(done, stdout=f"3\n{RESULT}\n")


def test_pycuda_aborts_a_forked_child_that_runs_to_the_end_of_the_script(python):
    """A control of what the limits say, and of the above: the bridge is not there."""
    done = python("""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        import pycuda.driver as drv
        drv.init()
        context = drv.Device(0).retain_primary_context()
        context.push()
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        context.pop()
    """)
    assert done.stdout == "-6\n"
    assert "The context stack was not empty" in done.stderr


# ---- spawn, forkserver, executors ----------------------------------------------------------------


IN_THE_PARENT = {
    "bridge.autoinit": "import bridge.autoinit",
    "primary_context": "left.enter_context(bridge.primary_context())",
    "nothing": "pass",
}
WORK = """
import contextlib, multiprocessing, concurrent.futures

@bridge.primary_context()
def work(start):
    return use(start)

def work_and_send(start, connection):
    connection.send(work(start))
    connection.close()

def main():
    import bridge.autoinit
    return use()

EXPECTED = [[2.0 * (i + j + 2) + 1 for j in range(4)] for i in range(6)]
"""


@pytest.mark.parametrize(
    ("method", "parent"), [("spawn", "bridge.autoinit"), ("forkserver", "primary_context")]
)
def test_processes_that_are_started_anew_work(method, parent, script):
    done = script(
        WORK
        + f"""
if __name__ == "__main__":
    with contextlib.ExitStack() as left:
        {IN_THE_PARENT[parent]}
        here = work(0)  # the parent's CUDA is in use
        context = multiprocessing.get_context({method!r})
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=work_and_send, args=(1, sender))
        process.start()
        sender.close()
        assert receiver.recv() == EXPECTED[1]
        process.join()
        assert process.exitcode == 0
        receiver.close()
        with context.Pool(1) as pool:
            assert pool.map(work, range(6)) == EXPECTED
            assert pool.apply(main) == EXPECTED[0]  # autoinit in the child
            pool.close()
            pool.join()
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
            assert list(executor.map(work, range(6))) == EXPECTED
        assert here == work(0) == EXPECTED[0]
"""
    )
    ends(done)


@pytest.mark.parametrize("parent", IN_THE_PARENT.values(), ids=IN_THE_PARENT)
def test_a_thread_pool_of_futures_works(parent, python):
    done = python(
        USE
        + WORK
        + f"""
def with_manager(start):
    with bridge.primary_context():
        return use(start)

with contextlib.ExitStack() as left:
    {parent}
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        for task in (work, with_manager):
            assert list(executor.map(task, range(6))) == EXPECTED
        assert not any(executor.map(lambda _: drv.Context.get_current(), range(6)))
        failed = executor.submit(use).exception()
        assert isinstance(failed, Exception), failed  # a task without a context
        assert list(executor.map(work, range(6))) == EXPECTED
executor = concurrent.futures.ThreadPoolExecutor(2)  # joined at exit
pending = [executor.submit(work, i) for i in range(6)]
"""
    )
    ends(done)


# ---- the end of an interpreter -------------------------------------------------------------------


MAKE = """
def make():
    a = gpuarray.to_gpu(np.arange(4.0))
    x = bridge.as_cupy(a)
    y = cupy.zeros(4)
    b = bridge.as_pycuda(y, stream=drv.Stream(1))
    return [a, x, y, b, bridge.as_cupy(gpuarray.to_gpu(np.arange(4), allocator=pool.allocate))]
"""


AROUND = """
import atexit
def late(name):
    with bridge.primary_context():
        made = make()
        print(name, use(), flush=True)
        kept.append(made)  # alive when the modules go
kept = []
"""


@pytest.mark.parametrize("started", ["import bridge.autoinit", "pass"])
def test_users_handlers_of_atexit_convert_and_launch(started, python):
    done = python(
        "import atexit\natexit.register(lambda: late('before'))\n"
        + USE
        + MAKE
        + AROUND
        + f"""
{started}
with bridge.primary_context():
    pool = DeviceMemoryPool()
    late("now")
atexit.register(late, "after")
"""
    )
    ends(done, stdout=f"now {RESULT}\nafter {RESULT}\nbefore {RESULT}\n")


THREADS_AT_EXIT = {
    "waits inside": """
def work():
    with bridge.primary_context():
        kept = make()
        started.set()
        threading.Event().wait()
""",
    "is none of the daemons": """
def work():
    with bridge.primary_context():
        for _ in range(100):
            kept[:] = make()
            started.set()
""",
}


@pytest.mark.parametrize("work", THREADS_AT_EXIT.values(), ids=THREADS_AT_EXIT)
@pytest.mark.parametrize("main", ["import bridge.autoinit", "pass"])
def test_a_thread_at_exit(main, work, python):
    daemon = "for _ in" not in work
    done = python(
        USE
        + MAKE
        + f"""
{main}
kept, started = [], threading.Event()
with bridge.primary_context():
    pool = DeviceMemoryPool()
    held = make()
{work}
threading.Thread(target=work, daemon={daemon}).start()
started.wait()
"""
    )
    ends(done)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python lets such threads be")
def test_a_daemon_thread_that_never_leaves_ends_the_process(python):
    """A control of what the guide's limits say: Python ends the thread in the midst of C++."""
    done = python(
        USE
        + MAKE
        + """
def work():
    with bridge.primary_context():
        while True:
            kept[:] = make()
            started.set()
kept, started = [], threading.Event()
pool = bridge.primary_context()(DeviceMemoryPool)()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    )
    said = ("The context stack was not empty", "FATAL: exception not rethrown", "terminate called")
    aborted = done.returncode == -6 and any(text in done.stderr for text in said)
    assert aborted or done.returncode == -11


LEAVING = {
    "sys.exit": ("sys.exit(4)", 4),
    "the end": ("", 0),
    "os._exit": ("os._exit(5)", 5),
    "SIGTERM": ("os.kill(os.getpid(), __import__('signal').SIGTERM)", -15),
}


AUTOINIT, NOTHING = "import bridge.autoinit", "pass"
ENDS = [*((way, NOTHING) for way in LEAVING), ("sys.exit", AUTOINIT), ("the end", AUTOINIT)]


@pytest.mark.parametrize(("way", "started"), ENDS)
def test_a_process_ends_inside_of_a_primary_context(started, way, python):
    leave, status = LEAVING[way]
    done = python(
        USE
        + MAKE
        + f"""
{started}
def generate():
    with bridge.primary_context():
        yield make()

with bridge.primary_context(), bridge.primary_context(0):
    pool = DeviceMemoryPool()
    views = make()
    with bridge.as_cupy_stream(drv.Stream(1)):
        views += make(), cupy.zeros(4)
        {leave}
"""
    )
    ends(done, status)


UNHANDLED = {
    "an exception": (AUTOINIT, "raise ValueError('mine')", 1, "ValueError: mine"),
    "Ctrl-C": (NOTHING, "signal.raise_signal(signal.SIGINT)", -2, "KeyboardInterrupt"),
}


@pytest.mark.parametrize(("started", "fails", "status", "said"), UNHANDLED.values(), ids=UNHANDLED)
def test_what_nobody_handles_ends_a_process_as_python_does(started, fails, status, said, python):
    done = python(
        USE
        + MAKE
        + f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
{started}
pool = None
def fail(*views):
    {fails}
with bridge.primary_context():
    pool = DeviceMemoryPool()
    fail(*make())
"""
    )
    first, *lines, last = done.stderr.splitlines()
    assert (done.returncode, first, last) == (status, "Traceback (most recent call last):", said)
    assert all(line.startswith("  ") for line in lines)  # and nothing else


# ---- exceptions of signals' handlers -------------------------------------------------------------


INTERRUPT = """
import gc, random, signal, time
import bridge.autoinit

class Interrupt(KeyboardInterrupt):
    pass

def handler(*_):
    if armed:
        raise Interrupt

ignored = []  # what Python prints of finalizers, and forgets
def note(unraisable):
    global armed
    armed = False
    ignored.append(unraisable.exc_type)

def state():
    gc.collect()
    return {
        "PyCUDA's context": drv.Context.get_current(),  # perhaps twice on its stack: till the exit
        "CUDA's context": cupy.cuda.driver.ctxGetCurrent(),
        "stream": cupy.cuda.get_current_stream(),
        "PyCUDA's pool": pool.active_bytes,
        "CuPy's pool": cupy.get_default_memory_pool().used_bytes(),
    }

def until_interrupted(work):
    while armed:
        work()

def interrupt(work, longest, seconds=1.0):
    global armed
    work()
    before = state()
    hits, end = 0, time.monotonic() + seconds
    while hits < 4 or time.monotonic() < end:  # longer where the machine is busy
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest))
            until_interrupted(work)  # Python 3.13.0's `try` misses what comes as a loop jumps back
        except Interrupt:
            armed = False
            null.use()
            hits += 1
    assert set(ignored) <= {Interrupt}
    assert state() == before, (before, state())
    work()
    assert state() == before

armed = False
signal.signal(signal.SIGALRM, handler)
sys.unraisablehook = note
pool, stream, other = DeviceMemoryPool(), drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
null = cupy.cuda.Stream.null
"""
INTERRUPTED = {
    "contexts": """
def nothing():
    with bridge.primary_context(), bridge.primary_context(0):
        pass
decorated = bridge.primary_context()(nothing)
def work():
    for _ in range(20):
        nothing(), decorated()
interrupt(work, 1e-4)
""",
    "conversions and launches": """
one = bridge.pycuda_allocator()
add = bridge.SourceModule(ADD).get_function("add").prepare("Pf")
def work():
    a = gpuarray.GPUArray(8, np.float32, allocator=one)
    x = bridge.as_cupy(a, stream=stream)
    b = bridge.as_pycuda(x[::2], stream=stream)
    bridge.as_cupy_stream(stream).use()  # Python 3.14 may interrupt `with` before its block
    with bridge.primary_context():
        bridge.as_cupy(b)
        bridge.as_cupy(gpuarray.GPUArray(8, np.float32, allocator=pool.allocate))
    other.use()
    bridge.as_pycuda(cupy.empty(8, np.float32))
    null.use()
    bridge.wait_stream(stream, other)
    add(x, 2, block=8)
    add(a, 3.0, block=(8, 1, 1), grid=(1, 1), stream=stream)
    add(bridge.as_pycuda(x, stream=stream), 1, block=8, stream=other)
    add.prepared_call(1, 8, x.data.ptr, 1.0)
interrupt(work, 1e-3)
assert use() == [5.0, 7.0, 9.0, 11.0]
""",
}


@pytest.mark.parametrize("work", INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_exception_of_a_signals_handler_leaves_nothing_behind(work, python):
    ends(python(USE + INTERRUPT + work))


def test_an_interrupted_write_to_the_cache_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bridge.SourceModule("__global__ void f() {}", cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    bridge.SourceModule("__global__ void f() {}", cache_dir=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".cubin"]


# ---- exceptions inside of each context manager ---------------------------------------------------


MANAGERS = """
import contextlib, gc
import bridge.autoinit
stream = drv.Stream(1)

def state():
    return (
        drv.Context.get_current(),
        cupy.cuda.driver.ctxGetCurrent(),
        cupy.cuda.get_current_stream(),
        cupy.cuda.runtime.getDevice(),
    )

class Mine(Exception):
    pass

MANAGERS = [
    bridge.primary_context,
    lambda: bridge.primary_context(0),
    lambda: bridge.as_cupy_stream(stream),
    lambda: bridge.as_cupy_stream(None),
]
before = state()
"""


def test_an_exception_leaves_every_context_manager(python):
    done = python(
        USE
        + MANAGERS
        + """
for one in MANAGERS:
    for other in MANAGERS:
        try:
            with one() as first, other() as second:
                views = [bridge.as_pycuda(cupy.zeros(4)), bridge.as_cupy(gpuarray.zeros(4, "f"))]
                inside = state()
                raise Mine
        except Mine:
            pass
        assert state() == before
        def generate():
            with one(), other():
                yield bridge.as_pycuda(cupy.zeros(4), stream=stream)
                raise AssertionError("closed early")
        generator = generate()
        next(generator)
        generator.close()
        assert state() == before
        for _ in generate():  # let go of at the break
            break
        gc.collect()
        assert state() == before
use()
"""
    )
    ends(done)


# ---- memory of another process -------------------------------------------------------------------


IPC = """
import multiprocessing

@bridge.primary_context()
def share(library, connection):
    host = np.arange(2000, dtype=np.float32)
    if library == "PyCUDA":
        a = gpuarray.to_gpu(host)[1000:]
        pointer, handle_of = int(a.gpudata), lambda base: bytes(drv.mem_get_ipc_handle(base))
    else:
        a = cupy.asarray(host)[1000:]
        pointer, handle_of = a.data.ptr, cupy.cuda.runtime.ipcGetMemHandle
    base = int(drv.mem_get_address_range(pointer)[0])  # a handle names a whole allocation
    drv.Context.synchronize()
    connection.send((handle_of(base), pointer - base))
    connection.recv()
    connection.send(bridge.as_cupy(a).get().tolist())

@bridge.primary_context()
def add_one(library, connection):
    handle, offset = connection.recv()
    if library == "PyCUDA":
        memory = drv.IPCMemoryHandle(bytearray(handle))  # PyCUDA's type for it; CuPy's is bytes
        a = gpuarray.GPUArray((1000,), np.float32, gpudata=int(memory) + offset)
        array, close = bridge.as_cupy(a), memory.close
    else:
        pointer = cupy.cuda.runtime.ipcOpenMemHandle(handle)
        memory = cupy.cuda.UnownedMemory(pointer, offset + 4000, None)
        x = cupy.ndarray((1000,), np.float32, cupy.cuda.MemoryPointer(memory, offset))
        array = bridge.as_pycuda(x)
        close = lambda: cupy.cuda.runtime.ipcCloseMemHandle(pointer)
    bridge.SourceModule(ADD).get_function("add")(array, 1, block=1000)
    drv.Context.synchronize()
    close()
    connection.send("done")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for shares, opens in (("PyCUDA", "CuPy"), ("CuPy", "PyCUDA")):
        ours, theirs = zip(context.Pipe(), context.Pipe())
        targets = (share, (shares, theirs[0])), (add_one, (opens, theirs[1]))
        processes = [context.Process(target=target, args=args) for target, args in targets]
        for process in processes:
            process.start()
        ours[1].send(ours[0].recv())
        ours[0].send(ours[1].recv())
        assert ours[0].recv() == list(range(1001, 2001))
        for process in processes:
            process.join()
            assert process.exitcode == 0
"""


@pytest.mark.usefixtures("gpu")
def test_memory_of_another_process(script):
    ends(script(IPC))
