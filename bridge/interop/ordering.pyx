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
each, while they are alive.  If CuPy's current stream is the default stream, CUDA
orders the blocking streams itself.  When a stream ends, the default stream waits for it, and stands
for it from then on.  The host never waits.

Captures
--------
While a stream is being captured, it is ordered only with the other streams of its capture, which
CUDA calls dependencies of the graph.  A stream that is named must be one of these: otherwise the
call raises, since CUDA would invalidate the graph.  While a blocking stream is being captured, CUDA
accepts no work on the default stream.  Memory whose release would have to be ordered is kept until
the capture ends.

Source: CUDA Programming Guide, "Implicit Synchronization", "Default Stream" and "Cross-stream
Dependencies and Events"; CUDA Driver API, cuStreamIsCapturing.
"""

from libc.stdint cimport uint64_t

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *
from bridge.interop.pycuda_streams cimport *
from bridge.interop.streams cimport *

from contextlib import contextmanager

import cupy
from cupy.cuda import driver, runtime

from .failures import failure
from .scopes import Scope
from ..errors import ContextError

cdef enum:
    OUTSIDE_OF_CAPTURE = -1  # ours: a captured stream cannot wait for one that is not captured

# ---- the rule ------------------------------------------------------------------------------------
#
# What a fence orders.  P is all of PyCUDA's streams, 0 the default stream, s and t any others.  A
# pair is read in both directions: either of the two waits for the other.
#
# pair  function            no capture          s is being captured    a blocking stream is captured
# s t   order               both                both; raise if s       both
#                                               awaits t from outside
# s 0   order_with_default  both                nothing                nothing, if s is blocking;
#                                                                      else raise
# 0 P   order_with_pycuda   0 and each of N     -                      nothing
# s P   order_with_pycuda   "s 0", s and each   s and each of N that   "s 0", s and each of N that
#                           of N                is in its capture      is not being captured
#
# N are PyCUDA's non-blocking streams.  When a view is released, `order_release` lets the owner's
# stream wait for the user's:
#
# owner  user   no capture                       owner or user is captured    else, if 0 cannot be
# s      t      0 waits for t, and s for t       both, if in one capture,     used, or one of P is
# s      P      0 waits for P, and s for 0       or "s P"; in any case the    captured: the memory
# P      t      P waits for t                    memory is kept until then    is kept

kept_for_capture = []


cpdef Py_ssize_t release_kept_views() except -1:
    """Release what was kept until the end of a capture; return how many are kept again."""
    global kept_for_capture
    kept_for_capture = []  # the old list frees its views; those that cannot be ordered come back
    return len(kept_for_capture)


cpdef int order(Stream waiter, Stream awaited) except -1:
    """Apply the rule: later work on `waiter` runs after the work queued on `awaited`.

    Either may be ALL_PYCUDA_STREAMS, or UNORDERED.  Other streams must be on the current device.
    """
    cdef int status = 0
    if waiter == awaited or waiter == UNORDERED or awaited == UNORDERED:
        return 0
    if kept_for_capture and not (waiter > 0 and is_capturing(waiter)) and not (
        awaited > 0 and is_capturing(awaited)
    ):
        release_kept_views()
    if waiter == ALL_PYCUDA_STREAMS:
        status = order_with_pycuda(awaited, True)
    elif awaited == ALL_PYCUDA_STREAMS:
        status = order_with_pycuda(waiter, False)
    elif waiter and awaited:
        # CUDA would invalidate the graph.
        is_outside = is_capturing(waiter) and not is_capturing(awaited)
        status = OUTSIDE_OF_CAPTURE if is_outside else fence(waiter, awaited)
    elif not is_capturing(waiter or awaited):
        status = order_with_default(waiter or awaited, waiter == 0)
    if status:
        raise not_ordered(status, waiter, awaited)
    return 0


cdef int order_with_default(Stream other, bint default_waits) noexcept:
    """Order a stream before or after the default stream, and so all blocking streams."""
    cdef int status
    capture_of(0, &status)
    if status == CAPTURE_IMPLICIT and not is_non_blocking(other):
        return 0  # CUDA's implicit order remains
    if status:
        return status
    return fence(0, other) if default_waits else fence(other, 0)


cdef int order_with_pycuda(Stream other, bint pycuda_waits, bint is_release=False) noexcept:
    """Order a stream before or after all of PyCUDA's; return CUDA's status.

    At a release, do not leave a stream out that is being captured: return CAPTURE_IMPLICIT.
    """
    cdef int status = 0, device_id
    cdef uint64_t capture
    cdef Handle event
    cdef Followed *streams
    cdef Stream handle
    cdef Py_ssize_t index, count
    if other == 0 and not non_blocking_count:
        return 0
    capture = capture_of(other, &status)
    if status:  # the default stream, beside a capture; or the handle is invalid
        return 0 if status == CAPTURE_IMPLICIT and not is_release else status
    if other and capture == NO_CAPTURE:
        status = order_with_default(other, pycuda_waits)
    if status or not non_blocking_count:
        return status
    streams = take_followed(False, &count)
    if streams is NULL:
        return OUT_OF_MEMORY
    device_id = device_of(cuda_current())
    event = take_event(device_id)
    with nogil:
        if pycuda_waits:
            status = cuEventRecord(event, other)
        for index in range(count):
            handle = streams[index].handle
            if status or handle == other:
                continue
            if capture_of(handle) != capture:
                status = CAPTURE_IMPLICIT if is_release else 0
            elif pycuda_waits:
                status = cuStreamWaitEvent(handle, event, 0)
            else:
                status = cuEventRecord(event, handle)
                if not status:
                    status = cuStreamWaitEvent(other, event, 0)
    keep_event(event, device_id, status)
    drop_followed(streams, count)
    return status


cdef int order_reuse() except -1:
    """Order the last work on a block from CuPy's pool before later work on all of PyCUDA's streams.

    The pool has the block for the default stream, but its last user may be a blocking stream.  CUDA
    does not order two blocking streams.  So the default stream waits for all of them, and then all
    streams wait for the default stream.
    """
    if status := default_waits_for_blocking():
        raise not_ordered(status, 0, ALL_PYCUDA_STREAMS)
    return order(ALL_PYCUDA_STREAMS, 0)


cdef int default_waits_for_blocking() noexcept:
    """Queue a wait on the default stream for each of PyCUDA's blocking streams."""
    cdef int status = 0
    cdef Followed *streams
    cdef Py_ssize_t index, count
    if followed_count == non_blocking_count or not default_is_usable(cuda_current()):
        return 0
    streams = take_followed(True, &count)
    if streams is NULL:
        return OUT_OF_MEMORY
    for index in range(count):
        if not status and not is_capturing(streams[index].handle):
            status = fence(0, streams[index].handle)
    drop_followed(streams, count)
    return status


