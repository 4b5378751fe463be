"""bridge.trace_order says which line of the program let which stream wait."""

import gc
import threading

import cupy
import pycuda.driver as drv
import pytest
from other_threads import on_a_thread

import bridge
import bridge.autoinit


@pytest.fixture
def streams():
    return drv.Stream(1), cupy.cuda.Stream(non_blocking=True)


def test_each_wait_has_its_line(streams):
    p, c = f"PyCUDA's stream 0x{streams[0].handle:x}", f"CuPy's stream 0x{streams[1].ptr:x}"
    x, zero = cupy.zeros(4), "the default stream"

    with bridge.trace_order() as found:
        a = bridge.as_pycuda(x)
        del a
        bridge.as_cupy(x, stream=streams[0])  # CuPy's array is returned as it is
        bridge.wait_stream(streams[1], streams[0])
    assert {wait.where.filename for wait in found} == {__file__}
    waits = [(wait.where.line, wait.waiter, wait.awaited) for wait in found]
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
        current = bridge.as_cupy_stream(streams[0])
        bridge.wait_stream(streams[1], current)
    place, what = str(waits[-1]).splitlines()
    assert place.startswith(f"{__file__}:")
    assert place.endswith(": bridge.wait_stream(streams[1], current)")
    names = f"CuPy's stream 0x{streams[1].ptr:x}", f"both libraries' stream 0x{current.ptr:x}"
    assert what == "    {} waits for {}".format(*names)


def test_a_folder_beside_a_librarys_is_the_programs(streams):
    name = f"{cupy.__path__[0]}_tools/program.py"
    with bridge.trace_order() as waits:
        exec(
            compile("wait(*streams)", name, "exec"),
            {"wait": bridge.wait_stream, "streams": streams},
        )
    assert [wait.where.filename for wait in waits] == [name]


def test_blocks_may_be_nested_and_see_other_threads(streams):
    def wait():
        bridge.wait_stream(*streams)

    gc.collect()  # what earlier tests left is released, in order
    with bridge.trace_order() as outer:
        wait()
        with bridge.trace_order() as inner:
            on_a_thread(bridge.primary_context()(wait))
        wait()
    wait()
    assert (len(outer), len(inner)) == (3, 1)


def dropped():
    drv.Stream(1)


def while_an_error_is_raised():
    with pytest.raises(ZeroDivisionError):
        print(drv.Stream(1), 1 / 0)


def with_its_thread():
    local = threading.local()
    on_a_thread(bridge.primary_context()(lambda: setattr(local, "stream", drv.Stream(1))))


@pytest.mark.filterwarnings("ignore:stream in out-of-thread context")  # PyCUDA's
@pytest.mark.parametrize("end", [dropped, while_an_error_is_raised, with_its_thread])
def test_a_stream_that_ends_is_named(end):
    with bridge.trace_order() as waits:
        end()
    assert waits[-1][:2] == ("the default stream", "a stream that has ended")
    assert str(waits[-1]).startswith(("the end of a thread:0", __file__, threading.__file__))
