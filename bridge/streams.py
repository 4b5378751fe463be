"""Handles of any library's streams, and the ordering rule of the bridge.

The rule
--------
``as_cupy(a, stream=s)``: work queued on PyCUDA stream ``s`` (None: PyCUDA's default stream)
happens before later work on CuPy's current stream.  ``as_pycuda(a, stream=s)``: work queued
on CuPy's current stream happens before later work on ``s``; when the ``GPUArray`` is
released, CuPy's stream waits for what is queued on ``s`` by then.  ``stream=-1``, as in
DLPack: no ordering.

Streams of different devices are never ordered by CUDA; `wait_stream` orders them, and ``stream=``
is on the device of the memory.

Nothing is done where CUDA orders the two streams itself: the same stream, or a blocking one after
the legacy default stream.  Else an event is recorded on one stream and waited for by the other, on
the device: the host never blocks.

While a stream is being captured into a graph, its work does not run, and nothing outside of the
graph can happen before or after it.  Streams of one capture are ordered within the graph.  The
default stream, which cannot be captured, is left out of the order; another stream as what is to
come first is refused.  To order a graph with the rest, order the stream it is launched on.

Source: CUDA Programming Guide, "Implicit Synchronization", "Default Stream" and "Cross-stream
Dependencies and Events".
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from operator import index
from typing import Any

import cupy
import pycuda.driver as drv

from . import context
from .words import kind, named

PER_THREAD = 2  # cudaStreamPerThread: the calling thread's default stream
UNORDERED = -1  # DLPack's word for "do not order", accepted wherever a stream is

_STREAMS = (cupy.cuda.Stream, cupy.cuda.ExternalStream)
_NON_BLOCKING = 1  # cudaStreamNonBlocking
_LEGACY = 1  # cudaStreamLegacy: another name of handle 0

_CUDA_ERRORS = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
_INVALID_HANDLE = 400  # cudaErrorInvalidResourceHandle
CAPTURE_ERRORS = range(900, 909)  # cudaErrorStreamCaptureUnsupported and what follows
_stream_is_capturing: Callable[[int], bool] = cupy.cuda.runtime.streamIsCapturing
_stream_context = cupy.cuda.driver.streamGetCtx
_current_stream = cupy.cuda.get_current_stream
_record = cupy.cuda.runtime.eventRecord
_wait = cupy.cuda.runtime.streamWaitEvent


def _ask_for_flags(handle: int) -> int:
    flags = ctypes.c_uint()
    status = context.libcuda.cuStreamGetFlags(ctypes.c_void_p(handle), ctypes.byref(flags))
    cupy.cuda.runtime.check_status(status)  # the driver and the runtime share their numbers
    return flags.value


# CuPy 13 has no such function.
_get_flags = getattr(cupy.cuda.runtime, "streamGetFlags", _ask_for_flags)

# Idle events of each device.  An event is taken off the list for the calls of a fence and put
# back after: a fence of another thread, or of a finalizer that the garbage collector runs between
# two calls, must not record the same event again.  (Once the waits are queued the event is free:
# CUDA took its state then.)
_events: defaultdict[int, list[Any]] = defaultdict(list)


def handle_of(
    stream: Any, caller: str, argument: str = "stream", may_be_unordered: bool = True
) -> int:
    """Return the CUDA handle of a stream: 0 for None, -1 for the integer -1.

    Parameters
    ----------
    stream : None, -1, pycuda.driver.Stream, cupy.cuda.Stream or any ``__cuda_stream__``
    caller, argument : str
        The public function and the name of its argument, for the error message.
    may_be_unordered : bool
        Whether -1 is taken.

    Raises
    ------
    TypeError
        If `stream` is none of these.
    ContextError
        If it is on a device other than the current one.
    """
    if stream is None:
        return 0
    if type(stream) is int and stream == UNORDERED and may_be_unordered:
        return UNORDERED
    handle = _any_handle_of(stream, caller, argument, may_be_unordered)
    if context.check_devices:
        device_id, found = cupy.cuda.runtime.getDevice(), _device_of(handle)
        if found not in (None, device_id):
            raise context.ContextError(
                f"{caller}: {argument} is on device {found}, but device {device_id} is current; "
                f"work under `with bridge.primary_context({found}):`, or order the two devices' "
                "streams by bridge.wait_stream"
            )
    return handle


def _device_of(handle: int) -> int | None:
    """Return the id of the device that a stream was made on.

    None for the default streams, which every device has, and for what CUDA does not know.
    """
    if handle <= PER_THREAD:
        return None
    try:
        _stream_is_capturing(handle)  # the next call crashes for a stream that is gone (H200, 580)
    except _CUDA_ERRORS:
        return None
    except RuntimeError:  # see `is_capturing`
        pass
    try:
        found = _stream_context(handle)
    except _CUDA_ERRORS:
        return None
    return context.device_of(found)


def _any_handle_of(stream: Any, caller: str, argument: str, may_be_unordered: bool) -> int:
    if stream is None:
        return 0
    if isinstance(stream, drv.Stream):
        return int(stream.handle)
    if isinstance(stream, _STREAMS):
        handle = int(stream.ptr)
    elif hasattr(stream, "__cuda_stream__") and not isinstance(stream, type):
        handle = _protocol_handle(stream, caller, argument)
    else:
        raise _no_stream(stream, caller, argument, may_be_unordered)
    return 0 if handle == _LEGACY else handle


def _no_stream(stream: Any, caller: str, argument: str, may_be_unordered: bool) -> TypeError:
    got, hint = named(stream), ""
    if type(stream) is int and stream == UNORDERED:
        got += ", which means 'do not order' and is no stream"
    elif type(stream) is int:
        hint = "; give a raw handle as an object whose __cuda_stream__() returns (0, handle)"
    return TypeError(
        f"{caller}: {argument} is {got}; None, {'-1, ' if may_be_unordered else ''}a "
        "pycuda.driver.Stream, a cupy.cuda.Stream or an object with __cuda_stream__ is "
        f"accepted{hint}"
    )


def _protocol_handle(stream: Any, caller: str, argument: str) -> int:
    answer = stream.__cuda_stream__()
    try:
        version, handle = map(index, answer)
    except (TypeError, ValueError):
        version, handle = -1, -1
    if version != 0 or handle >> 64:  # negative, or wider than any handle
        raise TypeError(
            f"{caller}: {argument} is a {kind(stream)} whose __cuda_stream__() returns {answer!r}; "
            "(0, handle) is accepted, for version 0 of the protocol"
        )
    return handle


def is_capturing(handle: int) -> bool:
    """Tell whether a stream is being captured into a graph; the default one cannot be."""
    if not handle:
        return False
    try:
        return _stream_is_capturing(handle)
    except _CUDA_ERRORS as error:
        if error.status == _INVALID_HANDLE:
            return False  # what is done with it next says so
        _explain(error)
        raise
    except RuntimeError:  # CuPy: it is, but an error has spoilt the graph
        return True


def _explain(error: Any, *handles: int) -> None:
    """Raise what says more than CUDA's error: of a dead context, or an unknown stream."""
    if failure := context.failure():
        raise context.ContextError(failure) from error
    if error.status != _INVALID_HANDLE:
        return
    if all(handles) and len(handles) > 1:  # which one?
        handles = tuple(filter(_is_unknown, handles)) or handles
    found = " or ".join(f"0x{handle:x}" for handle in handles if handle)
    raise ValueError(
        f"stream {found} is unknown to CUDA; one of a device's primary context that has not been "
        f"destroyed is accepted ({error})"
    ) from error


