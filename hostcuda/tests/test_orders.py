"""Other legal orders of queued work, and races that they show."""

import re
import subprocess
import sys

import pytest

START = """
import cupy, numpy as np, pycuda.autoprimaryctx, pycuda.driver as drv
from pycuda import gpuarray

def in_cupy(a):
    memory = cupy.cuda.UnownedMemory(int(a.gpudata), a.nbytes, a)
    return cupy.ndarray(a.shape, a.dtype, cupy.cuda.MemoryPointer(memory, 0))

h = drv.pagelocked_empty(4, np.float32)
h[:] = 7
a = gpuarray.zeros(4, np.float32)
x, s, t = in_cupy(a), drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
done = cupy.cuda.Event(disable_timing=True)
drv.Context.synchronize()
"""
RACE = """
for value in range(7, 15):  # new streams, since a random order has a haste for each
    h[:], s, t = value, drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    a.set_async(h, stream=s)
    with t:
        y = x * 2  # may run before the copy
        s.synchronize()
        print(y.get()[0])
"""
USUAL = "".join(f"{2 * value}.0\n" for value in range(7, 15))
RACE_IN_A_TEST = RACE.replace("\n", "\n    ").replace(
    "print(y.get()[0])", "assert y.get()[0] == 2 * value"
)
NO_RACE = RACE.replace("with t:", "drv.Event().record(s).synchronize()\n    with t:")
# Neither the latest nor the earliest order is wrong.
TWO = """
with t:
    y = x + 1
    done.record()
a.set_async(h, stream=s)
t.synchronize()
s.synchronize()
print(y.get())
"""


@pytest.fixture
def run(run_program):
    return lambda script, *options: run_program(START + script, *options)


@pytest.mark.parametrize("order", [(), ("--order", "latest"), ("--order", "earliest")])
def test_latest_and_earliest_hide_this_race(order, run):
    done = run(RACE, *order)
    assert (done.stdout, done.stderr) == (USUAL, "")


def test_some_random_order_shows_it_each_time(run):
    def printed(seed):
        return run(RACE, "--order", "random", "--seed", str(seed)).stdout

    found = next((seed, text) for seed in range(30) if (text := printed(seed)) != USUAL)
    assert found[1].count("\n") == 8
    assert printed(found[0]) == found[1]


@pytest.mark.parametrize("script", [RACE, TWO])
def test_orders_name_the_work_that_races(script, run):
    done = run(script, "--orders", "20")
    assert done.returncode == 1
    assert "hostcuda: a race: " in done.stderr
    assert re.search(r"a copy of 16 bytes of program.py:\d+ \(on stream ", done.stderr)
    assert re.search(r"kernel cupy_\w+ of program.py:\d+ ", done.stderr)
    assert "of a block of 16" in done.stderr


# A graph's input is written again before its launch; two threads have default streams of their own.
OF_A_GRAPH = """
with t:
    t.begin_capture()
    y = x + 1
    graph = t.end_capture()
    for value in range(3):
        a.fill(value)
        graph.launch()
        t.synchronize()
        print(y.get()[0])
"""
OF_THREADS = """
import threading
def write():
    with cupy.cuda.Stream.ptds:
        x[:] = 7
thread = threading.Thread(target=write)
thread.start()
thread.join()
with cupy.cuda.Stream.ptds:
    print((x + 1).get())
"""


@pytest.mark.parametrize(
    ("script", "first", "second"),
    [
        (
            OF_A_GRAPH,
            r"kernel fill of .*:\d+ \(on the default stream\)",
            r"kernel cupy_add\w* of .*:\d+ ",
        ),
        (OF_THREADS, r"kernel cupy_fill of .*:\d+ ", r"kernel cupy_add\w* of .*:\d+ "),
    ],
    ids=["a graph", "threads"],
)
def test_graphs_and_default_streams_of_threads_race(script, first, second, run):
    done = run(script, "--orders", "20")
    assert done.returncode == 1, done.stderr
    assert re.search(f"a race: {first}.*{second}", done.stderr), done.stderr


def test_ordered_work_prints_the_same_in_every_order(run):
    done = run(NO_RACE, "--orders", "5")
    assert (done.returncode, done.stdout) == (0, USUAL)
    assert done.stderr == "hostcuda: the same output in 5 orders\n"


def test_a_program_that_never_prints_the_same_is_not_compared(run):
    done = run("import time; print(time.time_ns())", "--orders", "3")
    assert done.returncode == 1
    assert "two runs in the same order differ" in done.stderr


