"""What launches use of loaded code."""

from bridge.interop.contexts cimport MOST_DEVICES
from bridge.interop.driver cimport Handle, Stream


cdef class Kernel:
    cdef readonly str name
    cdef object module
    cdef bint follows_pycuda  # its module's policy
    cdef object mismatch
    cdef dict resources  # its module's, by device
    cdef set warned  # numbers of its arguments, see `Parameters.pack`
    cdef Py_ssize_t free_shared  # bytes of dynamic shared memory below the usual limit; -1: unknown
    cdef Handle handles[MOST_DEVICES]

    cdef Handle handle(self, int device_id) except NULL
    cdef int raise_shared_limit(self, Py_ssize_t shared, int device_id) except -1


cdef int keep_for_graph(Kernel kernel, Stream stream) except -1
