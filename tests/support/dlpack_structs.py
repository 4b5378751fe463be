"""DLPack's structures by ctypes, and a producer made of them."""

import ctypes
from ctypes import c_char_p, c_int, c_void_p, py_object

import pytest

CUDA, ROCM = 2, 10
READ_ONLY, IS_COPIED, IS_PADDED = 1, 2, 4


def structure(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Tensor = structure(
    "DLTensor",
    data=c_void_p,
    **dict.fromkeys(["device_type", "device_id", "ndim"], ctypes.c_int32),
    **dict.fromkeys(["code", "bits"], ctypes.c_uint8),
    lanes=ctypes.c_uint16,
    **dict.fromkeys(["shape", "strides"], ctypes.POINTER(ctypes.c_int64)),
    byte_offset=ctypes.c_uint64,
)
Old = structure("DLManagedTensor", tensor=Tensor, context=c_void_p, deleter=c_void_p)
Versioned = structure(
    "DLManagedTensorVersioned",
    **dict.fromkeys(["major", "minor"], ctypes.c_uint32),
    **dict.fromkeys(["context", "deleter"], c_void_p),
    flags=ctypes.c_uint64,
    tensor=Tensor,
)
Old.name, Versioned.name = b"dltensor", b"dltensor_versioned"
KINDS = pytest.mark.parametrize("kind", [Old, Versioned], ids=["old", "versioned"])


def python_api(name, result, *arguments):
    function = ctypes.pythonapi[name]  # one of our own: attribute access shares it with bridge
    function.restype, function.argtypes = result, arguments
    return function


new_capsule = python_api("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
name_of = python_api("PyCapsule_GetName", c_char_p, py_object)
# By address: a destructor must not touch the reference count of what is being destroyed.
is_valid = python_api("PyCapsule_IsValid", c_int, c_void_p, c_char_p)
get_pointer = python_api("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)

exported = {}  # producers by the addresses of their managed tensors, which keeps them alive


@ctypes.CFUNCTYPE(None, c_void_p)
def deleter(address):
    exported.pop(address).deleted += 1  # a second call fails the test: nothing is there


@ctypes.PYFUNCTYPE(None, c_void_p)
def destructor(capsule):
    for kind in (Old, Versioned):
        if is_valid(capsule, kind.name):
            address = get_pointer(capsule, kind.name)
            if kind.from_address(address).deleter:
                deleter(address)


class Producer:
    """A library that exports a CuPy array as DLPack prescribes; `changes` are to the structures."""

    def __init__(self, array, kind=Versioned, device=(CUDA, 0), **changes):
        self.array, self.device, self.deleted, self.asked = array, device, 0, []
        ndim, itemsize = array.ndim, array.dtype.itemsize
        self.managed = kind(deleter=ctypes.cast(deleter, c_void_p))
        if kind is Versioned:
            self.managed.major = 1
        tensor = self.managed.tensor
        tensor.data, tensor.ndim, tensor.lanes = array.data.ptr, ndim, 1
        tensor.device_type, tensor.device_id = device
        tensor.code, tensor.bits = "iufxxcb".index(array.dtype.kind), 8 * itemsize
        tensor.shape = (ctypes.c_int64 * ndim)(*array.shape)
        tensor.strides = (ctypes.c_int64 * ndim)(*(s // itemsize for s in array.strides))
        for name, value in changes.items():
            setattr(self.managed if hasattr(self.managed, name) else tensor, name, value)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked.append((stream, max_version, dl_device, copy))
        address = ctypes.addressof(self.managed)
        if self.managed.deleter:
            exported[address] = self
        return new_capsule(address, self.managed.name, ctypes.cast(destructor, c_void_p))
