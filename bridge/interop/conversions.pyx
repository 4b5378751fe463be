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
from bridge.interop.live_streams cimport note_unnamed_call
from bridge.interop.ordering cimport order
from bridge.interop.scopes cimport restore_context
from bridge.interop.streams cimport (
    ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS, UNORDERED, current_stream, handle_of, is_capturing,
)
from bridge.interop.views cimport (
    AS_CUPY, AS_PYCUDA, MemoryRecord, View, new_array, new_view, record_memory, recorded_memory,
    view_of,
)

import cupy
import numpy as np
from pycuda import gpuarray

from .importing import check_array, check_device, import_array, not_on_device
from .dtypes import check_dtype
from .layouts import pycudas_strides, repeats_elements
from .bare_memory import array_on_host, array_on_memory
from .streams import PYCUDA_STREAM
from ..errors import caller_of

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
        memory, a block of a pool, a ``PointerHolderBase``, a ``cupy.cuda.MemoryPointer``, another
        library's buffer of bytes or an address.
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
    *Ordering:* work queued on PyCUDA's streams runs before later work on CuPy's streams: call it
    again each time PyCUDA has written.  With `stream`, only its work, and only before that on CuPy's
    current stream.  The host does not wait (rule: `bridge.interop.ordering`).
    *Cost:* half the time of ``cupy.asarray(array)`` for an array's first view, a quarter for later
    ones.  The size does not matter.
    """
    array = array_argument(
        array, shape, dtype, strides, order, offset, owner, FROM_AS_CUPY, True
    )
    return cupy_view(array, stream, FROM_AS_CUPY)


def as_pycuda(
    array, /, shape=None, dtype=None, *, stream=None, strides=None, order=None, offset=None,
    owner=None,
):
    """Return a PyCUDA ``GPUArray`` on the memory of `array`.

    Parameters
    ----------
    array : cupy.ndarray, or any ``__dlpack__`` or ``__cuda_array_interface__``
        A device array of any shape and strides.  A `GPUArray` is returned as it is.  Bare memory
        is accepted with `shape` and `dtype`, as in `as_cupy`.
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
        that it was made from.

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
    *Ordering:* work queued on CuPy's streams, or on the exporter's, runs before later work on
    PyCUDA's streams: call it again each time CuPy has written.  With `stream`, only the work on
    CuPy's current stream, and only before that on `stream`.  The memory is reused after the work on
    the view.  The host does not wait (rule: `bridge.interop.ordering`).
    *Cost:* half the time of ``GPUArray(gpudata=..., base=...)``, for any size.
    *Layout:* PyCUDA's kernels read the memory as it lies.  After ``import bridge.autoinit``, its
    functions and operators compute with any layout.  Without it, pass arrays of one layout.
    """
    array = array_argument(
        array, shape, dtype, strides, order, offset, owner, FROM_AS_PYCUDA, False
    )
    if not isinstance(array, ndarray):
        return import_to_pycuda(array, stream)
    return pycuda_view(array, stream, shared_device())


def device_array(value, stream, caller):
    """Return a CuPy array on the memory of a kernel's argument, as `as_cupy` does."""
    value = array_argument(value, None, None, None, None, None, None, caller, True)
    return cupy_view(value, stream, caller)


cdef array_argument(
    array, shape, dtype, strides, order, offset, owner, caller, bint may_repeat
):
    """Return `array` as it is, or an array on bare memory if the other arguments describe one."""
    if (
        shape is None and dtype is None and strides is None and order is None and offset is None
        and owner is None
    ):
        return array_on_host(array, caller) if isinstance(array, HOST_ARRAY) else array
    given = shape, dtype, strides, order, offset, owner
    return array_on_memory(array, given, caller, may_repeat, device_array)


cdef import_to_pycuda(array, stream):
    """Return a GPUArray, which is `array` if that is one."""
    cdef int device_id = shared_device()
    if isinstance(array, GPUArray):
        memory_of(array, array.__dict__, device_id, FROM_AS_PYCUDA)
        order_before_pycuda(stream, device_id)
        if stream is not None:
            note_unnamed_call()  # it may be a view for another stream
        return array
    # The exporter can order one stream.
    array = import_array(array, None, handle_of(stream, "as_pycuda"), device_id, FROM_AS_PYCUDA)
    if stream is None:
        order(ALL_PYCUDA_STREAMS, 0)
    return pycuda_view(array, UNORDERED_STREAM, device_id)


cdef int order_before_pycuda(stream, int device_id) except -1:
    """Order CuPy's work before PyCUDA's, on all streams or on the one that is named."""
    if stream is None:
        order(ALL_PYCUDA_STREAMS, ALL_CUPY_STREAMS)
    else:
        order(handle_of(stream, "as_pycuda"), current_stream(device_id))
    return 0


# ---- from PyCUDA to CuPy -------------------------------------------------------------------------


