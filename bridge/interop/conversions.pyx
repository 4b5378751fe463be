"""as_cupy and as_pycuda: view one buffer as an array of either library.

It is compiled because a conversion is several calls deep.  Each call of a Python function would add
about a tenth to the time of a conversion.
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport intptr_t

from bridge.interop.contexts cimport (
    cuda_current, is_in_primary_context, pycuda_current, shared_device,
)
from bridge.interop.driver cimport Handle, Stream
from bridge.interop.fields cimport *
from bridge.interop.layouts cimport check_axes, has_cupys_strides
from bridge.interop.ordering cimport order, release_needs_order
from bridge.interop.scopes cimport restore_context
from bridge.interop.streams cimport (
    ALL_PYCUDA_STREAMS, UNORDERED, capture_of, current_stream, handle_of, is_capturing,
)
from bridge.interop.views cimport (
    AS_CUPY, AS_PYCUDA, MemoryRecord, View, new_array, new_view, record_memory, recorded_memory,
    view_of,
)

import cupy
import numpy as np
from cupy.cuda import MemoryPointer
from pycuda import gpuarray
from pycuda.driver import PooledDeviceAllocation

from .importing import check_array, check_device, import_array, not_on_device
from .dtypes import check_dtype
from .layouts import pycudas_strides, repeats_elements
from .raw_memory import array_on_host, array_on_memory
from .streams import PYCUDA_STREAM
from ..errors import caller_of

cdef object cupy_current_stream = cupy.cuda.get_current_stream
# For these, `isinstance` looks at the type itself.  A proxy's `__class__` may be another.
cdef type ndarray = cupy.ndarray, GPUArray = gpuarray.GPUArray, HOST_ARRAY = np.ndarray
cdef object FROM_AS_CUPY = caller_of("as_cupy"), FROM_AS_PYCUDA = caller_of("as_pycuda")


def as_cupy(
    array, /, shape=None, dtype=None, *, stream=None, strides=None, order=None, offset=None,
    owner=None,
):
    """Return a CuPy array on the memory of `array`.

    Parameters
    ----------
    array : pycuda.gpuarray.GPUArray, or any ``__dlpack__`` or ``__cuda_array_interface__``
        A device array of any shape and strides.  A `cupy.ndarray` is returned as it is.  A
        `numpy.ndarray` is accepted if its memory is managed or pinned.  Bare memory is accepted
        with `shape` and `dtype`: an allocation of ``pycuda.driver.mem_alloc``, managed or pinned
        memory, a block of a pool, a ``PointerHolderBase``, a ``cupy.cuda.MemoryPointer`` or an
        address.
    shape, dtype, strides, order, offset : optional
        For bare memory only.  `offset` is the position of the first element in the memory, in
        bytes.  The others are those of `cupy.ndarray`.
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or -1, optional
        The only stream on which work on `array` may be pending.  None means all of PyCUDA's
        streams, or the exporter's stream for another library's array.  -1 means no ordering.
    owner : object, optional
        The object that keeps an address valid.  Without an owner, a warning says so: keep the
        memory allocated as long as the array exists.

    Returns
    -------
    cupy.ndarray
        A view with the shape, strides (bytes) and dtype of `array`.  If `array` is a whole view
        made by `as_pycuda`, the CuPy array that it was made from.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread, or the memory belongs to
        another context.
    TypeError
        If `array` is not a device array, or CuPy does not support its dtype.
    ValueError
        If the array interface is invalid, the memory is missing or too small for `shape`, or CUDA
        does not know `stream`.
    BufferError
        If the exporter refuses, or reports that its data is read-only, masked or a copy.

    Examples
    --------
    >>> import numpy, bridge, bridge.autoinit
    >>> from pycuda import gpuarray
    >>> a = gpuarray.to_gpu(numpy.arange(3.0))
    >>> x = bridge.as_cupy(a)
    >>> x[0] = 7
    >>> float(a.get()[0])
    7.0

    Notes
    -----
    *Ownership:* the view keeps `array` alive.  Both can be freed in any order, on any thread.
    *Ordering:* work queued on PyCUDA's streams, or on `stream`, runs before later work on CuPy's
    current stream: call it again each time PyCUDA has written.  The host does not wait (rule:
    `bridge.interop.ordering`).
    *Cost:* half the time of ``cupy.asarray(array)`` for an array's first view, a quarter for later
    ones.  The size does not matter.
    """
    array = array_or_description(
        array, shape, dtype, strides, order, offset, owner, FROM_AS_CUPY, True
    )
    return in_cupy(array, stream, FROM_AS_CUPY)


def as_pycuda(
    array, /, shape=None, dtype=None, *, stream=None, strides=None, order=None, offset=None,
    owner=None,
):
    """Return a PyCUDA ``GPUArray`` on the memory of `array`.

    Parameters
    ----------
    array : cupy.ndarray, or any ``__dlpack__`` or ``__cuda_array_interface__``
        A device array of any shape and strides.  A `GPUArray` is returned as it is, or as a view
        if its release must wait for more streams than so far.  Bare memory is accepted with
        `shape` and `dtype`, as in `as_cupy`.
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or -1, optional
        The only stream on which PyCUDA will work on the result.  None means all of PyCUDA's
        streams.  -1 means no ordering.
    shape, dtype, strides, order, offset, owner : optional
        As in `as_cupy`.

    Returns
    -------
    pycuda.gpuarray.GPUArray
        A view with the shape, strides (bytes) and dtype of `array`; axes of length 1 get the
        strides that PyCUDA expects.  If `array` is a whole view made by `as_cupy`, the `GPUArray`
        that it was made from, unless its release must be ordered.

    Raises
    ------
    ContextError, TypeError, BufferError
        As in `as_cupy`.
    ValueError
        As in `as_cupy`.  Also if `array` repeats elements, as a result of `cupy.broadcast_to` does.

    Examples
    --------
    >>> import cupy, numpy, bridge, bridge.autoinit
    >>> x = cupy.zeros(3)
    >>> a = bridge.as_pycuda(x)
    >>> a.set(numpy.arange(3.0))
    >>> float(x[2])
    2.0

    Notes
    -----
    *Ownership:* the view keeps `array` alive through ``GPUArray.base``.
    *Ordering:* work queued on CuPy's current stream, or on the exporter's, runs before later work
    on PyCUDA's streams, or on `stream`: call it again each time CuPy has written.  The memory is
    reused after the work on the view.  The host does not wait (rule: `bridge.interop.ordering`).
    *Cost:* half the time of ``GPUArray(gpudata=..., base=...)``, for any size.
    """
    given = array
    array = array_or_description(
        array, shape, dtype, strides, order, offset, owner, FROM_AS_PYCUDA, False
    )
    if not isinstance(array, ndarray):
        is_of_pool = isinstance(given, MemoryPointer) or owner is not None
        return foreign_as_pycuda(array, stream, is_of_pool)
    cdef int device_id = shared_device()
    cdef Stream waiter = ALL_PYCUDA_STREAMS if stream is None else handle_of(stream, "as_pycuda")
    cdef Stream awaited = current_stream(device_id)
    return view_in_pycuda(array, awaited, waiter, kept_streams(awaited, stream), device_id)


def device_array(value, stream, caller):
    """Return a CuPy array on the memory of a kernel's argument, as `as_cupy` does."""
    value = array_or_description(value, None, None, None, None, None, None, caller, True)
    return in_cupy(value, stream, caller)


