"""Kernels of both libraries and CuPy's operations in one pipeline, launched or as a CUDA graph."""

import contextlib
import gc
import re
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from captures import captured
from cupy.cuda import runtime
from pycuda import gpuarray
from races import CUPY_STREAMS

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
        bridge.as_cupy(a, stream=stream)
        cupy.add(z, 1, out=z)
    assert [set(array.get().tolist()) for array in (x, y, z)] == [{2}, {1}, {8}]


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
def test_a_launch_beside_the_capture_of_a_blocking_stream_says_what_breaks_it(ours, theirs, call):
    x, stream = cupy.zeros(N, np.int32), cupy.cuda.Stream()
    ours("fill")(x, N, 1, **ONE)
    launches = {
        "ours": lambda: ours("fill")(x, N, 7, **ONE),
        "launch": lambda: bridge.launch(theirs, x, x, np.int32(N), **ONE),
    }
    cupy.cuda.Device().synchronize()
    stream.begin_capture()
    with pytest.raises(drv.Error, match="a stream is being captured into a graph, and the"):
        launches[call]()
    with raises("Capture"):
        stream.end_capture()


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


@pytest.mark.parametrize("kind", ["null", "blocking", "non-blocking"])
def test_beside_the_capture_of_a_blocking_stream_what_needs_the_default_one_is_refused(kind):
    """CUDA accepts no work on the default stream then."""
    a, x = gpuarray.zeros(4, "f"), cupy.zeros(4, "f")
    current, captive = CUPY_STREAMS[kind](), cupy.cuda.Stream()
    allocate, kept = bridge.pycuda_allocator(), drv.Stream(1)
    drv.Context.synchronize()
    refused = "cannot wait for .* a blocking stream is being captured"
    if cupy.__version__ < "14":  # whose asarray drops the reason
        refused += "|Unsupported dtype object"
    with captured(captive), current:
        for use in (
            lambda: bridge.as_cupy(a),
            lambda: bridge.as_pycuda(x),
            lambda: cupy.asarray(a),
            lambda: a.__dlpack__(),
            lambda: allocate(4),
        ):
            with pytest.raises(ValueError, match=refused):
                use()
        with pytest.raises(ValueError, match=r"pycuda.driver.Stream: a new stream cannot"):
            drv.Stream(1)
    assert kept


def test_a_wait_for_what_is_outside_of_a_capture_is_refused():
    inside, outside = cupy.cuda.Stream(non_blocking=True), drv.Stream(1)
    refused = "{} cannot wait for .*{:#x}, since only one of them is".format
    with captured(inside):
        with pytest.raises(ValueError, match=refused(hex(inside.ptr), outside.handle)):
            bridge.wait_stream(inside, outside)
        with pytest.raises(ValueError, match=refused("the default stream", inside.ptr)):
            bridge.wait_stream(None, inside)


@pytest.mark.parametrize("earlier", [False, True], ids=["no other", "after one that CuPy began"])
def test_a_capture_that_was_not_seen_to_begin_is_refused(earlier):
    """The default stream then does not stand for the stream."""
    stream, a, allocate = drv.Stream(1), gpuarray.zeros(4, "f"), bridge.pycuda_allocator()
    x, unknown = bridge.as_cupy(a), "into a graph, and the bridge did not see it begin; name the"
    if earlier:
        bridge.as_cupy_stream(stream).begin_capture()
        bridge.as_cupy(a)
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))
    runtime.streamBeginCapture(stream.handle)
    try:
        for use in lambda: bridge.as_cupy(a), lambda: bridge.as_pycuda(x), lambda: allocate(4):
            with pytest.raises(ValueError, match=unknown):
                use()
    finally:
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))


def test_the_end_of_a_capture_waits_for_the_default_stream_or_says_that_it_cannot():
    captive, current = cupy.cuda.Stream(), bridge.as_cupy_stream(drv.Stream(1))
    current.begin_capture()
    captive.begin_capture()
    with pytest.warns(UserWarning, match="end_capture: the stream cannot wait for the default"):
        current.end_capture()
    captive.end_capture()
    assert not current.is_capturing()


def test_in_a_capture_only_its_own_streams_are_ordered(put):
    current, inside, outside = cupy.cuda.Stream(non_blocking=True), drv.Stream(1), drv.Stream(1)
    x, y = (cupy.zeros(N, np.int32) for _ in range(2))
    put(x.data.ptr, N, 0, inside)
    drv.Context.synchronize()
    with captured(current):
        bridge.wait_stream(inside, current)  # joins
        a = bridge.as_pycuda(x)
        put(a.gpudata, N, 7, inside)
        y.data.copy_from_device_async(cupy.asarray(a).data, x.nbytes, current)
        assert a.__cuda_array_interface__["stream"] is None  # the host may not wait
        assert not bridge.as_cupy_stream(outside).is_capturing()
    assert (y.get() == 7).all()


