# cython: auto_pickle=False
"""DLPack's managed tensors in C: those of other libraries as arrays, and arrays as such tensors.

`bridge.interop.importing` and `bridge.interop.exporting` say who waits for whom.

Source: dlpack.h 1.3, and "Python Specification for DLPack" (dmlc.github.io/dlpack).
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdlib cimport free, malloc

from bridge.interop.driver cimport POINTER_DEVICE, POINTER_IS_MANAGED, cuPointerGetAttributes
from bridge.interop.layouts cimport check_axes
from bridge.interop.views cimport new_array

from .dtypes import PLAIN_DTYPES

cdef extern from "Python.h":
    bint Py_IsInitialized() nogil

# DLDataTypeCode and the bits of an item, by dtype: kDLInt is 0.
cdef dict CODES = {"i": 0, "u": 1, "f": kDLFloat, "c": kDLComplex, "b": 6}
cdef dict types = {}
cdef dict dtypes = {}
for one in sorted(PLAIN_DTYPES, key=lambda dtype: dtype.num):  # "q" after "l", of the same size
    types[one] = CODES[one.kind] << 8 | 8 * one.itemsize
    dtypes[types[one]] = one
one = None

# ---- tensors of other libraries ------------------------------------------------------------------


@cython.final
cdef class OwnedTensor:
    """Owns another library's managed tensor."""

    def __dealloc__(self):
        if self.managed is not NULL and self.managed.deleter is not NULL:
            self.managed.deleter(self.managed)


cdef OwnedTensor own_tensor(DLManagedTensorVersioned *managed):
    cdef OwnedTensor owned = OwnedTensor.__new__(OwnedTensor)
    owned.managed = managed
    return owned


cdef array_on_tensor(OwnedTensor owner):
    """Return a CuPy array on a managed tensor; None if CuPy's dtype for it is not sure."""
    cdef DLTensor *tensor = &owner.managed.dl_tensor
    cdef Py_ssize_t axis, step, itemsize = tensor.bits >> 3, n = 1
    cdef bint is_in_c_order = True
    dtype = dtypes.get(tensor.code << 8 | tensor.bits) if tensor.lanes == 1 else None
    if dtype is None:
        return None
    shape = tuple([tensor.shape[axis] for axis in range(tensor.ndim)])
    for axis in range(tensor.ndim - 1, -1, -1):
        step = n if tensor.strides is NULL else tensor.strides[axis]
        is_in_c_order = is_in_c_order and (step == n or tensor.shape[axis] == 1)
        n *= tensor.shape[axis]
    strides = None
    if n and not is_in_c_order:
        strides = tuple([tensor.strides[axis] * itemsize for axis in range(tensor.ndim)])
    pointer = <intptr_t> tensor.data + <intptr_t> tensor.byte_offset if n else 0
    return new_array(shape, dtype, strides, pointer, n * itemsize, owner, tensor.device_id)


cdef DLPackExchangeAPI *exchange_api_of(kind) except? NULL:
    """Return a type's C exchange API of version 1; NULL if it has none."""
    cdef DLPackExchangeAPI *api = NULL
    found = getattr(kind, "__dlpack_c_exchange_api__", None)
    if found is not None and PyCapsule_IsValid(found, "dlpack_exchange_api"):
        api = <DLPackExchangeAPI *> PyCapsule_GetPointer(found, "dlpack_exchange_api")
    while api is not NULL and api.major != 1:
        api = api.prev_api
    return api

# ---- arrays for other libraries ------------------------------------------------------------------


cdef DLManagedTensorVersioned *export_tensor(
    tuple shape, tuple strides, dtype, intptr_t pointer, owner, int device_id
) except NULL:
    """Return a managed tensor on an array's memory, which `owner` keeps; strides are in bytes."""
    cdef Py_ssize_t axis, ndim = len(shape), itemsize = dtype.itemsize
    cdef DLManagedTensorVersioned *managed
    cdef DLTensor *tensor
    number = types.get(dtype)
    if number is None and dtype.name == "bfloat16":
        number = kDLBfloat << 8 | 16
    check_axes(shape, strides, "GPUArray.__dlpack__: the array")
    if number is None or any([step % itemsize for step in strides]):
        raise BufferError(
            f"DLPack has no array of dtype {dtype} and strides {strides}; one of bool, integers, "
            "floating-point or complex numbers, in steps of whole items, is accepted"
        )
    device_type, device = dlpack_device_of(pointer, device_id)
    managed = <DLManagedTensorVersioned *> malloc(
        sizeof(DLManagedTensorVersioned) + 2 * ndim * sizeof(int64_t)
    )
    if managed is NULL:
        raise MemoryError
    managed.major, managed.minor, managed.flags = 1, 3, 0
    managed.manager_ctx, managed.deleter = <void *> owner, &free_exported
    tensor = &managed.dl_tensor
    tensor.data, tensor.byte_offset = <void *> pointer, 0
    tensor.device_type, tensor.device_id = device_type, device
    tensor.ndim, tensor.lanes = ndim, 1
    tensor.code, tensor.bits = number >> 8, number & 255
    tensor.shape = <int64_t *> (managed + 1)
    tensor.strides = tensor.shape + ndim
    for axis in range(ndim):
        tensor.shape[axis], tensor.strides[axis] = shape[axis], strides[axis] // itemsize
    Py_INCREF(owner)
    return managed


cdef void free_exported(DLManagedTensorVersioned *managed) noexcept nogil:
    """Free a managed tensor of ours; at exit, leave its owner."""
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object> <PyObject *> managed.manager_ctx)
    free(managed)


cdef tuple dlpack_device_of(intptr_t pointer, int device_id):
    """Return DLPack's device type and id of memory, on `device_id` if CUDA does not know it."""
    cdef int attributes[2]
    cdef void *answers[2]
    cdef int device = device_id, is_managed = 0
    attributes[:] = [POINTER_DEVICE, POINTER_IS_MANAGED]
    answers[:] = [&device, &is_managed]
    if not pointer or cuPointerGetAttributes(2, attributes, answers, <uint64_t> pointer):
        device = -1
    if device < 0:
        device, is_managed = device_id, False
    return kDLCUDAManaged if is_managed else kDLCUDA, device


cdef capsule_of(DLManagedTensorVersioned *managed):
    """Return a capsule that owns a managed tensor of ours until a consumer takes it."""
    try:
        return PyCapsule_New(managed, "dltensor_versioned", &drop_capsule)
    except BaseException:
        managed.deleter(managed)
        raise


cdef void drop_capsule(object capsule) noexcept:
    cdef DLManagedTensorVersioned *managed
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed = <DLManagedTensorVersioned *> PyCapsule_GetPointer(capsule, "dltensor_versioned")
        managed.deleter(managed)
