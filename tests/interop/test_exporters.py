"""Other libraries' arrays as either library's, and back; what a library refuses is asserted."""

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from exporters import BOTH, pointer_of
from gpus import ON_GPU
from pycuda import gpuarray

import bridge
from bridge.interop.dtypes import PLAIN_DTYPES

DTYPES = sorted({dtype.name for dtype in PLAIN_DTYPES})
N = 100
WAIT = 0.02  # seconds, for consumers that let the host wait


def host(dtype, shape=(2, 3)):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# --- PyTorch ---------------------------------------------------------------------------------


@pytest.fixture
def torch(package, gpu):
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


SHAPES = {
    "0-d": lambda tensor: tensor[0, 0, 0],
    "empty": lambda tensor: tensor[:, 2:2],
    "one axis": lambda tensor: tensor[:1, :, :1],
    "strided": lambda tensor: tensor.permute(2, 0, 1)[1:, :, ::2],
    "repeated": lambda tensor: tensor[0, 0].expand(2, 4),
}


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_layouts(torch, convert, shape):
    tensor = SHAPES[shape](torch.arange(24.0, device="cuda").reshape(2, 3, 4))
    if (shape, convert) == ("repeated", bridge.as_pycuda):
        with pytest.raises(ValueError, match="as_pycuda: the array repeats elements"):
            convert(tensor)
        return
    view = convert(tensor)
    assert (view.shape, view.size) == (tuple(tensor.shape), tensor.numel())
    if shape in ("strided", "repeated"):
        assert view.strides == tuple(4 * s for s in tensor.stride())
    assert np.array_equal(bridge.as_cupy(view).get(), tensor.cpu().numpy())


REFUSED = {
    "requires grad": (lambda t: t.cuda().requires_grad_(), BufferError, "detach"),
    "conjugate": (lambda t: (1j * t).cuda().conj(), BufferError, "conjugate"),
    "sparse": (lambda t: t.cuda().to_sparse(), BufferError, "layout"),
    "host": (lambda t: t, TypeError, "argument is a host torch.Tensor"),
    "meta": (lambda t: t.to("meta"), (TypeError, ValueError, BufferError), "meta|device"),
}


@BOTH
@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_pytorch_refuses(torch, convert, make, error, message):
    with pytest.raises(error, match=message):
        convert(make(torch.ones(3)))


CURRENT, NAMED, UNORDERED = "its current stream", "a named stream", "unordered: the control"


@pytest.mark.parametrize("how", [CURRENT, NAMED, UNORDERED])
def test_pytorch_is_ordered(torch, latch, how):
    tensor = torch.zeros(N, dtype=torch.int32, device="cuda")
    writer, reader = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    copied = cupy.zeros(N, np.int32)
    tensor.fill_(0)  # loads the kernel, which would wait for the held stream
    torch.cuda.synchronize()
    with latch.hold(bridge.as_cupy_stream(writer)), reader:
        with torch.cuda.stream(writer):
            tensor.fill_(7)
        with torch.cuda.stream(None if how == NAMED else writer):
            view = bridge.as_cupy(tensor, stream={NAMED: writer, UNORDERED: -1}.get(how))
        copied.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert set(copied.get().tolist()) == {0 if how == UNORDERED else 7}


# --- JAX -------------------------------------------------------------------------------------


@pytest.fixture
def jax(package, gpu):
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
def test_jax_limits(jax, convert):
    """It takes DLPack's -1 for a stream; and nobody stops a write, as the guide says."""
    with pytest.raises(TypeError, match="argument is a host"):
        convert(jax.device_put(np.ones(3, np.float32), jax.devices("cpu")[0]))
    array = jax.numpy.zeros(3, "float32")
    bridge.as_cupy(convert(array))[...] = 7
    assert (bridge.as_cupy(array).get() == 7).all()
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_HANDLE"):
        convert(jax.numpy.zeros(3, "float32"), stream=-1)


@BOTH
def test_jax_results_are_waited_for(jax, convert):
    """It computes on streams of its own, and its export waits for them."""
    x = jax.numpy.ones((2000, 2000), "float32")
    for _ in range(5):
        x = x @ x / 2000
    with cupy.cuda.Stream(non_blocking=True):
        assert (bridge.as_cupy(convert(x)).get() == 1).all()


def test_jax_reads_what_pycuda_wrote(package, python, gpu):
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


# --- Numba -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_numba_both_ways(package, convert, dtype):
    numba_cuda = package("numba.cuda")
    array = numba_cuda.to_device(host(dtype))
    view = convert(array)
    assert pointer_of(view) == array.device_ctypes_pointer.value
    assert np.array_equal(view.get(), host(dtype))
    a = gpuarray.to_gpu(host(dtype))
    back = numba_cuda.as_cuda_array(bridge.as_cupy(a))
    assert back.device_ctypes_pointer.value == int(a.gpudata)
    assert np.array_equal(back.copy_to_host(), host(dtype))


# --- cuda.core -------------------------------------------------------------------------------


@BOTH
def test_cuda_cores_buffer_is_bytes(package, convert):
    device = package("cuda.core").Device()
    device.set_current()
    buffer = device.allocate(64, stream=device.default_stream)
    view = convert(buffer)
    assert pointer_of(view) == int(buffer.handle)
    assert (view.shape, view.dtype) == ((64,), np.int8)
    bridge.as_cupy(view)[...] = 7
    assert (bridge.as_cupy(buffer).view(np.uint8).get() == 7).all()


# --- RMM -------------------------------------------------------------------------------------


@BOTH
def test_rmms_buffer_is_bytes(package, convert, gpu):
    rmm = package("rmm")
    buffer = rmm.DeviceBuffer.to_device(bytes(range(64)))
    view = convert(buffer)
    assert pointer_of(view) == buffer.ptr
    assert (view.shape, view.dtype) == ((64,), np.uint8)
    assert np.array_equal(view.get(), np.arange(64))
    bridge.as_cupy(view)[...] = 7
    cupy.cuda.Device().synchronize()
    assert buffer.copy_to_host().tolist() == [7] * 64


# --- order: all of them read what PyCUDA wrote ------------------------------------------------


def torch_copy(package, a, on_a_stream=False):
    if not ON_GPU:
        pytest.skip("needs a GPU")
    torch = package("torch")
    with torch.cuda.stream(torch.cuda.Stream() if on_a_stream else None):
        return torch.from_dlpack(a).clone().cpu()


def torch_copy_on_a_stream(package, a):
    return torch_copy(package, a, on_a_stream=True)


def numba_copy(package, a):
    numba = package("numba.cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        view = numba.as_cuda_array(a)
        copied = numba.device_array(N, np.int32)
        copied.copy_to_device(view)
    return copied.copy_to_host()


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
    return copied


@pytest.mark.parametrize("copy", [torch_copy, torch_copy_on_a_stream, numba_copy, cuda_core_copy])
def test_what_pycuda_wrote_is_read(package, copy, latch, put):
    stream, a = drv.Stream(1), gpuarray.to_gpu(np.zeros(N, np.int32))
    assert {*copy(package, a).tolist()} == {0}
    for _ in range(3):
        a.fill(0)
        with latch.hold(stream, WAIT):
            put(a.gpudata, N, 7, stream)
            assert {*copy(package, a).tolist()} == {7}