def _is_unknown(handle: int) -> bool:
    """Tell whether CUDA does not know a stream on the current device."""
    try:
        _stream_is_capturing(handle)
    except _CUDA_ERRORS as error:
        return bool(error.status == _INVALID_HANDLE)
    except RuntimeError:  # see `is_capturing`
        pass
    return False


def _is_non_blocking(handle: int) -> bool:
    return bool(_get_flags(handle) & _NON_BLOCKING)


def ordered_by_cuda(waiter: int, awaited: int) -> bool:
    """Tell whether later work on `waiter` follows what `awaited` has queued without our doing.

    Work on a blocking stream follows what the default stream has queued.  The reverse needs a
    fence, although CUDA orders the default stream's next work: there may be none, and then a third
    stream that follows the default one would not follow the first.

    Also True, since nothing can be done, where one is the default stream and the other is being
    captured.
    """
    if waiter == awaited:
        return True
    if waiter and awaited:
        return False
    return is_capturing(waiter or awaited) or not (awaited or _is_non_blocking(waiter))


def fence(waiter: int, awaited: int, device_id: int, *more: int) -> None:
    """Make later work on `waiter` and `more` wait, on the device, for what `awaited` has queued."""
    idle = _events[device_id]
    try:
        event = idle.pop()
    except IndexError:
        event = cupy.cuda.Event(disable_timing=True)
    pointer = event.ptr
    _record(pointer, awaited)
    _wait(waiter, pointer)
    for another in more:
        _wait(another, pointer)
    idle.append(event)


