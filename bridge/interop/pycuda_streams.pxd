"""What the ordering rule uses of the records of PyCUDA's streams."""

from cpython.ref cimport PyObject

from bridge.interop.driver cimport Handle, Stream

cdef enum:
    ENDED = -3  # in place of a handle

cdef struct StreamRecord:
    PyObject *stream  # borrowed: its deallocator removes the record
    Stream handle
    Handle context
    Handle event  # after the last work of a stream, if the default stream must still wait for it
    bint is_blocking
    bint is_captured  # the default stream stands for it until the end of its capture
    bint is_taken  # the default stream is made to wait for the event
    int pins  # who uses the handle or the event without the GIL: neither is destroyed before
    StreamRecord *next

cdef StreamRecord *first_record
cdef Py_ssize_t stream_count, non_blocking_count, ended_count

cdef int default_waits_for_ended() noexcept
cdef int default_waits_for_blocking() noexcept
