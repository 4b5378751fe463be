"""launch: run a compiled PyCUDA kernel on device arrays of any library, checked and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda._pvt_struct import calcsize, pack
from pycuda.gpuarray import GPUArray

from . import context
from .arrays import as_cupy
from .streams import is_capturing, order, pycuda_stream_of

_current_stream = cupy.cuda.get_current_stream
_HOLDERS = (drv.DeviceAllocation, drv.PooledDeviceAllocation, drv.PointerHolderBase)
# PyCUDA's packer has no code for these two; they travel as integers of their width.
_AS_INTEGERS = {"?": "B", "e": "H"}
_SCALARS = frozenset("?bhilqBHILQefdFD")
_WIDTHS = {
    int: "numpy.int32 or numpy.int64",
    float: "numpy.float32 or numpy.float64",
    complex: "numpy.complex64 or numpy.complex128",
}


def launch(
    function: Any,
    /,
    *args: Any,
    grid: Any,
    block: Any,
    shared: int = 0,
    stream: Any = None,
    strided: bool = False,
) -> None:
    """Launch a compiled PyCUDA function as if it were on CuPy's current stream.

    Parameters
    ----------
    function : pycuda.driver.Function
        From ``pycuda.driver.Module.get_function`` or ``pycuda.compiler.SourceModule``.
    *args
        In the order of the kernel's parameters: device arrays (`GPUArray`, `cupy.ndarray`, any
        ``__dlpack__`` or ``__cuda_array_interface__``), device allocations and pointer holders,
        None for a null pointer, NumPy scalars of the parameter's width, ``numpy.void`` for a
        struct, ``pycuda.driver.In``, ``Out`` and ``InOut``.  Of Python's numbers only bool is
        taken (one byte): the others have no width that the kernel could be known to want.
    grid, block : int or sequence of 1 to 3 ints
        Blocks of the grid, threads of a block.
    shared : int
        Dynamic shared memory, bytes a block.
    stream : pycuda.driver.Stream, or a CuPy stream over one, optional
        The stream to launch on; PyCUDA's default one if omitted, or the one CuPy runs on under
        `use_stream`.
    strided : bool
        Take arrays that are not contiguous: the kernel knows their strides.

    Raises
    ------
    ContextError
        If the two libraries do not share a primary context here, or an array is on a device
        other than the current one.
    TypeError
        If an argument is on the host, or has no width or no meaning for a kernel.
    ValueError
        If an array is not contiguous, `grid` or `block` are impossible, or CuPy's current stream
        is being captured into a graph that the launch would not be part of.

    Examples
    --------
    >>> bridge.launch(function, x, numpy.int32(x.size), grid=8, block=128)  # doctest: +SKIP

    Notes
    -----
    *Ownership:* CUDA takes the pointers, not the arrays.  An array dropped after the launch goes
    back to its pool in the order of CuPy's current stream, which the kernel is part of.
    *Ordering:* after what CuPy's current stream has queued, before what it queues later; where a
    `GPUArray` is among the arguments, likewise with PyCUDA's default stream.  By events where
    CUDA does not order the streams itself (rule: `bridge.streams`).  Nothing waits on the host,
    but ``In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* PyCUDA's bare launch and 0.3 us an argument; 1 us more where fences are needed.
    """
    if not isinstance(function, drv.Function):
        raise TypeError(
            f"launch: function is a {type(function).__module__}.{type(function).__qualname__}; a "
            "pycuda.driver.Function is accepted, e.g. from SourceModule(...).get_function(name)"
        )
    device_id = context.current_device()
    current = _current_stream(device_id)
    target = pycuda_stream_of(current if stream is None else stream)
    if target is None and stream is not None:
        raise TypeError(
            f"launch: stream is {stream!r}, but PyCUDA can launch on its own streams only: give a "
            "pycuda.driver.Stream, or none"
        )
    here, there = current.ptr, 0 if target is None else target.handle
    if here != there and is_capturing(here):
        raise ValueError(
            "launch: CuPy's current stream is being captured into a graph, but the launch would go "
            "to another stream of PyCUDA's; capture a pycuda.driver.Stream, under "
            "`with bridge.use_stream(stream):`"
        )
    grid, block = _extent(grid, "grid"), _extent(block, "block")
    handlers, buffer, of_pycuda = pack_arguments(args, device_id, strided)
    # PyCUDA's own arrays may have work pending on its default stream, and be used there next.
    others = [here, 0] if of_pycuda and not is_capturing(there) else [here]

    for handler in handlers:
        handler.pre_call(target)
    for other in others:
        order(there, other, device_id)
    function._launch_kernel(grid, block, buffer, shared, target)
    for other in others:
        order(other, there, device_id)
    outputs = [handler for handler in handlers if isinstance(handler, drv.Out)]
    if outputs:
        order(0, there, device_id)  # PyCUDA copies on the default stream
        for handler in outputs:
            handler.post_call(target)


def _extent(value: Any, name: str) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int | np.integer) for n in sizes):
        raise TypeError(f"launch: {name} is {value!r}; an int or 1 to 3 of them are accepted")
    if any(n < 1 for n in sizes):
        raise ValueError(f"launch: {name} is {value!r}; each extent is 1 or more")
    return tuple(int(n) for n in sizes) + (1,) * (3 - len(sizes))


def pack_arguments(
    args: Sequence[Any], device_id: int, strided: bool
) -> tuple[list[Any], bytes, bool]:
    """Return PyCUDA's argument handlers, the parameter buffer, and if a GPUArray is among `args`.

    The layout is the one of ``pycuda.driver.Function.__call__``: a C struct of the arguments.
    """
    layout = ""
    values: list[Any] = []
    handlers: list[Any] = []
    for index, value in enumerate(args):
        if isinstance(value, np.void):
            align = _alignment(value.dtype)
            layout += "x" * (-calcsize(layout) % align) + f"{value.nbytes}s"
            values.append(value.tobytes())
        elif isinstance(value, np.generic):
            char = value.dtype.char
            if char not in _SCALARS:
                raise TypeError(f"launch: argument {index} is a {value.dtype}, no type of CUDA C")
            layout += _AS_INTEGERS.get(char, char)
            values.append(int.from_bytes(value.tobytes(), "little") if char in "?e" else value)
        elif isinstance(value, bool):
            layout += "B"
            values.append(value)
        elif isinstance(value, drv.ArgumentHandler):
            handlers.append(value)
            layout += "P"
            values.append(int(value.get_device_alloc()))
        else:
            layout += "P"
            values.append(_pointer(value, index, device_id, strided))
    of_pycuda = any(isinstance(value, GPUArray) for value in args)
    return handlers, pack(layout, *values), of_pycuda


def _alignment(dtype: np.dtype[Any]) -> int:
    """Return how C aligns a struct: as its most demanding member."""
    if dtype.subdtype is not None:
        return _alignment(dtype.subdtype[0])
    if dtype.fields is None:
        return dtype.alignment
    return max(_alignment(field[0]) for field in dtype.fields.values())


def _pointer(value: Any, index: int, device_id: int, strided: bool) -> int:
    """Return the device pointer that an argument means."""
    caller = f"launch: argument {index}"
    if value is None:
        return 0
    if isinstance(value, _HOLDERS):
        return int(value)
    if type(value) in _WIDTHS:
        raise TypeError(
            f"{caller} is the Python {type(value).__name__} {value!r}, which has no width; say "
            f"{_WIDTHS[type(value)]}, as the kernel declares it"
        )
    if isinstance(value, np.ndarray) and isinstance(value.base, drv.ManagedAllocation):
        return int(value.base)
    if isinstance(value, GPUArray):
        contiguous, gpudata = value.flags.forc, value.gpudata
        pointer = 0 if gpudata is None else int(gpudata)
        if context.inspect_pointers:
            as_cupy(value, stream=-1)  # looks the pointer up
    else:
        try:
            array = as_cupy(value)
        except (TypeError, ValueError, BufferError) as error:
            raise type(error)(str(error).replace("as_cupy: argument", caller, 1)) from None
        contiguous, pointer = array.flags.forc, int(array.data.ptr)
        if array.size and array.data.device_id != device_id:
            raise context.ContextError(
                f"{caller} is on device {array.data.device_id}, but device {device_id} is current"
            )
    if not (contiguous or strided):
        raise ValueError(
            f"{caller} is not contiguous (shape {value.shape}, strides {value.strides}); pass a "
            "contiguous copy, or strided=True if the kernel takes the strides into account"
        )
    return pointer
