# cython: auto_pickle=False
"""The ordering rule: which streams a call orders.

The rule
--------
What one library does has an effect on what the other does later in the program, whatever stream or
block it is under.  For this, a call without ``stream=`` orders all streams of one library before
all of the other:

``as_cupy(a)``: work queued on PyCUDA's streams runs before later work on CuPy's streams.

``as_pycuda(x)``: work queued on CuPy's streams runs before later work on PyCUDA's streams.

Before the other library uses the memory again, call the other function: ``as_pycuda(x)`` before
PyCUDA's next work, ``as_cupy(a)`` before CuPy's.  Or work on one stream, or use `wrap_pycuda`.
When a view is released, its memory is reused after the work on it.

``stream=s`` makes a program faster, never right: then only `s` and CuPy's current stream are
ordered, also when the view is released, unless a call without ``stream=`` came in between.
``stream=-1`` orders nothing.

How
---
The default stream is the hub.  It waits for each stream of the first library, and each of the
second waits for it.  CUDA orders it with blocking streams by itself: an event recorded on the
default stream comes after the work of all blocking streams, and their later work comes after a wait
on it.  (That it also comes after the event is not promised.)  So non-blocking streams need a fence
each, while they are alive: the default stream stands for those that have ended.  Blocking streams
need one only where both libraries have some.  The host never waits.

Captures
--------
A captured stream can be ordered only with streams of its capture, or CUDA invalidates the graph.  A
call whose current stream is captured orders the streams of that capture, with the current one as
hub.  Elsewhere, the default stream stands for a captured stream: it waits for the stream's earlier
work when the capture begins, and the stream waits for it at the end.  What a call cannot order
raises; what a release cannot order is kept until the capture ends.  A call adds to a graph only if
CuPy's current stream is in it; `wait_stream` lets any stream join.

Source: CUDA Programming Guide, "Implicit Synchronization", "Default Stream" and "Cross-stream
Dependencies and Events"; CUDA Driver API, cuStreamIsCapturing.
"""

from libc.stdint cimport uint64_t

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *
from bridge.interop.live_streams cimport *
from bridge.interop.streams cimport *

import cupy
from cupy.cuda import driver

from . import patches
from .cuda_status import failure
from .live_streams import cannot_wait
from ..errors import ContextError, warn

# ---- the rule ------------------------------------------------------------------------------------
#
# What a call orders, by what is being captured meanwhile.  0 is the default stream, s and t others,
# L all streams of one library or of both.  Either of a pair waits for the other.
#
# pair   nothing        s and t           one of s and t         another stream s'
# s t    both           both              raise; t joins the     both
#                                         capture of s, if this
#                                         thread captures
# s 0    both           -                 raise                  both; raise if s' is blocking
# s L    s 0 and s each s and L's of the  s each as in the row   s 0 and s each; raise if s' is
#                       same capture      above                  blocking (*)
# L L'   by a hub: CuPy's current stream if it is captured, else 0; each of both with it
# (*) 0 stands for s': it has waited for the earlier work of s', and s' will wait for it at the end
# of the capture.  If the bridge did not see it begin: raise.

kept_for_capture = []


cpdef Py_ssize_t release_kept_views() except -1:
    """Release what was kept until the end of a capture; return how many are kept again."""
    global kept_for_capture
    kept_for_capture = []  # the old list frees its views; those that cannot be ordered come back
    return len(kept_for_capture)


cpdef int order(Stream waiter, Stream awaited, bint joins=False) except -1:
    """Apply the rule: later work on `waiter` runs after the work queued on `awaited`.

    Either may be UNORDERED, or all streams of a library.  Other streams must be on the current
    device.  With `joins`, `waiter` may join any capture of `awaited`.
    """
    cdef int status
    if waiter == awaited or waiter == UNORDERED or awaited == UNORDERED:
        return 0
    if kept_for_capture:
        release_kept_views()
    if waiter == PER_THREAD or awaited == PER_THREAD:
        note_per_thread()
    if waiter < UNORDERED or awaited < UNORDERED:
        note_unnamed_call()
    status = order_streams(waiter, awaited, joins)
    if status:
        raise not_ordered(status, waiter, awaited)
    return 0


cdef int order_streams(Stream waiter, Stream awaited, bint joins=False) noexcept:
    """Order as `order` does; return CUDA's status."""
    cdef int of_waiter = libraries_of(waiter), of_awaited = libraries_of(awaited), wait, status
    if of_waiter and of_awaited:
        return order_libraries(of_waiter, of_awaited)
    if of_waiter:
        return order_library(of_waiter, awaited, True, False)
    if of_awaited:
        return order_library(of_awaited, waiter, False, False)
    wait = kind_of_wait(waiter, awaited, joins)
    if wait == REFUSED:
        return CAPTURE_ISOLATION
    if wait == JOINING:
        enter_capture(waiter)
    status = fence(waiter, awaited)
    if wait == JOINING:
        note_capture(waiter)
    return status


