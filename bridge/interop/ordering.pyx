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
each: `followed` has those that are alive.  If CuPy's current stream is the default stream, CUDA
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

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc

from bridge.interop.contexts cimport *
from bridge.interop.streams cimport *

import gc
from contextlib import suppress
from functools import wraps
from types import SimpleNamespace

import cupy
import pycuda.driver as drv
from cupy.cuda import driver, runtime

from .contexts import Scope, failure
from ..errors import ContextError
from .streams import PYCUDA_STREAM

cdef enum:
    INVALID_HANDLE = 400  # CUDA_ERROR_INVALID_HANDLE
    OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
    OUTSIDE_OF_CAPTURE = -1  # ours: a captured stream cannot wait for one that is not captured

# ---- PyCUDA's streams ----------------------------------------------------------------------------

cdef struct Followed:
    PyObject *stream  # borrowed: `unfollow` removes it before it is freed
    Stream handle
    Handle context
    bint is_blocking

cdef Followed *followed = NULL  # those that are alive
cdef Py_ssize_t followed_count = 0, followed_room = 0
cdef Py_ssize_t non_blocking_count = 0
cdef object stream_init = drv.Stream.__init__


cdef Followed *follow(stream) except? NULL:
    """Let the rule include a PyCUDA stream."""
    global followed, followed_count, followed_room, non_blocking_count
    cdef Followed *found
    cdef Handle context = NULL
    cdef Stream handle = stream.handle
    cdef Py_ssize_t room = 2 * followed_room + 8
    if followed_count == followed_room:
        found = <Followed *> realloc(followed, room * sizeof(Followed))
        if found is NULL:
            raise MemoryError
        followed, followed_room = found, room
    follow_to_its_end(type(stream))
    found = &followed[followed_count]
    if cuStreamGetCtx(handle, &context):
        return NULL
    found.stream, found.handle, found.context = <PyObject *> stream, handle, context
    found.is_blocking = not is_non_blocking(handle)
    followed_count += 1
    non_blocking_count += not found.is_blocking
    return found


cdef int follow_to_its_end(kind) except -1:
    """Let a subclass that has a ``__del__`` of its own call `unfollow`, too."""
    own = kind.__del__
    if own is not unfollow and not hasattr(own, "bridge_unfollows"):

        @wraps(own)
        def end(self):
            try:
                own(self)
            finally:
                unfollow(self)

        end.bridge_unfollows = True
        kind.__del__ = end
    return 0


cdef bint forget(stream, Followed *found) noexcept:
    """Remove a stream's record, and return it in `found`; False if there is none."""
    global followed_count, non_blocking_count
    cdef Py_ssize_t index
    for index in range(followed_count - 1, -1, -1):  # the newest is likely
        if followed[index].stream == <PyObject *> stream:
            found[0] = followed[index]
            followed_count -= 1
            followed[index] = followed[followed_count]
            non_blocking_count -= not found.is_blocking
            return True
    return False


def count_followed():
    """Return how many PyCUDA streams the rule includes beside the default stream."""
    return followed_count


cdef bint default_is_usable(Handle context) noexcept:
    """Tell whether work may be queued on a context's default stream, if it is current."""
    cdef int status
    capture_of(0, &status)
    return not status and cuda_current() == context


def init_and_follow(self, *args, **keywords):
    """Make a stream; a non-blocking one waits for the default stream, as blocking ones do.

    The default stream may have waited for the last work on memory that is reused.
    """
    stream_init(self, *args, **keywords)
    cdef Followed *found = follow(self)
    if found is not NULL and not found.is_blocking and default_is_usable(found.context):
        fence(found.handle, 0)


def unfollow(self):
    """Let the default stream wait for the work of a stream that ends."""
    cdef Followed found
    cdef Handle current = cuda_current()
    if not forget(self, &found) or abandoned or device_of(found.context) < 0:
        return
    cuCtxSetCurrent(found.context)
    if default_is_usable(found.context) and not is_capturing(found.handle):
        fence(0, found.handle)
    cuCtxSetCurrent(current)


# A subclass would miss the streams of programs that have imported the name, or made some, earlier.
drv.Stream.__init__, drv.Stream.__del__ = init_and_follow, unfollow
for one in gc.get_objects():
    if issubclass(type(one), drv.Stream):
        with suppress(TypeError):  # its __init__ has not run
            follow(one)
one = None


cdef Followed *take_followed(bint blocking, Py_ssize_t *count) noexcept:
    """Return copies of the records of one kind, of the current context; NULL if memory is out.

    The streams stay alive: CUDA crashes for destroyed ones.
    """
    cdef Handle context = cuda_current()
    cdef Py_ssize_t index
    cdef Followed *found = <Followed *> malloc((followed_count + 1) * sizeof(Followed))
    count[0] = 0
    for index in range(followed_count if found is not NULL else 0):
        if followed[index].is_blocking == blocking and followed[index].context == context:
            found[count[0]] = followed[index]
            Py_INCREF(<object> followed[index].stream)
            count[0] += 1
    return found


cdef void drop_followed(Followed *found, Py_ssize_t count) noexcept:
    cdef Py_ssize_t index
    for index in range(count):
        Py_DECREF(<object> found[index].stream)
    free(found)

# ---- the rule ------------------------------------------------------------------------------------


