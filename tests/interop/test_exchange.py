"""DLPack's C exchange API, both ways; ctypes stands for a consumer or an exporter in C."""

import ctypes
import gc
import subprocess
from ctypes import POINTER, PYFUNCTYPE, c_char_p, c_int, c_int32, c_uint32, c_void_p, py_object
from pathlib import Path

import cupy
import numpy as np
import pycuda.driver as drv
import pytest
from dlpack_structs import (
    CUDA,
    IS_COPIED,
    READ_ONLY,
    Producer,
    Tensor,
    Versioned,
    exported,
    get_pointer,
    new_capsule,
    structure,
)
from exporters import BOTH, DLPackExporter, Exporter, pointer_of
from pycuda import gpuarray
from races import reuse_pycudas_block

import bridge
from bridge.interop.views import views_alive

N = 1000
ON_ERROR = PYFUNCTYPE(None, c_void_p, c_char_p, c_char_p)
Api = structure(
    "DLPackExchangeAPI",
    major=c_uint32,
    minor=c_uint32,
    older=c_void_p,
    allocate=PYFUNCTYPE(c_int, POINTER(Tensor), POINTER(c_void_p), c_void_p, ON_ERROR),
    from_object=PYFUNCTYPE(c_int, py_object, POINTER(c_void_p)),
    to_object=PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p)),
    borrow_object=c_void_p,
    work_stream=PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p)),
)
NAME = b"dlpack_exchange_api"
kept = []  # what must live as long as the process


def capsule_of(api, name=NAME):
    kept.append((api, name))
    return new_capsule(ctypes.addressof(api), name, None)


# ---- exporters ----------------------------------------------------------------------------------


def raise_error(*_, **__):
    raise RuntimeError("the exporter's function fails")


def exporter_of(array, stream=0, name=NAME, newer=False, fails=False, **changes):
    """Return an object whose type has the API, and whose Python protocol is not to be called."""

    def from_object(value, out):
        out[0] = ctypes.addressof(value.producer.managed)
        exported[out[0]] = value.producer
        return 0

    def work_stream(kind, device, out):
        out[0] = stream
        return 0

    types = dict(Api._fields_)
    api = Api(1, 3)
    api.from_object = types["from_object"](from_object)
    api.work_stream = types["work_stream"](work_stream)
    if fails:  # CuPy's own, which takes CuPy arrays only
        api.from_object = api_of(array).from_object
    if newer:
        older, api = api, Api(2, 0)
        api.older = ctypes.addressof(older)
        kept.append(older)
    members = {"__dlpack_c_exchange_api__": capsule_of(api, name), "__dlpack__": raise_error}
    made = type("Exporter", (), members)()
    made.producer = Producer(array, Versioned, **changes)
    return made


@BOTH
@pytest.mark.parametrize("newer", [False, True], ids=["version 1", "version 1 behind version 2"])
def test_an_array_is_taken_and_given_back(convert, newer):
    x = cupy.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)[1:]
    exporter = exporter_of(x, newer=newer)
    view = convert(exporter)
    assert (pointer_of(view), view.strides, view.dtype) == (x.data.ptr, x.strides, x.dtype)
    assert (view.get() == x.get()).all()
    assert exporter.producer.deleted == 0
    del view
    gc.collect()
    assert exporter.producer.deleted == 1


def test_arguments_of_kernels_are_taken():
    f = bridge.SourceModule(
        "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }"
    ).get_function("twice")
    x = cupy.arange(8, dtype=np.float32)
    f(exporter_of(x), block=8)
    assert x.get().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    with pytest.raises(TypeError, match=r"argument 0 \(`float \*x`\) is .* of float64"):
        f(exporter_of(x.astype("d")), block=8)


@pytest.mark.parametrize("how", ["its work stream", "a named stream", "unordered: the control"])
def test_the_exporters_stream_is_ordered(how, latch, put):
    writer, other = drv.Stream(1), drv.Stream(1)
    x, copy = cupy.zeros(N, np.int32), cupy.zeros(N, np.int32)
    exporter = exporter_of(x, (other if how == "a named stream" else writer).handle)
    named = {"a named stream": writer, "unordered: the control": -1}.get(how)
    with latch.hold(writer), cupy.cuda.Stream(non_blocking=True) as reader:
        put(x.data.ptr, N, 7, writer)
        view = bridge.as_cupy(exporter, stream=named)
        copy.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert set(copy.get().tolist()) == {0 if how.startswith("unordered") else 7}


REFUSED = {
    "read-only": ({"flags": READ_ONLY}, BufferError, "exported as read-only"),
    "a copy": ({"flags": IS_COPIED}, BufferError, "exports a copy of it"),
}


