"""What other compiled modules use of contexts."""

from bridge.interop.driver cimport *

cdef enum:
    MOST_DEVICES = 64

cdef Handle primaries[MOST_DEVICES]  # each device's primary context; NULL: not met yet
cdef int device_count  # ids below this may have been met
cdef list primary_contexts  # the Context object that PyCUDA allocates under, of each device
cdef bint abandoned  # the process ends, or was forked: memory is left to CUDA
cdef bint forked
cdef object pycuda_current, pycuda_push, pycuda_pop

cdef Handle cuda_current() noexcept
cdef int device_of(Handle context) noexcept
cpdef int cuda_device() except -1
cpdef int shared_device() except -1
cdef bint can_free_here(int device_id) noexcept
cdef own_context(int device_id)
cpdef int device_of_context(intptr_t context) except -2
cdef void forget_shared_device() noexcept
cdef void abandon_memory(bint is_forked) noexcept
cdef bint is_in_primary_context(intptr_t pointer, int device_id) noexcept
