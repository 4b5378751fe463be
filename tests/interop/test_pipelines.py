"""Kernels of both libraries and CuPy's operations in one pipeline, launched or as a CUDA graph."""

import contextlib
import gc
import re

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from captures import captured
from exporters import pointer_of
from pycuda import gpuarray

import bridge

N = 1000
SOURCE = """
__global__ void fill(int *p, int n, int v)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = v; }

__global__ void copy(int *to, const int *from, int n)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i]; }
"""
ONE = {"block": (32, 1, 1), "grid": (1, 1, 1)}


def raises(message):
    return pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=message)


@pytest.fixture(autouse=True)
def _nothing_is_collected():
    """Under compute-sanitizer nothing is freed in a capture: what earlier tests left goes first."""
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


# --- CUDA graphs -----------------------------------------------------------------------------


def test_a_pipeline_is_captured_and_replayed_with_other_data(ours, theirs):
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
    with bridge.as_cupy_stream(stream) as current:
        work()  # loads and compiles
        current.synchronize()
        current.begin_capture()
        try:
            work()
        finally:
            graph = current.end_capture()
        for value in (5, 40):
            a.set(np.full(N, value, np.int32))
            bridge.wait_stream(stream, None)  # the host's memory is read by now, `a` may not be set
            graph.launch()
            current.synchronize()
            assert (z.get() == value + 1).all()
            assert (a.get() == value + 1).all()


def test_a_capture_goes_to_another_stream_and_back(ours, theirs, put):
    """The launches on another stream become part of the graph, ordered as outside of one."""
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    x, y, z = (cupy.zeros(N, np.int32) for _ in range(3))
    x + 1
    ours("copy")(y, x, N, **ONE)
    cupy.cuda.Device().synchronize()
    with captured(current):
        cupy.add(x, 1, out=x)
        ours("copy")(y, x, N, stream=stream, **ONE)
        bridge.launch(theirs, x, y, np.int32(N), stream=stream, **ONE)
        cupy.add(x, 1, out=x)
        a = bridge.as_pycuda(z, stream=stream)
        put(a.gpudata, N, 7, stream)
        del a
        cupy.add(z, 1, out=z)
    assert [set(array.get().tolist()) for array in (x, y, z)] == [{2}, {1}, {8}]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_graphs_launch_is_ordered_with_pycudas_work_in_a_block(ours, ordered, latch, put):
    a, stream = gpuarray.to_gpu(np.zeros(N, np.int32)), drv.Stream(1)
    ours("fill")(a, N, 0, **ONE)
    bridge.as_cupy(a)
    with cupy.cuda.Stream(non_blocking=True) as current:
        current.begin_capture()
        bridge.as_cupy(a)[...] += 1
        graph = current.end_capture()
        drv.Context.synchronize()
        with latch.hold(stream):
            put(a.gpudata, N, 6, stream)
            with bridge.ordered() if ordered else contextlib.nullcontext():
                graph.launch()
            put(a.gpudata, 1, 0, stream)
            if not ordered:
                current.synchronize()
    assert a.get().tolist() == [0, *[7 if ordered else 6] * (N - 1)]


def test_what_cannot_be_captured_is_refused_and_the_graph_stays_whole(ours, theirs):
    x, host, n = cupy.zeros(N, np.int32), np.zeros(N, np.int32), np.int32(N)
    fill, copy, default = ours("fill"), ours("copy"), cupy.cuda.Stream.null
    negative = bridge.wrap_pycuda(gpuarray.GPUArray.__neg__)
    is_captured = "CuPy's current stream is being captured"
    fill(x, N, 1, **ONE)
    cupy.cuda.Device().synchronize()
    with captured(cupy.cuda.Stream(non_blocking=True)):
        for call, said in (
            (lambda: fill(x, N, 1, stream=default, **ONE), f"fill: {is_captured}"),
            (
                lambda: fill(x, N, 1, stream=bridge.as_cupy_stream(None), **ONE),
                "but the launch would go to the default stream, which cannot be captured",
            ),
            (lambda: bridge.launch(theirs, x, x, n, **ONE), f"launch: {is_captured}"),
            (lambda: copy(x, drv.In(host), N, **ONE), "pycuda.driver.In, .* the host waits"),
            (lambda: fill(x, N, 1, time_kernel=True, **ONE), "time of a kernel, the host waits"),
            (lambda: negative(x), f"^__neg__: {is_captured} into a graph"),
        ):
            with pytest.raises(ValueError, match=said):
                call()
        fill(x, N, 7, **ONE)
    assert (x.get() == 7).all()


