"""Handles of the streams of all libraries, and the ordering rule.

The rule
--------
``as_cupy(a, stream=s)``: work queued on PyCUDA stream ``s`` (None: PyCUDA's default stream)
runs before later work on CuPy's current stream.

``as_pycuda(a, stream=s)``: work queued on CuPy's current stream runs before later work on ``s``.
When the ``GPUArray`` is released, CuPy's stream waits for the work queued on ``s`` by then.

``stream=-1`` means no ordering, as in DLPack.

Where CUDA does not order two streams itself, one waits for an event on the other.  The host does
not wait.  ``stream=`` must be on the device of the memory.  To order streams of two devices, use
`wait_stream`.

While a stream is being captured, it is ordered only with the other streams of its capture.  The
default stream cannot be captured, so it is not ordered with a captured stream.  If a captured
stream would have to wait for another stream outside of the capture, the call raises.  Order the
stream on which you launch the graph instead.

Source: CUDA Programming Guide, "Implicit Synchronization", "Default Stream" and "Cross-stream
Dependencies and Events".
"""

from __future__ import annotations

from operator import index
from types import SimpleNamespace
from typing import Any

import cupy
import pycuda.driver as drv
from cupy.cuda import driver, runtime

from . import _core, _driver
from ._core import is_capturing
from .context import ContextError, current_device, failure, primary_context
from .errors import kind, named

__all__ = ["as_cupy_stream", "is_capturing", "order", "use_stream", "wait_stream"]

UNORDERED = -1  # "do not order", as in DLPack; accepted for any stream

PYCUDA_STREAM = drv.Stream  # `bridge run` may put a subclass in its place
_STREAMS = (cupy.cuda.Stream, cupy.cuda.ExternalStream)
_LEGACY = 1  # cudaStreamLegacy: another name of handle 0
_INVALID_HANDLE = 400  # CUDA_ERROR_INVALID_HANDLE
_OUTSIDE_OF_CAPTURE = -1  # the core's
_ACCEPTED = (
    "None, a pycuda.driver.Stream, a cupy.cuda.Stream or an object whose __cuda_stream__() returns "
    "(0, handle) is accepted; in conversions, -1 means 'do not order'"
)


def handle_of(stream: Any, caller: str, may_be_unordered: bool = True) -> int:
    """Return the handle of a stream on the current device; -1 for the int -1."""
    if may_be_unordered and type(stream) is int and stream == UNORDERED:
        return UNORDERED
    handle = _handle_anywhere(stream, f"{caller}: stream")
    _, found = _core.device_of_stream(handle)
    if found >= 0 and found != (device_id := _driver.cuda_device()):
        raise ContextError(
            f"{caller}: stream is on device {found}, but device {device_id} is current; work under "
            f"`with bridge.primary_context({found}):`, or order the two devices' streams by "
            "bridge.wait_stream"
        )
    return handle


def _handle_anywhere(stream: Any, subject: str) -> int:
    """Return the handle of a stream on any device; 0 for the default stream."""
    if stream is None:
        return 0
    if isinstance(stream, PYCUDA_STREAM):
        return int(stream.handle)
    if isinstance(stream, _STREAMS):
        handle = int(stream.ptr)
    elif hasattr(stream, "__cuda_stream__") and not isinstance(stream, type):
        handle = _protocol_handle(stream, subject)
    else:
        raise TypeError(f"{subject} is {named(stream)}; {_ACCEPTED}")
    return 0 if handle == _LEGACY else handle


def _protocol_handle(stream: Any, subject: str) -> int:
    answer = stream.__cuda_stream__()
    try:
        version, handle = map(index, answer)
    except (TypeError, ValueError):
        version, handle = -1, -1
    if version != 0 or handle >> 63:  # negative, or wider than any handle
        got = f"a {kind(stream)} whose __cuda_stream__() returns {answer!r}"
        raise TypeError(f"{subject} is {got}; {_ACCEPTED}")
    return handle


def order(waiter: int, awaited: int, device_id: int) -> None:
    """Apply the ordering rule: later work on `waiter` runs after the work queued on `awaited`."""
    if status := _core.order(waiter, awaited, device_id):
        raise _not_ordered(status, waiter, awaited)


def fence(waiter: int, awaited: int, device_id: int) -> None:
    """Make a stream wait for another, even if CUDA orders the two."""
    if status := _core.fence(waiter, awaited, device_id):
        raise _not_ordered(status, waiter, awaited)


