"""The steps of a launch: its grid and block, its order with other work, and the call of CUDA."""

from cpython.ref cimport PyObject

from bridge.interop.contexts cimport Handle, Stream, find
from bridge.interop.streams cimport PYCUDA
from bridge.kernels.packing cimport Call
from bridge.interop.ordering cimport order

import pycuda.driver as drv

from .launch_limits import check_capture, extent

cdef int (*cuLaunchKernel)(
    Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
    void **
) noexcept nogil
find("cuLaunchKernel", &cuLaunchKernel)
cdef int (*cuLaunchKernelEx)(LaunchConfig *, Handle, void **, void **) noexcept nogil
find("cuLaunchKernelEx", &cuLaunchKernelEx)

cdef enum:
    COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION

cdef struct LaunchAttribute:  # CUlaunchAttribute
    int id
    int padding
    unsigned value[16]

cdef struct LaunchConfig:  # CUlaunchConfig
    unsigned extents[6]
    unsigned shared
    Stream stream
    LaunchAttribute *attributes
    unsigned attribute_count


cdef int read_extent(unsigned *to, value, str name, str caller) except -1:
    """Read the three extents of a grid or a block, given as 1 to 3 ints; CUDA refuses 0."""
    cdef Py_ssize_t axis
    is_usual = type(value) is tuple and 1 <= len(<tuple> value) <= 3
    cdef tuple sizes = value if is_usual else extent(value, name, caller)
    to[0] = to[1] = to[2] = 1
    for axis in range(len(sizes)):
        size = sizes[axis]
        to[axis] = size if type(size) is int else extent(value, name, caller)[axis]
    return 0


cdef tuple three(unsigned *extents):
    return extents[0], extents[1], extents[2]


cdef begin(
    Call *call, Order *streams, PyObject **args, Py_ssize_t count, bint timed, name
):
    """Order a launch after earlier work; return its arguments that copy, after they have."""
    cdef Py_ssize_t i
    handlers = ()
    if call.handlers:
        handlers = [<object> args[i] for i in range(count)]
        handlers = [value for value in handlers if isinstance(value, drv.ArgumentHandler)]
    cdef Stream here = streams.here, there = streams.there
    if (here != there and not streams.are_pycudas) or handlers or timed:
        check_capture(here, there, bool(handlers or timed), name)
    for handler in handlers:
        handler.pre_call(None)
    if not streams.are_pycudas:
        order(there, here)
        if call.has_pycuda_memory and not streams.is_named:
            order(there, PYCUDA)
        elif handlers:  # which copy on the default stream
            order(there, 0)
    return handlers


cdef int end(Call *call, Order *streams, handlers) except -1:
    """Order later work after a launch, and let arguments copy back."""
    if not streams.are_pycudas:
        order(streams.here, streams.there)
        if call.has_pycuda_memory and not streams.is_named:
            order(PYCUDA, streams.there)
        elif handlers:
            order(0, streams.there)
    for handler in handlers:
        if hasattr(handler, "post_call"):
            handler.post_call(None)
    return 0


cdef int launch_kernel(Handle function, How *how, Call *call, Stream stream) noexcept:
    """Queue a kernel on a stream; return CUDA's status."""
    cdef int status
    cdef unsigned *n = how.extents
    cdef LaunchConfig config
    cdef LaunchAttribute attributes[2]
    cdef void *extra[5]
    extra[:] = [
        <void *> BUFFER_POINTER, &call.packed[0], <void *> BUFFER_SIZE, &call.size, NULL
    ]
    if not how.is_cooperative and not how.cluster[0]:
        with nogil:  # CUDA waits if the stream's queue is full
            status = cuLaunchKernel(
                function, n[0], n[1], n[2], n[3], n[4], n[5], how.shared, stream, NULL, extra
            )
    else:
        config.extents, config.shared, config.stream = how.extents, how.shared, stream
        config.attributes, config.attribute_count = attributes, 0
        if how.is_cooperative:
            attributes[0].id, attributes[0].value[0] = COOPERATIVE, 1
            config.attribute_count = 1
        if how.cluster[0]:
            attributes[config.attribute_count].id = CLUSTER
            attributes[config.attribute_count].value[:3] = how.cluster
            config.attribute_count += 1
        with nogil:
            status = cuLaunchKernelEx(&config, function, NULL, extra)
    return status
