"""What other compiled modules use of the ordering rule."""

from bridge.interop.contexts cimport Stream

cpdef int order(Stream waiter, Stream awaited) except -1
cdef int order_reuse() except -1
cdef bint needs_order(Stream owner, Stream user) noexcept
cdef int order_release(Stream owner, Stream user) noexcept
