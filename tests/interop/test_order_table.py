"""The table of `bridge.interop.ordering`, walked whole: each pair of streams in each capture."""

import contextlib
import itertools

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from cupy.cuda import runtime
from pycuda import gpuarray

import bridge
import bridge.autoinit
from bridge.interop import ordering
from bridge.interop.streams import is_capturing

N = 4096
DEVICE_TO_DEVICE = 3
ALL_PYCUDA_STREAMS = -2
KINDS = {
    "0": lambda: cupy.cuda.Stream.null,
    "blocking": cupy.cuda.Stream,
    "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    "PyCUDA's": lambda: bridge.as_cupy_stream(drv.Stream()),
    "PyCUDA's (1)": lambda: bridge.as_cupy_stream(drv.Stream(1)),
}
# All of PyCUDA's streams: one call, and the work is on any one of them.
ALL = ["all: 0", "all: PyCUDA's", "all: PyCUDA's (1)"]
PAIRS = [
    pair
    for pair in itertools.product([*KINDS, *ALL], repeat=2)
    if pair != ("0", "0") and not (pair[0] in ALL and pair[1] in ALL)
]
CAPTURED = [
    "nothing",
    "another",
    "a blocking one",
    "waiter",
    "awaited",
    "awaited, elsewhere",
    "both",
]
ORDERED, REFUSED, LEFT_OUT, STALE = "ordered", "refused", "left out of the graph", "stale"


def expected(waiter, awaited, captured):
    """Return what the table says."""
    if captured in ("nothing", "another", "both"):
        return ORDERED
    if captured == "a blocking one":
        return REFUSED if {waiter, awaited} & {"0", *ALL} else ORDERED
    one, other = (waiter, awaited) if captured == "waiter" else (awaited, waiter)
    if one in ALL:  # the default stream stands for it, if it can be used itself
        return ORDERED if one == "all: PyCUDA's (1)" else REFUSED
    if other in ALL:
        return LEFT_OUT
    return ORDERED if captured == "awaited" and waiter != "0" else REFUSED


def cells(captured):
    """Return the pairs that there are: the default stream cannot be captured."""
    captive = {"waiter": [0], "both": [0, 1]}.get(captured, [1] if "awaited" in captured else [])
    for pair in PAIRS:
        # A call with all of PyCUDA's streams names CuPy's current stream.
        is_no_call = captured == "awaited, elsewhere" and pair[0] in ALL
        if not is_no_call and not any(pair[end].endswith("0") for end in captive):
            yield pair


def is_ordered_by_cuda(pair):
    """Tell whether they are the default stream and a blocking one, or itself."""
    kinds = {name.removeprefix("all: ") for name in pair}
    return "0" in kinds and kinds <= {"0", "blocking", "PyCUDA's"}


class Cell:
    """Two streams, and work on each: that of the second one is to come first."""

    def __init__(self, *names):
        self.streams = [KINDS[name.removeprefix("all: ")]() for name in names]
        self.handles = [
            ALL_PYCUDA_STREAMS if name in ALL else stream.ptr
            for name, stream in zip(names, self.streams, strict=True)
        ]
        self.x, self.out = cupy.zeros(N, "u1"), cupy.zeros(N, "u1")
        self.graph = None
        self.all = [stream for name, stream in zip(names, self.streams, strict=True) if name in ALL]
        drv.Context.synchronize()

    def is_outside_of(self, captive):
        """Tell whether PyCUDA's streams are ordered with one that is captured."""
        return bool(self.all) and captive in self.streams and captive not in self.all

    def write(self):
        runtime.memsetAsync(self.x.data.ptr, 7, N, self.streams[1].ptr)

    def read(self, finish=False):
        x, out = self.x.data.ptr, self.out.data.ptr
        runtime.memcpyAsync(out, x, N, DEVICE_TO_DEVICE, self.streams[0].ptr)
        if finish:
            self.streams[0].synchronize()

    def order(self):
        try:
            ordering.order(*self.handles)
        except ValueError as error:
            return REFUSED if "captured" in str(error) else str(error)
        return ORDERED

    @contextlib.contextmanager
    def captured(self, stream, is_current=True):
        with stream if is_current else contextlib.nullcontext():
            stream.begin_capture()
            try:
                yield
            finally:
                self.graph = stream.end_capture()

    def result(self, found=ORDERED):
        """Run the graph, which must be whole; tell whether the value arrived."""
        drv.Context.synchronize()
        if self.graph is not None:
            self.graph.launch(cupy.cuda.Stream(non_blocking=True))
            drv.Context.synchronize()
        if found == ORDERED and not (self.out == 7).all():
            return STALE
        return found


