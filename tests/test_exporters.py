"""Other libraries' arrays as either library's, and back; what a library refuses is asserted."""

from __future__ import annotations

import gc
import weakref

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from pycuda import gpuarray
from test_foreign_arrays import BOTH, pointer_of

import bridge
from bridge.foreign_arrays import PLAIN_DTYPES

pytestmark = pytest.mark.usefixtures("gpu")
DTYPES = sorted({dtype.name for dtype in PLAIN_DTYPES})
N = 100


def host(dtype, shape=(2, 3)):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# --- PyTorch ---------------------------------------------------------------------------------


@pytest.fixture
def torch(package):
    return package("torch")


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_pytorch_takes_a_gpuarray_and_gives_it_back(torch, package, dtype):
    if dtype == "bfloat16":
        dtype = package("ml_dtypes").bfloat16
    a = gpuarray.to_gpu(host(dtype))
    tensor = torch.from_dlpack(bridge.as_cupy(a))
    assert tensor.data_ptr() == int(a.gpudata)
    assert tuple(tensor.shape) == (2, 3)
    for convert in (bridge.as_cupy, bridge.as_pycuda):
        view = convert(tensor)
        assert pointer_of(view) == int(a.gpudata)
        assert view.dtype == a.dtype
        assert np.array_equal(view.get(), host(dtype))
    tensor.zero_()
    torch.cuda.synchronize()
    assert not a.get().astype(complex).any()


@BOTH
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 4, 1)])
def test_pytorch_shapes(torch, convert, shape):
    tensor = torch.ones(shape, device="cuda")
    view = convert(tensor)
    assert view.shape == shape
    assert view.size == tensor.numel()
    assert (bridge.as_cupy(view).get() == 1).all()


@BOTH
def test_pytorch_strides(torch, convert):
    tensor = torch.arange(24.0, device="cuda").reshape(2, 3, 4).permute(2, 0, 1)[1:, :, ::2]
    view = convert(tensor)
    assert view.shape == tuple(tensor.shape)
    assert view.strides == tuple(4 * s for s in tensor.stride())
    assert np.array_equal(bridge.as_cupy(view).get(), tensor.cpu().numpy())


def test_pytorch_repeats(torch):
    tensor = torch.ones(3, device="cuda").expand(2, 3)
    assert bridge.as_cupy(tensor).strides == (0, 4)
    with pytest.raises(ValueError, match="as_pycuda: the array repeats elements"):
        bridge.as_pycuda(tensor)


REFUSED = {
    "requires grad": (
        lambda t: t.ones(3, device="cuda", requires_grad=True),
        BufferError,
        "detach",
    ),
    "conjugate": (
        lambda t: t.ones(3, dtype=t.complex64, device="cuda").conj(),
        BufferError,
        "conjugate",
    ),
    "sparse": (lambda t: t.eye(3, device="cuda").to_sparse(), BufferError, "layout"),
    "host": (lambda t: t.ones(3), TypeError, "argument is a host torch.Tensor"),
    "meta": (
        lambda t: t.ones(3, device="meta"),
        (TypeError, ValueError, BufferError),
        "meta|device",
    ),
}


@BOTH
@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_pytorch_refuses(torch, convert, make, error, message):
    with pytest.raises(error, match=message):
        convert(make(torch))


@pytest.fixture
def written_late(torch, latch):
    """Write 7 on a held stream of PyTorch; return what a stream of CuPy's then reads of a view."""

    def read(view, current):
        tensor = torch.zeros(N, dtype=torch.int32, device="cuda")
        writer, reader = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
        copied = cupy.zeros(N, np.int32)
        tensor.fill_(0)  # loads the kernel, which would wait for the held stream
        torch.cuda.synchronize()
        with latch.hold(bridge.as_cupy_stream(writer)), reader:
            with torch.cuda.stream(writer):
                tensor.fill_(7)
            with torch.cuda.stream(writer if current else None):
                source = view(tensor, writer)
            copied.data.copy_from_device_async(source.data, source.nbytes, reader)
        return set(copied.get().tolist())

    return read


def test_pytorch_is_ordered_on_its_current_stream(written_late):
    assert written_late(lambda tensor, _: bridge.as_cupy(tensor), current=True) == {7}


def test_pytorch_on_a_stream_that_is_named(written_late):
    assert written_late(lambda tensor, s: bridge.as_cupy(tensor, stream=s), current=False) == {7}


