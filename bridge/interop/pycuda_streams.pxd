"""What the ordering rule uses of the records of PyCUDA's streams."""

from cpython.ref cimport PyObject

from bridge.interop.driver cimport Handle, Stream

cdef struct Followed:
    PyObject *stream  # borrowed: `unfollow` removes it before it is freed
    Stream handle
    Handle context
    bint is_blocking

cdef Py_ssize_t followed_count, non_blocking_count

cdef Followed *take_followed(bint blocking, Py_ssize_t *count) noexcept
cdef void drop_followed(Followed *found, Py_ssize_t count) noexcept