cdef array_or_description(
    array, shape, dtype, strides, order, offset, owner, caller, bint may_repeat
):
    """Return `array` as it is, or an array on bare memory if the other arguments describe one."""
    if (
        shape is None and dtype is None and strides is None and order is None and offset is None
        and owner is None
    ):
        return array_on_host(array, caller) if isinstance(array, HOST_ARRAY) else array
    given = shape, dtype, strides, order, offset, owner
    return array_on_memory(array, given, caller, may_repeat)


cdef foreign_as_pycuda(array, stream, bint is_of_pool):
    """Return a GPUArray; it is `array`, unless its release must be ordered."""
    cdef int device_id = shared_device()
    cdef MemoryRecord memory
    cdef Stream waiter = handle_of(stream, "as_pycuda")
    cdef Stream current = current_stream(device_id)
    if not isinstance(array, GPUArray):
        # The exporter can order one stream.
        array = import_array(array, None, waiter, device_id, FROM_AS_PYCUDA)
        if stream is None:
            order(ALL_PYCUDA_STREAMS, 0)
        return view_in_pycuda(array, UNORDERED, UNORDERED, None, device_id)
    memory = memory_of(array, array.__dict__, device_id, FROM_AS_PYCUDA)
    if stream is None:
        waiter = ALL_PYCUDA_STREAMS
    order(waiter, current)
    source, base = array, array.base
    cdef bint is_for_one = type(base) is View and (<View> base).user_stream > 0
    if waiter == UNORDERED or not array.size or not (waiter > 0 or is_for_one or is_of_pool):
        return array
    if waiter > 0 and not is_capturing(waiter):  # a graph's launches are ordered, not its nodes
        order(waiter, 0)
    # With this view, the memory returns to its pool only after the work on `stream`.
    kept = memory
    if type(base) is View and type(array.gpudata) is int and isinstance(
        (<View> base).source, GPUArray
    ):
        source, kept = (<View> base).source, (<View> base).memory  # not a chain of views
    owner = new_view(
        AS_PYCUDA, source, kept, device_id, array.nbytes, current, waiter,
        kept_streams(current, stream)
    )
    return GPUArray(
        array.shape, array.dtype, array.allocator, owner, int(array.gpudata), array.strides
    )


