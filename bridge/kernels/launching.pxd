"""What a launch is made of, for functions and graph nodes."""

from cpython.ref cimport PyObject

from bridge.interop.driver cimport Stream
from bridge.kernels.loaded cimport Kernel
from bridge.kernels.packing cimport PackedArguments, Parameters

cdef extern from *:
    PyObject **PySequence_Fast_ITEMS(object)

cdef struct LaunchConfig:
    int device_id
    unsigned extents[6]  # of the grid, in blocks, and of a block, in threads
    unsigned cluster[3]  # in blocks; 0: no clusters
    bint is_cooperative
    unsigned shared  # bytes of dynamic shared memory
    Stream stream  # if one is named
    bint is_named, is_foreign  # a stream that is not PyCUDA's
    bint strided

cdef struct LaunchStreams:
    Stream current, launch  # CuPy's current stream, and that of the launch
    Stream others  # with which the launch is ordered, too
    bint follow_pycuda  # the launch is ordered as PyCUDA's own

cdef int read_config(
    LaunchConfig *config, Kernel kernel, grid, block, shared, stream, bint strided,
    bint is_cooperative, cluster
) except -1
cdef launch(
    Kernel kernel, Parameters parameters, PyObject **args, Py_ssize_t count, LaunchConfig *config,
    bint is_timed, tuple needed
)
cdef int read_extent(unsigned *to, value, str name, str caller) except -1
cdef tuple extents_of(unsigned *extents)
cdef int choose_streams(
    LaunchStreams *streams, LaunchConfig *config, PackedArguments *packed, bint follows_pycuda
) except -1
cdef order_before_launch(
    PackedArguments *packed, LaunchStreams *streams, PyObject **args, Py_ssize_t count,
    bint is_timed, name
)
cdef int order_after_launch(LaunchStreams *streams) except -1
cdef int copy_back(handlers) except -1
cdef void parameter_buffer(void **extra, PackedArguments *packed) noexcept
