"""Several devices in one process: each array, stream, kernel and pool on its own."""

import functools

import pytest
from gpus import ON_GPU

# A kernel that takes 20 ms on a GPU; the host driver is lazy in any case.  And one of PyCUDA's own.
START = f"""
import bridge.autoinit
from cupy.cuda.compiler import compile_using_nvrtc
N, TURNS = 1 << 10, {20_000 if ON_GPU else 1}
put = bridge.SourceModule(
    "__global__ void put(int *p, int n, int v, int turns)"
    "{{ for (int i = 0; i < turns; i++) __nanosleep(1000);"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = v; }}"
).get_function("put")
image, _ = compile_using_nvrtc('extern "C" __global__ void f(int *p) {{ p[0] = 1; }}')
function = drv.module_from_buffer(image).get_function("f")

def said(call):
    try:
        call()
    except (bridge.ContextError, drv.LogicError) as error:
        print(error)
"""


@pytest.fixture
def on_two(run):
    """Run a script where there are two devices."""
    return functools.partial(run, start=START, devices=2)


STREAMS = {
    "PyCUDA's": "drv.Stream()",
    "CuPy's": "cupy.cuda.Stream()",
    "CuPy's, non-blocking": "cupy.cuda.Stream(non_blocking=True)",
}
ACROSS = """
with bridge.primary_context(1):
    there = bridge.as_cupy_stream({stream})
    a = gpuarray.zeros(N, np.int32)
    drv.Context.synchronize()
here = cupy.cuda.Stream(non_blocking=True)
x = cupy.zeros(N, np.int32)
drv.Context.synchronize()

with bridge.primary_context(1), there:
    y = bridge.as_cupy(a)
    put(y, N, 7, TURNS, grid=1, block=32)
with bridge.primary_context({current}):
    {wait}
cupy.cuda.runtime.memcpyPeerAsync(x.data.ptr, 0, y.data.ptr, 1, x.nbytes, here.ptr)
here.synchronize()
print(int(x.min()))
"""


WAIT, N_B = "bridge.wait_stream({}, there)", STREAMS["CuPy's, non-blocking"]
# The default stream waits, which a blocking one follows; a copy on it itself waits for all devices.
BEHIND_DEFAULT = ACROSS.replace("Stream(non_blocking=True)", "Stream()")
BY_A_STREAM_BETWEEN = (
    "between = cupy.cuda.Stream(non_blocking=True); "
    "bridge.primary_context(1)(bridge.wait_stream)(between, None); "
    "bridge.wait_stream(None, between)"
)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("current", [0, 1])
def test_streams_of_two_devices_are_ordered(on_two, stream, current):
    script = ACROSS.format(stream=stream, current=current, wait=WAIT.format("here"))
    assert on_two(script) == "7\n"


@pytest.mark.parametrize(
    ("stream", "wait"), [(N_B, WAIT.format("None")), (None, BY_A_STREAM_BETWEEN)]
)
def test_a_default_stream_waits_for_another_devices_stream(on_two, stream, wait):
    assert on_two(BEHIND_DEFAULT.format(stream=stream, current=0, wait=wait)) == "7\n"


@pytest.mark.parametrize(
    ("script", "stream"), [(ACROSS, N_B), (BEHIND_DEFAULT, N_B), (BEHIND_DEFAULT, None)]
)
def test_streams_of_two_devices_are_not_ordered_by_themselves(on_two, script, stream):
    assert on_two(script.format(stream=stream, current=0, wait="pass")) == "0\n"


def test_streams_of_another_device_are_ordered_from_anywhere(on_two):
    out = on_two("""
        with bridge.primary_context(1):
            one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            a, b = (gpuarray.zeros(N, np.int32) for _ in range(2))
            drv.Context.synchronize()
            with one:
                put(bridge.as_cupy(a), N, 7, TURNS, grid=1, block=32)
        bridge.wait_stream(other, one)
        with bridge.primary_context(1), other:
            cupy.copyto(bridge.as_cupy(b, stream=-1), bridge.as_cupy(a, stream=-1))
            other.synchronize()
            print(b.get().min())
        del a, b
    """)
    assert out == "7\n"


