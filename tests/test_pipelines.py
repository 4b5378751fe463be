"""Kernels of both libraries and CuPy's operations in one pipeline, launched or as a CUDA graph."""

from __future__ import annotations

import gc

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge

N = 1000
SOURCE = """
__global__ void fill(int *p, int n, int v)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = v; }

__global__ void copy(int *to, const int *from, int n)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i]; }
"""
ONE = {"block": (32, 1, 1), "grid": (1, 1, 1)}


@pytest.fixture(autouse=True)
def _nothing_is_collected():
    """CUDA frees no memory while it captures: what earlier tests left goes before."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def ours():
    return bridge.SourceModule(SOURCE).get_function


@pytest.fixture(scope="module")
def theirs(compile_kernel):
    return compile_kernel(f'extern "C" {{ {SOURCE} }}', "copy")


# --- CuPy's own kernels on PyCUDA's arrays ---------------------------------------------------


@pytest.fixture
def a():
    return gpuarray.to_gpu(np.arange(12, dtype=np.float32).reshape(3, 4))


def test_a_raw_kernel(a):
    source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    cupy.RawKernel(source, "twice")((1,), (12,), (bridge.as_cupy(a),))
    np.testing.assert_array_equal(a.get().ravel(), 2 * np.arange(12))


def test_a_raw_module(a):
    source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    cupy.RawModule(code=source).get_function("twice")((1,), (12,), (bridge.as_cupy(a),))
    np.testing.assert_array_equal(a.get().ravel(), 2 * np.arange(12))


def test_an_elementwise_kernel(a):
    kernel = cupy.ElementwiseKernel("T x", "T y", "y = x * x", "square")
    kernel(bridge.as_cupy(a), bridge.as_cupy(a))
    np.testing.assert_array_equal(a.get().ravel(), np.arange(12) ** 2)


def test_a_fused_function(a):
    @cupy.fuse()
    def both(x):
        return x * x + 1

    x = both(bridge.as_cupy(a))
    np.testing.assert_array_equal(bridge.as_pycuda(x).get().ravel(), np.arange(12) ** 2 + 1)


def test_cublas(gpu, package, a):
    package("cupy.cublas")
    x = bridge.as_cupy(a)
    host = a.get()
    product = bridge.as_pycuda(cupy.matmul(x, x.T))
    np.testing.assert_allclose(product.get(), host @ host.T, rtol=1e-6)


def test_cufft(gpu, package, a):
    package("cupy.cuda.cufft")
    found = bridge.as_pycuda(cupy.fft.fft2(bridge.as_cupy(a)))
    np.testing.assert_allclose(found.get(), np.fft.fft2(a.get()), rtol=1e-5)


def test_a_texture_object_takes_the_place_of_a_texture_reference(gpu):
    """What the errors recommend."""
    source = """
    __global__ void enlarge(float *out, cudaTextureObject_t image, int n)
    { out[threadIdx.x] = tex1D<float>(image, (threadIdx.x + 0.5f) / 2); }
    """
    texture = cupy.cuda.texture
    runtime = cupy.cuda.runtime
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    image = texture.CUDAarray(channel, 4)
    image.copy_from(cupy.arange(4, dtype=np.float32))
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=image)
    description = texture.TextureDescriptor((runtime.cudaAddressModeClamp,))
    tex = texture.TextureObject(resource, description)
    out = cupy.zeros(8, np.float32)
    enlarge = bridge.SourceModule(source).get_function("enlarge")
    enlarge(out, tex, 8, block=8)
    assert out.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(TypeError, match="is a cupy.ndarray, but the kernel takes uint64 by value"):
        enlarge(out, out, 8, block=8)


# --- CUDA graphs -----------------------------------------------------------------------------


def test_a_pipeline_is_captured_and_replayed_with_other_data(gpu, ours, theirs):
    """Both libraries' kernels, conversions both ways, CuPy's operations; nothing waits."""
    copy = ours("copy").prepare("PPi")
    stream = drv.Stream(1)
    a = gpuarray.to_gpu(np.zeros(N, np.int32))
    x, y, z = (cupy.zeros(N, np.int32) for _ in range(3))
    n = np.int32(N)

    def work():
        copy(x, a, n, **ONE)
        cupy.add(x, 1, out=x)
        bridge.launch(theirs, bridge.as_pycuda(y, stream=stream), x, n, **ONE)
        bridge.as_cupy(a, stream=stream)[...] = y * 2
        copy.prepared_async_call((1, 1), (32, 1, 1), stream, z.data.ptr, y.data.ptr, N)
        theirs.prepared_async_call((1, 1), (32, 1, 1), stream, int(a.gpudata), z.data.ptr, n)

    theirs.prepare("PPi")
    with bridge.use_stream(stream) as current:
        work()  # loads and compiles
        current.synchronize()
        current.begin_capture()
        try:
            work()
        finally:
            graph = current.end_capture()
        for value in (5, 40):
            a.set(np.full(N, value, np.int32))
            graph.launch()
            current.synchronize()
            assert (z.get() == value + 1).all()
            assert (a.get() == value + 1).all()


def test_a_capture_goes_to_another_stream_and_back(gpu, ours, theirs):
    """The launch on another stream becomes part of the graph, ordered as outside of one."""
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.zeros(N, np.int32), cupy.zeros(N, np.int32)
    x + 1
    ours("copy")(y, x, N, **ONE)
    cupy.cuda.Device().synchronize()
    with current:
        current.begin_capture()
        try:
            cupy.add(x, 1, out=x)
            ours("copy")(y, x, N, stream=stream, **ONE)
            bridge.launch(theirs, x, y, np.int32(N), stream=stream, **ONE)
            cupy.add(x, 1, out=x)
        finally:
            graph = current.end_capture()
        graph.launch()
        graph.launch()
    current.synchronize()
    assert (y.get() == 3).all()
    assert (x.get() == 4).all()


def test_a_capture_allocates_from_a_pool_of_pycudas(gpu, ours):
    """The block is there already: CUDA allocates nothing while it captures."""
    pool = DeviceMemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    y = cupy.zeros(N, np.int32)
    with cupy.cuda.using_allocator(bridge.cupy_allocator(pool)), stream:
        x = cupy.zeros(N, np.int32)
        ours("fill")(x, N, 1, **ONE)
        ours("copy")(y, x, N, **ONE)
        del x
        stream.synchronize()
        stream.begin_capture()
        try:
            x = cupy.empty(N, np.int32)
            ours("fill")(x, N, 7, **ONE)
            ours("copy")(y, x, N, **ONE)
            del x
        finally:
            graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    assert (y.get() == 7).all()
    assert pool.active_bytes == 0


@pytest.fixture
def capturing(gpu, ours, theirs):
    """A stream that is being captured, and CuPy's current one; the graph must stay whole."""
    x = cupy.zeros(N, np.int32)
    ours("fill")(x, N, 1, **ONE)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        yield x
        ours("fill")(x, N, 7, **ONE)
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    assert (x.get() == 7).all()