def test_a_capture_leaves_other_captures_alone():
    """Also those that were not seen to begin."""
    one, other, a = cupy.cuda.Stream(non_blocking=True), drv.Stream(1), gpuarray.zeros(4, "f")
    drv.Context.synchronize()
    runtime.streamBeginCapture(other.handle)
    try:
        with captured(one):
            bridge.as_pycuda(bridge.as_cupy(a))
    finally:
        runtime.graphDestroy(runtime.streamEndCapture(other.handle))


def test_a_stream_that_joins_a_capture_is_followed(put):
    """Elsewhere the default stream stands for it; at the end, it waits for the default one."""
    joins, here = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    a = gpuarray.zeros(N, np.int32)
    x = bridge.as_cupy(a)
    drv.Context.synchronize()

    @bridge.primary_context()
    def elsewhere():
        bridge.as_cupy(a)
        bridge.as_pycuda(x)

    with captured(here):
        with cupy.cuda.Stream.null:
            bridge.wait_stream(joins, here)
        put(a.gpudata, N, 7, joins)
        bridge.wait_stream(here, joins)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(elsewhere).result()
    assert (x.get() == 7).all()
    with bridge.trace_order() as waits:
        bridge.as_cupy(a)
    assert any(wait.awaited.endswith(f"0x{joins.handle:x}") for wait in waits)


# --- Captures and the memory that is shared ---------------------------------------------------


@contextlib.contextmanager
def a_block_in_use(latch, put, owner):
    """Write 7 behind a latch into a view of CuPy's block, yield it; then let CuPy use it again."""
    stream, pool = drv.Stream(1), cupy.cuda.MemoryPool()
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


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("current", [False, True])
def test_a_block_dropped_in_a_capture_is_not_reused_early(
    latch, put, non_blocking, spoilt, current
):
    """A wait for its user would spoil the graph, so the block stays until the capture ends."""
    cupy_stream = cupy.cuda.Stream(non_blocking=non_blocking)
    outside = cupy.cuda.Stream(non_blocking=True).record()
    with a_block_in_use(latch, put, cupy_stream) as (views, pool):
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
    capturing = cupy.cuda.Stream()
    with a_block_in_use(latch, put, cupy.cuda.Stream.null) as (views, pool):
        capturing.begin_capture()
        views.clear()
        assert pool.used_bytes() == 4096
        capturing.end_capture()
        assert pool.used_bytes() == 0


@pytest.mark.parametrize("current", ["user", "owner"])
def test_a_view_that_ends_in_the_capture_of_its_user_draws_nothing_in(current):
    """The graph is its user's; the owner's stream is not to wait for it."""
    user, owner = bridge.as_cupy_stream(drv.Stream(1)), cupy.cuda.Stream(non_blocking=True)
    with owner:
        a = bridge.as_pycuda(cupy.zeros(N, np.int32), stream=user)
    cupy.cuda.Device().synchronize()
    with captured(user):
        with user if current == "user" else owner:
            del a
        assert not owner.is_capturing()


def test_a_view_for_all_streams_stays_so_if_a_capture_holds_it_back(latch, put):
    named, other = drv.Stream(1), drv.Stream(1)
    captive = cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(N, np.int32)
    a, pointer = bridge.as_pycuda(x, stream=named), x.data.ptr
    bridge.as_pycuda(x)
    cupy.cuda.Device().synchronize()
    with latch.hold(other):
        put(a.gpudata, N, 7, other)
        with captive:
            captive.begin_capture()
            del a, x
            captive.end_capture()
        y = cupy.empty(N, np.int32)
        y.data.memset_async(0, y.nbytes, cupy.cuda.Stream.null)
        assert y.data.ptr == pointer
    assert not y.get().any()


@pytest.mark.parametrize("is_seen", [True, False])
def test_what_a_capture_holds_back_is_shown_and_let_go_when_it_ends(is_seen, capsys):
    """Or, if CuPy does not end it, by the next call."""
    pool, stream = cupy.cuda.MemoryPool(), drv.Stream(1)
    with cupy.cuda.using_allocator(pool.malloc):
        views = [bridge.as_pycuda(cupy.empty(1 << 20, "i1"), stream=stream) for _ in range(3)]
    captive = bridge.as_cupy_stream(stream)
    captive.begin_capture()
    views.clear()
    bridge.show_memory()
    assert re.search(r"\ndropped, but kept until a capture ends +3\n", capsys.readouterr().out)
    assert pool.used_bytes() == 3 << 20
    if is_seen:
        captive.end_capture()
    else:
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))
        bridge.as_pycuda(cupy.empty(1))
    assert pool.used_bytes() == 0


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