cdef tuple kept_streams(Stream current, stream):
    """Return the objects that keep CuPy's current stream and a named one valid."""
    return None if not current and stream is None else (stream, cupy_current_stream())

# ---- from PyCUDA to CuPy -------------------------------------------------------------------------


cdef in_cupy(array, stream, caller, bint is_ordered=False):
    cdef int device_id = shared_device()
    cdef Stream waiter = current_stream(device_id), awaited
    if isinstance(array, GPUArray):
        source = source_in_cupy(array, array.__dict__["base"])
    elif isinstance(array, ndarray):
        source = array
    else:
        return import_array(array, stream, waiter, device_id, caller)
    awaited = ALL_PYCUDA_STREAMS if stream is None else handle_of(stream, caller.name)
    if source is not None:
        check_array(source, caller.array, device_id)
        if not is_ordered:
            order(waiter, awaited)
        return source
    kept = kept_streams(waiter, stream)
    return view_in_cupy(array, awaited, waiter, kept, device_id, is_ordered, caller)


cdef view_in_cupy(
    array, Stream awaited, Stream waiter, tuple kept, int device_id, bint is_ordered,
    caller=FROM_AS_CUPY
):
    """Return a new CuPy array on a GPUArray's memory; it keeps the array and the streams `kept`."""
    cdef dict attributes = array.__dict__
    cdef MemoryRecord memory = memory_of(array, attributes, device_id, caller, True)
    if not is_ordered:
        order(waiter, awaited)
    shape, strides, dtype = attributes["shape"], attributes["strides"], attributes["dtype"]
    check_axes(shape, strides, caller.array)
    if has_cupys_strides(shape, strides, dtype.itemsize):
        strides = None
    nbytes = attributes["nbytes"]
    if awaited > 0 and isinstance(memory.memory, PooledDeviceAllocation):
        awaited = ALL_PYCUDA_STREAMS  # PyCUDA's pool gives the block to any stream
    view = new_view(AS_CUPY, array, memory, device_id, nbytes, awaited, waiter, kept)
    return new_array(shape, dtype, strides, memory.pointer, nbytes, view, device_id)