def test_the_allocator_takes_memory_on_its_devices_default_stream(on_two):
    out = on_two("""
        def malloc(size):
            seen.append((cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr))
            return cupy.cuda.get_allocator()(size)

        seen = []
        with cupy.cuda.using_allocator(malloc):
            allocate = bridge.pycuda_allocator()
        for device in (0, 1):
            with bridge.primary_context(device), cupy.cuda.Stream(non_blocking=True) as stream:
                for _ in range(2):
                    allocate(64)
                    assert cupy.cuda.get_current_stream() == stream
        print(seen)
    """)
    assert out == f"{[(0, 0)] * 2 + [(1, 0)] * 2}\n"


@pytest.mark.alone  # measures free memory
def test_a_module_that_goes_starts_no_other_device(run):
    """Nor does it leave its own device current."""
    script = """
        import ctypes
        from cupy.cuda import driver
        from other_threads import on_a_thread

        found = []

        def free():
            with bridge.primary_context(1):
                return cupy.cuda.runtime.memGetInfo()[0]

        with bridge.primary_context(1):
            held = [bridge.SourceModule("__device__ char big[1 << 26]; __global__ void f() { }")]
            held[0].get_global("big")  # the host driver counts what has been asked for
        before = free()

        def drop():
            held.clear()
            found.append(driver.ctxGetCurrent())

        on_a_thread(drop)
        flags, active = ctypes.c_uint(), ctypes.c_int()
        libcuda = ctypes.CDLL("libcuda.so.1")
        for device in (0, 1):
            libcuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            print(device, active.value)
        print(found, free() - before >= 1 << 26)
    """
    assert run(script, start="", devices=2) == "0 0\n1 1\n[0] True\n"


def test_another_devices_stream_is_refused_by_name(on_two):
    out = on_two(f"""
a, x = gpuarray.zeros(N, np.int32), cupy.zeros(N, np.int32)
with bridge.primary_context(1):
    streams = [{", ".join(STREAMS.values())}]
    other = drv.Device(1).make_context()  # its own, and not the primary one
    streams.append(drv.Stream())
    other.pop()
for s in streams:
    said(lambda: bridge.as_cupy(a, stream=s))
    said(lambda: bridge.as_pycuda(x, stream=s))
    said(lambda: bridge.as_cupy_stream(s))
    said(lambda: put(x, N, 1, 0, grid=1, block=32, stream=s))
said(lambda: bridge.launch(function, x, grid=1, block=32, stream=streams[0]))
with bridge.primary_context(1):
    said(lambda: bridge.launch(function, grid=1, block=32))
    del s, streams
    other.detach()
with cupy.cuda.Device(1):
    said(lambda: bridge.wait_stream(None, None))
""")
    *lines, unknown, beside = [line for line in out.splitlines() if "device" in line]
    names = [*["as_cupy", "as_pycuda", "as_cupy_stream", "put"] * 4, "launch"]
    for name, line in zip(names, lines, strict=True):
        assert line.startswith(f"{name}: stream is on device 1, but device 0 is current; work und")
        assert "bridge.primary_context(1)" in line
    assert out.count("wait_stream") == len(names)
    assert "launch: CUDA does not know the stream, or the function, on device 1" in unknown
    assert "context is on device 0, CuPy's current one is on device 1. Work with both on" in beside
    assert "or go back with `cupy.cuda.Device(0).use()` if it was another library that" in beside


