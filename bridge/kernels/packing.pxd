"""What launches use of the packing."""

from libc.stdint cimport uint64_t

from cpython.ref cimport PyObject

cdef enum:
    MOST_BYTES = 32764  # of parameters: CUDA Programming Guide, "__global__ Function Parameters"

cdef enum Kind:
    POINTER, SIGNED, UNSIGNED, BOOL, FLOAT, BYTES

cdef struct Slot:  # one parameter
    Kind kind
    Py_ssize_t offset, size  # bytes
    PyObject *dtype  # of a pointer's target, or None
    PyObject *checked  # the last dtype whose fields are a struct's
    bint may_be_pointer  # addresses of arrays are packed here
    PyObject *scalar  # NumPy's scalar type whose bytes are copied; NULL: none
    PyObject *python  # the Python type that is packed here; NULL: none
    uint64_t remainder  # the bits that are 0 in every address that the kernel can read

cdef struct PackedArguments:
    int device_id
    bint strided
    bint has_pycuda_memory  # PyCUDA's streams may use what an argument points to
    bint has_other_arrays  # an argument is CuPy's, or another library's
    bint has_host_memory  # an argument is a NumPy array on managed or pinned memory
    bint has_handlers  # an argument is a pycuda.driver.In, Out or InOut
    Py_ssize_t index  # of the argument that is packed, from 1
    Py_ssize_t first_c, first_fortran  # `index` of the first such argument; 0: none
    Py_ssize_t fortran_arrays  # their number
    size_t size  # of the parameters, bytes
    char buffer[MOST_BYTES]


cdef class Parameters:
    cdef readonly str name
    cdef readonly tuple each
    cdef dict checked  # keeps each slot's dtype of that name
    cdef bint is_prepared
    cdef Slot *slots
    cdef Py_ssize_t size

    cdef list pack(
        self, PyObject **args, Py_ssize_t count, PackedArguments *packed, mismatch, set warned
    )
