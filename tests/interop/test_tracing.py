"""bridge.trace_order says which line of the program let which stream wait."""

import threading

import cupy
import pycuda.driver as drv
import pytest

import bridge
import bridge.autoinit


@pytest.fixture
def streams():
    return drv.Stream(1), cupy.cuda.Stream(non_blocking=True)


def traced(function):
    """Return the source of each line that let streams wait, with the streams' names."""
    with bridge.trace_order() as waits:
        function()
    assert {wait.where.filename for wait in waits} <= {__file__}
    return [(wait.where.line, wait.waiter, wait.awaited) for wait in waits]


def test_each_wait_has_its_line(streams):
    p, c = f"PyCUDA's stream 0x{streams[0].handle:x}", f"CuPy's stream 0x{streams[1].ptr:x}"
    x, zero = cupy.zeros(4), "the default stream"

    def program():
        a = bridge.as_pycuda(x)
        del a
        bridge.as_cupy(x, stream=streams[0])  # CuPy's array is returned as it is
        bridge.wait_stream(streams[1], streams[0])

    waits = traced(program)
    others = ("PyCUDA's stream", "CuPy's stream")  # of tests before, which still live
    mine = [w for w in waits if {p, c} & {*w} or not any(name.startswith(others) for name in w[1:])]
    assert mine == [
        ("a = bridge.as_pycuda(x)", zero, c),
        ("a = bridge.as_pycuda(x)", p, zero),
        ("del a", zero, p),
        ("del a", c, zero),
        ("bridge.as_cupy(x, stream=streams[0])  # CuPy's array is returned as it is", zero, p),
        ("bridge.wait_stream(streams[1], streams[0])", c, p),
    ]


def test_a_wait_is_printed_with_its_place(streams):
    with bridge.trace_order() as waits:
        bridge.wait_stream(streams[1], streams[0])
    place, what = str(waits[0]).splitlines()
    assert place.startswith(f"{__file__}:")
    assert place.endswith(": bridge.wait_stream(streams[1], streams[0])")
    assert what == (
        f"    CuPy's stream 0x{streams[1].ptr:x} waits for PyCUDA's stream 0x{streams[0].handle:x}"
    )


def test_blocks_may_be_nested_and_end(streams):
    def wait():
        bridge.wait_stream(*streams)

    with bridge.trace_order() as outer:
        wait()
        with bridge.trace_order() as inner:
            wait()
        wait()
    wait()
    assert (len(outer), len(inner)) == (3, 1)


def test_other_threads_are_seen(streams):
    thread = threading.Thread(target=bridge.primary_context()(bridge.wait_stream), args=streams)
    with bridge.trace_order() as waits:
        thread.start()
        thread.join()
    assert len(waits) == 1


def test_a_stream_that_ends_is_named():
    stream = drv.Stream(1)
    with bridge.trace_order() as waits:
        del stream
    assert [(w.waiter, w.awaited) for w in waits] == [
        ("the default stream", "a stream that has ended")
    ]


def test_an_object_over_a_stream_of_pycuda_lets_it_wait_once(streams):
    def program():
        with bridge.as_cupy_stream(streams[0]):
            pass

    assert [waiter for _, waiter, _ in traced(program)] == [
        f"both libraries' stream 0x{streams[0].handle:x}"
    ]
    assert traced(program) == []


def test_a_thread_s_own_default_stream_is_met_in_a_call(run):
    """CUDA does not order it with other blocking streams: the default stream waits for those."""
    out = run("""
        blocking, a = drv.Stream(), gpuarray.zeros(3, "f4")
        with cupy.cuda.Stream.ptds, bridge.trace_order() as waits:
            bridge.as_cupy(a)
        print(waits[0].waiter, "waits for", waits[0].awaited[:15])
    """)
    assert out == "the default stream waits for PyCUDA's stream\n"


def test_a_stream_may_end_while_an_error_is_raised():
    with bridge.trace_order() as waits, pytest.raises(ZeroDivisionError):
        print(drv.Stream(1), 1 / 0)
    assert waits[-1].awaited == "a stream that has ended"


@pytest.mark.filterwarnings("ignore:stream in out-of-thread context")  # PyCUDA's
def test_a_stream_may_end_with_its_thread():
    local = threading.local()

    @bridge.primary_context()
    def keep():
        local.stream = drv.Stream(1)

    thread = threading.Thread(target=keep)
    with bridge.trace_order() as waits:
        thread.start()
        thread.join()
    assert [wait.waiter for wait in waits][-1] == "the default stream"
    assert str(waits[-1]).startswith(("the end of a thread:0", __file__, threading.__file__))
