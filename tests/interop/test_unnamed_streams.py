"""PyCUDA's side of every call is all of PyCUDA's streams: programs that never write ``stream=``."""

import gc
import operator
import weakref
from types import SimpleNamespace

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from captures import captured
from exporters import Exporter
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool
from races import (
    CUPY_STREAMS,
    PYCUDA_STREAMS,
    UNORDERED,
    every_pair,
    read_through_pycuda,
    reuse_cupys_block,
    reuse_pycudas_block,
)

import bridge
import bridge.autoinit
from bridge.interop import exporting, live_streams

N = 1000
WAIT = 0.02  # seconds, for consumers that let the host wait
alive = pytest.mark.parametrize("alive", [0, 2], ids="{} other streams".format)


@pytest.fixture
def others(alive):
    """Streams that are alive, and have nothing to do."""
    return [drv.Stream(1 - i % 2) for i in range(alive)]


def zeros():
    return gpuarray.to_gpu(np.zeros(N, np.int32))


def full(value):
    return cupy.asarray(np.full(N, value, np.int32))


def copy_of(x):
    """Queue a copy on CuPy's current stream."""
    copy = cupy.empty(N, np.int32)
    copy.data.copy_from_device_async(x.data, x.nbytes, cupy.cuda.get_current_stream())
    return copy


def values(x):
    return set(x.get().tolist())


# ---- from PyCUDA to others -----------------------------------------------------------------------

READS = {  # each reads `a` on CuPy's current stream; the host waits in all but the first two
    "as_cupy(a)": lambda a, zero: copy_of(bridge.as_cupy(a)),
    "as_cupy(memory)": lambda a, zero: copy_of(bridge.as_cupy(a.gpudata, shape=N, dtype="i4")),
    "asarray": lambda a, zero: copy_of(cupy.asarray(a)),
    "a + x": lambda a, zero: a + zero,
    "from_dlpack": lambda a, zero: copy_of(cupy.from_dlpack(a)),
}
NO_WAIT = list(READS)[:2]


@alive
@every_pair
@pytest.mark.parametrize("read", READS)
def test_what_pycuda_wrote_is_read(read, cupy_stream, pycuda_stream, others, latch, put):
    a, zero = zeros(), full(0)
    READS[read](a, zero)  # what is compiled and allocated at the first time
    with latch.hold(pycuda_stream, 0 if read in NO_WAIT else WAIT), cupy_stream:
        put(a.gpudata, N, 7, pycuda_stream)
        result = READS[read](a, zero)
    assert values(result) == {7}


@every_pair
@pytest.mark.parametrize("read", list(READS)[2:])
def test_pycudas_own_export_is_stale_or_refused(
    read, cupy_kind, pycuda_kind, cupy_stream, pycuda_stream, latch, put, pycudas_export
):
    """The control."""
    stale = (cupy_kind, pycuda_kind) in UNORDERED
    a, zero = zeros(), full(0)
    if read == "from_dlpack":
        with pytest.raises(ValueError, match="DLPack"):
            READS[read](a, zero)
        return
    READS[read](a, zero)
    with latch.hold(pycuda_stream), cupy_stream:
        put(a.gpudata, N, 7, pycuda_stream)
        result = READS[read](a, zero)
        if stale:
            cupy_stream.synchronize()
    assert values(result) == ({0} if stale else {7})


@pytest.mark.parametrize("kind", CUPY_STREAMS)
def test_a_copy_is_exported_in_order(kind, latch, put):
    """It is made on CuPy's current stream, after PyCUDA's work, and the consumer waits for it."""
    a, stream, here = zeros(), drv.Stream(1), CUPY_STREAMS[kind]()
    consumer = cupy.cuda.Stream(non_blocking=True)
    with here:
        a.__dlpack__(stream=consumer.ptr, copy=True)
    with latch.hold(stream, WAIT):
        put(a.gpudata, N, 7, stream)
        with here:
            capsule = a.__dlpack__(stream=consumer.ptr, copy=True, max_version=(1, 0))
        with consumer:
            x = cupy.from_dlpack(capsule)
            result = copy_of(x)
    assert x.data.ptr != int(a.gpudata)
    assert values(result) == {7}
    exporter = SimpleNamespace(
        __dlpack_device__=lambda: (2, 0),
        __dlpack__=lambda **_: a.__dlpack__(copy=True, max_version=(1, 0)),
    )
    with pytest.raises(BufferError, match="exports a copy"):
        bridge.as_cupy(exporter)


