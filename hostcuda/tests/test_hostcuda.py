"""The host driver does what CUDA documents, as far as the other tests lean on it."""

import ctypes
import os
import subprocess
import sys

import cupy
import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray
import pytest
from pycuda.compiler import SourceModule
from pycuda.elementwise import ElementwiseKernel
from pycuda.reduction import ReductionKernel

import hostcuda
from hostcuda import _cupy

CONTEXTS = {}  # one object per device: two objects of one context are equal but hash differently


@pytest.fixture(autouse=True)
def _primary_context():
    drv.init()
    if 0 not in CONTEXTS:
        CONTEXTS[0] = drv.Device(0).retain_primary_context()
    CONTEXTS[0].push()
    hostcuda.clear()
    yield
    drv.Context.synchronize()
    hostcuda.clear()
    CONTEXTS[0].pop()


@pytest.fixture(scope="module")
def kernels():
    return hostcuda.compile("""
        extern "C" __global__ void fill(int *x, int value, int n) {
          for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
        }
        extern "C" __global__ void mixed(char a, double b, short c, float3 d, int *e, char f) {
          *e = a + int(b) + c + int(d.z) + f;
        }
        __constant__ float table[3];
        template <class T> __global__ void scale(T *x, T by) { x[threadIdx.x] *= by; }
    """)


@pytest.fixture
def fill(kernels):
    return drv.module_from_buffer(kernels).get_function("fill")


def zeros(n=8):
    """Answer a GPUArray of int32 zeros; nothing is queued afterwards."""
    array = gpuarray.to_gpu(np.zeros(n, np.int32))
    drv.Context.synchronize()  # the last bytes may still be on their way
    return array


# ---- streams ------------------------------------------------------------------------------------

CUPY_STREAMS = {
    "null": lambda: cupy.cuda.Stream.null,
    "blocking": lambda: cupy.cuda.Stream(),
    "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    "per-thread": lambda: cupy.cuda.Stream.ptds,
}
PYCUDA_STREAMS = {
    "None": lambda: None,
    "Stream()": lambda: drv.Stream(),
    "Stream(1)": lambda: drv.Stream(1),
}
ORDERED = {("null", "None"), ("blocking", "None"), ("per-thread", "None"), ("null", "Stream()")}


@pytest.mark.parametrize("writer", PYCUDA_STREAMS)
@pytest.mark.parametrize("reader", CUPY_STREAMS)
def test_an_unfenced_read_is_right_only_where_streams_are_ordered(reader, writer, fill):
    array, stream = zeros(), PYCUDA_STREAMS[writer]()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    with CUPY_STREAMS[reader]():
        seen = cupy.asarray(array).get()[0]
    assert seen == (7 if (reader, writer) in ORDERED else 0)


@pytest.mark.parametrize("writer", PYCUDA_STREAMS)
@pytest.mark.parametrize("reader", CUPY_STREAMS)
def test_a_fence_makes_every_read_right(reader, writer, fill):
    array, stream = zeros(), PYCUDA_STREAMS[writer]()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    event = cupy.cuda.Event(disable_timing=True)
    cupy.cuda.runtime.eventRecord(event.ptr, stream.handle if stream else 0)
    with CUPY_STREAMS[reader]() as current:
        current.wait_event(event)
        assert cupy.asarray(array).get()[0] == 7


def test_an_event_on_the_default_stream_delays_no_blocking_stream(fill):
    array, event = zeros(), drv.Event()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=drv.Stream())
    event.record()
    reader = drv.Stream()
    assert array.get_async(reader)[0] == 0
    reader.wait_for_event(event)
    assert array.get_async(reader)[0] == 7


def test_a_wait_on_the_default_stream_delays_blocking_streams(fill):
    array, busy, other = zeros(), zeros(), cupy.cuda.Stream(non_blocking=True)
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=drv.Stream())
    cupy.cuda.runtime.memsetAsync(int(busy.gpudata), 7, busy.nbytes, other.ptr)
    cupy.cuda.Stream.null.wait_event(other.record())
    assert array.get_async(drv.Stream())[0] == 7


def test_default_streams_of_two_contexts_are_not_ordered(fill):
    array = zeros()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1))
    other = drv.Device(0).make_context()
    try:
        assert array.get()[0] == 0
    finally:
        other.pop()
        other.detach()