cpdef int order(Stream waiter, Stream awaited) except -1:
    """Apply the rule: later work on `waiter` runs after the work queued on `awaited`.

    Either may be PYCUDA, or UNORDERED.  Other streams must be on the current device.
    """
    cdef int status = 0
    if waiter == awaited or waiter == UNORDERED or awaited == UNORDERED:
        return 0
    if waiting and not (waiter > 0 and is_capturing(waiter)) and not (
        awaited > 0 and is_capturing(awaited)
    ):
        end_waiting()
    if waiter == PYCUDA:
        status = order_pycuda(awaited, True)
    elif awaited == PYCUDA:
        status = order_pycuda(waiter, False)
    elif waiter and awaited:
        # CUDA would invalidate the graph.
        is_outside = is_capturing(waiter) and not is_capturing(awaited)
        status = OUTSIDE_OF_CAPTURE if is_outside else fence(waiter, awaited)
    elif not is_capturing(waiter or awaited):
        status = order_default(waiter or awaited, waiter == 0)
    if status:
        raise not_ordered(status, waiter, awaited)
    return 0


cdef int order_default(Stream other, bint default_waits) noexcept:
    """Order a stream before or after the default stream, and so all blocking streams."""
    cdef int status
    capture_of(0, &status)
    if status == CAPTURE_IMPLICIT and not is_non_blocking(other):
        return 0  # CUDA's implicit order remains
    if status:
        return status
    return fence(0, other) if default_waits else fence(other, 0)


cdef int order_pycuda(Stream other, bint pycuda_waits, bint is_release=False) noexcept:
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
        status = order_default(other, pycuda_waits)
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
    give_back(event, device_id, status)
    drop_followed(streams, count)
    return status


cdef int order_reuse() except -1:
    """Let any PyCUDA stream use a block that CuPy's pool had for the default stream.

    The block's last user may be a blocking stream.  CUDA lets others wait for it if the default
    stream does.
    """
    if status := default_waits_for_blocking():
        raise not_ordered(status, 0, PYCUDA)
    return order(PYCUDA, 0)


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


cdef bint needs_order(Stream owner, Stream user) noexcept:
    """Tell whether the owner's pool must wait for `user` when a view is released."""
    if user == UNORDERED or owner == UNORDERED:
        return False
    if user == PYCUDA or owner == PYCUDA:
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
    cdef uint64_t of_owner = NO_CAPTURE, of_user = NO_CAPTURE
    cdef bint of_thread
    if owner > 0:
        of_owner = capture_of(owner)
    if user > 0:
        of_user = capture_of(user)
    if of_owner or of_user:
        if owner == PYCUDA:  # within the graph
            order_pycuda(user, True)
        elif user == PYCUDA:
            order_pycuda(owner, False)
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
    if owner == PYCUDA:
        return order_pycuda(user, True, True)
    if user == PYCUDA:
        if of_thread:
            status = default_waits_for_blocking()
        if not status:
            status = order_pycuda(0, False, True)
        user = 0
    elif user:
        status = fence(0, user)
    if owner and not status:
        status = fence(owner, user)
    return status


def not_ordered(int status, Stream waiter, Stream awaited):
    """Return the error for a status of `order`."""
    names = [
        "PyCUDA's streams" if handle == PYCUDA else f"stream 0x{handle:x}"
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
    both = [handle for handle in (waiter, awaited) if handle != PYCUDA]
    unknown = [handle for handle in both if device_of_stream(handle)[0]] or both
    found = " or ".join([f"0x{handle:x}" for handle in unknown])
    return ValueError(
        f"stream {found} is unknown to CUDA; a stream of a device's primary context that has not "
        f"been destroyed is accepted ({error})"
    )

# ---- public functions ----------------------------------------------------------------------------


def seconds_between(begin, end):
    """Wait for the second of two CuPy events; return the seconds between them."""
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3


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
    device_id = current_device()
    first = handle_anywhere(waiter, "wait_stream: waiter")
    second = handle_anywhere(awaited, "wait_stream: awaited")
    # CUDA would invalidate the graph.  The default stream cannot take part in a capture.
    leaves_capture = is_capturing(first) and not is_capturing(second)
    if leaves_capture or (first == 0 and is_capturing(second)):
        raise not_ordered(OUTSIDE_OF_CAPTURE, first, second)
    found = [device_of_stream(handle)[1] for handle in (first, second)]
    here, there = [device_id if device < 0 else device for device in found]
    if here == there == device_id:
        order(first, second)
        return
    try:
        with Scope(there):  # an event can only be recorded on its own device
            event = cupy.cuda.Event(disable_timing=True)
            runtime.eventRecord(event.ptr, second)
        runtime.streamWaitEvent(first, event.ptr)
    except runtime.CUDARuntimeError as error:
        raise not_ordered(error.status, first, second) from error


def as_cupy_stream(stream, /):
    """Return a CuPy stream over a stream of PyCUDA or of any other library.

    To run CuPy on it, write ``with as_cupy_stream(s):``.  With a PyCUDA stream, CuPy's operations
    and launches ``f(..., stream=s)`` then run in order without fences.  Both can be captured into
    one CUDA graph.

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
    *Ownership:* the result keeps `stream` alive.
    *Ordering:* none, also on entering and leaving a block.  For earlier work on another stream,
    call `wait_stream`. *Cost:* one CuPy object.
    """
    device_id = current_device()
    handle = handle_of(stream, "as_cupy_stream", may_be_unordered=False)
    if isinstance(stream, CUPY_STREAMS):
        return stream
    if handle == 0:
        return cupy.cuda.Stream.null
    if hasattr(cupy.cuda.Stream, "from_external"):
        found = SimpleNamespace(__cuda_stream__=lambda: (0, handle))
        result = cupy.cuda.Stream.from_external(found)
    else:  # CuPy 13
        result = cupy.cuda.ExternalStream(handle, device_id)
    result.foreign = stream  # kept alive
    return result


def pycuda_stream_of(stream):
    """Return the ``pycuda.driver.Stream`` that `stream` is or wraps; None if there is none."""
    found = getattr(stream, "foreign", stream)
    return found if isinstance(found, PYCUDA_STREAM) else None
