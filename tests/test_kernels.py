"""launch: argument packing, checks, and the order of a launch among the work of both libraries."""

from __future__ import annotations

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from test_interface import DLPackExporter, Exporter
from test_streams import CUPY_STREAMS, PYCUDA_STREAMS, every_pair

import bridge

N = 1000
POINT = np.dtype([("name", "u1"), ("x", "<f8"), ("y", "<f4")], align=True)

SOURCE = r"""
struct point { unsigned char name; double x; float y; };

extern "C" __global__ void fill(int *p, int n, int v)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = v; }

extern "C" __global__ void copy(int *to, const int *from, int n)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i]; }

extern "C" __global__ void scalars(double *out, bool b, signed char c, unsigned short s, int i,
                                   float f, double d, long long l, unsigned char u)
{ out[0] = b; out[1] = c; out[2] = s; out[3] = i; out[4] = f; out[5] = d; out[6] = l; out[7] = u; }

extern "C" __global__ void half_bits(unsigned int *out, unsigned short h, unsigned short g)
{ out[0] = h; out[1] = g; }

extern "C" __global__ void structs(double *out, char c, struct point p, int i)
{ out[0] = c; out[1] = p.name; out[2] = p.x; out[3] = p.y; out[4] = i; }

extern "C" __global__ void null(int *out, const float *p) { out[0] = p == 0; }

extern "C" __global__ void where(int *out)
{
    if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z) return;
    out[0] = gridDim.x; out[1] = gridDim.y; out[2] = gridDim.z;
    out[3] = blockDim.x; out[4] = blockDim.y; out[5] = blockDim.z;
}
"""


@pytest.fixture(scope="module")
def function(compile_kernel):
    kept = {}

    def function(name):
        if name not in kept:
            kept[name] = compile_kernel(SOURCE, name)
        return kept[name]

    return function


def run(function, *args, **keywords):
    bridge.launch(function, *args, **{"grid": 1, "block": 32, **keywords})