def order(waiter: int, awaited: int, device_id: int) -> None:
    """Apply the ordering rule: later work on `waiter` follows what `awaited` has queued."""
    if waiter < 0 or awaited < 0:
        return
    try:
        if waiter and awaited and waiter != awaited:
            if is_capturing(waiter) and not is_capturing(awaited):  # CUDA would spoil the graph
                raise _outside_of_capture(waiter, awaited)
        elif ordered_by_cuda(waiter, awaited):
            return
        fence(waiter, awaited, device_id)
    except _CUDA_ERRORS as error:
        _explain(error, waiter, awaited)
        raise


def _outside_of_capture(waiter: int, awaited: int) -> ValueError:
    return ValueError(
        f"stream 0x{waiter:x} is being captured into a graph, and cannot wait for stream "
        f"0x{awaited:x}, which is not; a stream of the same capture is accepted.  Order before "
        "the capture begins, or the stream that the graph is launched on"
    )


def needs_lease(user: int, owner: int) -> bool:
    """Tell whether a pool must be told when a view goes that is worked on on stream `user`.

    The memory was at home on `owner`.  The block may come from the default stream's part of the
    pool all the same.
    """
    if user < 0 or owner < 0:
        return False
    # While a stream is being captured, CUDA does not tell whether it is a blocking one.
    return user != 0 or (owner != 0 and (is_capturing(owner) or _is_non_blocking(owner)))


# The streams of each lease that is alive, by its id().  Held here and not by the lease: when a
# garbage cycle holds both, the collector may run the stream's finalizer before the lease's.
_leased: dict[int, tuple[Any, ...]] = {}