cdef MemoryRecord memory_of(array, dict attributes, int device_id, caller, bint is_for_cupy=False):
    """Return the record of a GPUArray's memory; make one if the memory is new or has changed."""
    cdef MemoryRecord memory = recorded_memory(attributes)
    dtype = attributes["dtype"]
    if memory is None or (is_for_cupy and memory.dtype is not dtype):  # CuPy must support it
        if is_for_cupy:
            check_dtype(dtype, caller.name)
        pointer = address_of(array, caller)
        if not is_in_primary_context(pointer, device_id):
            if not array.size:  # an empty slice may begin where the memory ends
                pointer = 0
            check_device(pointer, caller.array, device_id)  # raises, with the reason
        memory = record_memory(array, pointer, device_id, dtype if is_for_cupy else None)
    elif memory.device_id != device_id:
        raise not_on_device(caller.array, memory.device_id, device_id)
    return memory


def address_of(array, caller):
    """Return the address of a GPUArray's memory; 0 for an empty array without memory."""
    if array.gpudata is not None:
        pointer = int(array.gpudata)
        if not 0 <= pointer < 1 << 64:
            raise ValueError(f"{caller.array}'s gpudata is {pointer}, which is no address")
        return pointer
    if array.size:
        raise ValueError(
            f"{caller.array} has no memory: its gpudata is None, its shape {array.shape}; a "
            "GPUArray whose gpudata is its memory is accepted"
        )
    return 0


cdef source_in_cupy(array, base):
    """Return the CuPy array of which a GPUArray is a whole view, or None."""
    source = (<View> base).source if type(base) is View else None
    return source if isinstance(source, ndarray) and is_same_view(source, array) else None


cdef bint is_same_view(array, gpuarray) except -1:
    """Tell whether a CuPy array and a GPUArray have the same elements at the same addresses."""
    if array.shape != gpuarray.shape or array.dtype != gpuarray.dtype:
        return False
    gpudata = getattr(gpuarray, "gpudata", None)  # users may delete it
    if gpudata is None or array.data.ptr != int(gpudata):
        return not array.size
    if array.strides == gpuarray.strides or not array.size:
        return True
    # The strides of axes of length 1 may differ.
    steps = zip(array.shape, array.strides, gpuarray.strides)
    return all([n == 1 or one == other for n, one, other in steps])

# ---- from CuPy to PyCUDA -------------------------------------------------------------------------

cdef dict layouts = {}  # the attributes that GPUArray's constructor sets, by layout and device
cdef enum:
    MOST_LAYOUTS = 4096


cdef view_in_pycuda(
    array, Stream awaited, Stream waiter, tuple kept, int device_id, bint is_ordered=False
):
    """Return a GPUArray on a CuPy array's memory.  It keeps the array and the streams `kept`."""
    cdef dict attributes = None
    data, dtype = read(array_data, array), read(array_dtype, array)
    if read(data_device, data) != device_id:
        check_array(array, FROM_AS_PYCUDA.array, device_id)
    memory = read(data_memory, data)
    cdef View view = view_of(memory)
    source = None
    if view is not None and isinstance(view.source, GPUArray) and (
        not release_needs_order(awaited, waiter) and is_same_view(array, view.source)
    ):
        source = view.source
    else:
        layout = read(array_shape, array), read(array_strides, array), dtype, device_id
        attributes = layouts.get(layout)
        if attributes is None:
            attributes = gpuarray_attributes(layout)
    if not is_ordered:
        order(waiter, awaited)
    if view is not None and 0 < view.user_stream != awaited and (  # the stream of its as_cupy
        capture_of(view.user_stream) == capture_of(awaited)
    ):
        order(waiter, view.user_stream)
    if source is not None:
        return source
    # The constructor takes 2.5 us.  Two thirds of that are conversions that are not needed here.
    attributes = attributes.copy()
    attributes["dtype"] = dtype  # the cached one is equal, but may have other metadata
    attributes["base"] = new_view(  # the collector may clear the array before the view ends
        AS_PYCUDA, array, memory, device_id, attributes["nbytes"], awaited, waiter, kept
    )
    if attributes["size"]:
        attributes["gpudata"] = read(data_pointer, data)
    result = (<PyTypeObject *> GPUArray).tp_new(GPUArray, <PyObject *> (), NULL)
    result.__dict__ = attributes
    return result


