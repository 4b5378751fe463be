# cython: auto_pickle=False
"""DLPack's managed tensors in C: those of other libraries as arrays.

`bridge.interop.importing` says who waits for whom.

Source: dlpack.h 1.3, and "Python Specification for DLPack" (dmlc.github.io/dlpack).
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from bridge.interop.driver cimport POINTER_DEVICE, POINTER_IS_MANAGED, cuPointerGetAttributes
from bridge.interop.views cimport new_array

from .dtypes import PLAIN_DTYPES

# DLDataTypeCode and the bits of an item, by dtype: kDLInt is 0.
cdef dict CODES = {"i": 0, "u": 1, "f": kDLFloat, "c": kDLComplex, "b": 6}
cdef dict dtypes = {}
for one in sorted(PLAIN_DTYPES, key=lambda dtype: dtype.num):  # "q" after "l", of the same size
    dtypes[CODES[one.kind] << 8 | 8 * one.itemsize] = one
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
