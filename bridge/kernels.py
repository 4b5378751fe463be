"""launch: run a compiled PyCUDA kernel on device arrays of any library, checked and ordered."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import pycuda.driver as drv

from . import context
from .arguments import pack_arguments
from .function import Function
from .launching import explain, extent, refuse_outside_of_capture, run_in_order, shared_bytes
from .streams import handle_of, pycuda_stream_of
from .words import named

_current_stream = cupy.cuda.get_current_stream


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
        From ``pycuda.driver.Module.get_function`` or ``pycuda.compiler.SourceModule``.  A function
        of `SourceModule`, the one here, is called with the same arguments.
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
        If an array is not contiguous, an extent is less than 1, `shared` is negative, or CuPy's
        current stream is being captured into a graph that the launch would not be part of.
    pycuda.driver.Error
        If CUDA refuses the launch: `block` or `shared` is too large for the kernel, say.

    Examples
    --------
    >>> bridge.launch(function, x, numpy.int32(x.size), grid=8, block=128)  # doctest: +SKIP

    Notes
    -----
    *Ownership:* CUDA takes the pointers, not the arrays.  An array dropped after the launch goes
    back to its pool in the order of CuPy's current stream, which the kernel is part of.
    *Ordering:* after what CuPy's current stream has queued, before what it queues later; where
    memory of PyCUDA's is among the arguments, likewise with PyCUDA's default stream.  By events
    where CUDA does not order the streams itself (rule: `bridge.streams`).  Nothing waits on the
    host, but ``In``, ``Out`` and ``InOut`` copy synchronously.
    *Cost:* PyCUDA's bare launch and 0.3 us an argument; 4 us more where fences are needed.
    """
    if isinstance(function, Function):
        function(*args, grid=grid, block=block, shared=shared, stream=stream, strided=strided)
        return
    if not isinstance(function, drv.Function):
        raise TypeError(
            f"launch: function is {named(function)}; a pycuda.driver.Function is accepted, e.g. "
            "from SourceModule(...).get_function(name)"
        )
    device_id = context.current_device()
    current = _current_stream(device_id)
    here = current.ptr
    target = None
    if stream is not None or here:
        target = pycuda_stream_of(current if stream is None else stream)
    if target is None and stream is not None:
        raise TypeError(
            f"launch: stream is {named(stream)}, but PyCUDA can launch on its own streams only: "
            "give a pycuda.driver.Stream, or none"
        )
    there = handle_of(target, "launch", "stream", False)
    grid, block = extent(grid, "grid", "launch"), extent(block, "block", "launch")
    handlers, buffer, of_pycuda = pack_arguments(args, device_id, strided, "launch")
    refuse_outside_of_capture(here, there, handlers, "launch")
    start = functools.partial(_start, function, grid, block, buffer, shared, target, device_id)
    run_in_order(start, here, there, device_id, of_pycuda, handlers)


def _start(
    function: Any,
    grid: Any,
    block: Any,
    buffer: bytes,
    shared: int,
    stream: Any,
    device_id: int,
) -> None:
    try:
        function._launch_kernel(grid, block, buffer, shared, stream)
    except TypeError:  # all but `shared` has been looked at
        size = shared_bytes(shared, "launch")
        if type(shared) is int:
            raise
        _start(function, grid, block, buffer, size, stream, device_id)  # of NumPy's int
    except (drv.Error, OverflowError) as error:
        if isinstance(error, OverflowError):
            shared_bytes(shared, "launch")
        raise explain(error, function, grid, block, shared, device_id, "launch") from error