cdef bint release_needs_order(Stream owner, Stream user) noexcept:
    """Tell whether the owner's pool must wait for `user` when a view is released."""
    if user == UNORDERED or owner == UNORDERED:
        return False
    if user == ALL_PYCUDA_STREAMS or owner == ALL_PYCUDA_STREAMS:
        return user > 0 or owner > 0 or non_blocking_count > 0
    # The block may belong to the default stream in the pool, whatever `owner` is.  While a stream
    # is being captured, CUDA does not report its flags.
    return user != 0 or (owner != 0 and (is_capturing(owner) or is_non_blocking(owner)))


cdef int order_release(Stream owner, Stream user) noexcept:
    """Make the owner's stream wait for the work queued on the user's; return CUDA's status.

    The default stream waits as well: the block may be older than a switch of streams.  If a stream
    is being captured, return an error of captures.
    """
    cdef int status = 0
    cdef uint64_t of_owner = capture_of(owner) if owner > 0 else NO_CAPTURE
    cdef uint64_t of_user = capture_of(user) if user > 0 else NO_CAPTURE
    cdef bint of_thread
    if of_owner or of_user:
        if owner == ALL_PYCUDA_STREAMS:  # within the graph
            order_with_pycuda(user, True)
        elif user == ALL_PYCUDA_STREAMS:
            order_with_pycuda(owner, False)
        elif owner != user and of_owner == of_user:
            fence(owner, user)
        return CAPTURE_IMPLICIT
    capture_of(0, &status)
    if status:
        return status
    # The per-thread handle may have meant another thread's stream.  If this thread's stream waited,
    # the thread would end later.  So use the default stream: an event on it covers every thread's
    # work, and a wait on it delays every thread's work (seen on an H200, driver 580).
    of_thread = owner == PER_THREAD
    if user == PER_THREAD:
        user = 0
    if owner == PER_THREAD or owner == user:
        owner = 0
    if owner == ALL_PYCUDA_STREAMS:
        return order_with_pycuda(user, True, True)
    if user == ALL_PYCUDA_STREAMS:
        if of_thread:
            status = default_waits_for_blocking()
        if not status:
            status = order_with_pycuda(0, False, True)
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
    if status == OUTSIDE_OF_CAPTURE:
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
    # CUDA would invalidate the graph.  The default stream cannot take part in a capture.
    leaves_capture = is_capturing(first) and not is_capturing(second)
    if leaves_capture or (first == 0 and is_capturing(second)):
        raise not_ordered(OUTSIDE_OF_CAPTURE, first, second)
    found = [device_of_stream(handle)[1] for handle in (first, second)]
    first_device, second_device = [device_id if device < 0 else device for device in found]
    if first_device == second_device == device_id:
        order(first, second)
        return
    try:
        with Scope(second_device):  # an event can only be recorded on its own device
            event = cupy.cuda.Event(disable_timing=True)
            runtime.eventRecord(event.ptr, second)
        runtime.streamWaitEvent(first, event.ptr)
    except runtime.CUDARuntimeError as error:
        raise not_ordered(error.status, first, second) from error


@contextmanager
def ordered():
    """Run CuPy's work in a block between PyCUDA's earlier and later work.

    For functions that pass addresses themselves: `as_cupy` and `as_pycuda` with ``stream=-1``, or
    calls of a library on CuPy's current stream.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread.
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
    cdef Stream current = current_stream(shared_device())
    order(current, ALL_PYCUDA_STREAMS)
    try:
        yield
    finally:
        order(ALL_PYCUDA_STREAMS, current)