def in_a_graph(cell, captured, order):
    """Write, order and read in one capture, of both streams or of the one that is waited for."""
    waiter, awaited = cell.streams
    with cell.captured(awaited):
        if captured == "both":
            bridge.wait_stream(waiter, awaited)  # joins
        cell.write()
        found = order(cell)
        if found == ORDERED:
            cell.read()
        if captured == "both" or found == ORDERED:
            bridge.wait_stream(awaited, waiter)
    return cell.result(found)


def beside_a_capture(cell, captured, order, latch, finish):
    """Write before the capture, order in it, read after it."""
    waiter, awaited = cell.streams
    captive = waiter if captured == "waiter" else awaited
    if captured == "another":
        captive = cupy.cuda.Stream(non_blocking=True)
    elif captured == "a blocking one":
        captive = cupy.cuda.Stream()
    with latch.hold(getattr(awaited, "foreign", awaited)):
        cell.write()
        with cell.captured(captive, captured in ("waiter", "awaited")):
            found = order(cell)
            drawn_in = {one.ptr for one in cell.streams if is_capturing(one.ptr)}
        if found == ORDERED and cell.is_outside_of(captive):
            found = LEFT_OUT
        if found == ORDERED:
            cell.read(finish)
    assert drawn_in <= {captive.ptr}
    return cell.result(found)


def walk(latch, names, captured, order=Cell.order, finish=False):
    """Order two streams while something is captured; return what came of it.

    With `finish`, let the reader come to its end first: it does not wait.
    """
    cell = Cell(*names)
    if captured == "both" or (captured == "awaited" and not {*names} & {*ALL}):
        return in_a_graph(cell, captured, order)
    if captured != "nothing":
        return beside_a_capture(cell, captured, order, latch, finish)
    with latch.hold(getattr(cell.streams[1], "foreign", cell.streams[1])):
        cell.write()
        order(cell)
        cell.read(finish)
    return cell.result()


@pytest.mark.parametrize("captured", CAPTURED)
def test_each_pair_of_streams_in_each_capture(latch, captured):
    found = {pair: walk(latch, pair, captured) for pair in cells(captured)}
    assert found == {pair: expected(*pair, captured) for pair in cells(captured)}


def test_without_the_order_the_value_does_not_arrive(latch):
    for pair in PAIRS:
        expected = ORDERED if is_ordered_by_cuda(pair) else STALE
        nothing = lambda cell: ORDERED  # noqa: E731
        found = walk(latch, pair, "nothing", order=nothing, finish=expected == STALE)
        assert (pair, found) == (pair, expected)


UNKNOWN = "captured into a graph, and the bridge did not see it begin; name the stream"


def test_a_capture_that_cupy_does_not_know_of_is_refused(latch):
    """The default stream then does not stand for the stream."""
    stream = drv.Stream(1)
    a, allocate = gpuarray.zeros(4, "f"), bridge.pycuda_allocator()
    x = bridge.as_cupy(a)
    runtime.streamBeginCapture(stream.handle)
    try:
        for use in lambda: bridge.as_cupy(a), lambda: bridge.as_pycuda(x), lambda: allocate(4):
            with pytest.raises(
                ValueError,
                match=UNKNOWN,
            ):
                use()
    finally:
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))


