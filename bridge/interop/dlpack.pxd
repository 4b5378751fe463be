"""DLPack's structs and enumerators, under their names in dlpack.h 1.3 (dmlc.github.io/dlpack)."""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:  # DLDeviceType, DLDataTypeCode, and the flags of a DLManagedTensorVersioned
    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLCUDAManaged = 13
    kDLFloat = 2
    kDLComplex = 5
    DLPACK_FLAG_BITMASK_READ_ONLY = 1
    DLPACK_FLAG_BITMASK_IS_COPIED = 2

cdef struct DLTensor:  # its device and dtype are structs in dlpack.h
    void *data
    int32_t device_type, device_id
    int32_t ndim
    uint8_t code, bits  # of an item
    uint16_t lanes
    int64_t *shape
    int64_t *strides  # in items; NULL: in C order
    uint64_t byte_offset

cdef struct DLManagedTensorVersioned:
    uint32_t major, minor
    void *manager_ctx
    void (*deleter)(DLManagedTensorVersioned *) noexcept
    uint64_t flags
    DLTensor dl_tensor

# A consumer calls these functions with the GIL, and they raise Python exceptions.
cdef struct DLPackExchangeAPI:
    uint32_t major, minor
    DLPackExchangeAPI *prev_api
    void *managed_tensor_allocator
    int (*managed_tensor_from_py_object_no_sync)(void *, DLManagedTensorVersioned **) except -1
    void *managed_tensor_to_py_object_no_sync
    void *dltensor_from_py_object_no_sync
    int (*current_work_stream)(int32_t, int32_t, void **) except -1


cdef class OwnedTensor:
    cdef DLManagedTensorVersioned *managed

cdef OwnedTensor own_tensor(DLManagedTensorVersioned *managed)
cdef array_on_tensor(OwnedTensor owner)
cdef DLPackExchangeAPI *exchange_api_of(kind) except? NULL
cdef tuple dlpack_device_of(intptr_t pointer, int device_id)