cdef int libraries_of(Stream side) noexcept:
    """Return whose streams a side is, all of them; 0 if it is one stream."""
    return UNORDERED - side if side < UNORDERED else 0  # as the two enumerations are numbered


cdef int kind_of_wait(Stream waiter, Stream awaited, bint joins) noexcept:
    """Tell what a wait does to captures: invalidating a graph, or drawing in others, is refused."""
    cdef uint64_t of_waiter = capture_of(waiter) if waiter else NO_CAPTURE
    cdef uint64_t of_awaited = capture_of(awaited) if awaited else NO_CAPTURE
    if of_waiter == of_awaited:
        return USUAL
    # Without `joins`, only the capture of this thread's current stream may be joined.
    joins = joins or of_awaited == capture_of(current_stream(device_of(cuda_current())))
    return JOINING if joins and waiter and not of_waiter else REFUSED


cdef int order_libraries(int waiting, int awaited) noexcept:
    """Order all streams of libraries after all streams of others; return CUDA's status.

    The hub is the default stream, or CuPy's current one if it is being captured.
    """
    cdef Stream current = current_stream(device_of(cuda_current())), hub = 0
    if current == PER_THREAD:
        note_per_thread()
    if is_capturing(current):
        hub = current
    elif not (non_blocking_count[waiting | awaited] or ended_count or per_thread_is_used) and not (
        blocking_count[waiting] and blocking_count[awaited]
    ):
        return 0  # CUDA orders the default stream with the blocking ones
    # CUDA promises to delay a blocking stream after work on the default one, and is silent about
    # events.  A thread's own stream has no record: for it, the default stream waits for each.
    return order_library(awaited, hub, False, per_thread_is_used) or order_library(
        waiting, hub, True, per_thread_is_used or blocking_count[awaited] > 0
    )


cdef int order_library(
    int libraries, Stream other, bint library_waits, bint with_blocking
) noexcept:
    """Order a stream before or after all streams of libraries; return CUDA's status.

    A stream may end or begin meanwhile, on another thread.  The default stream then has waited for
    it, or is waited for.  So its fence is the last one if `other` waits, otherwise the first.
    """
    cdef int status
    cdef uint64_t capture = capture_of(other, &status)
    cdef bint has_default = other and capture == NO_CAPTURE
    if has_default and library_waits and not status:
        status = fence(0, other)
    if not status and (
        non_blocking_count[libraries] or ended_count
        or ((capture or with_blocking) and blocking_count[libraries])
    ):
        status = order_with_each(libraries, other, capture, library_waits, with_blocking)
    if has_default and not library_waits and not status:
        status = fence(other, 0)
    return status


cdef int order_with_each(
    int libraries, Stream other, uint64_t capture, bint library_waits, bint with_blocking
) noexcept:
    """Order a stream, in a capture or none, with those that the default one does not stand for."""
    cdef Handle context = cuda_current()
    cdef int index, count, answer, status = 0, device_id = device_of(context)
    cdef Handle event = take_event(device_id)
    cdef StreamRecord *record
    cdef StreamRecord *pinned[8]  # they stay in the list, which others change meanwhile
    cdef bint is_queued[8]
    if library_waits:
        with nogil:
            status = cuEventRecord(event, other)
    record = first_record
    while record is not NULL:
        count = 0
        while record is not NULL and count < 8:
            if record.context == context and record.handle != other and (
                record.library & libraries
            ) and (capture or with_blocking or not record.is_blocking):
                record.pins += 1
                pinned[count] = record
                count += 1
            record = record.next
        with nogil:
            for index in range(count):
                answer = status or order_with_one(
                    pinned[index], other, capture, event, library_waits
                )
                is_queued[index] = answer == 0
                status = 0 if answer == NOT_NEEDED else answer
        for index in range(count if is_traced else 0):
            if is_queued[index] and library_waits:
                note_wait(pinned[index].handle, other)
            elif is_queued[index]:
                note_wait(other, pinned[index].handle)
        record = pinned[7].next if count == 8 else NULL
        for index in range(count):
            pinned[index].pins -= 1
    return keep_event(event, device_id, status)


cdef int order_with_one(
    StreamRecord *record, Stream other, uint64_t capture, Handle event, bint library_waits
) noexcept nogil:
    """Queue a wait; return CUDA's status, or NOT_NEEDED."""
    cdef int status = 0
    cdef uint64_t found
    if record.handle == ENDED:
        return NOT_NEEDED if library_waits or capture else cuStreamWaitEvent(other, record.event, 0)
    found = capture_of(record.handle, &status)
    if status:
        return NOT_NEEDED  # another library has destroyed it
    if found != capture:
        if capture or record.capture == found or record.capture == <uint64_t> ANY_CAPTURE:
            return NOT_NEEDED  # it is not of this capture, or the default stream stands for it
        return CAPTURE_ISOLATION
    if not library_waits:  # if a capture begins now, the wait fails
        status = cuEventRecord(event, record.handle)
    return status or cuStreamWaitEvent(record.handle if library_waits else other, event, 0)


