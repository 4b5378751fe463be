# cython: auto_pickle=False
"""The ordering rule, and the streams of PyCUDA that it includes.

The rule
--------
By default, a call is ordered with all of PyCUDA's streams.  ``stream=s`` makes it one stream, and
``stream=-1`` orders nothing.

``as_cupy(a)``: work queued on any PyCUDA stream runs before later work on CuPy's current stream.

``as_pycuda(x)``: work queued on CuPy's current stream runs before later work on any PyCUDA stream.
When the ``GPUArray`` is released, CuPy's stream waits for the work queued on PyCUDA's streams.

A call orders one hand-over, at its moment.  Before the other library uses the memory again, call
the other function: ``as_pycuda(x)`` before PyCUDA's next work, ``as_cupy(a)`` before CuPy's.  Or
work on one stream, or use `wrap_pycuda`.

How
---
An event recorded on the default stream comes after the work of all blocking streams, and their
later work comes after a wait on it.  So one fence with the default stream covers PyCUDA's default
stream and every ``pycuda.driver.Stream()``.  Non-blocking streams, ``Stream(1)``, need a fence
each, while they are alive: the default stream stands for those that have ended.  If CuPy's current
stream is the default stream, CUDA orders the blocking streams itself.  The host never waits.

Captures
--------
A captured stream can be ordered only with streams of its capture, or CUDA invalidates the graph.
What a call cannot order raises; what a release cannot order is kept until the capture ends.  A call
adds to a graph only if CuPy's current stream is in it; `wait_stream` lets any stream join.

Source: CUDA Programming Guide, "Implicit Synchronization", "Default Stream" and "Cross-stream
Dependencies and Events"; CUDA Driver API, cuStreamIsCapturing.
"""

from libc.stdint cimport uint64_t

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *
from bridge.interop.pycuda_streams cimport *
from bridge.interop.streams cimport *

from contextlib import ContextDecorator
from threading import get_ident

import cupy
from cupy.cuda import driver, runtime

from .failures import failure
from .scopes import Scope
from ..errors import ContextError, check_function, warn

# ---- the rule ------------------------------------------------------------------------------------
#
# What a call orders, by what is being captured meanwhile.  0 is the default stream, s and t others,
# P are all of PyCUDA's streams, N the non-blocking ones.  Either of a pair waits for the other.
#
# pair   nothing        s and t           one of s and t         another stream s'
# s t    both           both              raise; t joins the     both
#                                         capture of s, if this
#                                         thread captures
# s 0    both           -                 raise                  both; raise if s' is blocking
# s P    s 0 and s N    s and P's of the  s N as in the row      s 0 and s N; raise if s' is
# 0 P    0 N            same capture      above                  blocking, or of P (*)
# (*) If the capture began on what `as_cupy_stream` returns, 0 stands for s': 0 has waited for the
# earlier work of s', and s' will wait for 0 at the end of the capture.
#
# When a view is released, the owner's stream, and 0, wait for the user's.  Where this table raises,
# or the owner or the user is captured, the memory is kept for the next call that can order them.

kept_for_capture = []


cpdef Py_ssize_t release_kept_views() except -1:
    """Release what was kept until the end of a capture; return how many are kept again."""
    global kept_for_capture
    kept_for_capture = []  # the old list frees its views; those that cannot be ordered come back
    return len(kept_for_capture)


cpdef int order(Stream waiter, Stream awaited, bint joins=False) except -1:
    """Apply the rule: later work on `waiter` runs after the work queued on `awaited`.

    Either may be ALL_PYCUDA_STREAMS, or UNORDERED.  Other streams must be on the current device.
    With `joins`, `waiter` may join any capture of `awaited`.
    """
    cdef int status = 0
    if waiter == awaited or waiter == UNORDERED or awaited == UNORDERED:
        return 0
    if kept_for_capture and not is_capturing(waiter) and not is_capturing(awaited):
        release_kept_views()
    if waiter == ALL_PYCUDA_STREAMS:
        status = order_with_pycuda(awaited, True)
    elif awaited == ALL_PYCUDA_STREAMS:
        status = order_with_pycuda(waiter, False)
    elif is_outside(waiter, awaited, joins):
        status = CAPTURE_ISOLATION
    else:
        if ended_count:
            default_waits_for_ended()
        status = fence(waiter, awaited)
    if status:
        raise not_ordered(status, waiter, awaited)
    return 0


cdef bint is_captured_here(Stream handle) noexcept:
    """Tell whether this thread's current stream is part of the capture of a stream."""
    return capture_of(handle) == capture_of(current_stream(device_of(cuda_current())))


cdef bint is_outside(Stream waiter, Stream awaited, bint joins) noexcept:
    """Tell whether a wait would invalidate a graph, or draw in a stream that does not join it."""
    cdef uint64_t of_waiter = capture_of(waiter) if waiter else NO_CAPTURE
    cdef uint64_t of_awaited = capture_of(awaited) if awaited else NO_CAPTURE
    if of_waiter == of_awaited:
        return False
    return of_waiter or not waiter or not (joins or is_captured_here(awaited))