@BOTH
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(convert, case):
    changes, error, message = REFUSED[case]
    exporter = exporter_of(cupy.zeros(3, np.float32), **changes)
    with pytest.raises(error, match=message):
        convert(exporter)
    gc.collect()
    assert exporter.producer.deleted == 1


OTHER_WAYS = {
    "another capsule": {"name": b"dlpack_exchange"},
    "a function that fails": {"fails": True},
    "vectors": {"lanes": 2},
    "a dtype of few bits": {"bits": 4},
    "another version of the tensor": {"major": 2},
    "the host": {"device": (1, 0)},
}


@pytest.mark.parametrize("case", OTHER_WAYS)
def test_otherwise_the_python_protocols_are_asked(case):
    x = cupy.zeros(4, np.float32)
    exporter = exporter_of(x, **OTHER_WAYS[case])
    type(exporter).__cuda_array_interface__ = property(
        lambda self: Exporter(x).__cuda_array_interface__
    )
    assert bridge.as_cupy(exporter).data.ptr == x.data.ptr


def test_tensors_that_stand_for_other_values():
    """As PyTorch's conjugates do; its C function exports their memory all the same."""
    x = cupy.zeros(4, np.complex64)
    exporter = exporter_of(x)
    type(exporter).__dlpack_device__ = lambda self: (CUDA, 0)
    type(exporter).is_conj = lambda self: True
    with pytest.raises(RuntimeError, match="function fails"):  # of __dlpack__, which says why
        bridge.as_cupy(exporter)
    del type(exporter).is_conj
    exporter.requires_grad = True
    with pytest.raises(RuntimeError, match="function fails"):
        bridge.as_cupy(exporter)


@pytest.mark.parametrize("kind", [exporter_of, DLPackExporter, Exporter])
def test_a_tensor_that_is_the_negative_of_its_memory_is_refused(kind):
    exporter = kind(cupy.zeros(4, np.float32))
    exporter.is_neg = lambda: True
    with pytest.raises(BufferError, match=r"the negative of its memory .*resolve_neg\(\), a copy"):
        bridge.as_cupy(exporter)
    exporter.is_neg = lambda: False
    assert bridge.as_cupy(exporter).size == 4


# ---- GPUArray and cupy.ndarray ------------------------------------------------------------------

ARRAYS = {
    "GPUArray": lambda *args: gpuarray.to_gpu(np.arange(*args, dtype=np.int32)),
    "ndarray": lambda *args: cupy.arange(*args, dtype=np.int32),
}
EACH = pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)


def api_of(array):
    bridge.offer_c_exchange()
    capsule = type(array).__dlpack_c_exchange_api__
    return Api.from_address(get_pointer(id(capsule), NAME))


def managed_of(array):
    out = c_void_p()
    assert api_of(array).from_object(array, out) == 0
    return Versioned.from_address(out.value)


def release(managed):
    PYFUNCTYPE(None, c_void_p)(managed.deleter)(ctypes.addressof(managed))


def work_stream(array):
    out = c_void_p()
    assert api_of(array).work_stream(CUDA, 0, out) == 0
    return out.value or 0


@EACH
def test_a_tensor_says_what_the_array_is_and_keeps_it_alive(make):
    array = make(24)
    part = array.reshape(4, 6)[1:, ::2]
    pointer = pointer_of(part)
    before, managed = views_alive(), managed_of(part)
    tensor = managed.tensor
    del array, part
    gc.collect()
    assert (managed.major, managed.flags) == (1, 0)
    assert (tensor.data, tensor.byte_offset, tensor.ndim) == (pointer, 0, 2)
    assert (tensor.device_type, tensor.device_id) == (CUDA, 0)
    assert (tensor.code, tensor.bits, tensor.lanes) == (0, 32, 1)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 3], [6, 2])
    view = bridge.as_cupy(pointer, shape=(3, 3), dtype="i4", strides=(24, 8), owner=managed)
    assert view.get().tolist() == [[6, 8, 10], [12, 14, 16], [18, 20, 22]]
    del view
    release(managed)
    assert views_alive() == before


@EACH
def test_a_tensor_becomes_an_array(make):
    array = make(6)
    out = c_void_p()
    managed = managed_of(array)
    assert api_of(array).to_object(ctypes.addressof(managed), out) == 0
    made = ctypes.cast(out, py_object).value
    ctypes.pythonapi.Py_DecRef(py_object(made))
    assert (type(made), pointer_of(made)) == (type(array), pointer_of(array))
    assert made.get().tolist() == [0, 1, 2, 3, 4, 5]


