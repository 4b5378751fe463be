"""What other compiled modules use of the core."""

from bridge.interop.contexts cimport Stream
from libc.stdint cimport intptr_t

cdef enum:
    MEMORY, AS_CUPY, AS_PYCUDA  # kinds of views; the first is no view of another library's

cdef class KeptStreams:
    cdef tuple streams

cdef class View:
    cdef readonly object source  # the array that is viewed
    cdef readonly object memory  # what else keeps its memory, since ``gpudata`` may be swapped
    cdef readonly Stream owner, user  # the owner's pool waits for the user at the release
    cdef KeptStreams kept
    cdef object gpudata  # the array's, as `learn_memory` saw it
    cdef object dtype  # that passed `check_dtype`
    cdef intptr_t pointer
    cdef Py_ssize_t nbytes
    cdef int device_id
    cdef int kind

cdef View new_view(
    int kind, source, memory, int device_id, Py_ssize_t nbytes, Stream owner, Stream user,
    tuple kept,
)
cdef bint views_are_alive() noexcept
cpdef View learn_memory(array, intptr_t pointer, int device_id, dtype=*)
cdef new_array(shape, dtype, strides, intptr_t pointer, nbytes, owner, int device_id)