def _not_ordered(status: int, waiter: int, awaited: int) -> Exception:
    """Return the error for a status of the core."""
    if status == _OUTSIDE_OF_CAPTURE:
        return ValueError(
            f"stream 0x{waiter:x} cannot wait for stream 0x{awaited:x}, since only one of them is "
            "being captured into a graph; order them before the capture begins, or order the "
            "stream that the graph is launched on"
        )
    if reason := failure():
        return ContextError(reason)
    error: Exception = driver.CUDADriverError(status)
    if status != _INVALID_HANDLE:
        return error
    both = waiter, awaited
    unknown = [handle for handle in both if _core.device_of_stream(handle)[0]] or both
    found = " or ".join(f"0x{handle:x}" for handle in unknown)
    return ValueError(
        f"stream {found} is unknown to CUDA; a stream of a device's primary context that has not "
        f"been destroyed is accepted ({error})"
    )


def seconds_between(begin: Any, end: Any) -> float:
    """Wait for the second of two CuPy events; return the seconds between them."""
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3


def wait_stream(waiter: Any, awaited: Any, /) -> None:
    """Make later work on one stream wait for the work queued on another.

    Parameters
    ----------
    waiter, awaited : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or None
        None means the current device's default stream.  Other streams may be on any device.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread.
    TypeError
        If an argument is not a stream.
    ValueError
        If CUDA does not know a stream, or if `waiter` is being captured and `awaited` is not.  Also
        if one is being captured and the other is the default stream.

    Notes
    -----
    *Ownership:* none.
    *Ordering:* later work on `waiter` runs after the work queued on `awaited`.  The host does not
    wait.  If `awaited` is being captured, `waiter` joins the capture: make the captured stream wait
    for `waiter` before the capture ends.
    *Cost:* one event; none if CUDA orders the two streams itself.
    """
    device_id = current_device()
    first = _handle_anywhere(waiter, "wait_stream: waiter")
    second = _handle_anywhere(awaited, "wait_stream: awaited")
    # CUDA would invalidate the graph.  The default stream cannot take part in a capture.
    leaves_capture = is_capturing(first) and not is_capturing(second)
    if leaves_capture or (first == 0 and is_capturing(second)):
        raise _not_ordered(_OUTSIDE_OF_CAPTURE, first, second)
    found = (_core.device_of_stream(handle)[1] for handle in (first, second))
    here, there = (device_id if device < 0 else device for device in found)
    if here == there == device_id:
        order(first, second, device_id)
        return
    try:
        with primary_context(there):  # an event can only be recorded on its own device
            event = cupy.cuda.Event(disable_timing=True)
            runtime.eventRecord(event.ptr, second)
        runtime.streamWaitEvent(first, event.ptr)
    except runtime.CUDARuntimeError as error:
        raise _not_ordered(error.status, first, second) from error


def as_cupy_stream(stream: Any, /) -> Any:
    """Return a CuPy stream over a stream of PyCUDA or of any other library.

    Parameters
    ----------
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or None
        None means PyCUDA's default stream, which is CuPy's null stream.

    Returns
    -------
    cupy.cuda.Stream
        The same CUDA stream.  A CuPy stream is returned as it is.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread, or `stream` is not on the
        current device.
    TypeError
        If `stream` is not a stream.

    Notes
    -----
    *Ownership:* the result keeps `stream` alive. *Ordering:* none. *Cost:* one CuPy object.
    """
    return _cupy_stream(stream, "as_cupy_stream")


def _cupy_stream(stream: Any, caller: str) -> Any:
    device_id = current_device()
    handle = handle_of(stream, caller, may_be_unordered=False)
    if isinstance(stream, _STREAMS):
        return stream
    if handle == 0:
        return cupy.cuda.Stream.null
    if hasattr(cupy.cuda.Stream, "from_external"):
        external = SimpleNamespace(__cuda_stream__=lambda: (0, handle))
        result = cupy.cuda.Stream.from_external(external)
    else:  # CuPy 13
        result = cupy.cuda.ExternalStream(handle, device_id)
    result.foreign = stream  # kept alive
    return result


def pycuda_stream_of(stream: Any) -> Any:
    """Return the ``pycuda.driver.Stream`` that `stream` is or wraps; None if there is none."""
    found = getattr(stream, "foreign", stream)
    return found if isinstance(found, PYCUDA_STREAM) else None


def use_stream(stream: Any, /) -> Any:
    """Run CuPy on a given stream: ``with use_stream(s):``.

    With a PyCUDA stream, CuPy's operations and launches ``f(..., stream=s)`` run in order without
    fences.  Both can then be captured into one CUDA graph.  Parameters, result and errors are those
    of `as_cupy_stream`.  The result is a CuPy stream, which is a context manager.

    Notes
    -----
    *Ownership:* the result keeps `stream` alive.
    *Ordering:* entering and leaving order nothing.  For earlier work on another stream, call
    `wait_stream`. *Cost:* that of `as_cupy_stream`.
    """
    return _cupy_stream(stream, "use_stream")