cdef cupy_view(array, stream, caller):
    cdef int device_id = shared_device()
    cdef Stream current
    if isinstance(array, GPUArray):
        view = cupy_base(array, array.__dict__["base"])
    elif isinstance(array, ndarray):
        view = array
    else:
        current = current_stream(device_id)
        view = import_array(array, stream, current, device_id, caller)
        if stream is None:
            order(ALL_CUPY_STREAMS, current)
        return view
    if view is None:
        view = new_cupy_view(array, device_id, caller)
    else:
        check_array(view, caller.array, device_id)
    if stream is None:
        order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)
    else:
        order(current_stream(device_id), handle_of(stream, caller.name))
    return view


cdef new_cupy_view(array, int device_id, caller=FROM_AS_CUPY):
    """Return a new CuPy array on a GPUArray's memory; it keeps the array."""
    cdef dict attributes = array.__dict__
    cdef MemoryRecord memory = memory_of(array, attributes, device_id, caller, True)
    shape, strides, dtype = attributes["shape"], attributes["strides"], attributes["dtype"]
    check_axes(shape, strides, caller.array)
    if has_cupys_strides(shape, strides, dtype.itemsize):
        strides = None
    nbytes = attributes["nbytes"]
    # The record of the memory orders its release.
    view = new_view(AS_CUPY, array, memory, device_id, nbytes, UNORDERED, UNORDERED)
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


cdef cupy_base(array, base):
    """Return the CuPy array of which a GPUArray is a whole view, or None."""
    viewed = (<View> base).base if type(base) is View else None
    return viewed if isinstance(viewed, ndarray) and is_same_view(viewed, array) else None


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


UNORDERED_STREAM = UNORDERED  # stream=-1


cdef pycuda_view(array, stream, int device_id, bint is_ordered=False):
    """Return a GPUArray on a CuPy array's memory, which `stream` may use; it keeps the array."""
    cdef dict attributes = None
    cdef Stream awaited = ALL_PYCUDA_STREAMS, waiter = ALL_CUPY_STREAMS
    data, dtype = read(array_data, array), read(array_dtype, array)
    if read(data_device, data) != device_id:
        check_array(array, FROM_AS_PYCUDA.array, device_id)
    memory = read(data_memory, data)
    cdef View view = view_of(memory)
    base = None
    if view is not None and isinstance(view.base, GPUArray) and is_same_view(array, view.base):
        base = view.base
    else:
        layout = read(array_shape, array), read(array_strides, array), dtype, device_id
        attributes = layouts.get(layout)
        if attributes is None:
            attributes = gpuarray_attributes(layout)
    if not is_ordered:
        order_before_pycuda(stream, device_id)
    if base is not None:
        if stream is not None:
            note_unnamed_call()  # it may be a view for another stream
        return base
    if stream is not None:
        waiter, awaited = current_stream(device_id), handle_of(stream, "as_pycuda")
    if view is not None and type(view.memory) is MemoryRecord and (
        type((<MemoryRecord> view.memory).memory) is not View
    ):
        waiter = UNORDERED  # the record of PyCUDA's memory orders its release
    # The constructor takes 2.5 us.  Two thirds of that are conversions that are not needed here.
    attributes = attributes.copy()
    attributes["dtype"] = dtype  # the cached one is equal, but may have other metadata
    attributes["base"] = new_view(  # the collector may clear the array before the view ends
        AS_PYCUDA, array, memory, device_id, attributes["nbytes"], waiter, awaited, stream
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
            "would read and write past them; pass a copy, cupy.ascontiguousarray(x)"
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
    # A function that is given a stream may use the default one, too.
    theirs = [<Stream> ALL_PYCUDA_STREAMS] if named == ALL_PYCUDA_STREAMS else [0, named]
    ours = ALL_CUPY_STREAMS if named == ALL_PYCUDA_STREAMS else current
    for one in theirs:
        order(one, ours)
    try:
        converted = [convert(value, True, device_id) for value in args]
        for key, value in keywords.items():
            keywords[key] = convert(value, True, device_id)
        result = func(*converted, **keywords)
    finally:
        restore_context(<intptr_t> context, top)  # the function may have switched the device
        for one in theirs:
            order(ours, one)
    return convert(result, False, device_id)


cdef convert(value, bint to_pycuda, int device_id):
    """Convert an array, or those in a tuple, namedtuple, list or dict; return others unchanged.

    The libraries' streams are ordered already.
    """
    cdef type wanted = ndarray if to_pycuda else GPUArray
    if isinstance(value, wanted):
        if to_pycuda:
            return pycuda_view(value, None, device_id, True)
        return cupy_view(value, UNORDERED_STREAM, FROM_AS_CUPY)
    is_named = isinstance(value, tuple) and hasattr(value, "_make")
    if type(value) not in (dict, list, tuple) and not is_named:
        return value
    items = list(value.values() if type(value) is dict else value)
    if not any([isinstance(item, wanted) for item in items]):
        return value
    items = [
        convert(item, to_pycuda, device_id) if isinstance(item, wanted) else item
        for item in items
    ]
    if type(value) is dict:
        return dict(zip(value, items))
    return value._make(items) if is_named else type(value)(items)
