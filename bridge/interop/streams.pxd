"""What other compiled modules use of streams, captures and fences."""

from bridge.interop.driver cimport Handle, Stream, uint64_t

cpdef enum:  # in place of a handle
    UNORDERED = -1  # "do not order", as in DLPack
    ALL_PYCUDA_STREAMS = -2  # UNORDERED - PYCUDA, and so on
    ALL_CUPY_STREAMS = -3
    ALL_STREAMS = -4  # of both

cdef enum:
    LEGACY = 1  # cudaStreamLegacy, also in both protocols: another name of handle 0
    NO_CAPTURE = 0

cdef tuple CUPY_STREAMS
cdef Stream (*current_stream)(int) except? -1  # CuPy's, on a device
cpdef Stream handle_of(stream, caller, bint may_be_unordered=*) except? -1
cdef Stream handle_on_any_device(stream, subject, bint may_be_unordered=*) except? -1
cpdef tuple device_of_stream(Stream handle)
cdef bint is_blocking(Stream handle) noexcept
cpdef bint is_capturing(Stream handle) noexcept
cdef uint64_t capture_of(Stream handle, int *status=*) noexcept nogil
cdef Handle take_event(int device_id) noexcept
cdef int keep_event(Handle event, int device_id, int status) noexcept
cpdef int fence(Stream waiter, Stream awaited) noexcept
cdef bint is_traced
cdef str (*name_of_stream)(Stream)
cdef void note_wait(Stream waiter, Stream awaited) noexcept
