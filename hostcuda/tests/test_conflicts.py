"""`hostcuda.conflicts` names work that nothing orders, whenever it happens to run."""

import re

import pytest

START = """
import hostcuda, cupy
x = cupy.zeros(4)
twice = cupy.ElementwiseKernel("", "float64 x", "x = 2 * x", "twice")
s, t = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
e, f, g = (cupy.cuda.Event(disable_timing=True) for _ in range(3))
twice(x)
with hostcuda.conflicts() as found:
"""
BOTH = """
    with s: twice(x); e.record()
    {between}
    with t: twice(x)
"""
BRANCHES = """
    with s:
        s.begin_capture()
        twice(x); e.record(); t.wait_event(e)
        with t: twice(x); f.record()
        {join}twice(x)
        s.wait_event(f)
        s.end_capture().launch()
"""


@pytest.fixture
def conflicts(run_program):
    def run(block, *options):
        done = run_program(
            START + block + "print(*found, sep='\\n')", "--check", "--pool", *options
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip().splitlines()

    return run


@pytest.mark.parametrize("order", ["latest", "earliest"])
def test_both_and_their_lines_are_named(conflicts, order):
    (found,) = conflicts(BOTH.format(between=""), "--order", order)
    assert re.fullmatch(
        r"kernel twice of program.py:10 \(on stream \d+\) and kernel twice of program.py:12 "
        r"\(on stream \d+\) are not ordered, and both use bytes 0 to 32 of a block of 512",
        found,
    )


@pytest.mark.parametrize(
    "between",
    [
        "t.wait_event(e)",
        "s.synchronize()",
        "cupy.cuda.Device().synchronize()",
        "e.synchronize()",
        "del s; cupy.cuda.Device().synchronize(); t = cupy.cuda.Stream(non_blocking=True)",
    ],
)
def test_what_is_ordered_is_no_conflict(conflicts, between):
    assert conflicts(BOTH.format(between=between)) == []


A_WAIT = "with third: y.fill(0); f.record()\n    cupy.cuda.Stream.null.wait_event(f)"
ON_THE_DEFAULT_STREAM = {
    "an event": ("g.record()", 1),
    "an event, which a third awaits": ("g.record(); third.wait_event(g)", 1),
    "an event, which the second awaits": ("g.record(); t.wait_event(g)", 0),
    "a wait": (A_WAIT, 0),
    "a wait, then an event": (f"{A_WAIT}; g.record()", 0),
    "a kernel": ("y.fill(0)", 0),
    "a copy": ("cupy.cuda.runtime.memcpyAsync(z.data.ptr, y.data.ptr, 8, 3, 0)", 0),
}
STREAMS = """    pass
y, z, third = cupy.zeros(1), cupy.zeros(1), cupy.cuda.Stream(non_blocking=True)
s, t = cupy.cuda.Stream(non_blocking={}), cupy.cuda.Stream(non_blocking={})
cupy.cuda.Device().synchronize()
with hostcuda.conflicts() as found:"""


@pytest.mark.parametrize(
    ("between", "count"), ON_THE_DEFAULT_STREAM.values(), ids=ON_THE_DEFAULT_STREAM
)
def test_an_event_on_the_default_stream_delays_no_blocking_stream(between, count, conflicts):
    found = conflicts(STREAMS.format(False, False) + BOTH.format(between=between))
    assert len(found) == count


@pytest.mark.parametrize(("of_s", "of_t"), [(True, False), (False, True)])
def test_a_wait_on_the_default_stream_orders_no_non_blocking_stream(of_s, of_t, conflicts):
    assert len(conflicts(STREAMS.format(of_s, of_t) + BOTH.format(between=A_WAIT))) == 1


def test_reads_are_no_conflict(conflicts):
    assert conflicts("    with s: x + 1\n    with t: x + 1\n") == []


def test_a_stream_that_has_ended_is_judged(conflicts):
    assert len(conflicts(BOTH.format(between="del s"))) == 1


@pytest.mark.parametrize(("join", "count"), [("", 1), ("s.wait_event(f); ", 0)])
def test_branches_of_a_graph_are_judged(conflicts, join, count):
    assert len(conflicts(BRANCHES.format(join=join))) == count


def test_work_before_the_block_is_not_judged(conflicts):
    assert (
        conflicts("    pass\nwith s: twice(x)\nwith hostcuda.conflicts() as found: twice(x)\n")
        == []
    )


def test_what_raises_in_the_block_is_passed_on(conflicts):
    block = BOTH.format(between="").replace("\n    ", "\n     ")
    block = f"    1\ntry:\n    with hostcuda.conflicts() as found:{block}     1 / 0\n"
    assert len(conflicts(f"{block}except ZeroDivisionError: pass\n")) == 1


def test_without_checks_it_says_what_to_do(run_program):
    done = run_program(START + "    pass")
    assert "RuntimeError: hostcuda: conflicts() must know what kernels use: call" in done.stderr


SYNCHRONIZE = "cupy.cuda.Device().synchronize()\n"


@pytest.fixture
def check(run_program):
    """Return a function that runs a program with --check, and returns the races that it prints."""

    def run(program, *options):
        done = run_program(
            f"{START.rpartition('with')[0]}{SYNCHRONIZE}{program}", "--check", *options
        )
        lines = done.stderr.splitlines()
        assert all(line.startswith("hostcuda: a race: ") for line in lines), done.stderr
        assert done.returncode == (70 if lines else 0)
        return lines

    return run


IN_TURN = """for _ in range(3):
    with s: twice(x); e.record()
    {}
    with t: twice(x)
    t.synchronize()
"""


@pytest.mark.parametrize("order", ["latest", "earliest"])
def test_a_race_is_printed_once_with_both_lines(check, order):
    program = f"{IN_TURN.format('pass')}\n{SYNCHRONIZE}"
    found = check(program, "--order", order)
    assert re.match(
        r"hostcuda: a race: kernel twice of program.py:10 \(on stream \d+\) and kernel twice of "
        r"program.py:12 \(on stream \d+\) are not ordered, and both use bytes 0 to 32 of a block ",
        found[0],
    )
    assert len(found) == 1


@pytest.mark.parametrize(
    "between", ["t.wait_event(e)", "s.synchronize()", "e.synchronize()", "t = s"]
)
def test_ordered_work_prints_nothing(check, between):
    assert check(IN_TURN.format(between)) == []


def test_blocking_streams_and_the_default_one_are_ordered(check):
    program = (
        "s = cupy.cuda.Stream()\nfor _ in range(3):\n    with s: twice(x)\n    twice(x)\nx.get()"
    )
    assert check(program) == []
    found = check(program.replace("Stream()", "Stream(non_blocking=True)"))
    assert len(found) == 3  # the second work, the next turn's first, and the last copy


def test_the_end_of_the_program_is_no_race(check):
    assert check("s.wait_event(cupy.cuda.Stream.null.record())\nwith s: y = x * 2") == []


@pytest.mark.parametrize(("more", "count"), [("", 0), ("x[1] = x[2];", 1)])
def test_atomics_of_two_streams_are_no_race(check, more, count):
    source = f'extern "C" __global__ void f(double *x) {{ atomicAdd(x, 1.0); {more} }}'
    program = f"""
f = cupy.RawKernel({source!r}, "f")
with s: f((1,), (1,), (x,)); e.record()
with t: f((1,), (1,), (x,))
"""
    assert len(check(program)) == count


@pytest.mark.parametrize(("column", "count"), [(16, 0), (8, 1)])
def test_columns_of_a_matrix_are_copied_apart(check, column, count):
    program = f"""
import pycuda.autoprimaryctx, pycuda.driver as drv
m, z = cupy.zeros((4, 4)), cupy.ones(8)
{SYNCHRONIZE}
for column in 0, {column}:
    copy = drv.Memcpy2D()
    copy.set_src_device(z.data.ptr)
    copy.set_dst_device(m.data.ptr + column)
    copy.src_pitch, copy.dst_pitch, copy.width_in_bytes, copy.height = 16, 32, 16, 4
    copy(drv.Stream(1))
"""
    assert len(check(program)) == count


PAGE_LOCKED = """
import numpy as np
memory = cupy.cuda.alloc_pinned_memory(32)
h = np.frombuffer(memory, "f8", 4)
h[:] = 1
z = cupy.zeros(4); cupy.cuda.Device().synchronize()
x.set(h, stream=s)
"""


@pytest.mark.parametrize(
    ("then", "count"),
    [
        ("h[2] = 5", 1),
        ("s.synchronize(); h[2] = 5", 0),
        ("s.record(e); e.synchronize(); h[2] = 5", 0),
        ("y = h.copy()", 0),
        ("x.get(stream=s, out=h, blocking=False); x.set(h, stream=s)", 0),
        ("s.launch_host_func(h.fill, 3); x.set(h, stream=s)", 0),
    ],
)
def test_page_locked_memory_that_the_host_changes(check, then, count):
    found = check(f"{PAGE_LOCKED}{then}\n{SYNCHRONIZE}")
    assert len(found) == count
    for text in found:
        assert re.search(
            r"a copy of 32 bytes of program.py:15 \(on stream \d+\) uses page-locked memory that "
            "the host changes before it waits for this work$",
            text,
        )


def test_page_locked_memory_of_two_streams(check):
    assert len(check(PAGE_LOCKED + "z.get(stream=t, out=h, blocking=False)")) == 1
