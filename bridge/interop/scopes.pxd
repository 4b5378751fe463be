"""What other compiled modules use to enter and leave contexts."""

from bridge.interop.driver cimport intptr_t

cdef int enter_context(int device_id, context=*) except -1
cdef int leave_context(intptr_t current, top) except -1
cdef int restore_context(intptr_t current, top) except -1
