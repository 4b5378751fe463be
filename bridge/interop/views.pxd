"""What other compiled modules use of views and of the records of memory."""

from libc.stdint cimport intptr_t

from bridge.interop.driver cimport Stream

cdef enum:
    MEMORY, AS_CUPY, AS_PYCUDA  # kinds of views; the first is no view of another library's

cdef class View:
    cdef readonly object base  # the array that is viewed
    cdef readonly object memory  # what else keeps its memory, since ``gpudata`` may be swapped
    cdef Stream waiter, awaited  # at the release, the first waits for the second
    cdef object stream  # of a view for one stream: the object that `awaited` is of
    cdef Py_ssize_t unnamed_calls  # when it was made; if there are more, it is for all streams
    cdef bint is_of_host  # its own memory is managed or pinned, and goes to the host at once
    cdef object block  # of an `Allocation`, which may be freed before its views
    cdef object context  # PyCUDA's, that the memory is freed under; None: the device's
    cdef Py_ssize_t nbytes
    cdef int device_id
    cdef int kind

cdef class MemoryRecord(View):
    cdef object gpudata  # the array's, when it was recorded
    cdef object dtype  # the array's, if both libraries support it
    cdef intptr_t pointer

cdef View new_view(
    int kind, base, memory, int device_id, Py_ssize_t nbytes, Stream waiter, Stream awaited,
    stream=*
)
cdef bint views_are_alive() noexcept
cdef MemoryRecord recorded_memory(dict attributes)
cpdef MemoryRecord record_memory(array, intptr_t pointer, int device_id, dtype=*)
cdef new_array(shape, dtype, strides, intptr_t pointer, nbytes, owner, int device_id)
cdef View view_of(memory)