def test_the_race_of_a_program_that_asserts_is_named(run):
    script = "found = []" + RACE.replace("print(y.get()[0])", "found.append(y.get()[0] / 2)")
    done = run(script + "assert found != [*range(7, 15)]", "--orders", "20")
    assert done.returncode == 1
    assert "hostcuda: a race: " in done.stderr


@pytest.fixture
def run_suite(tmp_path):
    def run(tests, *options):
        (tmp_path / "test_it.py").write_text(f"{START}\n{tests}")
        command = ["-m", "hostcuda", *options, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path
        )

    return run


def test_the_race_of_a_test_suite_is_named(run_suite):
    fails = "\ndef test_that_fails_anyway(): assert False\n"
    done = run_suite(f"def test_it():{RACE_IN_A_TEST}{fails}", "--orders", "20")
    assert done.returncode == 1
    assert "-test_it.py::test_it passed\n+test_it.py::test_it failed\n" in done.stderr
    assert "___ test_it.py::test_that_fails_anyway ___" in done.stdout
    assert "___ test_it.py::test_it ___" in done.stderr
    assert "hostcuda: a race: a copy of 16 bytes of test_it.py:" in done.stderr


KERNEL = """
f = cupy.RawKernel('extern "C" __global__ void f(float *x, int n) { x[n] = 1; }', "f")
def test_it():
    f((1,), (1,), (x, 4))
"""


def test_what_a_suite_damages_is_printed_in_each_order(run_suite):
    done = run_suite(KERNEL, "--orders", "3")
    assert done.returncode == 1
    assert re.match(
        r"test_it.py::test_it failed\nhostcuda: kernel f, block \(0,0,0\), thread \(0,0,0\): "
        r"writes 4 bytes, 0 bytes behind the end of a block of 16 bytes \(line 1\)\n_+ test_it",
        done.stdout,
    )
    assert done.stderr == (
        "hostcuda: the same output in 3 orders; the program fails in each, with exit status 1\n"
    )


def test_a_module_that_cannot_be_imported_is_named(run_suite):
    done = run_suite("import a_module_that_is_missing", "--orders", "2")
    assert done.returncode == 2
    assert "ModuleNotFoundError: No module named 'a_module_that_is_missing'" in done.stdout


def test_pytest_has_no_warning_of_the_driver(run_suite):
    done = run_suite("def test_nothing(): pass")
    assert "1 passed" in done.stdout
    assert "warning" not in done.stdout


def test_a_program_that_fails_in_every_order_keeps_its_status(run):
    done = run("raise SystemExit(3)", "--orders", "3")
    assert (done.returncode, done.stderr) == (
        3,
        "hostcuda: the same output in 3 orders; the program fails in each, with exit status 3\n",
    )


COLUMNS = """
kernel = cupy.RawKernel(
    'extern "C" __global__ void f(float *m, int c, float v) { m[4 * threadIdx.x + c] += v; }', "f"
)
m, other = cupy.zeros((8, 4), np.float32), cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()
for column, stream in enumerate((t, other, t, other)):
    with stream:
        kernel((1,), (8,), (m, column, np.float32(column + 1)))
a.set_async(h, stream=s)
with t:
    x *= 2
cupy.cuda.Device().synchronize()
print(m.get().sum(), x.get())
"""


def test_work_on_other_bytes_of_a_block_does_not_race(run):
    done = run(COLUMNS, "--orders", "20")
    assert done.returncode == 1
    assert done.stderr.count("hostcuda: a race: ") == 1
    assert "a copy of 16 bytes of program.py:" in done.stderr


POINTERS = """
kernel = cupy.RawKernel(
    'extern "C" __global__ void f(float **m, float *o) { o[1] = m[0][2]; }', "f"
)
o = cupy.zeros(4, np.float32)
pointers = cupy.array([x.data.ptr], np.uint64)
cupy.cuda.Device().synchronize()
a.set_async(h, stream=s)
with t:
    kernel((1,), (1,), (pointers, o))
cupy.cuda.Device().synchronize()
print(o)
"""


def test_a_kernel_that_reads_through_a_pointer_in_memory_races(run):
    done = run(POINTERS, "--orders", "20")
    assert done.returncode == 1
    assert "are not ordered, and both use bytes 8 to 12 of a block of 16" in done.stderr
    assert done.stderr.count("hostcuda: a race: ") == 1


def test_orders_print_what_checks_find(run):
    done = run("print(1); cupy.empty_like(x) + 1; x.get()", "--no-pool", "--orders", "3")
    assert (done.returncode, done.stdout) == (70, "1\n")
    assert "bytes 0 to 4 of a block of 16, which nothing has written" in done.stderr
    assert done.stderr.endswith("hostcuda: the same output in 3 orders\n")


