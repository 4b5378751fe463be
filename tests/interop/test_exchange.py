"""Arrays of libraries that have DLPack's C exchange API; ctypes stands for an exporter in C."""

import ctypes
import gc
from ctypes import (
    POINTER,
    PYFUNCTYPE,
    c_char_p,
    c_int,
    c_int32,
    c_uint32,
    c_void_p,
    py_object,
    pythonapi,
)

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
    new_capsule,
    structure,
)
from exporters import BOTH, DLPackExporter, Exporter, pointer_of

import bridge

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
    if fails:  # a function that takes files only
        api.from_object = ctypes.cast(pythonapi.PyObject_AsFileDescriptor, types["from_object"])
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
    source = "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }"
    f = bridge.SourceModule(source).get_function("twice")
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
        if named == -1:
            reader.synchronize()  # while the writer is held
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
    type(exporter).__cuda_array_interface__ = Exporter(x).interface
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
