"""as_cupy and as_pycuda: one buffer as an array of either library."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer, UnownedMemory
from pycuda.compyte.array import c_contiguous_strides, f_contiguous_strides
from pycuda.gpuarray import GPUArray, splay

from . import context
from .context import Keeper, keep, keep_memory, pycuda_current, pycuda_device
from .interface import (
    FAR,
    PLAIN_DTYPES,
    check_array,
    check_device,
    check_dtype,
    contiguity,
    dlpack_device,
    elsewhere,
    read_dlpack,
    read_interface,
    refuse,
)
from .streams import (
    PER_THREAD,
    UNORDERED,
    Lease,
    end_waiting_leases,
    fence,
    handle_of,
    needs_lease,
    order,
    source_of,
)

_current_stream = cupy.cuda.get_current_stream
# cupy.ndarray(shape, dtype, memptr, strides) does these two steps (`_init` is the second) and
# takes 0.25 us longer, a third, for passing its arguments on.  A test compares the results.
_ndarray = cupy.ndarray
_allocate = _ndarray.__base__.__new__
_new = object.__new__  # GPUArray's


def as_cupy(array: Any, /, *, stream: Any = None) -> Any:
    """Return a CuPy array on the memory of `array`.

    Parameters
    ----------
    array : pycuda.gpuarray.GPUArray, or any ``__dlpack__`` or ``__cuda_array_interface__``
        A device array of any shape and strides.  A `cupy.ndarray` is returned as it is.
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or -1, optional
        The stream on which work on `array` may be pending.  None: PyCUDA's default stream for
        a `GPUArray`; what the exporter says for any other array.  -1: do not order.

    Returns
    -------
    cupy.ndarray
        A view with the shape, strides (bytes) and dtype of `array`.  If `array` is itself a
        whole view made by `as_pycuda`, the CuPy array it was made from.

    Raises
    ------
    ContextError
        If the two libraries do not share a primary context here, or the memory is on a device
        other than the current one.
    TypeError
        If `array` is no device array, or of a dtype that CuPy has not.
    ValueError
        If its ``__cuda_array_interface__`` is broken, or a `GPUArray` has elements but no memory;
        or CUDA does not know `stream`.
    BufferError
        If the exporter refuses, or says that its data is read-only, masked or a copy.

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
    *Ownership:* the result keeps `array` alive; who owns the memory does not change.  Both may be
    dropped in any order, on any thread and at any time, also what PyCUDA allocated.
    *Ordering:* work queued on `stream` happens before later work on CuPy's current stream; the
    host does not wait (rule: `bridge.streams`).
    *Cost:* 1.3 us, 0.3 of ``cupy.asarray(array)``, for any size; 3 us the first time that an array,
    or a slice of one, is converted.  Where a fence is needed, 2.5 us more, and 3.5 when the view
    goes.  0.3 us more where there are several GPUs, 1 us the first time.
    """
    if not isinstance(array, GPUArray):
        return _other_as_cupy(array, stream)
    device_id = context.usual_device if pycuda_current() is context.usual else pycuda_device()
    current = _current_stream(device_id)
    known = getattr(array, "_bridge_known", _UNKNOWN)
    if context.check_devices:
        context.check_current(device_id)
        if known[0].device_id != device_id or context.debug:
            known = _UNKNOWN
    keeper, shape, strides, dtype, pointer, nbytes, unusual_strides = known
    source = None
    if (
        keeper.gpudata is not array.gpudata  # users swap it between arrays
        or strides is not array.strides
        or shape is not array.shape
        or dtype is not array.dtype
    ):
        source = viewed_by(array)
        if source is None:
            if array.dtype not in PLAIN_DTYPES:
                check_dtype(array.dtype, "as_cupy")
            pointer = address_of(array, "as_cupy")
            if context.check_devices:
                check_device(pointer, "as_cupy: the array", device_id)
            known = array._bridge_known = _look_into(array, device_id, pointer)
            keeper, shape, _, dtype, pointer, nbytes, unusual_strides = known
        elif context.check_devices:
            check_array(source, "as_cupy: the array", device_id)
    waiter, awaited = current.ptr, 0
    if waiter or stream is not None:
        awaited = handle_of(stream, "as_cupy")
        end_waiting_leases()
        context.check_current(device_id)
        order(waiter, awaited, device_id)
    if source is not None:
        return source
    owner: Any = array, keeper
    if (waiter or awaited) and needs_lease(waiter, awaited):
        owner = Lease(owner, awaited, waiter, (stream, current), device_id)
    memory = MemoryPointer(UnownedMemory(pointer, nbytes, owner, device_id), 0)
    result = _allocate(_ndarray)
    result._init(shape, dtype, memory, unusual_strides)
    return result


def as_pycuda(array: Any, /, *, stream: Any = None) -> Any:
    """Return a PyCUDA ``GPUArray`` on the memory of `array`.

    Parameters
    ----------
    array : cupy.ndarray, or any ``__dlpack__`` or ``__cuda_array_interface__``
        A device array of any shape and strides.  A `GPUArray` is returned as it is, or as a view if
        a `stream` is given: its release must be ordered after that.
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or -1, optional
        The stream on which PyCUDA will work on the result.  None: PyCUDA's default stream.
        -1: do not order.

    Returns
    -------
    pycuda.gpuarray.GPUArray
        A view with the shape, strides (bytes) and dtype of `array`; where `array` is contiguous,
        with the strides that PyCUDA gives such arrays, also to axes of length 1.  If `array` is
        itself a whole view made by `as_cupy`, and the release is to order no streams, the
        `GPUArray` it was made from.

    Raises
    ------
    ContextError, TypeError, BufferError
        As `as_cupy`.
    ValueError
        As `as_cupy`; or if `array` repeats elements (a stride of 0, as of
        `cupy.broadcast_to`), which PyCUDA cannot handle.

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
    *Ownership:* the result keeps `array` alive through ``GPUArray.base``.
    *Ordering:* work queued on CuPy's current stream (and on PyCUDA's default one, for a `GPUArray`;
    on the exporter's instead, for any other array) happens before later work on `stream`.  When
    the result is released, CuPy's stream and the default one wait for what is queued on `stream` by
    then, so the block cannot be handed out too early; that of another library goes back by its own
    rule.  The host does not wait (rule: `bridge.streams`).
    *Cost:* 1.4 us, 0.6 of ``GPUArray(gpudata=..., base=...)``, for any size.  Where a fence is
    needed, 2.5 us more, and 3.5 when the view goes.  0.3 us more where there are several GPUs.
    """
    if not isinstance(array, _ndarray):
        return _other_as_pycuda(array, stream)
    device_id = context.usual_device if pycuda_current() is context.usual else pycuda_device()
    current = _current_stream(device_id)
    waiter, awaited, in_order = 0, current.ptr, True
    if awaited or stream is not None:
        waiter, in_order = handle_of(stream, "as_pycuda"), False
        end_waiting_leases()
        context.check_current(device_id)
    return lend(array, awaited, waiter, (stream, current), device_id, in_order)


def lend(
    array: Any,
    awaited: int,
    waiter: int,
    streams: tuple[Any, Any],
    device_id: int,
    in_order: bool,
) -> Any:
    """Convert a CuPy array as `as_pycuda` does.

    Parameters
    ----------
    array : cupy.ndarray
    awaited, waiter : int
        Handles of CuPy's current stream, and of the one that PyCUDA will work on.
    streams : tuple
        PyCUDA's stream and CuPy's, to be kept alive.
    device_id : int
    in_order : bool
        The two streams are in order already.
    """
    if array.dtype not in PLAIN_DTYPES:
        check_dtype(array.dtype, "as_pycuda")
    if context.check_devices:
        context.check_current(device_id)
        check_array(array, "as_pycuda: the array", device_id)
    if not in_order:
        _attributes(array.shape, array.strides, array.dtype.itemsize, device_id)  # or is refused
        order(waiter, awaited, device_id)
    leased = (waiter or awaited) and needs_lease(waiter, awaited)
    data = array.data
    memory = data.mem
    if type(memory) is UnownedMemory and not leased:
        view = viewed(memory._owner)
        if view is not None and _same_view(array, view):
            return view
    owner = Lease(array, awaited, waiter, streams, device_id) if leased else array
    return _new_gpuarray(array, data.ptr, owner, device_id)


def address_of(array: Any, caller: str) -> int:
    """Return the address of a GPUArray's memory: 0, if it has neither memory nor elements."""
    if array.gpudata is not None:
        pointer = int(array.gpudata)
        if not 0 <= pointer < 1 << 64:
            raise ValueError(f"{caller}: the array's gpudata is {pointer}, which is no address")
        return pointer
    if array.size:
        raise ValueError(
            f"{caller}: the array has no memory: its gpudata is None, its shape {array.shape}; a "
            "GPUArray whose gpudata is its memory is accepted"
        )
    return 0