cdef int order_reuse(Stream owner) except -1:
    """Order the last work on a block from CuPy's pool before later work on PyCUDA's streams.

    The block's owner, the default stream or the thread's, comes after PyCUDA's work on it.  PyCUDA's
    blocking streams need its event, which stands for other blocking streams and for the thread's.
    """
    cdef int status
    if not unnamed_calls:  # from now on, a new stream waits for the default one
        note_unnamed_call()
    status = order_library(CUPY, owner, False, False) or order_library(
        PYCUDA, owner, True, per_thread_is_used or blocking_count[BOTH] > 1
    )
    if status:
        raise not_ordered(status, ALL_PYCUDA_STREAMS, owner)
    return 0


cdef int order_release(Stream waiter, Stream awaited) noexcept:
    """Order the streams of a view that is released; return CUDA's status.

    Of a view for one stream, the stream that CuPy worked on waits, and the default one, for which
    CuPy's pool may have the block.  The default one also stands for streams that have ended.  Where
    a capture is in the way, return an error of captures: the memory stays until the graph is whole.
    """
    cdef Stream current = current_stream(device_of(cuda_current()))
    cdef bint is_wide = libraries_of(awaited) != 0
    cdef int status
    if awaited == UNORDERED:
        return 0
    if not is_wide and record_of(waiter) is NULL:
        waiter = 0
    if is_capturing(current) or (not is_wide and (is_capturing(awaited) or is_capturing(waiter))):
        return CAPTURE_ISOLATION
    if is_wide:  # the block of a thread's default stream may be used again on another's
        status = order_streams(waiter, awaited)
        return status or (fence(0, PER_THREAD) if waiter == PER_THREAD else 0)
    status = fence(0, awaited) if awaited else 0
    return status or (fence(waiter, awaited) if waiter else 0)


cdef dict SIDES = {
    ALL_PYCUDA_STREAMS: "PyCUDA's streams", ALL_CUPY_STREAMS: "CuPy's streams",
    ALL_STREAMS: "all streams",
}


def not_ordered(int status, Stream waiter, Stream awaited):
    """Return the error for a status of `order`."""
    names = [SIDES.get(handle) or name_of(handle) for handle in (waiter, awaited)]
    if status == CAPTURE_ISOLATION and {waiter, awaited} & {*SIDES}:
        return ValueError(
            f"{names[0]} cannot wait for {names[1]}, since one of them is being captured into a "
            "graph, and the bridge did not see it begin; name the stream of the work by stream=, or "
            "begin and end captures by methods of CuPy's streams, also of what "
            "bridge.as_cupy_stream returns, and let others join by bridge.wait_stream; after an "
            "error in a capture, end it"
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
    both = [handle for handle in (waiter, awaited) if handle >= 0]
    unknown = [handle for handle in both if device_of_stream(handle)[0]] or both
    found = " or ".join([f"0x{handle:x}" for handle in unknown])
    return ValueError(
        f"stream {found} is unknown to CUDA; a stream of a device's primary context that has not "
        f"been destroyed is accepted ({error})"
    )

# ---- captures ------------------------------------------------------------------------------------

BASE_STREAM = cupy.cuda.Stream.__base__
cdef object cupy_begin_capture = BASE_STREAM.begin_capture
cdef object cupy_end_capture = BASE_STREAM.end_capture


def begin_capture(self, *args, **keywords):
    """Begin a capture; the default stream waits for the stream's earlier work, and stands for it."""
    cdef Stream handle = self.ptr
    enter_capture(handle)
    try:
        cupy_begin_capture(self, *args, **keywords)
    finally:
        note_capture(handle)


def end_capture(self):
    """End a capture; its streams wait for the default one, and views kept for it are released."""
    cdef Stream handle = self.ptr
    cdef StreamRecord *record = record_of(handle)
    cdef uint64_t capture = NO_CAPTURE if record is NULL else record.capture
    cdef int status = 0
    try:
        return cupy_end_capture(self)
    finally:
        record = first_record if capture and not is_capturing(handle) else NULL
        while record is not NULL:
            if record.capture == capture:
                status = wait_for_default(record) or status
            record = record.next
        release_kept_views()
        if status:
            warn(cannot_wait("end_capture: the stream"))


cdef void enter_capture(Stream handle) noexcept:
    """Let the default stream stand for a stream, before it becomes part of a capture."""
    cdef StreamRecord *record = record_of(handle)
    if record is not NULL:
        default_waits_for(record)
    record = record_of(handle)
    if record is not NULL:
        record.capture = <uint64_t> ANY_CAPTURE


cdef void note_capture(Stream handle) noexcept:
    """Note during which capture the default stream stands for a stream."""
    cdef StreamRecord *record = record_of(handle)
    if record is not NULL:
        record.capture = capture_of(handle)


patches.apply("streams", "the default stream stands for a stream that is captured", BASE_STREAM, {
    "begin_capture": begin_capture, "end_capture": end_capture,
})
