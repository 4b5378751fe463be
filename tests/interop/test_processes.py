"""Processes and their ends: each case in interpreters of its own, exit status and empty stderr."""

import pathlib
import sys
import textwrap

import pytest
from processes import install

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


def ends(done, status=0, stdout=""):
    assert (done.returncode, done.stdout, done.stderr) == (status, stdout, "")


@pytest.fixture
def run(python):
    """Run a script after `USE`, and assert how it ends."""
    return lambda script, *end: ends(python(USE + script), *end)


@pytest.fixture
def script(python, tmp_path):
    """Run a script that has a file: processes that are spawned import it."""

    def script(text):
        file = tmp_path / "script.py"
        file.write_text(install() + textwrap.dedent(USE) + textwrap.dedent(text))
        ends(python(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"))

    return script


# ---- fork ----------------------------------------------------------------------------------------


FORK = """
def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_a_child_forked_before_cuda_is_used_works(run):
    """A decorator has not used it."""
    script = f"""{FORK}
work = bridge.primary_context(0)(use)
def child():
    for _ in range(2):  # the second time, this process itself has used CUDA
        print(work(), flush=True)
print(fork(child), flush=True)
child()
"""
    twice = 2 * f"{RESULT}\n"
    run(script, 0, f"{twice}3\n{twice}")


BEFORE_THE_FORK = {
    "bridge.autoinit": "import bridge.autoinit",
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
    try:
        gpuarray.zeros(4, np.float32)
    except drv.Error as error:
        hinted = "bridge.autoinit" in sys.modules
        assert ("; CUDA does not survive fork()" in str(error)) == hinted, error
    views.clear()
"""


@pytest.mark.parametrize("before", BEFORE_THE_FORK.values(), ids=BEFORE_THE_FORK)
def test_a_child_forked_after_cuda_was_used_gets_an_error_and_ends(before, run):
    script = f"""{before}
{INHERIT}
{FORK}
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
    run(script, 0, f"3\n{RESULT}\n")


def test_pycuda_aborts_a_forked_child_at_sys_exit(python):
    """A control of what the limits say."""
    done = python(f"""{USE}{FORK}
import bridge.autoinit
print(fork(lambda: sys.exit(0)) < 0, flush=True)
""")
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert "The context stack was not empty" in done.stderr


# ---- spawn, forkserver, executors ----------------------------------------------------------------


WORK = """
import concurrent.futures, multiprocessing

@bridge.primary_context()
def work(start):
    return use(start)

def main():
    import bridge.autoinit
    return use()

EXPECTED = [[2.0 * (i + j + 2) + 1 for j in range(4)] for i in range(6)]
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_are_started_anew_work(method, script):
    script(f"""{WORK}
if __name__ == "__main__":
    here = work(0)  # the parent's CUDA is in use
    context = multiprocessing.get_context({method!r})
    process = context.Process(target=work, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0
    with context.Pool(1) as pool:
        assert pool.map(work, range(6)) == EXPECTED
        assert pool.apply(main) == EXPECTED[0]  # autoinit in the child
        pool.close()
        pool.join()
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        assert list(executor.map(work, range(6))) == EXPECTED
    assert here == work(0) == EXPECTED[0]
""")


@pytest.mark.parametrize("parent", ["import bridge.autoinit", "pass"])
def test_a_thread_pool_of_futures_works(parent, run):
    run(f"""{WORK}
{parent}
with concurrent.futures.ThreadPoolExecutor(3) as executor:
    assert list(executor.map(work, range(6))) == EXPECTED
    assert not any(executor.map(lambda _: drv.Context.get_current(), range(6)))
    failed = executor.submit(use).exception()
    assert isinstance(failed, Exception), failed  # a task without a context
    assert list(executor.map(work, range(6))) == EXPECTED
executor = concurrent.futures.ThreadPoolExecutor(2)  # joined at exit
pending = [executor.submit(work, i) for i in range(6)]
""")


# ---- the end of an interpreter -------------------------------------------------------------------


MAKE = """
def make():
    a = gpuarray.to_gpu(np.arange(4.0))
    x = bridge.as_cupy(a)
    y = cupy.zeros(4)
    b = bridge.as_pycuda(y, stream=drv.Stream(1))
    return [a, x, y, b, bridge.as_cupy(gpuarray.to_gpu(np.arange(4), allocator=pool.allocate))]
"""


@pytest.mark.parametrize("started", ["import bridge.autoinit", "pass"])
def test_users_handlers_of_atexit_convert_and_launch(started, python):
    script = f"""
import atexit
atexit.register(lambda: late("before"))
{USE}
{MAKE}
def late(name):
    with bridge.primary_context():
        made = make()
        print(name, use(), flush=True)
        kept.append(made)  # alive when the modules go
kept = []
{started}
with bridge.primary_context():
    pool = DeviceMemoryPool()
    late("now")
atexit.register(late, "after")
"""
    ends(python(script), 0, f"now {RESULT}\nafter {RESULT}\nbefore {RESULT}\n")


def test_what_kernels_print_is_seen_though_the_program_ends_without_waiting(run):
    script = r"""
import bridge.autoinit
printing = 'printf("thread %d\\n", threadIdx.x);'
hello = bridge.SourceModule("#include <stdio.h>\n__global__ void hello() { %s }" % printing)
hello.get_function("hello")(block=(2, 1, 1))
"""
    run(script, 0, "thread 0\nthread 1\n")


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
def test_a_thread_at_exit(main, work, run):
    run(f"""{MAKE}
{main}
kept, started = [], threading.Event()
with bridge.primary_context():
    pool = DeviceMemoryPool()
    held = make()
{work}
threading.Thread(target=work, daemon={"for _ in" not in work}).start()
started.wait()
""")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python lets such threads be")
def test_a_daemon_thread_that_never_leaves_ends_the_process(python):
    """A control of what the guide's limits say: Python ends a thread in the midst of C++.

    Beside other work, more than half of the runs end before any thread is there, so there are many.
    """
    script = f"""{USE}{MAKE}
def work():
    with bridge.primary_context():
        while True:
            kept[:] = make()
            started.set()
kept, started = [], threading.Event()
pool = bridge.primary_context()(lambda: DeviceMemoryPool())()
for _ in range(6):
    threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    said = ("The context stack was not empty", "FATAL: exception not rethrown", "terminate called")

    def is_ended():
        done = python(script)
        aborted = done.returncode == -6 and any(text in done.stderr for text in said)
        return aborted or done.returncode == -11

    assert any(is_ended() for _ in range(12))


AUTOINIT, NOTHING = "import bridge.autoinit", "pass"


@pytest.mark.parametrize(("leave", "status"), [("sys.exit(4)", 4), ("", 0)], ids=["exit", "end"])
@pytest.mark.parametrize("started", [AUTOINIT, NOTHING])
def test_a_process_ends_inside_of_a_primary_context(started, leave, status, run):
    script = f"""{MAKE}
{started}
with bridge.primary_context(), bridge.primary_context(0):
    pool = DeviceMemoryPool()
    views = make()
    with bridge.as_cupy_stream(drv.Stream(1)):
        views += make(), cupy.zeros(4)
        {leave}
"""
    run(script, status)


UNHANDLED = {
    "an exception": (AUTOINIT, "raise ValueError('mine')", 1, "ValueError: mine"),
    "Ctrl-C": (NOTHING, "signal.raise_signal(signal.SIGINT)", -2, "KeyboardInterrupt"),
}


@pytest.mark.parametrize(("started", "fails", "status", "said"), UNHANDLED.values(), ids=UNHANDLED)
def test_what_nobody_handles_ends_a_process_as_python_does(started, fails, status, said, python):
    done = python(f"""{USE}{MAKE}
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
{started}
def fail(*views):
    {fails}
with bridge.primary_context():
    pool = DeviceMemoryPool()
    fail(*make())
""")
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
def test_an_exception_of_a_signals_handler_leaves_nothing_behind(work, run):
    run(INTERRUPT + work)


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
