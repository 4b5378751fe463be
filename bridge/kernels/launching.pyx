"""A launch, from its arguments to CUDA: configuration, packing, streams, order, the driver's call.

`launch` is the way of each kernel of a `SourceModule`.  PyCUDA's own functions share its steps
(`bridge.kernels.pycuda_functions`).
"""

from cpython.ref cimport PyObject

from bridge.interop.contexts cimport cuda_device
from bridge.interop.driver cimport *
from bridge.interop.ordering cimport order
from bridge.interop.streams cimport *
from bridge.interop.views cimport views_are_alive
from bridge.kernels.loaded cimport keep_for_graph
from bridge.kernels.packing cimport PackedArguments, Parameters

import functools

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import driver, runtime

from ..interop.cuda_status import failure
from ..interop.host_memory import keep_until_done
from ..interop.streams import pycuda_stream_of, seconds_between
from .launch_limits import REFUSALS, check_capture, explain, extent, shared_bytes

cdef type NUMPYS_INTEGER = np.integer

# ---- the configuration ---------------------------------------------------------------------------


cdef int read_config(
    LaunchConfig *config, Kernel kernel, grid, block, shared, stream, bint strided,
    bint is_cooperative, cluster
) except -1:
    """Check how to launch on the current device."""
    name = kernel.name
    config.device_id = cuda_device()
    config.is_named, config.is_foreign = stream is not None, False
    config.strided, config.is_cooperative = strided, is_cooperative
    config.shared = config.cluster[0] = 0
    if stream is not None:
        config.stream = handle_of(stream, name, may_be_unordered=False)
        config.is_foreign = config.stream != 0 and pycuda_stream_of(stream) is None
    try:
        read_extent(config.extents, grid, "grid", name)
        read_extent(config.extents + 3, block, "block", name)
        if cluster is not None:
            config.cluster = extent(cluster, "cluster", name)
        if type(shared) is not int or shared:
            config.shared = shared_bytes(shared, name)
            kernel.raise_shared_limit(config.shared, config.device_id)
    except REFUSALS as error:
        raise explain(error, name, kernel, grid, block, shared, config.device_id) from None
    return 0


cdef int read_extent(unsigned *to, value, str name, str caller) except -1:
    """Read the three extents of a grid or a block: an int, or 1 to 3 of them."""
    cdef Py_ssize_t axis = 0
    cdef tuple sizes
    if type(value) is tuple:
        sizes = value
    else:
        sizes = tuple(value) if type(value) is list else (value,)
    to[0] = to[1] = to[2] = 1
    for size in sizes if 1 <= len(sizes) <= 3 else extent(value, name, caller):
        if type(size) is not int and not isinstance(size, NUMPYS_INTEGER):
            size = extent(value, name, caller)[axis]
        to[axis] = size
        if not to[axis]:
            extent(value, name, caller)  # raises
        axis += 1
    return 0


cdef tuple extents_of(unsigned *extents):
    return extents[0], extents[1], extents[2]

# ---- the launch ----------------------------------------------------------------------------------


cdef launch(
    Kernel kernel, Parameters parameters, PyObject **args, Py_ssize_t count, LaunchConfig *config,
    bint is_timed, tuple needed
):
    """Launch a kernel on the stream of `config`, or on CuPy's current one.

    Earlier work on CuPy's current stream comes before it, later work after it, also where another
    stream is named.  If timed, return a function that waits for the kernel and returns the seconds.
    """
    cdef PackedArguments packed
    cdef LaunchStreams streams
    packed.device_id, packed.strided = config.device_id, config.strided
    kept = parameters.pack(args, count, &packed, kernel.mismatch, kernel.warned)
    resources = kernel.resources.get(packed.device_id) if kernel.resources else None
    if resources is not None:
        of_pycuda, of_others = resources.memory()
        packed.has_pycuda_memory = packed.has_pycuda_memory or of_pycuda
        packed.has_other_arrays = packed.has_other_arrays or of_others
    streams.current = current_stream(packed.device_id)
    streams.launch = config.stream if config.is_named else streams.current
    choose_streams(&streams, config, &packed, kernel.follows_pycuda)
    handlers = order_before_launch(&packed, &streams, args, count, is_timed, kernel.name)
    if is_capturing(streams.launch):
        keep_for_graph(kernel, streams.launch)
    events = ()
    if is_timed:
        if reason := failure():
            raise drv.LaunchError(f"{kernel.name}: {reason}")
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        runtime.eventRecord(first.ptr, streams.launch)
        events = (last,)
    if resources is None:
        queue(kernel, config, &packed, &streams, events)
    else:
        with resources.launching(streams.launch, needed) as read:
            queue(kernel, config, &packed, &streams, events + read)
    if packed.has_host_memory:
        keep_until_done(streams.launch, kept)
    copy_back(handlers)
    return functools.partial(seconds_between, first, last) if is_timed else None


