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


def test_clocks_forget_streams_that_have_ended(run_program, tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTCUDA_TRACE", str(tmp_path / "trace"))
    program = """
for _ in range(20):
    with cupy.cuda.Stream(non_blocking=True): twice(x)
    cupy.cuda.Device().synchronize()
"""
    run_program(START + "    pass" + program, "--check", "--pool")
    last = (tmp_path / "trace").read_text().rpartition("work ")[2]
    assert "kernel twice" in last
    assert len(re.findall("^after", last, re.MULTILINE)) <= 3