def test_an_event_does_not_cover_later_work(fill):
    array, stream = zeros(), drv.Stream(1)
    event = drv.Event()
    fill(array, np.int32(1), np.int32(8), block=(8, 1, 1), stream=stream)
    event.record(stream)
    fill(array, np.int32(2), np.int32(8), block=(8, 1, 1), stream=stream)
    event.synchronize()
    reader = drv.Stream(1)
    assert array.get_async(reader)[0] == 1


def test_query_answers_not_ready_and_runs_nothing(fill):
    array, stream, event = zeros(), drv.Stream(1), drv.Event()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    event.record(stream)
    assert not event.query()
    assert not stream.is_done()
    assert hostcuda.pending(stream.handle) == 2
    event.synchronize()
    assert event.query()
    assert hostcuda.pending(stream.handle) == 0


def test_an_event_on_an_idle_stream_is_complete_at_once():
    assert drv.Event().record(drv.Stream(1)).query()


def test_elapsed_time_is_positive(fill):
    array, first, last = zeros(), drv.Event(), drv.Event()
    first.record()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1))
    last.record().synchronize()
    assert last.time_since(first) > 0


def test_host_waits_counts_only_waits_for_undone_work(fill):
    array, stream = zeros(), drv.Stream(1)
    before = hostcuda.host_waits()
    stream.synchronize()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    assert hostcuda.host_waits() == before
    stream.synchronize()
    stream.synchronize()
    assert hostcuda.host_waits() == before + 1


def test_free_waits_for_the_work_of_the_context(fill):
    array, stream = zeros(), drv.Stream(1)
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    array.gpudata.free()
    assert hostcuda.pending(stream.handle) == 0
    assert not hostcuda.damaged()


# --- captures ---------------------------------------------------------------------------------


@pytest.fixture
def streams():
    return cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)


def on(stream, array, value):
    """Queue ``array[...] = value``, all bytes of it."""
    cupy.cuda.runtime.memsetAsync(array.data.ptr, value, array.nbytes, stream.ptr)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_graph_runs_what_was_captured_last_first_unless_ordered(streams, fenced):
    one, other = streams
    x = cupy.zeros(8, np.uint8)
    cupy.cuda.Device().synchronize()
    one.begin_capture()
    other.wait_event(one.record())
    on(one, x, 1)
    if fenced:
        other.wait_event(one.record())
    on(other, x, 2)
    one.wait_event(other.record())
    graph = one.end_capture()
    assert x.get()[0] == 0
    for _ in range(2):
        graph.launch(one)
        one.synchronize()
        assert x.get()[0] == (2 if fenced else 1)
        x.fill(0)
        cupy.cuda.Device().synchronize()


RELAXED, GLOBAL = 2, 0
ALLOCATE = [lambda: cupy.cuda.runtime.malloc(8), lambda: drv.mem_alloc(8)]
SPOILING = {
    "wait for the rest": ("Isolation", lambda one, other: one.wait_event(other.record())),
    "default stream waits": (
        "Implicit",
        lambda one, other: cupy.cuda.Stream.null.wait_event(one.record()),
    ),
    "flags": ("Unsupported", lambda one, other: cupy.cuda.runtime.streamGetFlags(one.ptr)),
    "host waits": ("Unsupported", lambda one, other: one.synchronize()),
    "host waits for all": ("Unsupported", lambda one, other: cupy.cuda.Device().synchronize()),
}
if not hasattr(cupy.cuda.runtime, "streamGetFlags"):  # CuPy 13
    del SPOILING["flags"]


@pytest.mark.parametrize(("error", "act"), SPOILING.values(), ids=SPOILING)
def test_what_spoils_a_graph(streams, error, act):
    """As seen on an H200, driver 580."""
    one = streams[0]
    one.begin_capture()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=error):
        act(*streams)
    with pytest.raises(RuntimeError, match="an error has invalidated the capture sequence"):
        one.is_capturing()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
        one.end_capture()
    assert not one.is_capturing()


@pytest.mark.parametrize("allocate", ALLOCATE, ids=["CuPy", "PyCUDA"])
def test_only_a_relaxed_capture_allocates(streams, allocate):
    stream = streams[0]
    stream.begin_capture(RELAXED)
    allocate()
    stream.end_capture()
    stream.begin_capture(GLOBAL)
    with pytest.raises((cupy.cuda.runtime.CUDARuntimeError, drv.Error), match="not permitted"):
        allocate()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
        stream.end_capture()


