"""What other compiled modules use of the ordering rule."""

from bridge.interop.driver cimport Stream

cdef enum:  # waits
    USUAL, JOINING, REFUSED
    NOT_NEEDED = -1  # in place of CUDA's status

cdef list kept_for_capture  # what cannot be released before a capture ends
cpdef Py_ssize_t release_kept_views() except -1
cpdef int order(Stream waiter, Stream awaited, bint joins=*) except -1
cdef int kind_of_wait(Stream waiter, Stream awaited, bint joins) noexcept
cdef void enter_capture(Stream handle) noexcept
cdef void note_capture(Stream handle) noexcept
cdef int order_reuse(Stream owner) except -1
cdef int order_release(Stream waiter, Stream awaited) noexcept
