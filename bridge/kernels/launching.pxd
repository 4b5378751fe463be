"""What a launch is made of, for functions, bound functions and graph nodes."""

from cpython.ref cimport PyObject

from bridge.interop.contexts cimport Handle, Stream
from bridge.kernels.packing cimport Call

cdef extern from *:
    PyObject **PySequence_Fast_ITEMS(object)

cdef enum:
    BUFFER_POINTER = 1  # CU_LAUNCH_PARAM_BUFFER_POINTER
    BUFFER_SIZE = 2

cdef struct How:  # a kernel is launched
    unsigned extents[6]  # of the grid, in blocks, and of a block, in threads
    unsigned cluster[3]  # in blocks; 0: no clusters
    bint is_cooperative
    unsigned shared  # bytes of dynamic shared memory
    Stream stream  # if one is named
    bint is_named
    bint strided

cdef struct Order:
    Stream here, there  # CuPy's current stream, and that of the launch
    bint is_named  # only `there` uses PyCUDA's memory
    bint are_pycudas  # the launch is ordered as PyCUDA's own

cdef int read_extent(unsigned *to, value, str name, str caller) except -1
cdef tuple three(unsigned *extents)
cdef begin(Call *call, Order *streams, PyObject **args, Py_ssize_t count, bint timed, name)
cdef int end(Call *call, Order *streams, handlers) except -1
cdef int launch_kernel(Handle function, How *how, Call *call, Stream stream) noexcept