def test_the_default_stream_spoils_the_capture_of_a_blocking_one():
    stream, x = cupy.cuda.Stream(), cupy.zeros(8, np.uint8)
    cupy.cuda.Device().synchronize()
    stream.begin_capture()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Implicit"):
        on(cupy.cuda.Stream.null, x, 1)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
        stream.end_capture()


def test_a_user_object_lives_as_long_as_its_graph_its_executables_and_their_work(streams):
    cuda, runtime, stream = ctypes.CDLL("libcuda.so.1"), cupy.cuda.runtime, streams[0]
    x, ended = cupy.zeros(8, np.uint8), []
    cupy.cuda.Device().synchronize()
    destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda _: ended.append(cuda.cuCtxSynchronize())  # which it must not
    )
    state, capture = ctypes.c_int(), ctypes.c_uint64()
    graph, kept = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuUserObjectCreate(ctypes.byref(kept), None, destructor, 2, 1) == 0
    runtime.streamBeginCapture(stream.ptr, RELAXED)
    on(stream, x, 1)
    asked = cuda.cuStreamGetCaptureInfo_v2(
        *(ctypes.c_void_p(stream.ptr), ctypes.byref(state), ctypes.byref(capture)),
        *(ctypes.byref(graph), None, None),
    )
    assert asked == cuda.cuGraphRetainUserObject(graph, kept, 1, 1) == 0
    assert runtime.streamEndCapture(stream.ptr) == graph.value
    assert cuda.cuUserObjectRelease(kept, 1) == 0
    assert cuda.cuUserObjectRelease(kept, 1) == 1  # cudaErrorInvalidValue
    executable = runtime.graphInstantiate(graph.value)
    runtime.graphDestroy(graph.value)
    runtime.graphLaunch(executable, stream.ptr)
    runtime.graphExecDestroy(executable)
    assert not ended
    stream.synchronize()
    assert (ended, x[0]) == ([800], 1)  # CUDA_ERROR_NOT_PERMITTED


def test_a_fork_must_be_joined(streams):
    one, other = streams
    one.begin_capture()
    other.wait_event(one.record())
    on(other, cupy.zeros(8, np.uint8), 1)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Unjoined"):
        one.end_capture()


# --- streams that go --------------------------------------------------------------------------


def test_a_destroyed_stream_still_runs_its_work(fill):
    array, stream = zeros(), drv.Stream(1)
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    del stream
    drv.Context.synchronize()
    assert array.get()[0] == 7


def test_the_handle_that_was_freed_last_is_given_again():
    streams = [cupy.cuda.Stream() for _ in range(2)]
    handles = [stream.ptr for stream in streams]
    while streams:
        del streams[0]
    streams = [cupy.cuda.Stream() for _ in range(2)]
    assert [stream.ptr for stream in streams] == handles[::-1]


def test_a_stale_stream_handle_is_refused():
    stream = cupy.cuda.Stream(non_blocking=True)
    handle = stream.ptr
    del stream
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid resource handle"):
        cupy.cuda.runtime.streamSynchronize(handle)


# ---- host memory --------------------------------------------------------------------------------


def upload_then_change_the_source(source):
    array, stream = zeros(), drv.Stream(1)
    source[:] = 1
    drv.memcpy_htod_async(array.gpudata, source, stream)
    source[:] = 2
    stream.synchronize()
    return array.get()[0]


def test_pageable_memory_is_read_when_the_copy_is_called():
    assert upload_then_change_the_source(np.empty(8, np.int32)) == 1


def test_an_upload_may_arrive_after_other_streams_work(fill):
    """As CUDA says of pageable memory: it is read at the call, and may reach the device later."""
    array, stream = zeros(), drv.Stream(1)
    waits = hostcuda.host_waits()
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1))
    drv.memcpy_htod(array.gpudata, np.ones(8, np.int32))  # waits for the kernel
    assert hostcuda.host_waits() == waits + 1
    fill(array, np.int32(8), np.int32(8), block=(8, 1, 1), stream=stream)
    stream.synchronize()
    assert array.get()[0] == 1


def test_page_locked_memory_is_read_when_the_copy_runs():
    assert upload_then_change_the_source(drv.pagelocked_empty(8, np.int32)) == 2