def viewed_by(array: Any) -> Any:
    """Return the CuPy array that a GPUArray is a whole view of; or None."""
    source = source_of(array.base)
    return source if isinstance(source, _ndarray) and _same_view(source, array) else None


def viewed(owner: Any) -> Any:
    """Return the GPUArray whose memory `owner` keeps for a view made by `as_cupy`; or None."""
    if type(owner) is Lease:
        owner = source_of(owner)
    is_ours = type(owner) is tuple and len(owner) == 2 and type(owner[1]) is Keeper
    return owner[0] if is_ours else None


# What was found out of a GPUArray, kept with it as `_bridge_known`, since to find it out again
# takes longer than the rest of `as_cupy`: the keeper of its memory, which has its gpudata too; its
# shape, strides and dtype; address, bytes, and the strides unless they are what CuPy gives such a
# shape.  It holds as long as gpudata and the three attributes are these objects, on the keeper's
# device.  Strides of None, which are no array's, never hold.
Known = tuple[Any, Any, Any, Any, int, int, Any]
_UNKNOWN: Known = (SimpleNamespace(gpudata=object(), device_id=-1), None, None, None, 0, 0, None)
_ADDRESSES = (drv.DeviceAllocation, int, np.integer, drv.PooledDeviceAllocation)


def _look_into(array: Any, device_id: int, pointer: int) -> Known:
    """Find out what is to be known of a GPUArray."""
    gpudata, shape, dtype, strides = array.gpudata, array.shape, array.dtype, array.strides
    keeper, base = Keeper(gpudata, device_id, gpudata), array.base
    # A holder of another kind may be given another address, and a CuPy array another shape.
    lasts = dtype in PLAIN_DTYPES and isinstance(gpudata, _ADDRESSES)
    if base is not None:
        lasts = lasts and not isinstance(source_of(base), _ndarray)
        bases: set[int] = set()
        while isinstance(base, GPUArray) and id(base) not in bases:  # of a slice, say
            bases.add(id(base))
            if _is_number(keeper.memory):
                keeper.memory = base.gpudata
            keep_memory(base, keeper)  # a view of the slice may go before its base
            base = base.base
        if base is not None and not isinstance(base, GPUArray):  # no circle
            keep(base)  # a tuple of some, say
            if _is_number(keeper.memory):
                keeper.memory = base
    is_usual = 1 not in shape and 0 not in shape and contiguity(shape, strides, dtype.itemsize)[0]
    kept, unusual = strides if lasts else None, None if is_usual else strides
    return keeper, shape, kept, dtype, pointer, array.nbytes, unusual


