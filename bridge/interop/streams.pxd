"""What other compiled modules use of handles, captures and fences."""

from libc.stdint cimport uint64_t

from bridge.interop.contexts cimport Handle, Stream

cpdef enum:  # in place of a handle
    UNORDERED = -1  # "do not order", as in DLPack
    PYCUDA = -2  # all of PyCUDA's streams

cdef enum:
    LEGACY = 1  # cudaStreamLegacy, also in both protocols: another name of handle 0
    NO_CAPTURE = 0

cdef tuple CUPY_STREAMS
cdef Stream (*current_stream)(int) except? -1  # CuPy's, on a device
cpdef Stream handle_of(stream, caller, bint may_be_unordered=*) except? -1
cdef Stream handle_anywhere(stream, subject) except? -1
cpdef tuple device_of_stream(Stream handle)
cdef bint is_non_blocking(Stream handle) noexcept
cpdef bint is_capturing(Stream handle) noexcept
cdef uint64_t capture_of(Stream handle, int *status=*) noexcept nogil
cdef list waiting  # what cannot be released before a capture ends
cpdef Py_ssize_t end_waiting() except -1
cdef Handle take_event(int device_id) noexcept
cdef int give_back(Handle event, int device_id, int status) noexcept
cpdef int fence(Stream waiter, Stream awaited) noexcept