# Right if threads and blocks run as they are numbered.
UNORDERED = {
    "no barrier": "__shared__ int s[256]; s[i] = i; x[i] = i ? s[i - 1] : 0;",
    "no second barrier": """
        __shared__ int s[256];
        s[i] = i;
        for (int d = 1; d < 256; d *= 2) {
            __syncthreads();
            int y = i + d < 256 ? s[i + d] : 0;
            s[i] += y;
        }
        x[i] = s[i];
    """,
    "blocks": "if (!i) x[blockIdx.x] = blockIdx.x ? x[blockIdx.x - 1] + 1 : 1;",
}


@pytest.mark.parametrize("body", UNORDERED)
def test_an_order_of_threads_or_blocks_shows(body, run):
    script = f"""
f = cupy.RawKernel('''extern "C" __global__ void f(int *x) {{
    int i = threadIdx.x; {UNORDERED[body]}
}}''', "f")
x = cupy.zeros(256, np.int32)
f((8,) if {body == "blocks"} else (1,), (256,), (x,))
print(x.sum())
"""
    assert run(script).stdout == run(script, "--order", "earliest").stdout
    outputs = [run(script, "--order", "random", "--seed", "3").stdout for _ in range(2)]
    assert outputs[0] == outputs[1] != run(script).stdout
    done = run(script, "--orders", "5")
    assert done.returncode == 1
    said = "nothing orders the blocks" if body == "blocks" else "with no barrier between them"
    assert re.search(rf"hostcuda: kernel f, block .* {said}\n", done.stderr)
    assert "a race: " not in done.stderr
    assert done.stderr.endswith("makes the difference: see what --check finds, above\n")


def test_sums_of_floats_by_atomics_depend_on_the_order(run):
    script = """
f = cupy.RawKernel('''extern "C" __global__ void f(float *x) {
    atomicAdd(x, threadIdx.x ? 0.4f : 16777216.0f);
}''', "f")
x = cupy.zeros(1, np.float32)
f((1,), (64,), (x,))
print(int(x[0]))
"""
    done = run(script, "--orders", "9")
    assert done.returncode == 1
    assert "--check finds no race: are floats added by atomics" in done.stderr


# The pool gives y, in the order of the default stream, the memory that t's work still reads.
DROPPED = """
z = cupy.ones(1000)
cupy.cuda.Device().synchronize()
with t:
    out = z * 2
{wait}
del z
y = cupy.zeros(1000)
t.synchronize()
print(int(out.get(stream=t).sum()))
"""


def test_an_array_dropped_while_another_stream_uses_it_races(run):
    done = run(DROPPED.format(wait=""), "--orders", "20")
    assert done.returncode == 1
    assert re.search(
        r"a race: kernel cupy_multiply\w* of .*:19 \(on stream \d\) and a free of 8000 bytes of "
        r".*:21 \(on the default stream\)",
        done.stderr,
    ), done.stderr
    fixed = run(
        DROPPED.format(wait="cupy.cuda.Stream.null.wait_event(t.record())"), "--orders", "5"
    )
    assert (fixed.returncode, fixed.stdout) == (0, "2000\n"), fixed.stderr


def test_an_array_dropped_in_a_capture_goes_when_it_ends(run):
    script = """
z = cupy.ones(8)
cupy.cuda.Device().synchronize()
with t:
    inside = cupy.ones(8)
    t.synchronize()
    t.begin_capture()
    out = inside + z
    del inside, z
    graph = t.end_capture()
    {}
t.synchronize()
"""
    done = run(script.format("pass"), "--no-pool")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(script.format("graph.launch()"), "--no-pool")
    assert "reads 8 bytes, 0 bytes into a block of 64 bytes that was freed" in done.stderr


def test_addresses_in_messages_are_not_compared(run):
    script = """
f = cupy.RawKernel('extern "C" __global__ void f(int *x) { x[100000000] = 1; }', "f")
f((1,), (1,), (x,))
try:
    cupy.cuda.Device().synchronize()
except cupy.cuda.runtime.CUDARuntimeError:
    print("failed")
    import os; os._exit(0)
"""
    done = run(script, "--orders", "3")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("hostcuda: the same output in 3 orders\n")


def test_an_exception_stays_while_destructors_call_the_driver(run):
    script = """
def fails():
    mine = [gpuarray.zeros(4, np.float32), cupy.zeros(4)]
    raise KeyError("mine")
try:
    fails()
except KeyError as error:
    print(error)
"""
    done = run(script, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "'mine'\n", "")