cdef dict gpuarray_attributes(tuple layout):
    """Return the attributes that GPUArray's constructor sets for a layout, or raise."""
    shape, strides, dtype, _ = layout
    check_dtype(dtype, "as_pycuda")
    if repeats_elements(shape, strides):
        raise ValueError(
            f"as_pycuda: the array repeats elements (shape {shape}, strides {strides}), and PyCUDA "
            "would read and write past them; pass cupy.ascontiguousarray(bridge.as_cupy(a)), a copy"
        )
    strides = pycudas_strides(shape, strides, dtype.itemsize)
    attributes = vars(GPUArray(shape, dtype, gpudata=0, strides=strides))
    attributes["gpudata"] = None
    if len(layouts) >= MOST_LAYOUTS:
        layouts.clear()
    layouts[layout] = attributes
    return attributes

# ---- functions of GPUArrays ----------------------------------------------------------------------


def call_with_gpuarrays(func, tuple args, dict keywords):
    """Call a function written for GPUArrays with CuPy arrays, as if on CuPy's current stream."""
    cdef int device_id = shared_device()
    cdef Handle context = cuda_current()
    cdef Stream current = current_stream(device_id), named = ALL_PYCUDA_STREAMS
    if is_capturing(current):
        raise ValueError(
            f"{getattr(func, '__name__', 'wrap_pycuda')}: CuPy's current stream is being captured "
            "into a graph, but PyCUDA's default stream, on which the function works, cannot be; "
            "call it before or after the capture, or launch its kernels with stream="
        )
    if isinstance(keywords.get("stream"), PYCUDA_STREAM):
        named = handle_of(keywords["stream"], "wrap_pycuda")
    top = pycuda_current()
    kept = kept_streams(current, None)
    # A function that is given a stream may use the default one, too.
    theirs = [<Stream> ALL_PYCUDA_STREAMS] if named == ALL_PYCUDA_STREAMS else [0, named]
    for one in theirs:
        order(one, current)
    try:
        converted = [convert(value, True, current, kept, device_id) for value in args]
        for key, value in keywords.items():
            keywords[key] = convert(value, True, current, kept, device_id)
        result = func(*converted, **keywords)
    finally:
        restore_context(<intptr_t> context, top)  # the function may have switched the device
        for one in theirs:
            order(current, one)
    return convert(result, False, current, kept, device_id)


cdef convert(value, bint to_pycuda, Stream current, tuple kept, int device_id):
    """Convert an array, or those in a tuple, list or dict; return other values unchanged.

    CuPy's current stream is ordered with PyCUDA's already.
    """
    cdef type wanted = ndarray if to_pycuda else GPUArray
    if isinstance(value, wanted):
        if to_pycuda:
            return view_in_pycuda(value, current, ALL_PYCUDA_STREAMS, kept, device_id, True)
        return in_cupy(value, None, FROM_AS_CUPY, True)
    if type(value) is not dict and type(value) is not list and not isinstance(value, tuple):
        return value
    items = list(value.values() if type(value) is dict else value)
    if not any([isinstance(item, wanted) for item in items]):
        return value
    items = [
        convert(item, to_pycuda, current, kept, device_id) if isinstance(item, wanted) else item
        for item in items
    ]
    if type(value) is dict:
        return dict(zip(value, items))
    return value._make(items) if hasattr(value, "_make") else type(value)(items)