class Lease:
    """Keep `source` alive; when let go, order its owner's stream after its user's first.

    Where a capture forbids that, another one waits for the end of the capture in its place.

    Sits in the keep-alive slot of the view (``GPUArray.base``, ``UnownedMemory``'s owner).
    Without it a pool would hand the block out again while the other library's stream still
    works on it, because pools order by their own stream only.

    Parameters
    ----------
    source : object
        What the memory belongs to.
    owner_stream, user_stream : int
        Handles of the owning library's stream and of the one that works on the view.
    streams : tuple
        The stream objects, kept alive so that the handles stay valid.
    device_id : int
    """

    __slots__ = ("__weakref__", "device_id", "owner_stream", "source", "user_stream")

    def __init__(
        self,
        source: Any,
        owner_stream: int,
        user_stream: int,
        streams: tuple[Any, ...],
        device_id: int,
    ) -> None:
        self.source = source
        self.owner_stream = owner_stream
        self.user_stream = user_stream
        self.device_id = device_id
        _leased[id(self)] = streams
        del streams  # see `context.Keeper`

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            device_id = self.device_id
        except AttributeError:  # a signal's handler raised before `__init__`
            return
        try:
            if not is_finalizing() and not context.forked:  # else nobody allocates any more
                context.at_home(device_id, self._end)
        except (drv.Error, context.ContextError):
            pass  # the context is dead: no later work can run
        except BaseException:  # of a signal's handler: Python prints it; the order must be kept
            context.at_home(device_id, self._end)
            raise
        finally:
            _leased.pop(id(self), None)

    def _end(self) -> None:
        user, owner, device_id = self.user_stream, self.owner_stream, self.device_id
        streams = _leased.get(id(self), (None, None))
        if context.is_collecting():
            _collected.append((weakref.ref(self), device_id, [*streams]))
        # While a blocking stream is being captured, a wait of the default one spoils the graph.
        # The current stream can be asked, and the one that was when this was tried first.
        current = _current_stream(device_id)
        handles = {user, owner, current.ptr}
        if len(streams) > 2:
            handles.add(streams[2].ptr)
        captured = any(map(is_capturing, handles))
        try:
            if not captured:
                self._order()
                del streams  # see `context.Keeper`
                _leased.pop(id(self), None)  # here, where PyCUDA can let go of its stream
                return
            if user != owner and is_capturing(user) and is_capturing(owner):
                fence(owner, user, device_id)  # within the graph
        except _CUDA_ERRORS as error:
            # A dead context, again.  An invalid handle is another matter: the streams are kept
            # so that they are valid.
            if error.status == _INVALID_HANDLE:
                raise
            if error.status not in CAPTURE_ERRORS:
                return
        _waiting.append(Lease(self.source, owner, user, (*streams, current)[:3], device_id))
        del streams

    def _order(self) -> None:
        user, owner = self.user_stream, self.owner_stream
        if PER_THREAD in (owner, user):
            # Here that handle may name another thread's stream.  The default stream stands in:
            # an event on it covers the work of every thread's, and what waits behind it holds
            # up every thread's (both seen on an H200, driver 580).
            owner = 0 if owner == PER_THREAD else owner
            fence(owner, 0 if user == PER_THREAD else user, self.device_id)
            return
        # The default stream as well: the block may be older than its user's switch of streams.
        default = (0,) if user else ()
        if owner and not ordered_by_cuda(owner, user):
            fence(owner, user, self.device_id, *default)
        elif user:
            fence(0, user, self.device_id)


def source_of(owner: Any) -> Any:
    """Return what the keep-alive slot of a view keeps, whether there are leases or not."""
    while type(owner) is Lease:
        owner = owner.source
    return owner


# Those that could not end because of a capture.  To drop one is to try again: if it still cannot
# end, it puts itself back, as another object, since Python finalizes an object but once.
_waiting: list[Lease] = []


def end_waiting_leases(all_of_them: bool = False) -> None:
    """Let go of memory that could not be ordered while a stream was being captured.

    Stops at the first lease that still cannot end, unless `all_of_them` are to be tried.
    """
    for _ in range(len(_waiting)):
        before = len(_waiting)
        del _waiting[:1]
        if len(_waiting) >= before and not all_of_them:
            return


def waiting_leases() -> int:
    """Return how many views' memory waits for the end of a capture."""
    return len(_waiting)


# What the garbage collector has finalized: the lease if it lives, its device and its streams.
_collected: list[tuple[weakref.ref[Lease], int, list[Any]]] = []


def _watch_collector(phase: str, info: dict[str, int]) -> None:
    if phase != "stop":
        return
    while _collected:
        reference, device_id, streams = _collected.pop()
        lease = reference()
        if lease is None:
            with suppress(drv.Error, context.ContextError):
                context.at_home(device_id, streams.clear)
        else:  # another finalizer saved it, and its own does not run again
            user, owner = lease.user_stream, lease.owner_stream
            lease.source = Lease(lease.source, owner, user, tuple(streams), device_id)
    # A full collection is what both libraries' pools try where memory runs out.
    end_waiting_leases(all_of_them=info["generation"] == 2)


gc.callbacks.append(_watch_collector)


