"""Streams of all kinds, and turns that give a stale value where two of them are not ordered.

In a turn, one library works behind a latch; `convert` comes; then the other one works.  With
`early`, the latter's stream comes to its end before the latch opens, or the test fails.
"""

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from latch import put
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge

N = 1000
CUPY_STREAMS = {
    "null": lambda: cupy.cuda.Stream.null,
    "blocking": cupy.cuda.Stream,
    "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    "per-thread": lambda: cupy.cuda.Stream.ptds,
}
PYCUDA_STREAMS = {"None": lambda: None, "Stream()": drv.Stream, "Stream(1)": lambda: drv.Stream(1)}
PAIRS = [(c, p) for c in CUPY_STREAMS for p in PYCUDA_STREAMS]
every_pair = pytest.mark.parametrize(("cupy_kind", "pycuda_kind"), PAIRS)
# The pairs that CUDA does not order by itself: a reader ends while the writer is still held up.
UNORDERED = {
    (c, p)
    for c, p in PAIRS
    if "on-blocking" in c or p == "Stream(1)" or (c != "null" and p != "None")
}


def full(value):
    """Return a CuPy array that the host has filled."""
    return cupy.asarray(np.full(N, value, np.int32))


def values(array):
    return {*array.get().tolist()}


def finish(stream):
    (stream or cupy.cuda.Stream.null).synchronize()


def cupy_reads(convert, c, p, latch, early=False):
    """Let PyCUDA write 7, and CuPy read; return what was read."""
    a, copy = gpuarray.to_gpu(np.zeros(N, np.int32)), full(0)
    with latch.hold(p), c:
        put(a.gpudata, N, 7, p)
        copy.data.copy_from_device_async(convert(a).data, copy.nbytes, c)
        if early:
            finish(c)
    return values(copy)


def pycuda_reads(convert, c, p, latch, early=False):
    """Let CuPy write 7, and PyCUDA read; return what was read."""
    x, sevens, copy = full(0), full(7), full(0)
    with latch.hold(c), c:
        x.data.copy_from_device_async(sevens.data, x.nbytes, c)
        drv.memcpy_dtod_async(copy.data.ptr, convert(x).gpudata, copy.nbytes, p)
        if early:
            finish(p)
    return values(copy)


def cupy_reuses(convert, c, p, latch, early=False, drop=list.clear):
    """Let PyCUDA write 7 into CuPy's block, drop it, let CuPy write 1 into the block again."""
    pool, ones = cupy.cuda.MemoryPool(), full(1)
    with cupy.cuda.using_allocator(pool.malloc), c:
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(p):
            views = [convert(x), x]
            put(pointer, N, 7, p)
            del x
            drop(views)
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer, "the pool did not hand out the same block"
            y.data.copy_from_device_async(ones.data, y.nbytes, c)
            if early:
                finish(c)
        return values(y)


def pycuda_reuses(convert, c, p, latch, early=False, drop=list.clear):
    """Let CuPy write 7 into PyCUDA's block, drop it, let PyCUDA write 1 into the block again."""
    allocate, sevens = DeviceMemoryPool().allocate, full(7)
    a = gpuarray.GPUArray(N, np.int32, allocator=allocate)
    pointer = int(a.gpudata)
    with latch.hold(c):
        with c:
            views = [convert(a), a]
            views[0].data.copy_from_device_async(sevens.data, a.nbytes, c)
        del a
        drop(views)
        b = gpuarray.GPUArray(N, np.int32, allocator=allocate)
        assert int(b.gpudata) == pointer, "the pool did not hand out the same block"
        put(pointer, N, 1, p)
        if early:
            finish(p)
    return values(b)


def is_read(streams, latch, ends=False):
    """Tell whether CuPy waits for a stream, the only item of a list, that it is not told of."""
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    copy, here = full(0), cupy.cuda.Stream(non_blocking=True)
    with latch.hold(streams[0]), here:
        put(a.gpudata, N, 7, streams[0])
        if ends:
            streams.clear()
        copy.data.copy_from_device_async(bridge.as_cupy(a).data, copy.nbytes, here)
    return values(copy) == {7}