def _is_number(gpudata: Any) -> bool:
    """Tell whether it is an address that keeps no memory."""
    return type(gpudata) is int or isinstance(gpudata, np.integer)


def _other_as_cupy(array: Any, stream: Any) -> Any:
    device_id = context.current_device()
    waiter = _current_stream(device_id).ptr
    if not isinstance(array, cupy.ndarray):
        return _import(array, stream, waiter, device_id, "as_cupy")
    check_array(array, "as_cupy: the array", device_id)
    if stream is not None:
        order(waiter, handle_of(stream, "as_cupy"), device_id)
    return array


def _other_as_pycuda(array: Any, stream: Any) -> Any:
    device_id = context.current_device()
    waiter = handle_of(stream, "as_pycuda")
    if not isinstance(array, GPUArray):
        source = _import(array, None, waiter, device_id, "as_pycuda")
        return _new_gpuarray(source, source.data.ptr, source, device_id)
    pointer = address_of(array, "as_pycuda")
    if context.check_devices:
        check_device(pointer, "as_pycuda: the array", device_id)
    current = _current_stream(device_id)
    order(waiter, current.ptr, device_id)
    order(waiter, 0, device_id)
    if waiter <= 0:
        return array
    # Its memory must not go back to any pool before the work on `stream`: a view that sees to it.
    array._bridge_known = known = _look_into(array, device_id, pointer)
    lease = Lease((array, known[0]), current.ptr, waiter, (stream, current), device_id)
    result = _new(GPUArray)
    result.__dict__ = {name: getattr(array, name) for name in _attributes((), (), 1, device_id)}
    result.gpudata, result.base = pointer if array.size else None, lease
    return result