@pytest.mark.parametrize(
    ("empty", "seen"),
    [(np.empty, 7), (drv.pagelocked_empty, 0)],
    ids=["pageable-waits", "page-locked-does-not"],
)
def test_download_waits_only_for_pageable_memory(empty, seen, fill):
    array, stream, target = zeros(), drv.Stream(1), empty(8, np.int32)
    target[:] = 0
    fill(array, np.int32(7), np.int32(8), block=(8, 1, 1), stream=stream)
    drv.memcpy_dtoh_async(target, array.gpudata, stream)
    assert target[0] == seen
    stream.synchronize()
    assert target[0] == 7


@pytest.mark.parametrize("bits", ["8", "16", "32"])
@pytest.mark.parametrize("allocate", ["hostAlloc", "mallocManaged"])
def test_a_fill_of_memory_that_the_host_reads_waits_unless_it_is_asynchronous(allocate, bits):
    host = getattr(cupy.cuda.runtime, allocate)(4, *[0] * (allocate == "hostAlloc"))
    word = ctypes.c_uint32.from_address(host)
    fill, size = getattr(drv, f"memset_d{bits}"), 32 // int(bits)
    word.value = 0
    fill(host, 7, size)
    assert word.value & 255 == 7
    getattr(drv, f"{fill.__name__}_async")(host, 8, size)
    assert word.value & 255 == 7
    cupy.cuda.runtime.deviceSynchronize()
    assert word.value & 255 == 8


# ---- device memory ------------------------------------------------------------------------------


@pytest.fixture
def failure():
    """Return how the work queued so far fails; the context can be used again afterwards."""

    def failure(error="illegal memory access"):
        with pytest.raises(drv.Error, match=error):
            drv.Context.synchronize()
        (message,) = hostcuda.failures(untold=False)
        hostcuda.revive()
        return message

    return failure


@pytest.mark.parametrize("n", [9, 1024])
def test_a_write_past_the_end_is_found(n, fill, failure):
    array = zeros(8)
    fill(array, np.int32(7), np.int32(n), block=(n, 1, 1))
    assert failure() == (
        "kernel fill, block (0,0,0), thread (8,0,0): writes 4 bytes, 0 bytes "
        "behind the end of a block of 32 bytes (line 3)"
    )
    assert array.get().tolist() == [7] * 8


def test_adding_to_freed_numbers_is_found(failure):
    kernel = cupy.RawKernel(
        'extern "C" __global__ void add(float *x) { x[threadIdx.x] += 1; }', "add"
    )
    block = drv.mem_alloc(32)
    address = int(block)
    block.free()
    kernel((1,), (8,), (np.uintp(address),))
    assert failure() == (
        "kernel add, block (0,0,0), thread (0,0,0): reads 4 bytes, 0 bytes into a "
        "block of 32 bytes that was freed (line 1)"
    )


def test_a_write_after_free_is_found(fill, failure):
    array = zeros(8)
    address = int(array.gpudata)
    array.gpudata.free()
    fill(np.uintp(address), np.int32(7), np.int32(8), block=(8, 1, 1))
    assert "0 bytes into a block of 32 bytes that was freed (line 3)" in failure()


@pytest.mark.damages
def test_a_copy_that_a_graph_repeats_after_a_free_is_found():
    array = zeros(8)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        cupy.cuda.runtime.memsetAsync(int(array.gpudata), 1, 32, stream.ptr)
        graph = stream.end_capture()
    address = int(array.gpudata)
    array.gpudata.free()
    graph.launch(stream)
    stream.synchronize()
    (found,) = hostcuda.damaged()
    assert found == (address, 32, 0, "a fill of 32 bytes")
    assert str(found) == "a fill of 32 bytes wrote into a block of 32 bytes after it was freed"


def test_a_write_past_dynamic_shared_memory_is_found(failure):
    kernel = cupy.RawKernel(
        """extern "C" __global__ void fill_shared(int *x) {
          extern __shared__ int s[];
          s[threadIdx.x] = 1;
          __syncthreads();
          x[threadIdx.x] = s[threadIdx.x];
        }""",
        "fill_shared",
    )
    kernel((1,), (16,), (cupy.zeros(16, np.int32),), shared_mem=60)
    assert failure() == (
        "kernel fill_shared, block (0,0,0), thread (15,0,0): writes 4 bytes outside of 60 bytes of "
        "shared memory (line 3)"
    )


def test_live_blocks_come_and_go():
    allocation = drv.mem_alloc(1000)
    address = int(allocation)
    assert (address, 1000, 0) in hostcuda.live_blocks()
    allocation.free()
    assert address not in [block.ptr for block in hostcuda.live_blocks()]


def test_new_memory_is_not_zeroed():
    assert gpuarray.empty(8, np.int32).get().any()


