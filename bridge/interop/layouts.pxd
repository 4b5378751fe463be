"""What other compiled modules use of layouts."""

cdef int check_axes(tuple shape, tuple strides, subject) except -1
cdef bint is_contiguous(tuple shape, tuple strides, Py_ssize_t step, bint in_c_order) except -1
cdef bint has_cupys_strides(tuple shape, tuple strides, Py_ssize_t step) except -1
