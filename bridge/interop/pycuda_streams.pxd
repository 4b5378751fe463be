"""What the ordering rule uses of the records of PyCUDA's streams."""

from cpython.ref cimport PyObject

from bridge.interop.driver cimport Handle, Stream, uint64_t

cdef enum:
    ENDED = -3  # in place of a handle
    ANY_CAPTURE = -1  # in place of a capture's number

cdef struct StreamRecord:
    PyObject *stream  # borrowed: its deallocator removes the record
    Stream handle
    Handle context
    Handle event  # after the last work of a stream, if the default stream must still wait for it
    bint is_blocking
    uint64_t capture  # during which the default stream stands for it; ANY_CAPTURE while it begins
    bint is_taken  # the default stream is made to wait for the event
    int pins  # who uses the handle or the event without the GIL: neither is destroyed before
    StreamRecord *next

cdef StreamRecord *first_record
cdef Py_ssize_t stream_count, non_blocking_count, ended_count

cdef int default_waits_for_ended() noexcept
cdef int default_waits_for_blocking() noexcept
