"""What other compiled modules use of the ordering rule."""

from bridge.interop.driver cimport Stream

cdef list kept_for_capture  # what cannot be released before a capture ends
cpdef Py_ssize_t release_kept_views() except -1
cpdef int order(Stream waiter, Stream awaited, bint joins=*) except -1
cdef int order_reuse() except -1
cdef bint release_needs_order(Stream owner, Stream user) noexcept
cdef int order_release(Stream owner, Stream user) noexcept
