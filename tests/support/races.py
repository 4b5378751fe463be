"""Streams of all kinds, and work that gives a stale value where two of them are not ordered."""

import gc

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
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
every_pair = pytest.mark.parametrize(
    ("cupy_kind", "pycuda_kind"), [(c, p) for c in CUPY_STREAMS for p in PYCUDA_STREAMS]
)
# The pairs that CUDA does not order by itself.  On such a pair a reader comes to its end while the
# writer is still held up, so it reads stale data.
UNORDERED = {
    (c, p)
    for c in CUPY_STREAMS
    for p in PYCUDA_STREAMS
    if "on-blocking" in c or p == "Stream(1)" or (c != "null" and p != "None")
}


def copying(compile_kernel):
    """Return what queues a copy of N integers on a PyCUDA stream."""
    function = compile_kernel(
        'extern "C" __global__ void copy(int *to, const int *from, int n)'
        "{ for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i]; }",
        "copy",
    )

    def copy(to, source, stream):
        to, source = np.uintp(int(to)), np.uintp(int(source))
        function(to, source, np.int32(N), block=(32, 1, 1), stream=stream)

    array = gpuarray.zeros(N, np.int32)
    copy(array.gpudata, array.gpudata, None)  # loaded before a latch holds it up
    return copy


def as_plain_array(x, _):
    """Return a GPUArray on a CuPy array's memory by PyCUDA's constructor, which orders nothing."""
    return gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x)


def read_through_cupy(convert, cupy_stream, pycuda_stream, latch, put, before_release=None):
    """Let PyCUDA write behind a latch, convert, read with CuPy; return what was read."""
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    copy = cupy.zeros(N, np.int32)
    with latch.hold(pycuda_stream), cupy_stream:
        put(a.gpudata, N, 7, pycuda_stream)
        x = convert(a, pycuda_stream)
        copy.data.copy_from_device_async(x.data, x.nbytes, cupy_stream)
        if before_release:
            before_release()
    return set(copy.get().tolist())


def read_through_pycuda(
    convert, cupy_stream, pycuda_stream, latch, copy_kernel, before_release=None
):
    """Let CuPy write behind a latch, convert, read with PyCUDA; return what was read."""
    x = cupy.zeros(N, np.int32)
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    copy = gpuarray.to_gpu(np.zeros(N, np.int32))
    with latch.hold(cupy_stream), cupy_stream:
        x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        a = convert(x, pycuda_stream)
        copy_kernel(copy.gpudata, a.gpudata, pycuda_stream)
        if before_release:
            before_release()
    return set(copy.get().tolist())


def reuse_cupys_block(
    convert, cupy_stream, pycuda_stream, latch, put, before_release=None, drop=list.clear
):
    """Write 7 behind a latch into a view of CuPy's block, drop it, let CuPy reuse the block."""
    pool = cupy.cuda.MemoryPool()
    ones = cupy.asarray(np.ones(N, np.int32))
    with cupy.cuda.using_allocator(pool.malloc), cupy_stream:
        x = cupy.empty(N, np.int32)
        pointer = x.data.ptr
        with latch.hold(pycuda_stream):
            a = convert(x, pycuda_stream)
            put(a.gpudata, N, 7, pycuda_stream)
            views = [a, x]
            del a, x
            drop(views)
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer, "the pool did not hand out the same block"
            y.data.copy_from_device_async(ones.data, y.nbytes, cupy_stream)
            if before_release:
                before_release()
        return set(y.get().tolist())


def reuse_pycudas_block(
    convert, cupy_stream, latch, put, pycuda_stream=None, before_release=None, drop=list.clear
):
    """Write 7 with CuPy into a view of PyCUDA's block, drop it, let PyCUDA reuse the block."""
    allocate = DeviceMemoryPool().allocate
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    a = gpuarray.GPUArray((N,), np.int32, allocator=allocate)
    pointer = int(a.gpudata)
    with latch.hold(cupy_stream):
        with cupy_stream:
            x = convert(a)
            x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        views = [x, a]
        del a, x
        drop(views)
        b = gpuarray.GPUArray((N,), np.int32, allocator=allocate)
        assert int(b.gpudata) == pointer, "the pool did not hand out the same block"
        put(b.gpudata, N, 1, pycuda_stream)
        if before_release:
            before_release()
    return set(b.get().tolist())


def is_read(held, latch, put, ends=False):
    """Tell whether CuPy waits for a stream, the only item of a list, that it is not told of."""
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    copy, here = cupy.zeros(N, np.int32), cupy.cuda.Stream(non_blocking=True)
    with latch.hold(held[0]), here:
        put(a.gpudata, N, 7, held[0])
        if ends:
            held.clear()
            gc.collect()
        copy.data.copy_from_device_async(bridge.as_cupy(a).data, copy.nbytes, here)
    return set(copy.get().tolist()) == {7}