MAKE = {
    "GPUArray": lambda x: bridge.as_pycuda(x),
    "cupy.ndarray": lambda x: x,
    "array interface": Exporter,
    "DLPack": DLPackExporter,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_arrays_of_any_library_are_taken(function, make):
    x = cupy.zeros(N, np.int32)
    run(function("fill"), make(x), np.int32(N), np.int32(7))
    assert (x.get() == 7).all()


def test_device_allocations_are_taken(function):
    pool = DeviceMemoryPool()
    for block in (drv.mem_alloc(4 * N), pool.allocate(4 * N)):
        run(function("fill"), block, np.int32(N), np.int32(7))
        host = np.empty(N, np.int32)
        drv.memcpy_dtoh(host, block)
        assert (host == 7).all()


def test_a_pointer_holder_is_taken(function):
    class Holder(drv.PointerHolderBase):
        def __init__(self, array):
            super().__init__()
            self.gpudata = array.data.ptr

        def get_pointer(self):
            return self.gpudata

    x = cupy.zeros(N, np.int32)
    run(function("fill"), Holder(x), np.int32(N), np.int32(7))
    assert (x.get() == 7).all()


def test_none_is_a_null_pointer(function):
    x = cupy.zeros(1, np.int32)
    run(function("null"), x, None)
    assert x.get()[0] == 1


@pytest.mark.parametrize("flag", [True, np.True_], ids=["bool", "numpy.bool"])
def test_scalars_arrive_as_they_are(function, flag):
    x = cupy.zeros(8)
    scalars = [np.int8(-3), np.uint16(65535), np.int32(-7), np.float32(0.5), np.float64(1e300)]
    run(function("scalars"), x, flag, *scalars, np.int64(-(2**40)), np.uint8(200))
    assert x.get().tolist() == [1, -3, 65535, -7, 0.5, 1e300, -(2**40), 200]


def test_float16_arrives_as_it_is(function):
    x = cupy.zeros(2, np.uint32)
    values = np.array([1.5, -0.1], np.float16)
    run(function("half_bits"), x, *values)
    assert x.get().tolist() == values.view(np.uint16).tolist()


def test_a_struct_arrives_where_c_puts_it(function):
    x = cupy.zeros(5)
    run(function("structs"), x, np.int8(1), np.array((2, 3.5, 4.5), POINT)[()], np.int32(6))
    assert x.get().tolist() == [1, 2, 3.5, 4.5, 6]


@pytest.mark.parametrize(
    ("grid", "block", "expected"),
    [
        (2, 3, [2, 1, 1, 3, 1, 1]),
        ((2, 3), (4, 5), [2, 3, 1, 4, 5, 1]),
        ([2, 3, 4], (np.int32(2), 3, 4), [2, 3, 4, 2, 3, 4]),
    ],
    ids=["int", "two", "three"],
)
def test_grid_and_block(function, grid, block, expected):
    x = cupy.zeros(6, np.int32)
    bridge.launch(function("where"), x, grid=grid, block=block)
    assert x.get().tolist() == expected


def test_in_out_and_inout_are_taken(function):
    source, target = np.arange(N, dtype=np.int32), np.zeros(N, np.int32)
    run(function("copy"), drv.Out(target), drv.In(source), np.int32(N))
    assert (target == source).all()
    both = np.zeros(N, np.int32)
    run(function("fill"), drv.InOut(both), np.int32(N), np.int32(7), stream=drv.Stream(1))
    assert (both == 7).all()


def test_the_buffer_is_the_one_of_pycuda(function):
    from conftest import ON_GPU

    if ON_GPU:
        return  # the driver there does not tell; the results above do
    import hostcuda

    a = gpuarray.GPUArray(8, np.float64)
    small = [np.uint8(1), np.int8(2), np.uint16(3), np.int32(4)]
    args = [a, *small, np.float32(5), np.float64(6), np.int64(7), np.uint8(8)]
    hostcuda.clear()
    function("scalars")(*args, block=(1, 1, 1))
    run(function("scalars"), *args)
    theirs, ours = hostcuda.launches()
    assert (ours.arguments, ours.shared) == (theirs.arguments, theirs.shared)
    assert len(ours.arguments) == 41


@every_pair
def test_a_launch_is_part_of_cupys_current_stream(cupy_kind, pycuda_kind, function, latch):
    """CuPy writes, the kernel copies, CuPy reads: all behind a latch on CuPy's stream."""
    cupy_stream, pycuda_stream = CUPY_STREAMS[cupy_kind](), PYCUDA_STREAMS[pycuda_kind]()
    x, y, z = (cupy.zeros(N, np.int32) for _ in range(3))
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    run(function("copy"), y, x, np.int32(N))  # loaded before a latch holds it up
    with latch.hold(cupy_stream), cupy_stream:
        x.data.copy_from_device_async(sevens.data, x.nbytes, cupy_stream)
        run(function("copy"), y, x, np.int32(N), stream=pycuda_stream)
        z.data.copy_from_device_async(y.data, y.nbytes, cupy_stream)
    assert (z.get() == 7).all()


def test_a_launch_beside_the_current_stream_reads_stale_data(function, latch):
    """The control: PyCUDA's own call, unordered."""
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.zeros(N, np.int32), cupy.zeros(N, np.int32)
    sevens = cupy.asarray(np.full(N, 7, np.int32))
    function("copy")(y, x, np.int32(N), block=(32, 1, 1))
    with latch.hold(current), current:
        x.data.copy_from_device_async(sevens.data, x.nbytes, current)
        function("copy")(y, x, np.int32(N), block=(32, 1, 1), stream=stream)
        stream.synchronize()
    assert (y.get() == 0).all()


def test_a_gpuarray_is_ordered_with_pycudas_default_stream(function, latch, put):
    """PyCUDA writes on its default stream, the kernel reads on another, PyCUDA writes again."""
    stream = drv.Stream(1)
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    y = cupy.zeros(N, np.int32)
    run(function("copy"), y, a, np.int32(N))
    with latch.hold(None):
        put(a.gpudata, N, 7)
        with bridge.use_stream(stream):
            run(function("copy"), y, a, np.int32(N))
        put(a.gpudata, N, 8)
    assert (y.get() == 7).all()


def test_under_use_stream_the_launch_is_on_that_stream(function, latch):
    stream = drv.Stream(1)
    x = cupy.zeros(N, np.int32)
    run(function("fill"), x, np.int32(N), np.int32(1))
    with latch.hold(stream), bridge.use_stream(stream):
        run(function("fill"), x, np.int32(N), np.int32(7))
        assert not stream.is_done()
    assert (x.get() == 7).all()


REFUSED = {
    "host array": (np.zeros(3), TypeError, "launch: argument 1 is a host numpy.ndarray; move"),
    "list": ([1, 2], TypeError, "launch: argument 1 is a host list; move it"),
    "int": (5, TypeError, "argument 1 is the Python int 5, which has no width; say numpy.int32 or"),
    "float": (0.5, TypeError, "argument 1 is the Python float 0.5, which has no width"),
    "complex": (1j, TypeError, "argument 1 is the Python complex 1j, which has no width"),
    "long double": (np.longdouble(1), TypeError, "argument 1 is a float128, no type of CUDA C"),
    "text": ("x", TypeError, "launch: argument 1 is 'x'; a GPUArray"),
    "object": (object(), TypeError, "launch: argument 1 is a object; a GPUArray"),
}


@pytest.mark.parametrize(("value", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_kernel_cannot_take_is_refused(function, value, error, message):
    x = cupy.zeros(N, np.int32)
    with pytest.raises(error, match=message):
        run(function("fill"), x, value, np.int32(7))
    assert (x.get() == 0).all()


@pytest.mark.parametrize("make", [lambda x: x, bridge.as_pycuda], ids=["cupy", "pycuda"])
def test_an_array_that_is_not_contiguous_is_refused(function, make):
    x = cupy.zeros((10, 10), np.int32)[:, ::2]
    with pytest.raises(ValueError, match=r"argument 0 is not contiguous \(shape \(10, 5\), "):
        run(function("fill"), make(x), np.int32(5), np.int32(7))
    run(function("fill"), make(x), np.int32(5), np.int32(7), strided=True)
    assert (x.get()[0] == [7, 7, 7, 0, 0]).all()


def test_fortran_order_is_contiguous(function):
    x = cupy.zeros((4, 5), np.int32, order="F")
    run(function("fill"), x, np.int32(20), np.int32(7))
    assert (x.get() == 7).all()


@pytest.mark.parametrize("which", ["grid", "block"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        ((1, -1), ValueError),
        ((), TypeError),
        ((1, 1, 1, 1), TypeError),
        (1.0, TypeError),
    ],
    ids=repr,
)
def test_an_impossible_extent_is_refused(function, which, value, error):
    x = cupy.zeros(N, np.int32)
    with pytest.raises(error, match=f"launch: {which} is"):
        run(function("fill"), x, np.int32(N), np.int32(7), **{which: value})


def test_bytes_of_shared_memory_may_be_an_integer_of_numpy(function):
    x = cupy.zeros(N, np.int32)
    run(function("fill"), x, np.int32(N), np.int32(7), shared=np.int64(64))
    assert (x.get() == 7).all()


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="launch: function is a builtin_function_or_method; a pyc"):
        run(print)


def test_a_stream_that_pycuda_cannot_launch_on_is_refused(function):
    x = cupy.zeros(N, np.int32)
    with pytest.raises(TypeError, match="PyCUDA can launch on its own streams only"):
        run(function("fill"), x, np.int32(N), np.int32(7), stream=cupy.cuda.Stream())


def test_a_launch_is_captured_under_use_stream(function):
    stream = drv.Stream(1)
    x, y = cupy.zeros(N, np.int32), cupy.zeros(N, np.int32)
    y += 1
    run(function("copy"), y, x, np.int32(N))
    cupy.cuda.Device().synchronize()
    with bridge.use_stream(stream) as current:
        current.begin_capture()
        try:
            a = bridge.as_pycuda(x, stream=stream)
            run(function("fill"), a, np.int32(N), np.int32(7))
            run(function("copy"), y, bridge.as_cupy(a, stream=stream), np.int32(N))
            del a
            bridge.as_cupy(bridge.as_pycuda(x))  # PyCUDA's default stream is not captured
            y += 1
        finally:
            graph = current.end_capture()
        graph.launch()
    current.synchronize()
    assert (y.get() == 8).all()


def test_a_capture_goes_through_a_stream_of_pycuda_and_back(put):
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(N, np.int32)
    x += 1
    cupy.cuda.Device().synchronize()
    with current:
        current.begin_capture()
        try:
            a = bridge.as_pycuda(x, stream=stream)
            put(a.gpudata, N, 7, stream)
            del a
            x += 1
        finally:
            graph = current.end_capture()
        graph.launch()
    current.synchronize()
    assert (x.get() == 8).all()


def test_out_is_copied_after_the_launch(function):
    """On a stream that CUDA does not order with the default one, where PyCUDA copies."""
    source, target = np.arange(N, dtype=np.int32), np.zeros(N, np.int32)
    with cupy.cuda.Stream(non_blocking=True):
        run(function("copy"), drv.Out(target), cupy.asarray(source), np.int32(N))
    assert (target == source).all()


def test_device_allocations_are_ordered_with_pycudas_default_stream(function, latch, put):
    stream = drv.Stream(1)
    block = drv.mem_alloc(4 * N)
    y = cupy.zeros(N, np.int32)
    run(function("copy"), y, block, np.int32(N))
    with latch.hold(None):
        put(block, N, 7)
        with bridge.use_stream(stream):
            run(function("copy"), y, block, np.int32(N))
        put(block, N, 8)
    assert (y.get() == 7).all()


def test_a_launch_that_would_not_be_captured_is_refused(function):
    x = cupy.zeros(N, np.int32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(ValueError, match="is being captured into a graph"):
                run(function("fill"), x, np.int32(N), np.int32(7))
        finally:
            stream.end_capture()