def wait_stream(waiter: Any, awaited: Any, /) -> None:
    """Make later work on one stream wait for the work queued on another.

    Parameters
    ----------
    waiter, awaited : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or None
        None is the current device's legacy default stream, which is PyCUDA's default.  Other
        streams may be on any device, and on different ones.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread.
    TypeError
        If an argument is no stream.
    ValueError
        If CUDA does not know one of the streams; or `waiter` is being captured into a graph and
        `awaited` is not; or one is being captured and the other is the default one.

    Notes
    -----
    *Ownership:* none. *Ordering:* `waiter` after `awaited`, on the devices; the host does not
    block.  If `awaited` is being captured, `waiter` becomes part of the capture, and is to be
    waited for in turn before that ends. *Cost:* an event recorded and waited for, 2 us, and
    more between devices; nothing where CUDA orders the two.
    """
    device_id = context.current_device()
    first = _any_handle_of(waiter, "wait_stream", "waiter", False)
    second = _any_handle_of(awaited, "wait_stream", "awaited", False)
    if not (first and second) and is_capturing(first or second):
        raise ValueError(
            f"wait_stream: stream 0x{first or second:x} is being captured into a graph, in which "
            "the default stream has no part; order the stream that the graph is launched on"
        )
    here = there = device_id
    if context.check_devices:
        found = _device_of(first), _device_of(second)
        here, there = (device_id if device is None else device for device in found)
    if here != there:
        _order_across(first, second, there)
    elif here != device_id:
        with context.primary_context(here):
            wait_stream(waiter, awaited)
    else:
        order(first, second, device_id)


def _order_across(waiter: int, awaited: int, device_id: int) -> None:
    """Do as `order`, `awaited` being on that device and `waiter` on another.

    CUDA orders nothing between devices.  An event is recorded on its own device, and any waits.
    """
    try:
        if is_capturing(waiter) and not is_capturing(awaited):
            raise _outside_of_capture(waiter, awaited)
        with context.primary_context(device_id):
            event = cupy.cuda.Event(disable_timing=True)
            _record(event.ptr, awaited)
        _wait(waiter, event.ptr)
    except _CUDA_ERRORS as error:
        _explain(error, waiter, awaited)
        raise


class _Foreign:
    """What ``cupy.cuda.Stream.from_external`` wants of a stream."""

    def __init__(self, stream: Any, handle: int) -> None:
        self.stream = stream
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def as_cupy_stream(stream: Any, /) -> Any:
    """Return a CuPy stream over a stream of PyCUDA or of any other library.

    Parameters
    ----------
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or None
        None is PyCUDA's default stream, CuPy's null stream.

    Returns
    -------
    cupy.cuda.Stream
        The same CUDA stream; the argument itself if it is CuPy's.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread, or `stream` is on a device
        other than the current one.
    TypeError
        If `stream` is no stream.

    Notes
    -----
    *Ownership:* the result keeps `stream` alive. *Ordering:* none. *Cost:* 1 us.
    """
    return _cupy_stream(stream, "as_cupy_stream")


def _cupy_stream(stream: Any, caller: str) -> Any:
    device_id = context.current_device()
    handle = handle_of(stream, caller, "stream", False)
    if isinstance(stream, _STREAMS):
        return stream
    if handle == 0:
        return cupy.cuda.Stream.null
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Foreign(stream, handle))
    result = cupy.cuda.ExternalStream(handle, device_id)  # CuPy 13
    result.foreign = stream  # CuPy 13 keeps no reference itself
    return result


def pycuda_stream_of(stream: Any) -> Any:
    """Return the ``pycuda.driver.Stream`` that a stream is or wraps; None if it is another's."""
    if isinstance(stream, drv.Stream):
        return stream
    foreign = getattr(stream, "_foreign_stream_ref", None) or getattr(stream, "foreign", None)
    inner = getattr(foreign, "stream", foreign)
    return inner if isinstance(inner, drv.Stream) else None


def use_stream(stream: Any, /) -> Any:
    """Run CuPy on a given stream: ``with use_stream(s):``.

    With a PyCUDA stream, launches that name it (``f(..., stream=s)``) and CuPy's operations
    are then queued on one stream: no fence is needed between them, and PyCUDA's kernels can
    be captured into a CUDA graph through CuPy.

    Parameters
    ----------
    stream : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or None

    Returns
    -------
    context manager
        CuPy's stream, as `as_cupy_stream` returns it.

    Raises
    ------
    ContextError, TypeError
        As `as_cupy_stream`.

    Notes
    -----
    *Ownership:* the stream is kept alive while it is in use. *Ordering:* entering and leaving
    order nothing, as with CuPy's own ``with stream:``; use `wait_stream` for work queued
    before on another stream. *Cost:* 2 us.
    """
    return _cupy_stream(stream, "use_stream")