cdef int order_with_pycuda(Stream other, bint pycuda_waits) noexcept:
    """Order a stream before or after all of PyCUDA's; return CUDA's status.

    A stream may end or begin meanwhile, on another thread.  The default stream then has waited for
    it, or is waited for.  So its fence is the last one if `other` waits, otherwise the first.
    """
    cdef int status
    cdef uint64_t capture
    cdef bint has_default
    if ended_count:
        default_waits_for_ended()
    if other == 0 and not non_blocking_count and not ended_count:
        return 0  # CUDA orders the default stream with the blocking ones
    capture = capture_of(other, &status)
    has_default = other and capture == NO_CAPTURE
    if has_default and pycuda_waits and not status:
        status = fence(0, other)
    if not status and (non_blocking_count or ended_count or (capture and stream_count)):
        status = order_with_each(other, capture, pycuda_waits)
    if has_default and not pycuda_waits and not status:
        status = fence(other, 0)
    return status


cdef int order_with_each(Stream other, uint64_t capture, bint pycuda_waits) noexcept:
    """Order a stream, in a capture or none, with those that the default one does not stand for."""
    cdef Handle context = cuda_current()
    cdef int index, count, status = 0, device_id = device_of(context)
    cdef Handle event = take_event(device_id)
    cdef StreamRecord *record
    cdef StreamRecord *pinned[8]  # they stay in the list, which others change meanwhile
    if pycuda_waits:
        with nogil:
            status = cuEventRecord(event, other)
    record = first_record
    while record is not NULL:
        count = 0
        while record is not NULL and count < 8:
            if record.context == context and record.handle != other and (
                capture or not record.is_blocking
            ):
                record.pins += 1
                pinned[count] = record
                count += 1
            record = record.next
        with nogil:
            for index in range(count):
                if not status:
                    status = order_with_one(pinned[index], other, capture, event, pycuda_waits)
        record = pinned[7].next if count == 8 else NULL
        for index in range(count):
            pinned[index].pins -= 1
    return keep_event(event, device_id, status)


cdef int order_with_one(
    StreamRecord *record, Stream other, uint64_t capture, Handle event, bint pycuda_waits
) noexcept nogil:
    cdef int status = 0
    cdef uint64_t found
    if record.handle == ENDED:
        return 0 if pycuda_waits or capture else cuStreamWaitEvent(other, record.event, 0)
    if not pycuda_waits:
        status = cuEventRecord(event, record.handle)
    found = capture_of(record.handle)  # a capture may have begun before
    if found != capture:
        if capture or record.capture == found or record.capture == <uint64_t> ANY_CAPTURE:
            return 0  # it is not of this capture, or the default stream stands for it
        return CAPTURE_ISOLATION
    return status or cuStreamWaitEvent(record.handle if pycuda_waits else other, event, 0)


cdef int order_reuse() except -1:
    """Order the last work on a block from CuPy's pool before later work on all of PyCUDA's streams.

    The pool has the block for the default stream, but its last user may be a blocking stream.  CUDA
    does not order two blocking streams.  So the default stream waits for all of them, and then all
    streams wait for the default stream.
    """
    if status := default_waits_for_blocking():
        raise not_ordered(status, 0, ALL_PYCUDA_STREAMS)
    return order(ALL_PYCUDA_STREAMS, 0)


cdef bint release_needs_order(Stream owner, Stream user) noexcept:
    """Tell whether the owner's pool must wait for `user` when a view is released."""
    if user == UNORDERED or owner == UNORDERED:
        return False
    if user == ALL_PYCUDA_STREAMS or owner == ALL_PYCUDA_STREAMS:
        return user > 0 or owner > 0 or non_blocking_count > 0 or ended_count > 0
    # The block may belong to the default stream in the pool, whatever `owner` is.  While a stream
    # is being captured, CUDA does not report its flags.
    return user != 0 or (owner != 0 and (is_capturing(owner) or is_non_blocking(owner)))


cdef int order_release(Stream owner, Stream user) noexcept:
    """Make the owner's stream wait for the work queued on the user's; return CUDA's status.

    The default stream waits as well: the block may be older than a switch of streams.  If a stream
    is being captured, return an error of captures.
    """
    cdef int status = 0
    cdef bint of_thread = owner == PER_THREAD
    if is_capturing(owner) or is_capturing(user):
        if owner == ALL_PYCUDA_STREAMS and is_captured_here(user):  # within the graph
            order_with_pycuda(user, True)
        elif user == ALL_PYCUDA_STREAMS and is_captured_here(owner):
            order_with_pycuda(owner, False)
        elif owner > 0 and is_captured_here(owner) and not is_outside(owner, user, False):
            fence(owner, user)
        return CAPTURE_ISOLATION
    # The per-thread handle may have meant another thread's stream.  If this thread's stream waited,
    # the thread would end later.  So use the default stream: an event on it covers every thread's
    # work, and a wait on it delays every thread's work (seen on an H200, driver 580).
    if user == PER_THREAD:
        user = 0
    if of_thread or owner == user:
        owner = 0
    if owner == ALL_PYCUDA_STREAMS:
        return order_with_pycuda(user, True)
    if user == ALL_PYCUDA_STREAMS:
        if of_thread:
            status = default_waits_for_blocking()
        if not status:
            status = order_with_pycuda(0, False)
        user = 0
    elif user:
        status = fence(0, user)
    if owner and not status:
        status = fence(owner, user)
    return status


