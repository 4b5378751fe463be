"""What the ordering rule uses of the records of live streams."""

from cpython.ref cimport PyObject

from bridge.interop.driver cimport Handle, Stream, uint64_t

cdef enum:  # libraries: bits, so that a number can name both
    PYCUDA = 1
    CUPY = 2
    BOTH = 3

cdef enum:
    ENDED = -5  # in place of a handle
    ANY_CAPTURE = -1  # in place of a capture's number

cdef struct StreamRecord:
    uint64_t number  # never given again, as handles are; 0 for a stream that has ended
    PyObject *pycuda  # PyCUDA's object, borrowed: its end removes the record
    int objects  # of both libraries, that are alive
    int library  # whose objects there have been; of a stream that has ended, both
    Stream handle
    Handle context
    Handle event  # after the last work of a stream, if the default stream must still wait for it
    bint is_blocking
    uint64_t capture  # during which the default stream stands for it; ANY_CAPTURE while it begins
    bint is_taken  # the default stream is made to wait for the event
    int pins  # who uses the handle or the event without the GIL: neither is destroyed before
    StreamRecord *next

cdef StreamRecord *first_record
cdef Py_ssize_t blocking_count[4]  # by library, and of both
cdef Py_ssize_t non_blocking_count[4]
cdef Py_ssize_t ended_count
cdef uint64_t record_count  # so far
cdef bint per_thread_is_used  # whether CuPy works on threads' own default streams: without records
cdef Py_ssize_t unnamed_calls  # how many calls so far may have ordered all streams of a library

cdef str name_of(Stream handle)
cdef StreamRecord *record_of(Stream handle) noexcept
cdef void default_waits_for(StreamRecord *record) noexcept
cdef int wait_for_default(StreamRecord *record) noexcept
cdef void note_per_thread() noexcept
cdef void note_unnamed_call() noexcept