def test_a_call_on_the_default_stream_is_refused(capturing, ours):
    for stream in (cupy.cuda.Stream.null, bridge.as_cupy_stream(None)):
        with pytest.raises(ValueError, match="fill: CuPy's current stream is being captured"):
            ours("fill")(capturing, N, 1, stream=stream, **ONE)


def test_a_launch_on_the_default_stream_is_refused(capturing, theirs):
    with pytest.raises(ValueError, match="launch: CuPy's current stream is being captured"):
        bridge.launch(theirs, capturing, capturing, np.int32(N), **ONE)


def test_copies_of_the_host_are_refused(capturing, ours):
    host = np.zeros(N, np.int32)
    with pytest.raises(ValueError, match="copy: pycuda.driver.In, Out and InOut copy at once"):
        ours("copy")(capturing, drv.In(host), N, **ONE)


def test_timing_is_refused(capturing, ours):
    with pytest.raises(ValueError, match="fill: a kernel that is captured into a graph does not"):
        ours("fill")(capturing, N, 1, time_kernel=True, **ONE)


@pytest.mark.parametrize("call", ["ours", "launch"])
def test_the_default_stream_beside_a_capture_of_a_blocking_one(gpu, ours, theirs, call):
    """CUDA orders the two, and cannot while one is being captured: that breaks the capture."""
    x = cupy.zeros(N, np.int32)
    ours("fill")(x, N, 1, **ONE)
    launches = {
        "ours": lambda: ours("fill")(x, N, 7, **ONE),
        "launch": lambda: bridge.launch(theirs, x, x, np.int32(N), **ONE),
    }
    stream = cupy.cuda.Stream()
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
    try:
        with pytest.raises(drv.Error, match="a stream is being captured into a graph, and the"):
            launches[call]()
    finally:
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Capture"):
            stream.end_capture()
    ours("fill")(x, N, 7, **ONE)
    assert (x.get() == 7).all()
