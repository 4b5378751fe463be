"""The tables of docs/guide.md: which streams a call comes after, and which ones come after it."""

import itertools
import re
from types import SimpleNamespace

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from processes import ROOT
from races import CUPY_STREAMS, PYCUDA_STREAMS, UNORDERED

import bridge

N = 1000
HOST_WAITS = ": the host waits"
WAIT = 0.02  # seconds
LIBRARIES = "| call | after all earlier work of | before all later work of |"
STREAMS_AND_BOTH = "| call | runs on | after the work on | before later work on |"
PAGE = (ROOT / "docs" / "guide.md").read_text()


def rows_below(head):
    """Return the rows of a table of the guide, each a list of cells."""
    _, *lines = PAGE.partition(f"{head}\n")[2].splitlines()
    return [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]


TABLE = {
    call.strip("`"): [column.replace("current", "CuPy") for column in columns]
    for calls, *columns in [
        *([calls, "none", *columns] for calls, *columns in rows_below(LIBRARIES)),
        *rows_below(STREAMS_AND_BOTH),
        ["`kernel(x)`", "current", "none", "none"],  # the sentence between the tables
        ["any other call", "its stream", "none", "none"],
    ]
    for call in re.split(r"(?<=`), (?=`)", calls)
}


CALLS = {  # none changes the first N elements
    "as_cupy(a)": lambda o: bridge.as_cupy(o.a),
    "cupy.from_dlpack(a)": lambda o: cupy.from_dlpack(o.a),
    "as_pycuda(x)": lambda o: bridge.as_pycuda(o.x),
    "as_cupy(a, stream=s)": lambda o: bridge.as_cupy(o.a, stream=o.s),
    "as_pycuda(x, stream=s)": lambda o: bridge.as_pycuda(o.x, stream=o.s),
    "kernel(a)": lambda o: o.kernel(o.a, block=1),
    "kernel(a, stream=s)": lambda o: o.kernel(o.a, block=1, stream=o.s),
    "kernel(x, stream=s)": lambda o: o.kernel(o.x, block=1, stream=o.s),
    "launch(function, a)": lambda o: bridge.launch(o.function, o.a, block=1),
    "wrapped(x)": lambda o: o.wrapped(o.x),
    "a == x": lambda o: o.a == o.x,
    "a < x": lambda o: o.a < o.x,
    "a ** x": lambda o: o.a**o.x,
    "a + x": lambda o: o.a + o.x,
    "a - x": lambda o: o.a - o.x,
    "a * x": lambda o: o.a * o.x,
    "a += x": lambda o: o.a.__iadd__(o.x),
    "a[:] = x": lambda o: o.a.__setitem__(slice(N, None), o.x[N:]),
    "cupy.asarray(a)": lambda o: cupy.asarray(o.a),
    "cupy.add(x, a)": lambda o: cupy.add(o.x, o.a),
    "x + a": lambda o: o.x + o.a,
    "x == a": lambda o: o.x == o.a,
    "x += a": lambda o: o.changed.__iadd__(o.a),
    "x[:] = a": lambda o: o.changed.__setitem__(slice(None), o.a),
    "with ordered():": lambda o: bridge.ordered()(lambda: None)(),
    "wait_stream(s, t)": lambda o: bridge.wait_stream(o.s, o.t),
    "kernel(x)": lambda o: o.kernel(o.x, block=1),
    "any other call": lambda o: (bridge.as_cupy(o.a, stream=-1), bridge.as_pycuda(o.x, stream=-1)),
}
STREAMS = {"p": "PyCUDA", "other p": "PyCUDA", "c": "CuPy", "s": "`s`", "t": "`t`"}


def test_the_tables_have_these_calls():
    assert [*TABLE] == [*CALLS]


def is_ordered(call, one, other):
    """Tell whether a call makes one stream wait for another, by the table."""
    runs_on, after, before = TABLE[call]
    first, second = STREAMS[one], STREAMS[other]
    is_after = first in after.removesuffix(HOST_WAITS).split(", ")
    is_before = second in before.split(", ") or before == "all"
    if after.endswith(HOST_WAITS) and is_after:
        return True
    return (is_after and (is_before or second == runs_on)) or (first == runs_on and is_before)


def pairs(call):
    of_pycuda_and_cupy = [name for name in STREAMS if len(STREAMS[name]) > 3]
    named = [name for name in "st" if re.search(rf"\b{name}\b", call)]
    return [(call, *pair) for pair in itertools.permutations(of_pycuda_and_cupy + named, 2)]


@pytest.fixture(scope="module")
def objects():
    source = 'extern "C" __global__ void nothing(int *x) {}'
    image, _ = cupy.cuda.compiler.compile_using_nvrtc(source)
    return SimpleNamespace(
        kernel=bridge.SourceModule(source, no_extern_c=True).get_function("nothing"),
        function=drv.module_from_buffer(image).get_function("nothing"),
        wrapped=bridge.wrap_pycuda(lambda a: None),
        # A view: operators of another array drop a view of theirs, which orders streams, too.
        a=bridge.as_pycuda(cupy.asarray(np.zeros(N + 1, np.int32))),
        x=cupy.asarray(np.zeros(N + 1, np.int32)),
        changed=cupy.asarray(np.zeros(N + 1, np.int32)),
        sevens=cupy.asarray(np.full(N, 7, np.int32)),
        copy=cupy.asarray(np.zeros(N, np.int32)),
        c=cupy.cuda.Stream(non_blocking=True),
        **{name: drv.Stream(1) for name in ("p", "other p", "s", "t")},
    )


def copy_on(stream, to, source):
    handle = stream.ptr if isinstance(stream, cupy.cuda.Stream) else stream.handle
    cupy.cuda.runtime.memcpyAsync(to, source, 4 * N, cupy.cuda.runtime.memcpyDeviceToDevice, handle)


@pytest.mark.parametrize(("call", "one", "other"), [case for call in CALLS for case in pairs(call)])
def test_the_guide_says_who_waits(call, one, other, objects, latch):
    """One stream writes behind a latch; the call comes; the other stream reads."""
    writer, reader = vars(objects)[one], vars(objects)[other]
    expected = is_ordered(call, one, other)
    host_waits = HOST_WAITS in TABLE[call][1] and STREAMS[one] == "PyCUDA"
    shared, copy = int(objects.a.gpudata), objects.copy.data.ptr
    objects.a.set(np.zeros(N + 1, np.int32))
    with objects.c:
        CALLS[call](objects)  # compiles
    with latch.hold(writer, WAIT * host_waits):
        copy_on(writer, shared, objects.sevens.data.ptr)
        with objects.c:
            kept = CALLS[call](objects)
        copy_on(reader, copy, shared)
        if not expected:
            reader.synchronize()
    del kept  # to drop a view orders streams
    assert set(objects.copy.get().tolist()) == ({7} if expected else {0})


def test_the_guide_says_which_pairs_cuda_orders():
    head = "| CuPy's stream | PyCUDA's default stream | `Stream()` | `Stream(1)`, non-blocking |"
    rows = rows_below(head)
    told = [cell == "old data" for _, *cells in rows for cell in cells]
    assert told == [(c, p) in UNORDERED for c in CUPY_STREAMS for p in PYCUDA_STREAMS]
    assert (sum(told), len(told)) == (8, 12)