EXPORTS = {  # keywords, and what comes: a capsule's name or an error
    "": "dltensor",
    "stream=-1": "dltensor",
    "stream=1": "dltensor",
    "stream=2": "dltensor",
    "max_version=(1, 0)": "dltensor_versioned",
    "dl_device=(2, 0)": "dltensor",
    "dl_device=(1, 0)": "dltensor",
    "dl_device=(2, 7)": "BufferError",
    "copy=True": "dltensor",
    "stream=0": "ValueError",
    "stream=-2": "ValueError",
    "stream=True": "TypeError",
}


@pytest.mark.parametrize("keywords", EXPORTS)
def test_what_the_standard_asks_of_a_producer(keywords):
    a = zeros()
    assert tuple(a.__dlpack_device__()) == (2, 0)
    try:
        found = repr(eval(f"a.__dlpack__({keywords})")).split('"')[1]
    except (BufferError, TypeError, ValueError) as error:
        found = type(error).__name__
    assert found == EXPORTS[keywords]


def test_the_export_keeps_the_array_and_lets_it_go():
    pool = DeviceMemoryPool()
    for convert in (cupy.asarray, cupy.from_dlpack):
        x = convert(gpuarray.GPUArray(N, np.int32, allocator=pool.allocate))
        gc.collect()
        assert pool.active_bytes == 4 * N
        del x
        assert pool.active_bytes == 0
    assert cupy.from_dlpack(gpuarray.GPUArray((0, 5), np.float32)).shape == (0, 5)


def test_pycudas_export_can_be_restored_and_replaced(capsys):
    a, replaced = zeros(), "GPUArray.__cuda_array_interface__"
    bridge.show_config()
    assert replaced in capsys.readouterr().out
    bridge.autoinit.restore_gpuarray()
    bridge.autoinit.restore_gpuarray()
    assert a.__cuda_array_interface__["stream"] is None
    assert not hasattr(a, "__dlpack__")
    bridge.show_config()
    assert replaced not in capsys.readouterr().out
    exporting.export_in_order()
    exporting.export_in_order()
    assert a.__cuda_array_interface__["stream"] == 1
    assert hasattr(a, "__dlpack__")