def test_memory_runs_out():
    with pytest.raises(drv.MemoryError):
        drv.mem_alloc(1 << 40)


def test_an_unknown_pointer_is_refused():
    host = np.zeros(8)
    with pytest.raises(drv.LogicError, match="invalid argument"):
        drv.memcpy_dtoh(np.empty(8), host.ctypes.data)
    assert cupy.cuda.runtime.pointerGetAttributes(host.ctypes.data).type == 0


def test_a_copy_past_the_end_is_refused():
    with pytest.raises(drv.LogicError, match="invalid argument"):
        drv.memcpy_htod(zeros(8).gpudata, np.zeros(9, np.int32))


def test_cupys_pool_hands_a_freed_block_out_again():
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        array = cupy.zeros(1000)
        address = array.data.ptr
        del array
        assert cupy.empty(1000).data.ptr == address


def test_pycudas_pool_hands_a_freed_block_out_again():
    from pycuda.tools import DeviceMemoryPool

    pool = DeviceMemoryPool()
    address = int(pool.allocate(1000))
    assert int(pool.allocate(1000)) == address
    pool.stop_holding()


TWO_DEVICES = """
import cupy, hostcuda, numpy as np, pycuda.autoprimaryctx, pycuda.driver as drv
from pycuda import gpuarray
fill = drv.module_from_buffer(hostcuda.compile(
    'extern "C" __global__ void fill(int *x, int value) { x[threadIdx.x] = value; }'
)).get_function("fill")
"""


def python(script, devices):
    """Run a script in a process of its own."""
    install = f"import hostcuda; hostcuda.install({devices})\n"
    return subprocess.run([sys.executable, "-c", install + script], capture_output=True, text=True)


def test_two_devices_own_their_memory():
    done = python(
        TWO_DEVICES
        + """
with cupy.cuda.Device(1):
    array = cupy.zeros(4)
print(array.device.id, cupy.cuda.runtime.pointerGetAttributes(array.data.ptr).device)
print(next(b.device for b in hostcuda.live_blocks() if b.ptr == array.data.ptr))
""",
        devices=2,
    )
    assert (done.stdout, done.stderr) == ("1 1\n1\n", "")


def test_memory_of_another_device_is_out_of_reach():
    done = python(
        TWO_DEVICES
        + """
with cupy.cuda.Device(1):
    array = cupy.zeros(4, np.int32)
fill(np.uintp(array.data.ptr), np.int32(7), block=(4, 1, 1))
try:
    drv.Context.synchronize()
except drv.Error as error:
    print(error, *hostcuda.failures(untold=False))
hostcuda.revive()
""",
        devices=2,
    )
    assert "illegal memory access" in done.stdout
    assert "writes 4 bytes in a block of device 1, without peer access" in done.stdout
    assert done.stderr == ""