@pytest.mark.parametrize("call", ["ours", "launch"])
def test_the_default_stream_beside_a_capture_of_a_blocking_one(ours, theirs, call):
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
        with raises("Capture"):
            stream.end_capture()
    ours("fill")(x, N, 7, **ONE)
    assert (x.get() == 7).all()


# --- Captures and the memory that is shared ---------------------------------------------------


def test_a_wait_for_what_is_outside_of_a_capture_is_refused(ours):
    inside, outside = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    a, x = gpuarray.to_gpu(np.zeros(N, np.int32)), cupy.zeros(N, np.int32)
    ours("fill")(x, N, 1, **ONE)
    cupy.cuda.Device().synchronize()
    refused = f"stream 0x{inside.ptr:x} cannot wait for stream 0x.*, since only one of them is"
    with captured(inside):
        with pytest.raises(ValueError, match=refused):
            bridge.wait_stream(inside, outside)
        with pytest.raises(ValueError, match=refused):
            bridge.as_cupy(a, stream=outside)
        with pytest.raises(ValueError, match=refused), bridge.as_cupy_stream(outside):
            bridge.as_pycuda(x, stream=inside)
        with pytest.raises(ValueError, match=refused), bridge.as_cupy_stream(outside):
            ours("fill")(x, N, 7, stream=inside, **ONE)
        with pytest.raises(ValueError, match=refused):
            bridge.wait_stream(inside, None)
        refused = f"stream 0x0 cannot wait for stream 0x{inside.ptr:x}, since only one of them is"
        with pytest.raises(ValueError, match=refused):
            bridge.wait_stream(None, inside)
        bridge.wait_stream(inside, inside)
    assert (x.get() == 1).all()


BLOCKING = pytest.mark.parametrize("non_blocking", [True, False])


@contextlib.contextmanager
def a_block_in_use(latch, put, stream, owner):
    """Write 7 behind a latch into a view of CuPy's block, yield it; then let CuPy use it again."""
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc), owner:
        x = cupy.zeros(N, np.int32)
        x[...] = 2  # loads the kernel, for which the host waits
        pointer = x.data.ptr
        with latch.hold(stream):
            views = [bridge.as_pycuda(x, stream=stream), x]
            put(pointer, N, 7, stream)
            del x
            yield views, pool
            y = cupy.empty(N, np.int32)
            assert y.data.ptr == pointer
            y[...] = 1
        assert (y.get() == 1).all()


@BLOCKING
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("current", [False, True])
def test_a_block_dropped_in_a_capture_is_not_reused_early(
    latch, put, non_blocking, spoilt, current
):
    """A wait for its user would spoil the graph, so the block stays until the capture ends."""
    cupy_stream, stream = cupy.cuda.Stream(non_blocking=non_blocking), drv.Stream(1)
    outside = cupy.cuda.Stream(non_blocking=True).record()
    with a_block_in_use(latch, put, stream, cupy_stream) as (views, pool):
        cupy_stream.begin_capture()
        if spoilt:
            with raises("Isolation"):
                cupy_stream.wait_event(outside)
        with cupy_stream if current else cupy.cuda.Stream.null:
            views.clear()
        assert pool.used_bytes() == 4096
        with raises("Invalidated") if spoilt else contextlib.nullcontext():
            cupy_stream.end_capture()
        assert pool.used_bytes() == 0


def test_a_block_stays_where_cuda_refuses_the_order(latch, put):
    """Since a blocking stream is being captured elsewhere; that capture goes on."""
    capturing, stream = cupy.cuda.Stream(), drv.Stream(1)
    with a_block_in_use(latch, put, stream, cupy.cuda.Stream.null) as (views, pool):
        with capturing:
            capturing.begin_capture()
        views.clear()
        assert pool.used_bytes() == 4096
        capturing.end_capture()
        assert pool.used_bytes() == 0