def test_a_capture_that_was_ended_elsewhere_hides_no_later_one():
    stream = drv.Stream(1)
    a = gpuarray.zeros(4, "f")
    bridge.as_cupy_stream(stream).begin_capture()
    bridge.as_cupy(a)
    runtime.graphDestroy(runtime.streamEndCapture(stream.handle))
    runtime.streamBeginCapture(stream.handle)
    try:
        with pytest.raises(ValueError, match=UNKNOWN):
            bridge.as_cupy(a)
    finally:
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))


def test_the_end_of_a_capture_waits_for_the_default_stream_or_says_that_it_cannot():
    captive, current = cupy.cuda.Stream(), bridge.as_cupy_stream(drv.Stream(1))
    current.begin_capture()
    captive.begin_capture()
    with pytest.raises(ValueError, match="end_capture: the stream cannot wait for the default"):
        current.end_capture()
    captive.end_capture()
    assert not current.is_capturing()


# ---- releases ------------------------------------------------------------------------------------

RELEASES = [
    *itertools.product(KINDS, [*KINDS, *ALL]),  # as_pycuda
    *itertools.product(ALL, KINDS),  # as_cupy of memory of `pycuda_allocator`
]


def release(latch, owner, user, captured, *, stream=None, finish=False):
    """Drop a view while its user is at work, and use the block again.

    Return whether the block was free at once, and what was read in the end.
    """
    at, work = (KINDS[name.removeprefix("all: ")]() for name in (owner, user))
    pool, spare = cupy.cuda.MemoryPool(), gpuarray.GPUArray(1, np.uint8)
    if owner in ALL:
        allocate = bridge.pycuda_allocator(pool)
        current, convert, keywords = work, bridge.as_cupy, {}
        new_array = lambda: gpuarray.GPUArray(N, np.uint8, allocator=allocate)  # noqa: E731
    else:
        current, convert = at, bridge.as_pycuda
        keywords = {} if user in ALL else {"stream": work}

        def new_array():
            with cupy.cuda.using_allocator(pool.malloc), at:
                return cupy.empty(N, np.uint8)

    source = new_array()
    with current:
        view = convert(source, **(keywords if stream is None else {"stream": stream}))
    pointer = int(source.gpudata) if owner in ALL else source.data.ptr
    captive = {
        "owner": at,
        "user": work,
        "another": cupy.cuda.Stream(non_blocking=True),
        "a blocking one": cupy.cuda.Stream(),
    }.get(captured)
    drv.Context.synchronize()
    with latch.hold(getattr(work, "foreign", work)):
        runtime.memsetAsync(pointer, 7, N, work.ptr)
        if captive:
            captive.begin_capture()
        with current:
            del source, view
        is_free = pool.used_bytes() == 0
        if captive:
            captive.end_capture()
            bridge.as_cupy(spare)  # lets go of it
        assert pool.used_bytes() == 0
        again = new_array()
        assert pointer == (int(again.gpudata) if owner in ALL else again.data.ptr)
        runtime.memsetAsync(pointer, 1, N, at.ptr)
        if finish:
            at.synchronize()
    drv.Context.synchronize()
    found = {*drv.from_device(pointer, N, np.uint8).tolist()}
    return is_free, ORDERED if found == {1} else STALE


@pytest.mark.parametrize("captured", ["nothing", "another", "a blocking one", "owner", "user"])
def test_each_release_in_each_capture(latch, captured):
    """Where CUDA refuses the order, the block is kept until the capture ends."""
    captive = {"owner": 0, "user": 1}.get(captured)
    pairs = [pair for pair in RELEASES if captive is None or not pair[captive].endswith("0")]
    found = {pair: release(latch, *pair, captured) for pair in pairs}
    assert {pair for pair in pairs if found[pair][1] != ORDERED} == set()
    assert all(is_free for is_free, _ in found.values()) == (captured in ("nothing", "another"))


def test_without_the_order_of_the_release_the_block_is_used_too_early(latch):
    """`test_release` has this of PyCUDA's blocks."""
    for pair in RELEASES:
        if pair[0] not in ALL:
            in_order = is_ordered_by_cuda(pair)
            _, found = release(latch, *pair, "nothing", stream=-1, finish=not in_order)
            assert (pair, found) == (pair, ORDERED if in_order else STALE)