def test_pytorch_unordered(written_late):
    """The control of the two above."""
    assert written_late(lambda tensor, _: bridge.as_cupy(tensor, stream=-1), current=True) == {0}


@BOTH
def test_pytorch_under_the_per_thread_default_stream(torch, convert):
    """Which PyTorch refuses to be told of."""
    with cupy.cuda.Stream.ptds:
        assert (bridge.as_cupy(convert(torch.ones(3, device="cuda"))).get() == 1).all()


def test_pytorch_reads_what_pycuda_writes_on_a_stream(torch, latch, put):
    a, stream = gpuarray.to_gpu(np.zeros(N, np.int32)), drv.Stream(1)
    reader = torch.cuda.Stream()
    with latch.hold(stream), bridge.as_cupy_stream(reader):
        put(a.gpudata, N, 7, stream)
        with torch.cuda.stream(reader):
            seen = torch.from_dlpack(bridge.as_cupy(a, stream=stream)).clone()
    torch.cuda.synchronize()
    assert (seen.cpu().numpy() == 7).all()


@BOTH
def test_pytorchs_memory_lives_as_long_as_its_views(torch, convert):
    tensor = torch.ones(N, device="cuda")
    pointer = tensor.data_ptr()
    gone = weakref.finalize(tensor, int)
    view = convert(tensor)
    del tensor
    others = [torch.zeros(N, device="cuda") for _ in range(8)]
    assert pointer not in [other.data_ptr() for other in others]
    assert (bridge.as_cupy(view).get() == 1).all()
    del view
    gc.collect()
    assert not gone.alive
    assert torch.empty(N, device="cuda").data_ptr() == pointer


# --- JAX -------------------------------------------------------------------------------------


@pytest.fixture
def jax(package, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return package("jax")


JAX_DTYPES = [name for name in DTYPES if np.dtype(name).itemsize < 8 or name == "complex64"]


@pytest.mark.parametrize("dtype", [*JAX_DTYPES, "bfloat16"])
def test_jax_takes_a_gpuarray_and_gives_it_back(jax, dtype):
    """64-bit types are off in JAX unless asked for."""
    dtype = jax.numpy.dtype(dtype)
    a = gpuarray.to_gpu(host(dtype))
    array = jax.numpy.from_dlpack(bridge.as_cupy(a))
    assert np.array_equal(np.asarray(array), host(dtype))
    for convert in (bridge.as_cupy, bridge.as_pycuda):
        view = convert(array)
        assert pointer_of(view) == array.unsafe_buffer_pointer()
        assert view.dtype == dtype
        assert np.array_equal(view.get(), host(dtype))


@BOTH
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 4, 1)])
def test_jax_shapes(jax, convert, shape):
    view = convert(jax.numpy.ones(shape, "float32"))
    assert view.shape == shape
    assert (bridge.as_cupy(view).get() == 1).all()


@BOTH
def test_jax_does_not_say_that_its_arrays_are_immutable(jax, convert):
    """As the guide's limits say: nobody stops the write."""
    array = jax.numpy.zeros(3, "float32")
    bridge.as_cupy(convert(array))[...] = 7
    cupy.cuda.Device().synchronize()
    assert (np.asarray(bridge.as_cupy(array).get()) == 7).all()


@BOTH
def test_jax_does_not_know_what_unordered_is(jax, convert):
    """It takes DLPack's -1 for a stream."""
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_HANDLE"):
        convert(jax.numpy.zeros(3, "float32"), stream=-1)


@BOTH
def test_jax_on_the_host_is_refused(jax, convert):
    array = jax.device_put(np.ones(3, np.float32), jax.devices("cpu")[0])
    with pytest.raises(TypeError, match="argument is a host"):
        convert(array)


@BOTH
def test_jax_results_are_waited_for(jax, convert):
    """It computes on streams of its own, and its export waits for them."""
    x = jax.numpy.ones((2000, 2000), "float32")
    for _ in range(5):
        x = x @ x / 2000
    with cupy.cuda.Stream(non_blocking=True):
        assert (bridge.as_cupy(convert(x)).get() == 1).all()


# --- Numba -----------------------------------------------------------------------------------


