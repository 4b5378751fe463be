"""DLPack's structs, as in dlpack.h 1.3 (dmlc.github.io/dlpack)."""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:  # DLDeviceType, DLDataTypeCode, and the flags of a DLManagedTensorVersioned
    HOST = 1
    CUDA = 2
    CUDA_HOST = 3
    CUDA_MANAGED = 13
    FLOAT = 2
    COMPLEX = 5
    READ_ONLY = 1
    IS_COPIED = 2

cdef struct Tensor:  # DLTensor
    void *data
    int32_t device_type, device_id
    int32_t ndim
    uint8_t code, bits  # of an item
    uint16_t lanes
    int64_t *shape
    int64_t *strides  # in items; NULL: in C order
    uint64_t byte_offset

cdef struct Managed:  # DLManagedTensorVersioned
    uint32_t major, minor
    void *context
    void (*deleter)(Managed *) noexcept
    uint64_t flags
    Tensor tensor

# The functions of DLPackExchangeAPI raise, with the GIL held; the first is called without it.
ctypedef int (*Allocate)(
    Tensor *, Managed **, void *, void (*)(void *, const char *, const char *) noexcept
) noexcept
ctypedef int (*FromObject)(void *, Managed **) except -1
ctypedef int (*ToObject)(Managed *, void **) except -1
ctypedef int (*WorkStream)(int32_t, int32_t, void **) except -1

cdef struct ExchangeApi:
    uint32_t major, minor
    ExchangeApi *older
    Allocate allocate
    FromObject from_object
    ToObject to_object
    void *borrow_object
    WorkStream work_stream


cdef class Taken:
    cdef Managed *managed

cdef Taken take(Managed *managed)
cdef array_of(Taken owner)
cdef ExchangeApi *api_of(kind) except? NULL
cdef Managed *lend(
    tuple shape, tuple strides, dtype, intptr_t pointer, owner, int device_id
) except NULL
cdef tuple dlpack_device_of(intptr_t pointer, int device_id)
cdef capsule_of(Managed *managed)
