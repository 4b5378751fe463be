"""What a capture refuses: the table of `bridge.interop.ordering`, for each pair of streams.

What is not refused is in order: `test_all_programs`.
"""

import contextlib
import itertools

import cupy
import pycuda.driver as drv
import pytest

import bridge
import bridge.autoinit
from bridge.interop import ordering
from bridge.interop.streams import is_capturing

ALL_PYCUDA_STREAMS = -2
KINDS = {
    "0": lambda: cupy.cuda.Stream.null,
    "blocking": cupy.cuda.Stream,
    "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    "PyCUDA's": lambda: bridge.as_cupy_stream(drv.Stream()),
    "PyCUDA's (1)": lambda: bridge.as_cupy_stream(drv.Stream(1)),
}
# All of PyCUDA's streams, and the one of them that is captured.
ALL = ["all: 0", "all: PyCUDA's", "all: PyCUDA's (1)"]
PAIRS = [
    pair
    for pair in itertools.product([*KINDS, *ALL], repeat=2)
    if pair != ("0", "0") and not (pair[0] in ALL and pair[1] in ALL)
]
CAPTURED = ["another", "a blocking one", "waiter", "awaited", "awaited, elsewhere", "both"]
ORDERED = "ordered"
REFUSALS = ONE, BLOCKING = "since only one of them is being", ": a blocking stream is being"


def expected(waiter, awaited, captured):
    """Return what the table says."""
    if captured in ("another", "both"):
        return ORDERED
    if captured == "a blocking one":
        return BLOCKING if {waiter, awaited} & {"0", *ALL} else ORDERED
    one, other = (waiter, awaited) if captured == "waiter" else (awaited, waiter)
    if one in ALL:  # the default stream stands for it, if it can be used itself
        return ORDERED if one == "all: PyCUDA's (1)" else BLOCKING
    if other in ALL:  # which stay outside
        return ORDERED
    return ORDERED if captured == "awaited" and waiter != "0" else ONE


def cells(captured):
    """Return the pairs that there are: the default stream cannot be captured."""
    captive = {"waiter": [0], "both": [0, 1]}.get(captured, [1] if "awaited" in captured else [])
    for pair in PAIRS:
        # A call with all of PyCUDA's streams names CuPy's current stream.
        is_no_call = captured == "awaited, elsewhere" and pair[0] in ALL
        if not is_no_call and not any(pair[end].endswith("0") for end in captive):
            yield pair


def order(names, captured):
    """Order two streams while something is captured; the graph must stay whole."""
    waiter, awaited = (KINDS[name.removeprefix("all: ")]() for name in names)
    others = {
        "another": cupy.cuda.Stream(non_blocking=True),
        "a blocking one": cupy.cuda.Stream(),
        "waiter": waiter,
    }
    captive = others.get(captured, awaited)
    sides = [
        ALL_PYCUDA_STREAMS if name in ALL else stream.ptr
        for name, stream in zip(names, (waiter, awaited), strict=True)
    ]
    with captive if captured in ("waiter", "awaited", "both") else contextlib.nullcontext():
        captive.begin_capture()
        try:
            if captured == "both":
                bridge.wait_stream(waiter, captive)  # joins
            found = ORDERED
            try:
                ordering.order(*sides, joins=captured == "waiter")
            except ValueError as error:
                found = next((one for one in REFUSALS if one in str(error)), str(error))
            joined = {one.ptr for one in (waiter, awaited) if is_capturing(one.ptr)} - {captive.ptr}
            if waiter.ptr in joined:
                bridge.wait_stream(captive, waiter)
        finally:
            captive.end_capture()
    has_joined = captured == "awaited" and found == ORDERED and not {*names} & {*ALL}
    assert joined == ({waiter.ptr} if has_joined or captured == "both" else set())
    return found


@pytest.mark.parametrize("captured", CAPTURED)
def test_each_pair_of_streams_in_each_capture(captured):
    found = {pair: order(pair, captured) for pair in cells(captured)}
    assert found == {pair: expected(*pair, captured) for pair in cells(captured)}
