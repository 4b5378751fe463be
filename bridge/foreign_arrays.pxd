"""What other compiled modules use of the protocols."""

from bridge.context cimport Stream

cpdef int check_device(pointer, subject, int device_id) except -1
cpdef int check_array(array, subject, int device_id) except -1
cpdef elsewhere(subject, int found, int device_id)
cdef int mark_as_copied(capsule) except -1
cpdef import_array(array, stream, Stream waiter, int device_id, caller)