def numba_copy(package, a):
    numba = package("numba.cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        view = numba.as_cuda_array(a)
        copied = numba.device_array(N, np.int32)
        copied.copy_to_device(view)
    return set(copied.copy_to_host().tolist())


def torch_copy(package, a, on_a_stream=False):
    torch = package("torch")
    with torch.cuda.stream(torch.cuda.Stream() if on_a_stream else None):
        return set(torch.from_dlpack(a).clone().cpu().tolist())


def torch_copy_on_a_stream(package, a):
    return torch_copy(package, a, on_a_stream=True)


def cuda_core_copy(package, a):
    """Of the array interface, read by `cuda.core`: its stream waits by an event."""
    core, utils = package("cuda.core"), package("cuda.core.utils")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    view = utils.StridedMemoryView.from_any_interface(a, stream_ptr=int(stream.handle))
    copied = cupy.empty(N, np.int32)
    cupy.cuda.runtime.memcpyAsync(copied.data.ptr, view.ptr, copied.nbytes, 3, int(stream.handle))
    stream.sync()
    return values(copied)


CONSUMERS = [torch_copy, torch_copy_on_a_stream, numba_copy, cuda_core_copy]


def test_users_of_an_exported_array_go_with_it():
    """Each keeps CuPy's stream."""
    a, streams_alive = zeros(), []
    for _ in range(50):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            cupy.asarray(a)
            streams_alive.append(weakref.ref(stream))
    del stream, a
    gc.collect()
    assert {one() for one in streams_alive} == {None}


@pytest.mark.parametrize("kind", CUPY_STREAMS)
def test_a_prepared_call_orders_a_bare_address(kind, latch, put):
    """PyCUDA's programs pass ``a.gpudata``, which is an int for slices and for views."""
    a, held, here = bridge.as_pycuda(full(0)), drv.Stream(1), CUPY_STREAMS[kind]()
    module = bridge.SourceModule("__global__ void add(int *x) { x[threadIdx.x] += 1; }")
    add = module.get_function("add").prepare("P")
    with latch.hold(held), here:
        put(a.gpudata, N, 7, held)
        add.prepared_call((1, 1), (N, 1, 1), a.gpudata)
    assert set(a.get().tolist()) == {8}


@pytest.mark.parametrize("pycuda_kind", PYCUDA_STREAMS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_other_libraries_read_what_pycuda_wrote(gpu, package, consumer, pycuda_kind, latch, put):
    stream, a = PYCUDA_STREAMS[pycuda_kind](), zeros()
    assert consumer(package, a) == {0}
    for _ in range(3):
        a.fill(0)
        with latch.hold(stream, WAIT):
            put(a.gpudata, N, 7, stream)
            assert consumer(package, a) == {7}


def test_jax_reads_what_pycuda_wrote(gpu, package, python):
    """In a process of its own: JAX stays in one, and raises where memory runs out."""
    package("jax")
    done = python("""
        import bridge.autoinit, jax, numpy as np
        import pycuda.driver as drv
        from pycuda import gpuarray
        module = bridge.SourceModule('''
        __global__ void put_late(int *x)
        {
            long long start = clock64();
            while (clock64() - start < 50000000) ;
            x[threadIdx.x] = 7;
        }''')
        put_late = module.get_function("put_late")
        for stream in 3 * [None, drv.Stream(), drv.Stream(1)]:
            a = gpuarray.to_gpu(np.zeros(32, np.int32))
            before = np.asarray(jax.dlpack.from_dlpack(a) + 0)
            put_late(a, block=(32, 1, 1), stream=stream)
            after = np.asarray(jax.dlpack.from_dlpack(a) + 0)
            print(*set(before.tolist()), *set(after.tolist()))
    """)
    assert done.stdout.split() == 9 * ["0", "7"], done.stderr


def test_pycudas_own_launches_stay_as_they_are(kernels, put, latch):
    """They read the address from the array interface, and nothing there waits for other streams."""
    held, a, copy = drv.Stream(1), zeros(), zeros()
    with latch.hold(held):
        put(a.gpudata, N, 0, held)
        for stream in drv.Stream(1), None:
            kernels[1](copy, a, np.int32(N), block=(32, 1, 1), stream=stream)
            (stream or cupy.cuda.Stream.null).synchronize()


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ipow"]
OPERATORS = [*IN_PLACE, "add", "sub", "mul", "truediv", "pow", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_take_a_cupy_array_on_the_right(name):
    apply = getattr(operator, name)
    one, other = np.array([4, 9, 2, 8], "f4"), np.array([2, 9, 3, 4], "f4")
    expected = apply(one.copy(), other)
    a, x = gpuarray.to_gpu(one), cupy.asarray(other)
    result = apply(a, x)
    assert np.allclose(result.get(), expected)
    if name in IN_PLACE:
        assert result is a
    else:
        assert (type(result), result.dtype) == (cupy.ndarray, expected.dtype)
        assert np.array_equal(a.get(), one)


def test_a_cupy_array_is_assigned_to_a_part():
    a = gpuarray.to_gpu(np.zeros((2, 4), "f4"))
    a[...] = cupy.ones((2, 4), "f4")
    a[1, 2:] = cupy.arange(5, 7)  # converted, as in CuPy
    assert a.get().tolist() == [[1, 1, 1, 1], [1, 1, 5, 6]]
    with pytest.raises(ValueError, match="broadcast"):
        a[...] = cupy.ones(3, "f4")


def test_pycudas_operators_are_its_own_without_a_cupy_array():
    a, b = (gpuarray.to_gpu(np.arange(1, 5, dtype="f4")) for _ in range(2))
    bridge.use_nvrtc()
    try:
        a += b
        assert type(a == b) is gpuarray.GPUArray
    finally:
        bridge.use_nvrtc(False)
    a[2:] = b[2:]
    assert a.get().tolist() == [2, 4, 3, 4]


CHANGES = {
    "a += x": lambda a, x: operator.iadd(a, x),
    "a[...] = x": lambda a, x: operator.setitem(a, ..., x),
}


@alive
@every_pair
@pytest.mark.parametrize("change", CHANGES)
def test_what_an_operator_changes_is_read(
    change, cupy_stream, pycuda_stream, others, latch, put, copy_kernel
):
    """It runs after PyCUDA's work, and before PyCUDA's next; the host does not wait."""
    a, x, copy = zeros(), full(1), zeros()
    CHANGES[change](a, x)  # compiles
    with latch.hold(pycuda_stream), cupy_stream:
        put(a.gpudata, N, 7, pycuda_stream)
        CHANGES[change](a, x)
        copy_kernel(copy.gpudata, a.gpudata, pycuda_stream)
    assert values(copy) == {8 if "+" in change else 1}


# ---- from CuPy to PyCUDA -------------------------------------------------------------------------

CONVERSIONS = {
    "as_pycuda(x)": lambda x: bridge.as_pycuda(x),
    "as_pycuda(a)": lambda x: bridge.as_pycuda(bridge.as_pycuda(x, stream=-1)),
    "of an exporter": lambda x: bridge.as_pycuda(
        Exporter(x, stream=cupy.cuda.get_current_stream().ptr or 1)
    ),
}


@alive
@every_pair
@pytest.mark.parametrize("convert", CONVERSIONS)
def test_pycuda_reads_what_cupy_wrote(
    convert, cupy_stream, pycuda_stream, others, latch, copy_kernel
):
    convert, streams = CONVERSIONS[convert], (cupy_stream, pycuda_stream)
    assert read_through_pycuda(lambda x, _: convert(x), *streams, latch, copy_kernel) == {7}


@pytest.mark.parametrize("part", [lambda v: v, lambda v: v[:]], ids=["the view", "a slice of it"])
@pytest.mark.parametrize("kind", CUPY_STREAMS)
def test_pycuda_reads_what_was_written_where_a_view_was_made(kind, part, latch, copy_kernel):
    """On the stream of a block that has ended."""
    stream, sevens, a, copy = CUPY_STREAMS[kind](), full(7), zeros(), zeros()
    with latch.hold(stream):
        with stream:
            v = bridge.as_cupy(a)
            v.data.copy_from_device_async(sevens.data, v.nbytes, stream)
        copy_kernel(copy.gpudata, bridge.as_pycuda(part(v)).gpudata, None)
    assert values(copy) == {7}


# ---- memory --------------------------------------------------------------------------------------


@alive
@every_pair
def test_cupys_block_is_reused_after_the_work_on_every_stream(
    cupy_stream, pycuda_stream, others, latch, put
):
    def convert(x, _):
        return bridge.as_pycuda(x)

    assert reuse_cupys_block(convert, cupy_stream, pycuda_stream, latch, put) == {1}


@pytest.mark.parametrize("convert", [bridge.as_cupy, cupy.asarray, cupy.from_dlpack])
@every_pair
def test_pycudas_block_is_reused_after_cupys_work(convert, cupy_stream, pycuda_stream, latch, put):
    wait = 0 if convert is bridge.as_cupy else WAIT
    assert reuse_pycudas_block(convert, cupy_stream, latch, put, pycuda_stream, wait=wait) == {1}


@pytest.mark.parametrize("second", PYCUDA_STREAMS)
@pytest.mark.parametrize("first", PYCUDA_STREAMS)
def test_a_block_of_pycuda_allocator_is_reused_after_the_work_on_every_stream(
    first, second, latch, put
):
    one, other = PYCUDA_STREAMS[first](), PYCUDA_STREAMS[second]()
    allocate = bridge.pycuda_allocator(cupy.cuda.MemoryPool())
    for ends in (False, True):
        a = gpuarray.GPUArray(N, np.int32, allocator=allocate)
        pointer = int(a.gpudata)
        with latch.hold(one):
            put(a.gpudata, N, 7, one)
            if ends:
                one = None  # the stream ends with its work queued
            del a
            b = gpuarray.GPUArray(N, np.int32, allocator=allocate)
            assert int(b.gpudata) == pointer
            put(b.gpudata, N, 1, other)
        assert values(b) == {1}
        del b


# ---- kernels -------------------------------------------------------------------------------------

CALLS = {
    "f": lambda f, theirs, *args: f(*args, block=32),
    "prepared": lambda f, theirs, x, a, n: f.prepare("PPi").prepared_call(
        (1, 1), (32, 1, 1), x, getattr(a, "gpudata", a), n
    ),
    "launch": lambda f, theirs, *args: bridge.launch(theirs, *args, grid=1, block=32),
}
GIVEN = {
    "GPUArray": lambda a: a,
    "DeviceAllocation": lambda a: a.gpudata,
    "gpudata": lambda a: SimpleNamespace(gpudata=a.gpudata),
}
COPY = """
extern "C" __global__ void copy(int *to, const int *from, int n)
{ for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i]; }
"""


@pytest.fixture(scope="module")
def kernels(compile_kernel):
    ours = bridge.SourceModule(COPY, no_extern_c=True).get_function("copy")
    theirs = compile_kernel(COPY, "copy")
    one, other = full(0), full(0)
    ours(one, other, N, block=32)
    bridge.launch(theirs, one, other, np.int32(N), grid=1, block=32)
    return ours, theirs


@every_pair
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("call", CALLS)
def test_a_kernel_reads_what_any_stream_wrote(
    call, given, cupy_stream, pycuda_stream, kernels, latch, put
):
    a, copy = zeros(), full(0)
    with latch.hold(pycuda_stream), cupy_stream:
        put(a.gpudata, N, 7, pycuda_stream)
        CALLS[call](*kernels, copy, given(a), np.int32(N))
        result = copy_of(copy)
    assert values(result) == {7}


@every_pair
@pytest.mark.parametrize("call", ["f", "launch"])
def test_any_stream_writes_after_a_kernel_has_read(
    call, cupy_stream, pycuda_stream, kernels, latch, put
):
    a, copy = zeros(), full(1)
    with latch.hold(cupy_stream), cupy_stream:
        CALLS[call](*kernels, copy, a, np.int32(N))
        put(a.gpudata, N, 7, pycuda_stream)
    assert values(copy) == {0}


@pytest.mark.parametrize("comes", ["after", "before"])
def test_a_kernel_on_a_stream_of_cupys_is_ordered_with_the_default_one(comes, kernels, latch, put):
    a, copy, stream = zeros(), full(1), cupy.cuda.Stream(non_blocking=True)
    with latch.hold(None if comes == "after" else stream), stream:
        if comes == "after":
            put(a.gpudata, N, 7)
        kernels[0](copy, a, N, block=32, stream=stream)
        if comes == "before":
            put(a.gpudata, N, 7)
    assert values(copy) == {7 if comes == "after" else 0}


def test_launches_on_named_streams_overlap(kernels, latch, put):
    """The kernel on the second stream does not wait for the first one's."""
    first, second = drv.Stream(1), drv.Stream(1)
    a, copy, here = zeros(), full(1), cupy.cuda.Stream(non_blocking=True)
    with latch.hold(first), here:
        kernels[0](copy, a, N, block=32, stream=second)
        second.synchronize()
    assert values(copy) == {0}


# ---- which streams -------------------------------------------------------------------------------


def test_streams_from_before_the_import_are_followed(python):
    done = python(
        """
        import pycuda.autoprimaryctx
        import pycuda.driver as drv
        from pycuda.driver import Stream
        early = Stream(1)
        import bridge, races
        from latch import Latch, compile_plain, putting
        bridge.as_cupy
        latch, put = Latch(compile_plain), putting(compile_plain)
        print(*[races.is_read([stream], latch, put) for stream in (early, Stream(1))])
        """
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_a_stream_that_is_captured_during_the_import_is_followed(python):
    """CUDA does not report its flags, so that it counts as non-blocking."""
    done = python(
        """
        import cupy, pycuda.autoprimaryctx
        import pycuda.driver as drv
        early, runtime = drv.Stream(1), cupy.cuda.runtime
        runtime.streamBeginCapture(early.handle, runtime.streamCaptureModeGlobal)
        import bridge, races
        bridge.as_cupy
        runtime.streamEndCapture(early.handle)
        from latch import Latch, compile_plain, putting
        print(races.is_read([early], Latch(compile_plain), putting(compile_plain)))
        """
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_new_stream_waits_for_the_default_one(when, latch, put):
    """Which waited for CuPy's when memory was released."""
    here, pool = cupy.cuda.Stream(non_blocking=True), DeviceMemoryPool()
    a = gpuarray.GPUArray(N, np.int32, allocator=pool.allocate)
    sevens, pointer = full(7), int(a.gpudata)
    made = [drv.Stream(1)] if when == "before" else []
    with latch.hold(here):
        with here:
            x = bridge.as_cupy(a)
            x.data.copy_from_device_async(sevens.data, x.nbytes, here)
        del a, x
        b = gpuarray.GPUArray(N, np.int32, allocator=pool.allocate)
        assert int(b.gpudata) == pointer
        made = made or [drv.Stream(1)]
        put(b.gpudata, N, 1, made[0])
    assert values(b) == {1}


def test_thousands_of_streams_leave_nothing_behind():
    before = live_streams.count_streams()
    kept = [drv.Stream(i % 2) for i in range(10)]
    for i in range(3000):
        drv.Stream(i % 2)
    assert live_streams.count_streams() == before + 10
    bridge.as_pycuda(full(0))  # orders those that are kept, and keeps none
    del kept
    assert live_streams.count_streams() == before


# ---- captures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [bridge.as_cupy, cupy.asarray, cupy.from_dlpack])
def test_in_a_capture_its_other_streams_are_ordered(convert, put):
    """And no others are drawn in."""
    inside, outside = drv.Stream(1), drv.Stream(1)
    here = cupy.cuda.Stream(non_blocking=True)
    x, out = full(0), full(0)
    bridge.as_pycuda(x)
    put(x.data.ptr, N, 0, inside)
    drv.Context.synchronize()
    with captured(here):
        event = here.record(cupy.cuda.Event(disable_timing=True))
        bridge.as_cupy_stream(inside).wait_event(event)  # joins the capture
        a = bridge.as_pycuda(x)
        put(a.gpudata, N, 7, inside)
        out.data.copy_from_device_async(convert(a).data, x.nbytes, here)
        assert a.__cuda_array_interface__["stream"] is None  # the host may not wait
        assert not bridge.as_cupy_stream(outside).is_capturing()
    assert values(out) == {7}


def test_a_capture_leaves_other_captures_alone(put):
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    inside = drv.Stream(1)
    a = zeros()
    drv.Context.synchronize()
    with bridge.as_cupy_stream(inside) as third:
        third.begin_capture()
    with one:
        one.begin_capture()
        bridge.as_pycuda(bridge.as_cupy(a))
        one.end_capture()
    with other:
        bridge.as_cupy(a)
    third.end_capture()
    bridge.as_cupy(a)  # lets go of what waited


@pytest.mark.parametrize("kind", ["null", "blocking", "non-blocking"])
def test_beside_the_capture_of_a_blocking_stream_what_needs_the_default_one_is_refused(kind):
    """CUDA accepts no work on the default stream then."""
    a, x, current, captive = zeros(), full(0), CUPY_STREAMS[kind](), cupy.cuda.Stream()
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