def not_ordered(int status, Stream waiter, Stream awaited):
    """Return the error for a status of `order`."""
    names = [
        "PyCUDA's streams" if handle == ALL_PYCUDA_STREAMS else f"stream 0x{handle:x}"
        for handle in (waiter, awaited)
    ]
    if status == CAPTURE_ISOLATION and ALL_PYCUDA_STREAMS in (waiter, awaited):
        return ValueError(
            f"{names[0]} cannot wait for {names[1]}, since one of PyCUDA's is being captured into "
            "a graph; name the stream of the work by stream=, or begin and end the capture on "
            "what bridge.as_cupy_stream returns"
        )
    if status == CAPTURE_ISOLATION:
        return ValueError(
            f"{names[0]} cannot wait for {names[1]}, since only one of them is "
            "being captured into a graph; order them before the capture begins, or order the "
            "stream that the graph is launched on"
        )
    if status == CAPTURE_IMPLICIT:
        return ValueError(
            f"{names[0]} cannot wait for {names[1]}: a blocking stream is being captured into a "
            "graph, and until the capture ends CUDA accepts no work on the default stream; capture "
            "a non-blocking stream, or order the streams before the capture"
        )
    if reason := failure():
        return ContextError(reason)
    error = driver.CUDADriverError(status)
    if status != INVALID_HANDLE:
        return error
    both = [handle for handle in (waiter, awaited) if handle != ALL_PYCUDA_STREAMS]
    unknown = [handle for handle in both if device_of_stream(handle)[0]] or both
    found = " or ".join([f"0x{handle:x}" for handle in unknown])
    return ValueError(
        f"stream {found} is unknown to CUDA; a stream of a device's primary context that has not "
        f"been destroyed is accepted ({error})"
    )

# ---- public functions ----------------------------------------------------------------------------


def wait_stream(waiter, awaited, /):
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
    *Cost:* one event.
    """
    device_id = shared_device()
    first = handle_on_any_device(waiter, "wait_stream: waiter")
    second = handle_on_any_device(awaited, "wait_stream: awaited")
    devices = [device_of_stream(handle)[1] for handle in (first, second)]
    if {*devices} <= {-1, device_id}:
        order(first, second, True)
        return
    if is_outside(first, second, True):
        raise not_ordered(CAPTURE_ISOLATION, first, second)
    try:
        # An event can only be recorded on its own device.
        with Scope(device_id if devices[1] < 0 else devices[1]):
            event = cupy.cuda.Event(disable_timing=True)
            runtime.eventRecord(event.ptr, second)
        runtime.streamWaitEvent(first, event.ptr)
    except runtime.CUDARuntimeError as error:
        raise not_ordered(error.status, first, second) from error


class ordered(ContextDecorator):
    """Run CuPy's work in a block between PyCUDA's earlier and later work.

    For functions that pass addresses themselves: `as_cupy` and `as_pycuda` with ``stream=-1``, or
    calls of a library on CuPy's current stream.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread.
    TypeError
        On decorating a generator function or a coroutine function, since their bodies run after the
        call.
    ValueError
        If CuPy's current stream cannot be ordered, because a stream is being captured.

    Examples
    --------
    >>> import cupy, numpy, bridge, bridge.autoinit
    >>> from pycuda import gpuarray
    >>> a = gpuarray.to_gpu(numpy.arange(3.0))
    >>> with bridge.ordered():
    ...     bridge.as_cupy(a, stream=-1)[:] = 7
    >>> float(a.get()[0])
    7.0

    Notes
    -----
    *Ownership:* none.
    *Ordering:* the work queued on PyCUDA's streams runs before the work that the block queues on
    CuPy's current stream, and that before later work on PyCUDA's streams, also if the block raises
    (rule: `bridge.interop.ordering`).  The host does not wait.
    *Cost:* two fences.
    """

    _is_idle = True

    def __init__(self):
        self._blocks = []  # thread and stream of each block that was entered and not left

    def __del__(self):
        if self._is_idle:
            warn("bridge.ordered() orders nothing by itself: write `with bridge.ordered():`")

    def __call__(self, function):
        self._is_idle = False
        advice = "write `with bridge.ordered():` around the work inside of it"
        check_function(function, "ordered: the decorated function", advice)
        return super().__call__(function)

    def _recreate_cm(self):
        return ordered()  # of each call of a decorated function

    def __enter__(self):
        self._is_idle = False
        current = current_stream(shared_device())
        order(current, ALL_PYCUDA_STREAMS)
        self._blocks.append((get_ident(), current))

    def __exit__(self, *error):
        of_thread = [one for one in self._blocks if one[0] == get_ident()]
        block = (of_thread or self._blocks)[-1]
        self._blocks.remove(block)
        order(ALL_PYCUDA_STREAMS, block[1])