def test_a_launch_in_a_spoilt_capture_says_so(ours, theirs):
    stream = cupy.cuda.Stream(non_blocking=True)
    outside = cupy.cuda.Stream(non_blocking=True).record()
    x = cupy.zeros(N, np.int32)
    ours("fill")(x, N, 1, **ONE)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with raises("Isolation"):
            stream.wait_event(outside)
        with pytest.raises(drv.Error, match="has invalidated the capture; .*previous error"):
            ours("fill")(x, N, 1, **ONE)
        with raises("Invalidated"):
            stream.end_capture()


def test_a_view_that_goes_in_the_capture_of_its_user_draws_nothing_in():
    """The graph is its user's; the owner's stream is not to wait for it."""
    inside, owner = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    with owner:
        a = bridge.as_pycuda(cupy.zeros(N, np.int32), stream=inside)
    cupy.cuda.Device().synchronize()
    with captured(bridge.as_cupy_stream(inside)):
        del a
        assert not owner.is_capturing()


@BLOCKING
def test_a_block_of_others_dropped_in_a_capture(latch, put, non_blocking):
    """Where CUDA orders the default stream with what is captured, no fence is queued on it."""
    stream = drv.Stream(1)
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.zeros(N, np.int32)
        y = cupy.zeros(N, np.int32)
        a = bridge.as_pycuda(x, stream=stream)
        put(a.gpudata, N, 7, stream)
        cupy.cuda.Device().synchronize()
        with captured(cupy.cuda.Stream(non_blocking=non_blocking)):
            del a, x
            cupy.add(y, 1, out=y)
        assert (y.get() == 1).all()
        assert pool.used_bytes() == 4096


def test_what_a_capture_holds_back_is_shown_and_let_go_when_it_ends(capsys):
    pool, stream = cupy.cuda.MemoryPool(), drv.Stream(1)
    with cupy.cuda.using_allocator(pool.malloc):
        views = [bridge.as_pycuda(cupy.empty(1 << 20, "i1"), stream=stream) for _ in range(3)]
    with captured(bridge.as_cupy_stream(stream)):
        views.clear()
        bridge.show_memory()
        assert re.search(r"\ndropped, but kept until a capture ends +3\n", capsys.readouterr().out)
        assert pool.used_bytes() == 3 << 20
    assert pool.used_bytes() == 0


@pytest.mark.parametrize("way", ["as_pycuda", "as_cupy"])
def test_a_view_made_in_a_capture_tells_its_pool_of_work_outside(latch, put, way):
    inside = drv.Stream(1)
    allocate = bridge.pycuda_allocator(cupy.cuda.MemoryPool())

    def new_array():
        if way == "as_cupy":
            return gpuarray.GPUArray(N, np.int32, allocator=allocate)
        with cupy.cuda.Stream.null:
            return cupy.empty(N, np.int32)

    with bridge.as_cupy_stream(inside) as current:
        source = new_array()
        cupy.cuda.Device().synchronize()
        current.begin_capture()
        try:
            keywords = {"stream": inside} if way == "as_pycuda" else {}
            view = getattr(bridge, way)(source, **keywords)
        finally:
            current.end_capture()
        pointer = pointer_of(view)
        with latch.hold(inside):
            put(pointer, N, 7, inside)
            del view, source
            again = new_array()
            assert pointer_of(again) == pointer
            put(pointer, N, 1)
        assert (drv.from_device(pointer, N, np.int32) == 1).all()


@pytest.mark.parametrize("mode", ["Relaxed", "Global"])
@pytest.mark.parametrize("use", ["as_cupy(a)", "as_pycuda(x)", "as_cupy_stream(s)"])
def test_the_first_use_of_the_package_leaves_a_capture_whole(mode, use, python):
    done = python(
        f"""
        import cupy, pycuda.autoprimaryctx, pycuda.driver as drv
        from pycuda import gpuarray
        a, x, s = gpuarray.zeros(4, "f"), cupy.zeros(4, "f"), drv.Stream(1)
        x += 1
        drv.Context.synchronize()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureMode{mode})
            import bridge
            view = bridge.{use}
            x += 1
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        print(x)
        """
    )
    assert (done.stdout, done.stderr) == ("[2. 2. 2. 2.]\n", "")