def test_a_default_stream_copy_between_devices_waits_for_both():
    done = python(
        TWO_DEVICES
        + """
array = gpuarray.to_gpu(np.zeros(8, np.int32))
fill(array, np.int32(7), block=(8, 1, 1))
x = cupy.asarray(array)
with cupy.cuda.Device(1):
    print(cupy.array(x).get()[0])
""",
        devices=2,
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_two_dimensional_copies_keep_their_strides():
    host = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert (gpuarray.to_gpu(host)[:, 1:3].get() == host[:, 1:3]).all()


# ---- CuPy without a GPU -------------------------------------------------------------------------


def test_cupy_round_trips_through_dlpack():
    source = cupy.asarray(np.arange(6.0).reshape(2, 3))
    view = cupy.from_dlpack(source)
    assert view.data.ptr == source.data.ptr
    assert (view.get() == source.get()).all()


def test_cupy_round_trips_through_the_cuda_array_interface():
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__
            self.owner = array

    with cupy.cuda.Stream(non_blocking=True) as stream:
        source = cupy.asarray(np.arange(6.0).reshape(2, 3)).T
        assert source.__cuda_array_interface__["stream"] == stream.ptr
    view = cupy.asarray(Foreign(source))
    assert view.data.ptr == source.data.ptr
    assert view.strides == source.strides


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64", "float16", "bool"])
def test_cupys_elementwise_kernels_equal_numpy(dtype):
    host = (np.arange(24).reshape(4, 6) % 5).astype(dtype)
    array = cupy.asarray(host)
    assert ((array[::2, 1:] + array[1::2, 1:]).get() == host[::2, 1:] + host[1::2, 1:]).all()
    assert (array.T.copy().get() == host.T).all()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_cupys_reductions_equal_numpy(axis):
    host = np.arange(3000.0).reshape(60, 50)
    assert (cupy.asarray(host).sum(axis=axis).get() == host.sum(axis=axis)).all()


def test_a_raw_kernel_runs():
    kernel = cupy.RawKernel(
        'extern "C" __global__ void add(float *x, double by) { x[threadIdx.x] += by; }', "add"
    )
    array = cupy.zeros(4, np.float32)
    kernel((1,), (4,), (array, 2.5))
    assert (array.get() == 2.5).all()


LAUNCHES = {
    "threads": ("f((1,), (1025,), (x, x))", "blockDim.x is 1025, and may be 1 to 1024"),
    "all threads": (
        "f((1,), (32, 64), (x, x))",
        "the number of threads of a block is 2048, and may be 1 to 1024",
    ),
    "blocks": ("f((1, 65536), (1,), (x, x))", "gridDim.y is 65536, and may be 1 to 65535"),
    "shared memory": (
        "f((1,), (1,), (x, x), shared_mem=50000)",
        "the number of bytes of dynamic shared memory is 50000, and may be 0 to 49152",
    ),
    "an argument": (
        "import ctypes\n"
        "f.compile()\n"
        "two = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.c_void_p(x.data.ptr)), None)\n"
        "size = 1, 1, 1, 1, 1, 1, 0, 0\n"
        "cupy.cuda.driver.launchKernel(f.kernel.ptr, *size, ctypes.addressof(two), 0)",
        "has 2 parameters, and argument 2 is no memory",
    ),
}


@pytest.mark.parametrize(("call", "said"), LAUNCHES.values(), ids=LAUNCHES)
def test_what_is_wrong_with_a_launch_is_said(call, said, tmp_path):
    program = tmp_path / "program.py"
    source = 'extern "C" __global__ void k(int *x, int *y) { *y = *x; }'
    program.write_text(
        f"import cupy\nx = cupy.zeros(9, 'i')\nf = cupy.RawKernel({source!r}, 'k')\n{call}\n"
    )
    command = [sys.executable, "-m", "hostcuda", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"hostcuda: kernel k: {said}" in done.stderr.replace("kernel k has", "kernel k: has")
    assert "CUDA_ERROR_INVALID_VALUE" in done.stderr


@pytest.mark.parametrize("loop", ["for (;;) x[1]++;", 'while (true) asm volatile("");'])
def test_a_kernel_that_does_not_end_is_stopped(loop, tmp_path):
    program = tmp_path / "program.py"
    source = f'extern "C" __global__ void k(int *x) {{ if (threadIdx.x == 2) {{ {loop} }} }}'
    program.write_text(
        f"import cupy\nx = cupy.zeros(9, 'i')\ncupy.RawKernel({source!r}, 'k')((1,), (3,), (x,))\n"
        "try:\n    x.get()\nexcept cupy.cuda.runtime.CUDARuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hostcuda", program],
        env={**os.environ, "HOSTCUDA_SECONDS": "0.2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "cudaErrorLaunchTimeout" in done.stdout
    where = "kernel k, block (0,0,0), thread (2,0,0)"
    assert f"{where}: has not ended after 0.2 s (HOSTCUDA_SECONDS)" in done.stderr


def test_kernels_allocate_as_much_as_the_limit_says():
    runtime = cupy.cuda.runtime
    kernel = cupy.RawKernel(
        'extern "C" __global__ void k(bool *x) { void *p = malloc(32 << 20); x[0] = p; free(p); }',
        "k",
    )
    before = runtime.deviceGetLimit(runtime.cudaLimitMallocHeapSize)
    found = cupy.zeros(1, bool)
    for size in (before, 64 << 20, before):
        runtime.deviceSetLimit(runtime.cudaLimitMallocHeapSize, size)
        kernel((1,), (1,), (found,))
        assert bool(found[0]) == (size == 64 << 20)


def test_aligned_shared_memory_is_aligned_in_generic_addresses():
    kernel = cupy.RawKernel(
        """extern "C" __global__ void k(unsigned long long *x) {
            __shared__ int a; __shared__ __align__(1024) char b[9];
            x[0] = (unsigned long long)&a; x[1] = (unsigned long long)b % 1024;
        }""",
        "k",
    )
    found = cupy.zeros(2, "u8")
    kernel((1,), (1,), (found,))
    assert found[1] == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DEVICES", "two", "HOSTCUDA_DEVICES is 'two'; give a number, from 1 on"),
        ("ORDER", "random:x", "the order is 'random:x'; "),
        ("MEMORY", "4 GB", "the memory is '4 GB'; give it as 4GiB, 512MiB, or a number of MiB"),
    ],
)
def test_a_setting_that_is_none_is_refused(name, value, said):
    done = subprocess.run(
        [sys.executable, "-m", "hostcuda", "-m", "this"],
        env={**os.environ, f"HOSTCUDA_{name}": value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_orders_and_cover_exclude_each_other(tmp_path):
    options = ["-m", "hostcuda", "--orders", "2", "--cover", "cuda.info", "-m", "this"]
    done = subprocess.run([sys.executable, *options], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "no --order and no --cover" in done.stderr


def test_a_template_is_found_by_its_name_expression():
    module = cupy.RawModule(
        code="template <class T> __global__ void twice(T *x) { x[threadIdx.x] *= 2; }",
        name_expressions=["twice<int>", "twice<double>"],
    )
    array = cupy.ones(4, np.float64)
    module.get_function("twice<double>")((1,), (4,), (array,))
    assert (array.get() == 2).all()


def test_a_refused_source_raises_the_compilers_text():
    with pytest.raises(cupy.cuda.compiler.CompileException, match="nonsense"):
        cupy.RawKernel("nonsense", "nonsense").compile()


def test_install_after_cupy_is_refused():
    with pytest.raises(hostcuda.Unsupported, match="loaded already"):
        _cupy.replace_runtime(None, True)


# ---- PyCUDA without a GPU -----------------------------------------------------------------------


def test_a_source_module_shares_memory_between_threads():
    reverse = SourceModule("""
        __global__ void reverse(int *x) {
          __shared__ int shared[64];
          extern __shared__ int dynamic[];
          int i = threadIdx.x;
          shared[i] = x[i];
          __syncthreads();
          dynamic[i] = shared[blockDim.x - 1 - i];
          __syncthreads();
          x[i] = dynamic[i];
        }
    """).get_function("reverse")
    array = gpuarray.to_gpu(np.arange(64, dtype=np.int32))
    reverse(array, block=(64, 1, 1), shared=64 * 4)
    assert (array.get() == np.arange(64)[::-1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_gpuarray_arithmetic_equals_numpy(dtype):
    host = np.arange(1, 100).astype(dtype)
    array = gpuarray.to_gpu(host)
    assert ((array * array + 1).get() == host * host + 1).all()


def test_pycudas_elementwise_kernel_runs():
    array = gpuarray.to_gpu(np.arange(100, dtype=np.float32))
    ElementwiseKernel("float *x, float by", "x[i] = x[i] * by")(array, np.float32(2))
    assert (array.get() == 2 * np.arange(100)).all()


def test_pycudas_reduction_kernel_runs():
    # It counts on the threads of a warp running in step, as kernels did before Volta.
    array = gpuarray.to_gpu(np.arange(5000, dtype=np.float64))
    total = ReductionKernel(np.float64, "0", "a+b", "x[i]*x[i]", "double *x")(array)
    assert total.get() == (np.arange(5000.0) ** 2).sum()


# ---- modules and launches -----------------------------------------------------------------------


def test_arguments_are_packed_byte_for_byte(kernels):
    module = drv.module_from_buffer(kernels)
    result = zeros(1)
    vector = np.array([1, 2, 3], np.float32)
    packed = np.zeros(40, np.uint8)
    packed[0] = 1
    packed[8:16] = np.array([2.0]).view(np.uint8)
    packed[16:18] = np.array([3], np.int16).view(np.uint8)
    packed[20:32] = vector.view(np.uint8)
    packed[32:40] = np.array([int(result.gpudata)], np.uintp).view(np.uint8)
    packed = np.append(packed, np.uint8(4))
    function = module.get_function("mixed")
    with hostcuda.recording():
        function._launch_kernel((1, 1, 1), (1, 1, 1), packed.tobytes(), 0, None)
    assert hostcuda.launches()[-1].arguments == packed.tobytes()
    assert result.get()[0] == 1 + 2 + 3 + 3 + 4


def test_a_launch_is_recorded(fill):
    array, stream = zeros(), drv.Stream(1)
    how = {"block": (2, 4, 1), "grid": (3, 1), "shared": 16, "stream": stream}
    with hostcuda.recording():
        fill(array, np.int32(7), np.int32(8), **how)
    fill(array, np.int32(7), np.int32(8), **how)
    (launch,) = hostcuda.launches()
    assert launch[:5] == ("fill", (3, 1, 1), (2, 4, 1), 16, stream.handle)


def test_launches_of_a_graph_are_recorded_and_its_capture_is_not():
    kernel = cupy.RawKernel('extern "C" __global__ void f(int *x, int n) { *x = n; }', "f")
    x, stream = cupy.zeros(1, np.int32), cupy.cuda.Stream(non_blocking=True)
    with hostcuda.recording(), stream:
        stream.begin_capture()
        kernel((1,), (1,), (x, 7))
        graph = stream.end_capture()
        assert hostcuda.launches() == []
        graph.launch(stream)
        graph.launch(stream)
    assert [(launch.name, launch.stream) for launch in hostcuda.launches()] == [
        ("f", stream.ptr)
    ] * 2
    stream.synchronize()


def test_a_constant_is_a_symbol_of_its_module(kernels):
    module = drv.module_from_buffer(kernels)
    address, size = module.get_global("table")
    assert size == 12
    drv.memcpy_htod(address, np.arange(3, dtype=np.float32))
    back = np.empty(3, np.float32)
    drv.memcpy_dtoh(back, address)
    assert (back == np.arange(3)).all()


def test_a_missing_function_is_not_found(kernels):
    with pytest.raises(drv.LogicError, match="not found"):
        drv.module_from_buffer(kernels).get_function("missing")


def test_garbage_is_not_a_module():
    with pytest.raises(drv.LogicError, match="invalid"):
        drv.module_from_buffer(b"garbage" * 100)


LOAD = """
import pycuda.autoprimaryctx, pycuda.driver as drv
module = drv.module_from_buffer(b"\\x50\\xed\\x55\\xba" + bytes(99))  # a fat binary
with hostcuda.recording():
    module.get_function("anything")(block=(8, 1, 1))
print(hostcuda.launches()[-1].name)
"""


def test_code_for_a_gpu_is_refused_unless_launches_are_only_to_be_recorded():
    done = python(LOAD, 1)
    assert "no kernel image is available for execution on the device" in done.stderr
    done = python(LOAD, "compilers=False")
    assert (done.stdout, done.stderr) == ("anything\n", "")


def test_warp_shuffles_exchange_values():
    image = hostcuda.compile("""
        extern "C" __global__ void total(int *x) {
          int v = x[threadIdx.x];
          for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
          if (threadIdx.x % 32 == 0) x[threadIdx.x] = v;
        }
    """)
    array = gpuarray.to_gpu(np.arange(64, dtype=np.int32))
    drv.module_from_buffer(image).get_function("total")(array, block=(64, 1, 1))
    assert list(array.get()[[0, 32]]) == [sum(range(32)), sum(range(32, 64))]


def test_compile_raises_the_compilers_text():
    with pytest.raises(hostcuda.CompileError, match=r"kernel.cu\(1\): error"):
        hostcuda.compile("nonsense")


def test_cuda_does_not_survive_fork():
    child = os.fork()
    if not child:
        try:
            drv.mem_alloc(8)
        except drv.Error as error:
            os._exit(0 if "initialization error" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import pycuda.autoinit, concurrent; print(concurrent.mine)", "1\n"),
        ("print 'a'", " (this is Python 2: python -m bridge migrate converts it)\n"),
    ],
)
def test_programs_with_a_module_of_pythons_name_or_in_python_2(program, said, tmp_path):
    (tmp_path / "concurrent.py").write_text("mine = 1")
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "hostcuda", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout + done.stderr).endswith(said)


def test_a_capture_is_lost_if_it_is_ended_on_another_stream():
    s, t = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    s.begin_capture()
    t.wait_event(s.record())
    for stream, error in (t, "Unmatched"), (s, "Invalidated"):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=error):
            stream.end_capture()


def test_a_graph_may_be_uploaded_and_random_numbers_not_captured():
    stream, x = cupy.cuda.Stream(non_blocking=True), cupy.zeros(3)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        x += 1
        with pytest.raises(NotImplementedError, match="cuRAND"):
            cupy.random.random(3)
        graph = stream.end_capture()
        graph.upload(stream)
        graph.launch(stream)
    stream.synchronize()
    assert x.tolist() == [1, 1, 1]
