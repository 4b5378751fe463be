"""launch: run a compiled PyCUDA kernel on device arrays of any library, checked and ordered."""

from __future__ import annotations

from typing import Any

import cupy
import pycuda.driver as drv

from . import context
from .arguments import pack_arguments
from .errors import named
from .function import Function
from .launching import explain, extent, refuse_outside_of_capture, run_in_order, shared_bytes
from .streams import handle_of, pycuda_stream_of

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
        From ``pycuda.driver.Module.get_function`` or ``pycuda.compiler.SourceModule``.  Functions
        of `bridge.SourceModule` are accepted and called.
    *args
        In the order of the kernel's parameters: device arrays (`GPUArray`, `cupy.ndarray`, any
        ``__dlpack__`` or ``__cuda_array_interface__``), device allocations, None for a null
        pointer, NumPy scalars of the parameter's width, ``numpy.void`` for a struct, bool (one
        byte), ``pycuda.driver.In``, ``Out`` and ``InOut``.
    grid, block : int or sequence of 1 to 3 ints
        Blocks in the grid, threads per block.
    shared : int
        Dynamic shared memory, bytes per block.
    stream : pycuda.driver.Stream, or a CuPy stream over one, optional
        PyCUDA's default stream if omitted, or the one given to `use_stream`.
    strided : bool
        Accept arrays that are not contiguous: the kernel knows their strides.

    Raises
    ------
    ContextError
        If the libraries share no primary context here, or an array is on another device.
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
    *Ownership:* an array dropped after the launch returns to its pool after the kernel.
    *Ordering:* after the work queued on CuPy's current stream, and before later work there; with
    PyCUDA's memory among the arguments, also on PyCUDA's default stream (rule: `bridge.streams`).
    The host waits only for ``In``, ``Out`` and ``InOut``.
    *Cost:* PyCUDA's bare launch, a little per argument, and a fence where streams differ.
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
    there = handle_of(target, "launch")
    grid, block = extent(grid, "grid", "launch"), extent(block, "block", "launch")
    shared = shared_bytes(shared, "launch")
    handlers, buffer, of_pycuda = pack_arguments(args, device_id, strided, "launch")
    refuse_outside_of_capture(here, there, handlers, "launch")

    def start() -> None:
        try:
            function._launch_kernel(grid, block, buffer, shared, target)
        except (drv.Error, OverflowError) as error:
            raise explain(error, function, grid, block, shared, device_id, "launch") from error

    run_in_order(start, here, there, device_id, of_pycuda, handlers)