def _same_view(array: Any, gpuarray: Any) -> bool:
    """Tell whether a CuPy array and a GPUArray are the same elements in the same places."""
    one, other = array.dtype, gpuarray.dtype
    if array.shape != gpuarray.shape or (one is not other and one != other):
        return False
    gpudata = getattr(gpuarray, "gpudata", None)  # which users take away
    if gpudata is None:
        return not array.size
    keeper, _, strides, _, pointer, _, _ = getattr(gpuarray, "_bridge_known", _UNKNOWN)
    is_known = keeper.gpudata is gpudata and strides is gpuarray.strides
    if array.data.ptr != (pointer if is_known else int(gpudata)):
        return not array.size
    if array.strides == gpuarray.strides:
        return True
    # Those of axes of length 1 may differ.
    steps = zip(array.shape, array.strides, gpuarray.strides, strict=True)
    return not array.size or all(n == 1 or one == other for n, one, other in steps)


def _new_gpuarray(array: Any, pointer: int, owner: Any, device_id: int) -> Any:
    """Build a GPUArray like a CuPy array, over memory kept alive by `owner`.

    The constructor takes 2.5 us, of which two thirds go into conversions of what is exact here
    already; a copy of the same attributes takes 0.8.  A test holds the set of attributes.
    """
    dtype = array.dtype
    result = _new(GPUArray)
    result.__dict__ = attributes = _attributes(
        array.shape, array.strides, dtype.itemsize, device_id
    ).copy()
    attributes["dtype"] = dtype
    attributes["base"] = owner
    if attributes["size"]:
        attributes["gpudata"] = pointer
    return result


@lru_cache(maxsize=4096)
def _attributes(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, device_id: int
) -> dict[str, Any]:
    """Return what GPUArray's constructor sets for any array of a layout; to be copied.

    Raises
    ------
    ValueError
        If one element is in several places.
    """
    size = prod(shape)
    # A step of 0 bytes along an axis of length 1 repeats nothing.
    if size and any(n > 1 and not step for n, step in zip(shape, strides, strict=True)):
        raise ValueError(
            f"as_pycuda: the array repeats elements (shape {shape}, strides {strides}), and PyCUDA "
            "would read and write past them; pass cupy.ascontiguousarray(a)"
        )
    # Of axes of length 1 the strides mean nothing, but PyCUDA wants certain ones.
    of_c, of_fortran = contiguity(shape, strides, itemsize)
    if of_c or of_fortran:
        usual = c_contiguous_strides if of_c else f_contiguous_strides
        strides = usual(itemsize, shape)
    grid, block = splay(size)
    return {
        "shape": shape,
        "dtype": None,
        "strides": strides,
        "mem_size": size,
        "size": size,
        "nbytes": size * itemsize,
        "itemsize": itemsize,
        "allocator": drv.mem_alloc,
        "gpudata": None,
        "base": None,
        "_grid": grid,
        "_block": block,
    }


def _import(array: Any, stream: Any, waiter: int, device_id: int, caller: str) -> Any:
    """View another library's array as a CuPy array, its work ordered before `waiter`.

    DLPack first: its exporters order their own pending work, while the array interface of
    several (PyTorch, PyCUDA) names no stream.
    """
    if isinstance(array, type):
        raise refuse(array, caller)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        holder = dlpack_device(array, caller)
        if holder is not None and holder != device_id:
            raise elsewhere(f"{caller}: the array", holder, device_id)
        if stream is not None:
            order(waiter, handle_of(stream, caller), device_id)
            waiter = UNORDERED
        if waiter == PER_THREAD:
            own = cupy.cuda.Stream(non_blocking=True)
            result = read_dlpack(array, own.ptr, caller)
            fence(waiter, own.ptr, device_id)
        else:
            result = read_dlpack(array, waiter, caller)
        if holder is None:
            check_device(result.size and result.data.ptr, f"{caller}: the array", device_id)
        return result
    try:
        interface = array.__cuda_array_interface__
    except AttributeError:
        raise refuse(array, caller) from None
    pointer, shape, strides, dtype, awaited = read_interface(interface, caller)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes >= FAR:
        raise ValueError(
            f"{caller}: the argument's __cuda_array_interface__ has shape {shape} of {dtype}, more "
            "bytes than there are addresses; check the exporter"
        )
    check_device(pointer, f"{caller}: the array", device_id)
    if stream is not None:
        awaited = handle_of(stream, caller)
    if awaited is not None:
        order(waiter, awaited, device_id)
    memory = MemoryPointer(UnownedMemory(pointer, nbytes, array, device_id), 0)
    result = _allocate(_ndarray)
    result._init(shape, dtype, memory, strides)
    return result