@EACH
@pytest.mark.parametrize("change", [{"device_type": 1}, {"lanes": 2}, {"flags": READ_ONLY}])
def test_other_tensors_become_no_array(make, change):
    array, managed = make(6), managed_of(make(6))
    for name, value in change.items():
        setattr(managed if name == "flags" else managed.tensor, name, value)
    with pytest.raises(BufferError, match="CUDA's memory and a data type of NumPy's|read-only"):
        api_of(array).to_object(ctypes.addressof(managed), c_void_p())


def test_tensors_are_allocated_in_cupys_pool():
    x = cupy.zeros((2, 3), np.complex64)
    like, out, said = managed_of(x).tensor, c_void_p(), []
    on_error = ON_ERROR(lambda context, kind, text: said.append((kind, text)))
    used = cupy.get_default_memory_pool().used_bytes()
    assert api_of(x).allocate(like, out, None, on_error) == 0
    assert cupy.get_default_memory_pool().used_bytes() == used + 512
    managed = Versioned.from_address(out.value)
    assert (managed.tensor.shape[:2], managed.tensor.bits) == ([2, 3], 64)
    assert managed.tensor.data != x.data.ptr
    release(managed)
    assert cupy.get_default_memory_pool().used_bytes() == used
    like.lanes = 4
    assert api_of(x).allocate(like, out, None, on_error) == -1
    assert said == [(b"BufferError", b"CuPy has no such data type or device")]


@EACH
def test_work_is_done_on_cupys_current_stream(make):
    array = make(3)
    assert work_stream(array) == 0
    with cupy.cuda.Stream(non_blocking=True) as stream:
        assert work_stream(array) == stream.ptr


@pytest.mark.parametrize("ask", [work_stream, managed_of], ids=["the stream", "the tensor"])
@pytest.mark.parametrize("make", ARRAYS.values(), ids=["GPUArray", "ndarray: the control"])
def test_pycudas_work_comes_before(make, ask, latch, put):
    """A consumer asks for the stream of its first tensor's library only."""
    array, copy, stream = make(N), cupy.zeros(N, np.int32), drv.Stream(1)
    view = bridge.as_cupy(array, stream=-1)
    with latch.hold(stream), cupy.cuda.Stream(non_blocking=True) as reader:
        put(pointer_of(array), N, 7, stream)
        found = ask(array)
        copy.data.copy_from_device_async(view.data, view.nbytes, reader)
    assert (set(copy.get().tolist()) == {7}) == isinstance(array, gpuarray.GPUArray)
    if ask is managed_of:
        release(found)


def test_a_block_is_reused_after_the_consumers_work(latch, put):
    def convert(a):
        managed = managed_of(a)
        owner = type("Owner", (), {"__del__": lambda self: release(managed)})()
        memory = cupy.cuda.UnownedMemory(managed.tensor.data, 4 * N, owner, 0)
        return cupy.ndarray(N, "i4", cupy.cuda.MemoryPointer(memory, 0))

    stream = cupy.cuda.Stream(non_blocking=True)
    assert reuse_pycudas_block(convert, stream, latch, put, drv.Stream(1)) == {1}


@EACH
def test_what_cannot_be_exported(make):
    points = cupy.zeros(3, np.dtype([("c", "c8"), ("x", "f4")]))
    part = bridge.as_cupy(points.data, shape=3, dtype="c8", strides=(12,))
    for array, message in (points, "dtype .*'x'"), (part, r"complex64 and strides \(12,\)"):
        with pytest.raises(BufferError, match=f"DLPack has no array of .*{message}"):
            managed_of(bridge.as_pycuda(array) if make is ARRAYS["GPUArray"] else array)
    a = gpuarray.zeros((2, 3), np.float32)
    a.shape = (6,)
    with pytest.raises(ValueError, match="its shape was set without its strides; use a.reshape"):
        managed_of(a)


def test_tvm_ffi_takes_both(package, tmp_path):
    """A real consumer: https://github.com/apache/tvm-ffi."""
    folder = Path(package("tvm_ffi").__file__).parent
    library = tmp_path / "exchange.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library]
    command += [Path(__file__).with_name("exchange.cc"), f"-I{folder}/include"]
    command += [f"-I{folder}/3rdparty/dlpack/include", f"-L{folder}/lib", "-ltvm_ffi"]
    subprocess.run(command, check=True)
    add = package("tvm_ffi").load_module(str(library)).add
    module = bridge.SourceModule(
        "__global__ void add(float *x, long long n, float y)"
        "{ for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += y; }"
    )
    kernel = module._handle("add")
    bridge.offer_c_exchange()
    a, x = gpuarray.zeros(N, np.float32), cupy.zeros(N, np.float32)
    for array in (a, x):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            add(kernel, array, 1.5)
        stream.synchronize()
        assert set(array.get().tolist()) == {1.5}