def test_another_devices_memory_is_refused_by_every_call(on_two):
    """And orders nothing: the stream that would wait does not become part of a capture."""
    out = on_two("""
from pycuda.tools import DeviceMemoryPool
from exporters import Plain

class ByDlpack:
    __dlpack_device__ = lambda self: (2, 1)
    __dlpack__ = lambda self, **_: None

put.prepare("Piii")
grid, block, args = (1, 1), (32, 1, 1), (N, 1, 0)
here, swapped = cupy.zeros(N, np.int32), gpuarray.zeros(N, np.int32)
swapped_view, holder = bridge.as_pycuda(here), Plain(cupy.cuda.alloc(4 * N))
moved = gpuarray.GPUArray(N, np.int32, gpudata=holder)
bridge.as_cupy(swapped), bridge.as_cupy(moved)
stream, captured = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
with bridge.primary_context(1):
    x, a = cupy.zeros(N, np.int32), gpuarray.zeros(N, np.int32)
    converted, view = gpuarray.zeros(N, np.int32), bridge.as_pycuda(x)
    bridge.as_cupy(converted)
    swapped.gpudata, swapped_view.gpudata, holder.memory = a.gpudata, x.data.ptr, x.data
    pool = DeviceMemoryPool()
    pooled = gpuarray.zeros(N, np.int32, allocator=pool.allocate)
    ours = gpuarray.zeros(N, np.int32, allocator=bridge.pycuda_allocator())
    arrays = [x, a, pooled, ours, converted, view, swapped, swapped_view, moved]
    memory = [*arrays, a.gpudata, pooled.gpudata, ours.gpudata]
    for one in memory:
        put(one, *args, grid=grid, block=32)
        put.prepared_call(grid, block, one, *args)
for one in memory:
    said(lambda: put(one, *args, grid=1, block=32))
    said(lambda: put(one, *args, grid=1, block=32, stream=stream))
    said(lambda: put.prepared_call(grid, block, one, *args))
    said(lambda: put.prepared_async_call(grid, block, stream, one, *args))
    said(lambda: put.prepared_timed_call(grid, block, one, *args))
    said(lambda: bridge.launch(function, one, grid=1, block=1))
captured.begin_capture()
for one in [*arrays, ByDlpack()]:
    for convert in bridge.as_cupy, bridge.as_pycuda, bridge.wrap_pycuda(lambda _, stream: one):
        with stream:
            said(lambda: convert(one, stream=captured))
        assert not stream.is_capturing()
captured.end_capture()
with bridge.primary_context(1):
    del x, a, pooled, ours, pool, converted, view, swapped, swapped_view, moved, holder
    del arrays, memory, one
""")
    refusal = "is on device 1, but device 0 is current; work under"
    assert out.count(f"put: argument 0 (`int *p`) {refusal}") == 12 * 5
    assert out.count(f"launch: argument 0 {refusal}") == 12
    assert out.count(f": the array {refusal}") == 9 * 3 + 2
    advice = "`with bridge.primary_context(1):`, or copy it to device 0"
    assert out.count(advice) == 12 * 6 + 9 * 3 + 2


def test_a_stream_of_another_device_joins_a_capture(on_two):
    """The default stream of its device stands for it, so that conversions go on there."""
    on_two("""
        with bridge.primary_context(1):
            a, other = gpuarray.zeros(N, np.int32), cupy.cuda.Stream(non_blocking=True)
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        bridge.wait_stream(other, stream)
        with bridge.primary_context(1):
            bridge.as_cupy(a)
        bridge.wait_stream(stream, other)
        stream.end_capture()
    """)


def test_a_captured_launch_stays_on_its_device(on_two):
    out = on_two("""
of_first = drv.Stream(1)
with cupy.cuda.Stream(non_blocking=True) as stream:
    stream.begin_capture()
    first = bridge.as_cupy(gpuarray.zeros(N, np.int32), stream=-1)
    node = put.capture(first, N, 7, 0, block=32)
    graph = stream.end_capture()
with bridge.primary_context(1):
    x = cupy.zeros(N, np.int32)
    put(x, N, 7, 0, block=32, shared=50_000)
    print(set(x.get().tolist()))
    said(lambda: put.capture(x, N, 7, 0, block=32, stream=of_first))
    said(lambda: node.update(graph, x, N, 7, 0))
""")
    assert out.splitlines()[0] == "{7}"
    assert "put: stream is on device 0, but device 1 is current" in out
    assert "put: update: the graph is of device 0, but device 1 is current; work under" in out


