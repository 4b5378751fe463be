"""What other compiled modules use of the ordering rule."""

from bridge.context cimport Stream

cpdef enum:  # in place of a handle
    UNORDERED = -1  # "do not order", as in DLPack
    PYCUDA = -2  # all of PyCUDA's streams

cdef Stream current_stream(int device_id) except? -1
cpdef Stream handle_of(stream, caller, bint may_be_unordered=*) except? -1
cpdef bint is_capturing(Stream handle) noexcept
cdef bint may_wait(Stream current) noexcept
cpdef int order(Stream waiter, Stream awaited) except -1
cdef int order_reuse() except -1
cdef bint needs_order(Stream owner, Stream user) noexcept
cdef int order_release(Stream owner, Stream user) noexcept
cdef int wait_for_end_of_capture(value) except -1