@pytest.fixture
def numba_cuda(package):
    return package("numba.cuda")


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_numba_both_ways(numba_cuda, convert, dtype):
    array = numba_cuda.to_device(host(dtype))
    view = convert(array)
    assert pointer_of(view) == array.device_ctypes_pointer.value
    assert np.array_equal(view.get(), host(dtype))
    a = gpuarray.to_gpu(host(dtype))
    back = numba_cuda.as_cuda_array(bridge.as_cupy(a))
    assert back.device_ctypes_pointer.value == int(a.gpudata)
    assert np.array_equal(back.copy_to_host(), host(dtype))


def test_numba_names_its_stream(numba_cuda, latch):
    writer, reader = numba_cuda.stream(), cupy.cuda.Stream(non_blocking=True)
    array = numba_cuda.device_array(N, np.int32, stream=writer)
    seven = numba_cuda.pinned_array(N, np.int32)
    seven[...] = 7
    copied = cupy.zeros(N, np.int32)
    held = bridge.as_cupy_stream(array_stream(array))
    cupy.cuda.Device().synchronize()
    with latch.hold(held), reader:
        array.copy_to_device(seven, stream=writer)
        view = bridge.as_cupy(array)
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert (copied.get() == 7).all()


class array_stream:  # noqa: N801
    """The stream that an array's interface names, in the CUDA stream protocol."""

    def __init__(self, array):
        self.array = array

    def __cuda_stream__(self):
        return 0, self.array.__cuda_array_interface__["stream"]


# --- cuda.core -------------------------------------------------------------------------------


@pytest.fixture
def core(package):
    module = package("cuda.core")
    module.Device().set_current()
    return module


@BOTH
def test_cuda_cores_buffer_is_bytes(core, convert):
    device = core.Device()
    buffer = device.allocate(64, stream=device.default_stream)
    view = convert(buffer)
    assert pointer_of(view) == int(buffer.handle)
    assert (view.shape, view.dtype) == ((64,), np.int8)
    bridge.as_cupy(view)[...] = 7
    assert (bridge.as_cupy(buffer).view(np.uint8).get() == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_cores_memory_view_takes_a_gpuarray(core, package, dtype):
    utils = package("cuda.core.utils")
    a = gpuarray.to_gpu(host(dtype))
    for array in (a[1:], bridge.as_cupy(a)[1:, ::2], bridge.as_cupy(a).T):
        view = utils.StridedMemoryView.from_any_interface(array, stream_ptr=-1)
        start = array.ptr if isinstance(array, gpuarray.GPUArray) else array.data.ptr
        strides = tuple(s // a.dtype.itemsize for s in array.strides)
        assert (view.ptr, tuple(view.shape), view.dtype) == (start, array.shape, a.dtype)
        assert view.strides is None or tuple(view.strides) == strides
        assert not view.readonly
        assert view.is_device_accessible


def test_cuda_cores_stream_is_taken(core, latch, put):
    stream = core.Device().create_stream()
    a, copied = gpuarray.to_gpu(np.zeros(N, np.int32)), cupy.zeros(N, np.int32)
    reader = drv.Stream(1)
    with latch.hold(reader), bridge.as_cupy_stream(stream):
        put(a.gpudata, N, 7, reader)
        x = bridge.as_cupy(a, stream=reader)
        copied.data.copy_from_device_async(x.data, x.nbytes, cupy.cuda.get_current_stream())
    assert (copied.get() == 7).all()


# --- RMM -------------------------------------------------------------------------------------


@BOTH
def test_rmms_buffer_is_bytes(package, convert):
    rmm = package("rmm")
    buffer = rmm.DeviceBuffer.to_device(bytes(range(64)))
    view = convert(buffer)
    assert pointer_of(view) == buffer.ptr
    assert (view.shape, view.dtype) == ((64,), np.uint8)
    assert np.array_equal(view.get(), np.arange(64))
    bridge.as_cupy(view)[...] = 7
    cupy.cuda.Device().synchronize()
    assert buffer.copy_to_host().tolist() == [7] * 64


def test_rmm_copies_what_it_is_given(package):
    """Its buffers own their memory; what shares it is `rmm`'s allocator under either library."""
    rmm = package("rmm")
    a = gpuarray.to_gpu(np.arange(64, dtype=np.uint8))
    buffer = rmm.DeviceBuffer(ptr=int(a.gpudata), size=64)
    assert buffer.ptr != int(a.gpudata)
    assert np.array_equal(buffer.copy_to_host(), np.arange(64))
