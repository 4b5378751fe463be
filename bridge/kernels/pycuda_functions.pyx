"""Launches of what PyCUDA compiled: the steps of `Function`, around PyCUDA's own call."""

from cpython.ref cimport PyObject

from bridge.interop.contexts cimport cuda_device, shared_device
from bridge.interop.streams cimport handle_of
from bridge.kernels.launching cimport LaunchConfig, LaunchStreams, PySequence_Fast_ITEMS
from bridge.kernels.launching cimport choose_streams, order_after_launch, order_before_launch
from bridge.kernels.launching cimport copy_back, extents_of, read_extent
from bridge.kernels.packing cimport PackedArguments, Parameters

import cupy
import pycuda.driver as drv

from ..errors import named
from ..interop.host_memory import keep_until_done
from ..interop.streams import pycuda_stream_of
from .function import Function
from .parameters import parameters_of_values
from .launch_limits import REFUSALS, explain, shared_bytes


def launch(
    function, /, *args, block=None, grid=(1, 1), shared=0, stream=None, bint strided=False
):
    """Launch a compiled PyCUDA function as if it were on CuPy's current stream.

    Parameters
    ----------
    function : pycuda.driver.Function
        From ``pycuda.driver.Module.get_function`` or ``pycuda.compiler.SourceModule``.  Functions
        of `bridge.SourceModule` are accepted and called.
    *args
        In the order of the kernel's parameters.  For pointers, pass device arrays (`GPUArray`,
        `cupy.ndarray`, any ``__dlpack__`` or ``__cuda_array_interface__``), NumPy arrays on managed
        or pinned memory, device allocations, ``pycuda.driver.In``, ``Out`` or ``InOut``, or None
        for a null pointer.  For values, pass NumPy scalars of the parameter's width, bool (one
        byte), or ``numpy.void`` for a struct.
    block, grid : int or sequence of 1 to 3 ints
        The number of threads per block, and of blocks in the grid.
    shared : int
        Dynamic shared memory per block, in bytes.
    stream : pycuda.driver.Stream, or a CuPy stream over one, optional
        The stream to launch on.  If omitted, the PyCUDA stream of ``with as_cupy_stream(s):``, or
        else PyCUDA's default stream.
    strided : bool
        Accept arrays that are not contiguous, and arrays in C and in Fortran order together, for
        kernels that use the strides.

    Raises
    ------
    TypeError, ValueError, ContextError, pycuda.driver.Error
        As in calls of `bridge.kernels.function.Function`, but the types of the arguments are not
        compared with the kernel's.  ContextError also if PyCUDA and CuPy do not share a primary
        context on this thread.

    Notes
    -----
    *Ownership:* and *Ordering:* as in `bridge.kernels.function.Function`.
    *Cost:* that of a PyCUDA launch, a little per argument, and a fence if the streams differ.
    """
    cdef PackedArguments packed
    cdef LaunchStreams streams
    cdef LaunchConfig config
    if isinstance(function, Function):
        function(*args, grid=grid, block=block, shared=shared, stream=stream, strided=strided)
        return
    if not isinstance(function, drv.Function):
        raise TypeError(
            f"launch: function is {named(function)}; a pycuda.driver.Function is accepted, e.g. "
            "from SourceModule(...).get_function(name)"
        )
    current = cupy.cuda.get_current_stream(shared_device())
    target = None
    if stream is not None or current.ptr:
        target = pycuda_stream_of(current if stream is None else stream)
    if target is None and stream is not None:
        raise TypeError(
            f"launch: stream is {named(stream)}, but PyCUDA can launch on its own streams only: "
            "give a pycuda.driver.Stream, or none"
        )
    streams.current, streams.launch = current.ptr, 0
    if target is not None:
        streams.launch = handle_of(target, "launch", may_be_unordered=False)
    packed.device_id, packed.strided = cuda_device(), strided
    cdef PyObject **values = PySequence_Fast_ITEMS(args)
    cdef Parameters parameters = parameters_of_values(args, "launch")
    kept = parameters.pack(values, len(args), &packed, None, None)
    config.is_named, config.is_foreign = stream is not None, False
    choose_streams(&streams, &config, &packed, False)
    handlers = order_before_launch(&packed, &streams, values, len(args), False, "launch")
    data = packed.buffer[:packed.size]
    try:
        read_extent(config.extents, grid, "grid", "launch")
        read_extent(config.extents + 3, block, "block", "launch")
        if type(shared) is not int or shared:
            shared = shared_bytes(shared, "launch")
        sizes = extents_of(config.extents), extents_of(config.extents + 3)
        function._launch_kernel(*sizes, data, shared, target)
    except REFUSALS as error:
        raise explain(error, "launch", function, grid, block, shared, packed.device_id) from None
    order_after_launch(&streams)
    if packed.has_host_memory:
        keep_until_done(streams.launch, kept)
    copy_back(handlers)
