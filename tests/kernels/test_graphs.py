"""Launches in graphs, cooperative launches and clusters.

`test_function` has their arguments and their order.
"""

import collections
import gc
import threading
import time
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from gpus import ON_GPU
from pycuda import gpuarray

import bridge
from bridge.legacy import replacements

N = 1000
SIZES = {"block": 256, "grid": 4}
SOURCE = """
__global__ void add(float *to, const float *from, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] + a;
}
"""


@pytest.fixture(scope="module")
def add():
    return bridge.SourceModule(SOURCE).get_function("add")


def test_all_ways_to_call_are_the_same_call(add):
    """By the fast path, with other keywords, by ``__call__``, and with names made at run time."""
    x = cupy.zeros(N, np.float32)
    block = {"".join(["bl", "ock"]): N}  # not the interned name
    for call in (
        lambda: add(x, x, np.float32(1), np.int32(N), block=N, shared=0, stream=None),
        lambda: add(x, x, 1, N, block=(N, 1, 1), grid=(1, 1), strided=True, time_kernel=True),
        lambda: add.__call__(x, x, 1.0, N, block=N),
        lambda: add(*(x, x, 1, N), **block),
    ):
        before = float(x[0])
        call()
        assert set(x.get().tolist()) == {before + 1}


# ---- graphs -------------------------------------------------------------------------------------


def test_a_pipeline_gets_new_buffers_without_a_new_capture(add):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        buffers = [cupy.zeros(N, np.float32) for _ in range(21)]
        stream.begin_capture()
        pairs = zip(buffers[1:], buffers, strict=False)
        nodes = [add.capture(to, source, 1, N, **SIZES) for to, source in pairs]
        graph = stream.end_capture()
        graph.launch()
        others = [cupy.full(N, 100, np.float32), *(cupy.zeros(N, np.float32) for _ in nodes)]
        pairs = zip(others[1:], others, strict=False)
        for node, (to, source) in zip(nodes, pairs, strict=True):
            node.update(graph, to, source, 2, N)  # the launch before is as it was
        graph.launch()
        stream.synchronize()
    assert [set(x.get().tolist()) for x in buffers] == [{i} for i in range(21)]
    assert set(others[20].get().tolist()) == {140}


def test_a_captured_kernel_is_unloaded_after_its_graph(add):
    """By the first capture after that: CUDA tells of the end on a thread of its own."""

    def capture():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            add(x, x, 1, 4, block=4)
            return stream.end_capture()

    x, others = cupy.zeros(4, np.float32), []  # the end of one would wait for the stream
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        module = bridge.SourceModule("__global__ void f(float *x) { x[threadIdx.x] += 3; }")
        for _ in range(2):
            module.get_function("f")(x, block=4)
        loaded = weakref.ref(module)
        del module
        graph = stream.end_capture()
        bridge.wait_stream(stream, None)
        gc.collect()
        others.append(capture())
        graph.launch()
        graph.launch()
        del graph
        others.append(capture())
        stream.synchronize()
    assert x.tolist() == [12] * 4
    latest = time.monotonic() + 10
    while loaded() is not None:
        assert time.monotonic() < latest
        capture()


@pytest.mark.starts
def test_a_process_may_end_before_its_graphs(run):
    """CUDA may tell of the end of one after Python's end."""
    run("""
        import ctypes

        x, stream, graphs = cupy.zeros(1, "f"), cupy.cuda.Stream(non_blocking=True), []
        for _ in range(2):
            with stream:
                stream.begin_capture()
                module = bridge.SourceModule("__global__ void f(float *x) { *x += 1; }")
                module.get_function("f")(x, block=1)
                graphs.append(stream.end_capture())
                graphs[-1].launch()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graphs[0]))  # only the driver's end ends it
    """)


def test_what_capture_refuses(add):
    x, stream = cupy.zeros(N, np.float32), cupy.cuda.Stream(non_blocking=True)
    for given in ({}, {"stream": stream}, {"stream": drv.Stream(1)}):
        with pytest.raises(ValueError, match="add.capture: the stream of the launch is not being"):
            add.capture(x, x, 1, N, **SIZES, **given)
    for given, error, message in [
        ({"block": None}, ValueError, "add: block is missing; give it by name"),
        ({"grid": 0}, ValueError, "add: grid is 0; each extent is 1 or more"),
        ({"cluster": 0}, ValueError, "add: cluster is 0; each extent is 1 or more"),
        ({"cluster": (0, 1, 1)}, ValueError, "add: cluster is .*; each extent is 1 or more"),
        ({"cluster": (-1, 1, 1)}, ValueError, "add: cluster is .*; each extent is 1 or more"),
        ({"stream": 5}, TypeError, "add: stream is 5; None, a pycuda.driver.Stream"),
    ]:
        with pytest.raises(error, match=message):
            add.capture(x, x, 1, N, **{**SIZES, **given})
    with stream:
        stream.begin_capture()
        with pytest.raises(TypeError, match=r"^add: 2 arguments for 4 parameters: add\(float \*to"):
            add.capture(x, x, **SIZES)
        stream.end_capture()