cdef int choose_streams(
    LaunchStreams *streams, LaunchConfig *config, PackedArguments *packed, bint follows_pycuda
) except -1:
    """Choose how a launch is ordered, and the stream of one that follows PyCUDA."""
    streams.follow_pycuda = follows_pycuda and not (
        packed.has_other_arrays or packed.has_handlers or config.is_foreign or views_are_alive()
    )
    if streams.follow_pycuda and not config.is_named:
        streams.launch = 0
    # PyCUDA's own kernels get bare addresses.
    has_pycuda_memory = packed.has_pycuda_memory or follows_pycuda
    if has_pycuda_memory and not config.is_named:
        streams.others = ALL_PYCUDA_STREAMS
    elif packed.has_handlers or (
        config.is_foreign and has_pycuda_memory and not is_capturing(streams.launch)
    ):
        # The handlers copy on the default stream.  It stands for the earlier users of a pool's
        # block, and for a launch on a foreign stream to later users.
        streams.others = 0
    else:
        streams.others = UNORDERED
    return 0


cdef order_before_launch(
    PackedArguments *packed, LaunchStreams *streams, PyObject **args, Py_ssize_t count,
    bint is_timed, name
):
    """Order a launch after earlier work; return its arguments that copy, after they have."""
    cdef Py_ssize_t i
    cdef Stream current = streams.current, launch = streams.launch
    handlers = ()
    if packed.has_handlers:
        values = [<object> args[i] for i in range(count)]
        handlers = [value for value in values if isinstance(value, drv.ArgumentHandler)]
    waits = handlers or is_timed
    if waits or (launch == 0 and not streams.follow_pycuda and is_capturing(current)):
        check_capture(current, launch, bool(waits), name)
    for handler in handlers:
        handler.pre_call(None)
    if not streams.follow_pycuda:
        order(launch, current)
        order(launch, streams.others)
    return handlers


cdef int order_after_launch(LaunchStreams *streams) except -1:
    """Order later work after a launch.

    Call it at once: wherever Python runs, the handler of a signal may raise.
    """
    if not streams.follow_pycuda:
        order(streams.current, streams.launch)
        order(streams.others, streams.launch)
    return 0


cdef int copy_back(handlers) except -1:
    """Let a launch's arguments copy back."""
    for handler in handlers:
        if hasattr(handler, "post_call"):
            handler.post_call(None)
    return 0

# ---- the driver ----------------------------------------------------------------------------------


cdef int queue(
    Kernel kernel, LaunchConfig *config, PackedArguments *packed, LaunchStreams *streams,
    tuple events
) except -1:
    """Queue a kernel and record events after it, in order; or raise the error for CUDA's status."""
    cdef Handle function = kernel.handle(packed.device_id)
    cdef int status
    cdef unsigned *n = config.extents
    cdef CUlaunchConfig extended
    cdef CUlaunchAttribute attributes[2]
    cdef void *extra[5]
    parameter_buffer(extra, packed)
    if not config.is_cooperative and not config.cluster[0]:
        with nogil:  # CUDA waits if the stream's queue is full
            status = cuLaunchKernel(
                function, n[0], n[1], n[2], n[3], n[4], n[5], config.shared, streams.launch, NULL,
                extra
            )
    else:
        extended.extents, extended.shared = config.extents, config.shared
        extended.stream = streams.launch
        extended.attributes, extended.attribute_count = attributes, 0
        if config.is_cooperative:
            attributes[0].id, attributes[0].value[0] = COOPERATIVE, 1
            extended.attribute_count = 1
        if config.cluster[0]:
            attributes[extended.attribute_count].id = CLUSTER_DIMENSION
            attributes[extended.attribute_count].value[:3] = config.cluster
            extended.attribute_count += 1
        with nogil:
            status = cuLaunchKernelEx(&extended, function, NULL, extra)
    if status:
        raise_refusal(status, kernel, config, packed.device_id)
    for event in events:
        runtime.eventRecord(event.ptr, streams.launch)
    return order_after_launch(streams)


cdef void parameter_buffer(void **extra, PackedArguments *packed) noexcept:
    """Write what the driver reads of packed arguments: five pointers."""
    extra[0], extra[1] = <void *> BUFFER_POINTER, &packed.buffer[0]
    extra[2], extra[3], extra[4] = <void *> BUFFER_SIZE, &packed.size, NULL


cdef raise_refusal(int status, Kernel kernel, LaunchConfig *config, int device_id):
    grid, block = extents_of(config.extents), extents_of(config.extents + 3)
    cluster = extents_of(config.cluster) if config.cluster[0] else None
    error = driver.CUDADriverError(status)
    raise explain(
        error, kernel.name, kernel, grid, block, config.shared, device_id, cluster,
        config.is_cooperative
    ) from None
