"""What a capture refuses, and what it holds back; `test_all_programs` has the order in graphs."""

import contextlib
import functools
import gc
import re

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from captures import captured
from cupy.cuda import runtime
from pycuda import gpuarray
from races import CUPY_STREAMS, cupy_reuses

import bridge

N = 1000
COPY = "__global__ void copy(int *to, const int *from) { to[threadIdx.x] = from[threadIdx.x]; }"
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


@contextlib.contextmanager
def captured_unseen(stream):
    """Capture a stream of PyCUDA's, and not by a method of CuPy's."""
    runtime.streamBeginCapture(stream.handle)
    try:
        yield
    finally:
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))


@pytest.fixture(scope="module")
def ours():
    return bridge.SourceModule(COPY).get_function("copy")


@pytest.fixture(scope="module")
def theirs(compile_kernel):
    return compile_kernel(f'extern "C" {COPY}', "copy")


def test_what_cannot_be_captured_is_refused_and_the_graph_stays_whole(ours, theirs):
    x, y, host = cupy.zeros(32, np.int32), cupy.arange(32, dtype="i4"), np.zeros(32, np.int32)
    default, is_captured = cupy.cuda.Stream.null, "CuPy's current stream is being captured"
    negative = bridge.wrap_pycuda(gpuarray.GPUArray.__neg__)
    ours(x, x, **ONE)
    cupy.cuda.Device().synchronize()
    with captured(cupy.cuda.Stream(non_blocking=True)):
        for call, said in (
            (lambda: ours(x, y, stream=default, **ONE), f"copy: {is_captured}"),
            (
                lambda: ours(x, y, stream=bridge.as_cupy_stream(None), **ONE),
                "but the launch would go to the default stream, which cannot be captured",
            ),
            (lambda: bridge.launch(theirs, x, y, **ONE), f"launch: {is_captured}"),
            (lambda: ours(x, drv.In(host), **ONE), "pycuda.driver.In, .* the host waits"),
            (lambda: ours(x, y, time_kernel=True, **ONE), "time of a kernel, the host waits"),
            (lambda: negative(x), f"^__neg__: {is_captured} into a graph, but PyCUDA's default"),
        ):
            with pytest.raises(ValueError, match=said):
                call()
        ours(x, y, **ONE)
    assert (x.get() == y.get()).all()


@pytest.mark.parametrize("case", ["ours", "launch", "spoilt"])
def test_a_launch_says_what_breaks_a_capture(case, ours, theirs):
    """Work on the default stream beside the capture of a blocking one, or an earlier error."""
    x, outside = cupy.zeros(32, np.int32), cupy.cuda.Stream(non_blocking=True).record()
    said = "a stream is being captured into a graph, and the launch"
    launch = functools.partial(bridge.launch, theirs) if case == "launch" else ours
    launch(x, x, **ONE)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=case == "spoilt")
    stream.begin_capture()
    if case == "spoilt":
        with raises("Isolation"):
            stream.wait_event(outside)
        said = "has invalidated the capture; .*previous error"
    current = stream if case == "spoilt" else cupy.cuda.Stream.null
    with current, pytest.raises(drv.Error, match=said):
        launch(x, x, **ONE)
    with raises("Invalidated|Capture"):
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


@pytest.mark.parametrize("earlier", [False, True], ids=["no other", "after one that CuPy began"])
def test_a_capture_that_was_not_seen_to_begin_is_refused(earlier):
    """The default stream then does not stand for the stream."""
    stream, a, allocate = drv.Stream(1), gpuarray.zeros(4, "f"), bridge.pycuda_allocator()
    x, unknown = bridge.as_cupy(a), "into a graph, and the bridge did not see it begin; name the"
    if earlier:
        bridge.as_cupy_stream(stream).begin_capture()
        bridge.as_cupy(a)
        runtime.graphDestroy(runtime.streamEndCapture(stream.handle))
    with captured_unseen(stream):
        for use in lambda: bridge.as_cupy(a), lambda: bridge.as_pycuda(x), lambda: allocate(4):
            with pytest.raises(ValueError, match=unknown):
                use()


def test_the_end_of_a_capture_waits_for_the_default_stream_or_says_that_it_cannot():
    captive, current = cupy.cuda.Stream(), bridge.as_cupy_stream(drv.Stream(1))
    current.begin_capture()
    captive.begin_capture()
    with pytest.warns(UserWarning, match="end_capture: the stream cannot wait for the default"):
        current.end_capture()
    captive.end_capture()
    assert not current.is_capturing()


def test_a_capture_leaves_other_captures_alone():
    """Also those that were not seen to begin."""
    one, other, a = cupy.cuda.Stream(non_blocking=True), drv.Stream(1), gpuarray.zeros(4, "f")
    drv.Context.synchronize()
    with captured_unseen(other), captured(one):
        bridge.as_pycuda(bridge.as_cupy(a))


def test_any_stream_may_join_a_capture(put):
    joins, here, x = drv.Stream(1), cupy.cuda.Stream(non_blocking=True), cupy.zeros(N, np.int32)
    drv.Context.synchronize()
    with captured(here):
        with cupy.cuda.Stream.null:
            bridge.wait_stream(joins, here)
        put(x.data.ptr, N, 7, joins)
        bridge.wait_stream(here, joins)
    assert (x.get() == 7).all()


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("current", [False, True])
def test_a_block_dropped_in_a_capture_is_not_reused_early(latch, non_blocking, spoilt, current):
    """A wait for its user would spoil the graph, so the block stays until the capture ends."""
    captive, user = cupy.cuda.Stream(non_blocking=non_blocking), drv.Stream(1)
    outside = cupy.cuda.Stream(non_blocking=True).record()
    to_pycuda = lambda x: bridge.as_pycuda(x, stream=user)  # noqa: E731

    def drop(views):
        captive.begin_capture()
        if spoilt:
            with raises("Isolation"):
                captive.wait_event(outside)
        with captive if current else cupy.cuda.Stream.null:
            views.clear()
        with raises("Invalidated") if spoilt else contextlib.nullcontext():
            captive.end_capture()

    assert cupy_reuses(to_pycuda, captive, user, latch, drop=drop) == {1}


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