def test_new_arguments_are_checked(add):
    x = cupy.zeros(N, np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        node = add.capture(x, x, 1, N, **SIZES)
        graph = stream.end_capture()
        stream.begin_capture()
        add(x, x, 1, N, **SIZES)
        other = stream.end_capture()
    for arguments, error, message in [
        ((graph, x.astype("d"), x, 1, N), TypeError, r"argument 0 \(`float \*to`\) is an array of"),
        ((graph, x, x, 1), TypeError, "3 arguments for 4 parameters"),
        ((graph, drv.InOut(np.zeros(N, "f")), x, 1, N), TypeError, "copy when a call begins and"),
        ((x, x, x, 1, N), TypeError, r"update: graph is .*; the cupy.cuda.Graph of the capture is"),
        ((other, x, x, 1, N), ValueError, "update: CUDA refuses it .* captured into is accepted"),
    ]:
        with pytest.raises(error, match=message):
            node.update(*arguments)
    x.fill(0)
    graph.launch(cupy.cuda.Stream.null)
    cupy.cuda.Device().synchronize()
    assert set(x.get().tolist()) == {1}


if not ON_GPU:  # where a call of the driver seldom lets another thread in between

    def test_a_node_that_cannot_be_told_from_another_threads_work_is_refused(add):
        """Without the check, such a node is another kernel's, or none."""
        x, stop = cupy.zeros(N, np.float32), threading.Event()
        add(x, x, 1, N, block=32)
        inside, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

        def add_dependencies():
            with bridge.primary_context(), other:
                while not stop.is_set():
                    cupy.cuda.runtime.memsetAsync(x.data.ptr, 0, 4, other.ptr)
                    bridge.wait_stream(inside, other)

        thread = threading.Thread(target=add_dependencies)
        with inside:
            inside.begin_capture()
            bridge.wait_stream(other, inside)
            thread.start()
            try:
                refused = "another thread has queued work into the cap"
                with pytest.raises(ValueError, match=refused):
                    collections.deque(add.capture(x, x, 1, N, block=32) for _ in range(20_000))
            finally:
                stop.set()
                thread.join()
                bridge.wait_stream(inside, other)
                inside.end_capture()


def test_under_run_a_capture_stays_on_its_stream():
    """There, launches without CuPy's arrays go to the default stream."""
    add = replacements._SourceModule(SOURCE).get_function("add")
    a, b = gpuarray.zeros(N, np.float32), gpuarray.zeros(N, np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        node = add.capture(a, a, 1, N, **SIZES)
        graph = stream.end_capture()
        drv.Context.synchronize()
        assert set(a.get().tolist()) == {0}
        node.update(graph, b, a, 2, N)
        graph.launch()
        stream.synchronize()
    assert set(b.get().tolist()) == {2}


# ---- cooperative launches and clusters ----------------------------------------------------------

COOPERATIVE = """
#include <cooperative_groups.h>
__global__ void turn(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, value = i < n ? x[n - 1 - i] : 0;
    cooperative_groups::this_grid().sync();
    if (i < n) x[i] = value;
}
__global__ void cluster_sizes(int *x)
{
    unsigned n;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
    x[blockIdx.x] = n;
}
"""


def test_without_a_gpu_clusters_are_refused(add):
    if ON_GPU:
        pytest.skip("not installed: hostcuda in the place of the driver")
    x = cupy.zeros(N, np.float32)
    with pytest.raises(drv.LogicError, match=r"cluster is \(2, 1, 1\), grid is \(4, 1, 1\); a clu"):
        add(x, x, 1, N, block=32, grid=4, cluster=2)


def test_all_blocks_run_at_the_same_time():
    turn = bridge.SourceModule(COOPERATIVE, no_extern_c=True).get_function("turn")
    blocks = cupy.cuda.Device().attributes["MultiProcessorCount"]
    n = 1024 * blocks
    x = cupy.arange(n, dtype=np.int32)
    turn(x, n, block=1024, grid=blocks, cooperative=True)
    assert (x.get() == np.arange(n)[::-1]).all()
    with pytest.raises(drv.Error, match=r"grid \(100000, 1, 1\) has 100000 blocks; in a cooperati"):
        turn(x, n, block=1024, grid=100_000, cooperative=True)


def test_clusters(gpu):
    sizes = bridge.SourceModule(COOPERATIVE, no_extern_c=True).get_function("cluster_sizes")
    x = cupy.zeros(8, np.int32)
    sizes(x, block=32, grid=8, cluster=4)
    assert set(x.get().tolist()) == {4}
    with pytest.raises(drv.Error, match=r"cluster is \(3, 1, 1\), grid is \(8, 1, 1\); a cluster"):
        sizes(x, block=32, grid=8, cluster=(3, 1, 1))