def test_devices_side_by_side_on_threads_keep_what_is_theirs(on_two):
    """Conversions, launches of one module, pools, streams; arrays die on the other's thread."""
    out = on_two("""
        import gc
        from other_threads import on_threads

        twice = bridge.wrap_pycuda(lambda a: 2 * a)
        handed, failed = [[], []], []

        def work(device):
            with bridge.primary_context(device):
                allocate = bridge.pycuda_allocator()
                for k in range(50):
                    stream = cupy.cuda.Stream(non_blocking=True)
                    with stream:
                        x = cupy.zeros(N, np.int32)
                        put(x, N, k, 0, grid=1, block=32)
                        y = twice(x) + bridge.as_cupy(bridge.as_pycuda(x))
                        a = gpuarray.to_gpu(np.full(N, k, np.int32), allocator=allocate)
                        view = bridge.as_cupy(a)
                        y += view
                        if (y.get() != 4 * k).any() or {y.device.id, view.device.id} != {device}:
                            failed.append((device, k))
                    handed[1 - device].append((x, y, a, bridge.as_pycuda(y)))
                    if handed[device]:
                        handed[device].pop()

        on_threads(work, 0, 1)
        handed.clear()
        gc.collect()
        for device in (0, 1):
            with cupy.cuda.Device(device):
                failed.append(cupy.get_default_memory_pool().used_bytes())
        print(failed)
    """)
    assert out == "[0, 0]\n"


def test_cupys_device_is_afterwards_what_it_was(on_two):
    out = on_two("""
        import pickle
        module = bridge.SourceModule("__device__ int n; __global__ void f() {}")
        module.get_global("n")
        for move in (
            bridge.primary_context(0)(lambda: 0),
            bridge.primary_context(1)(lambda: 0),
            lambda: pickle.dumps(module),
        ):
            with cupy.cuda.Device(1):
                move()
                print(cupy.cuda.runtime.getDevice(), cupy.zeros(3).device.id)
            print(cupy.cuda.runtime.getDevice(), drv.Context.get_current().handle)
        print(bridge.autoinit.context.handle)
    """)
    *lines, handle = out.splitlines()
    assert lines == ["1 1", f"0 {handle}"] * 3


def test_an_empty_array_is_of_any_device(on_two):
    out = on_two("""
        with bridge.primary_context(1):
            arrays = [make((0, 3), np.float32) for make in (cupy.empty, gpuarray.empty)]
        for a in arrays:
            print(bridge.as_cupy(a).shape, bridge.as_pycuda(a).shape)
    """)
    assert out == "(0, 3) (0, 3)\n" * 2


@pytest.mark.alone
def test_memory_that_is_released_first_is_of_the_same_device(on_two):
    out = on_two("""
        allocate, of_other = bridge.pycuda_allocator(), cupy.cuda.MemoryPool()
        kept = bridge.pycuda_allocator(of_other)
        with bridge.primary_context(1):
            free = cupy.cuda.runtime.memGetInfo()[0]
            of_other.malloc(free // 10 * 6)
            block = allocate(free // 10 * 7)  # fits when the other pool has let go
            print(cupy.cuda.runtime.pointerGetAttributes(int(block)).device)
            print(cupy.cuda.runtime.getDevice())
    """)
    assert out == "1\n1\n"


def test_a_peers_address_is_passed_on(on_two):
    out = on_two("""
        with bridge.primary_context(1):
            y = cupy.zeros(N, np.int32)
            drv.Context.synchronize()
        cupy.cuda.runtime.deviceEnablePeerAccess(1)
        put(np.uintp(y.data.ptr), N, 5, 0, grid=1, block=32)
        drv.Context.synchronize()
        with bridge.primary_context(1):
            print(int(y.min()))
    """)
    assert out == "5\n"
