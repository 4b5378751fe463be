# cython: auto_pickle=False
"""Both libraries' streams that are alive, each with a record for `bridge.interop.ordering`.

A new stream waits for the default stream.  When a stream ends, the default stream waits for it, and
stands for it from then on.  The record is removed after this wait is queued, and before CUDA
destroys the stream.  For PyCUDA's, ``__del__`` would be too early: other finalizers run later and
may queue work on the stream, or save it.  The place is the deallocator of PyCUDA's class, which runs
once, whatever ended the stream.  CuPy destroys its streams in ``__del__``.

A record is of a stream, which may have objects of both libraries; it is of each library that has had
one.  It ends with the last object, or with the one that destroys the stream.  The default streams
have no records.  Four rules keep the list right:

- A record leaves the list only with the GIL held, and with no pins.
- Who releases the GIL pins the records that it reads again, or looks for them again.
- From when a stream ends until the default stream has waited for it, one of two neighbours is in
  the list: the stream's record, or that of its last work.
- `ended_count` falls only after the wait is queued.

Source: CPython, ``subtype_dealloc`` (Objects/typeobject.c), which calls the deallocator of the
nearest base that has one of its own; Boost.Python, ``instance_dealloc`` (object/class.cpp).
"""

from cpython.ref cimport PyObject
from libc.stdlib cimport calloc, free

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *
from bridge.interop.streams cimport *

import gc
import os
from contextlib import suppress

import cupy
import pycuda.driver as drv

from . import patches
from ..errors import warn

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from *:
    """
    static PyTypeObject *stream_type;
    static void (*end_stream_of)(PyObject *);

    /* For an instance of a subclass, subtype_dealloc has called the finalizer. */
    static void dealloc_stream(PyObject *self) {
        PyTypeObject *type = Py_TYPE(self);
        PyObject_GC_UnTrack(self);
        if (type == stream_type && type->tp_finalize) {
            PyObject_GC_Track(self);
            if (PyObject_CallFinalizerFromDealloc(self) < 0)
                return;  /* it was saved */
            PyObject_GC_UnTrack(self);
        }
        end_stream_of(self);
        stream_type->tp_base->tp_dealloc(self);  /* destroys the stream, frees the object */
        Py_DECREF(type);
    }

    static int end_streams_in_order(PyObject *type, void (*end)(PyObject *)) {
        stream_type = (PyTypeObject *) type;
        end_stream_of = end;
        if (!PyType_IS_GC(stream_type) || stream_type->tp_base->tp_flags & Py_TPFLAGS_HEAPTYPE)
            return -1;
        stream_type->tp_dealloc = dealloc_stream;
        return 0;
    }

    static int is_stream(PyObject *one) {
        return PyObject_TypeCheck(one, stream_type);
    }
    """
    int end_streams_in_order(object kind, void (*end)(PyObject *) noexcept)
    bint is_stream(object)


per_thread_is_used = os.environ.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM") == "1"

# Of CuPy's classes, the one whose `__init__` also `from_external` and `ExternalStream` call.
BASE_STREAM = cupy.cuda.Stream.__base__
cdef object pycuda_init = drv.Stream.__init__
cdef object cupy_init = BASE_STREAM.__init__, cupy_del = cupy.cuda.Stream.__del__


def init_pycuda_stream(self, *args, **keywords):
    """Make a stream; it waits for the default stream, which CUDA does for blocking ones.

    The default stream may have waited for the last work on memory that is reused.
    """
    pycuda_init(self, *args, **keywords)
    if begin_stream(self, PYCUDA):
        raise ValueError(cannot_wait("pycuda.driver.Stream: a new stream"))


def init_cupy_stream(self, *args, **keywords):
    """Make a stream, or an object for one; it waits for the default stream."""
    cupy_init(self, *args, **keywords)
    if begin_stream(self, CUPY):
        warn(cannot_wait("a new stream of CuPy's"))


def end_cupy_stream(self):
    """Let the default stream stand for a stream, then destroy it, unless it is another library's."""
    end_object(self, getattr(self, "_foreign_stream_ref", None) is None)
    cupy_del(self)


def end_external_stream(self):
    """Let the default stream stand for a stream whose last object ends."""
    end_object(self, False)


cdef int begin_stream(stream, int library) except -1:
    """Record a stream that begins; return CUDA's status if it cannot wait for the default one."""
    cdef StreamRecord *record = remember(stream, library)
    if record is NULL or is_capturing(record.handle):
        return 0
    return default_waits_for_ended() or wait_for_default(record)


cdef StreamRecord *remember(stream, int library) except? NULL:
    """Record a stream's object; return the record if the stream may be new, otherwise NULL.

    Another library's may have been destroyed, and its handle given again: only PyCUDA's are known.
    """
    global first_record, record_count
    cdef Stream handle = stream.handle if library == PYCUDA else stream.ptr
    cdef Handle context = NULL
    cdef StreamRecord *record
    cdef int state = 0
    cdef bint is_known
    if handle <= PER_THREAD or cuStreamIsCapturing(handle, &state) or cuStreamGetCtx(handle, &context):
        return NULL
    record = record_of(handle)
    if record is NULL:
        record = <StreamRecord *> calloc(1, sizeof(StreamRecord))
        if record is NULL:
            raise MemoryError
        record_count += 1
        record.number, record.handle = record_count, handle
        record.next, first_record = first_record, record
    count(record, -1)
    record.context = context
    is_known = record.pycuda is not NULL and record.library & library
    if not state:  # asking would spoil a capture
        record.is_blocking = is_blocking(handle)
    record.library |= library
    record.objects += 1
    count(record, 1)
    if library == PYCUDA:
        record.pycuda = <PyObject *> stream
    else:
        stream._bridge_record = record.number
    return NULL if is_known else record


cdef void count(StreamRecord *record, int change) noexcept:
    cdef Py_ssize_t *counts = &non_blocking_count[0]
    if record.is_blocking:
        counts = &blocking_count[0]
    counts[PYCUDA] += change * (record.library & PYCUDA != 0)
    counts[CUPY] += change * (record.library & CUPY != 0)
    counts[BOTH] += change * (record.library != 0)


cdef StreamRecord *record_of(Stream handle) noexcept:
    """Return the record of a stream; NULL: it is not known."""
    cdef StreamRecord *record = first_record
    while record is not NULL and record.handle != handle:
        record = record.next
    return record


def count_streams():
    """Return how many streams have a record."""
    return blocking_count[BOTH] + non_blocking_count[BOTH]


cdef str name_of(Stream handle):
    """Return what a stream is called in messages."""
    if 0 <= handle <= PER_THREAD:
        return "the thread's default stream" if handle == PER_THREAD else "the default stream"
    if handle == ENDED:
        return "a stream that has ended"
    cdef StreamRecord *record = record_of(handle)
    whose = {PYCUDA: "PyCUDA's ", CUPY: "CuPy's ", BOTH: "both libraries' "}
    return f"{'' if record is NULL else whose[record.library]}stream 0x{handle:x}"


cdef int wait_for_default(StreamRecord *record) noexcept:
    """Let a stream wait for the default one; return CUDA's status.

    CUDA does so for the work of a blocking stream after work on the default one.  It does not promise
    to do so after an event there, which stands for other blocking streams in a call.
    """
    cdef int status = 0
    cdef Handle current = cuda_current()
    if record.is_blocking and not per_thread_is_used and (
        blocking_count[BOTH] < 2 or not unnamed_calls
    ):
        return 0
    if not is_set(record.context, current):
        return 0
    record.pins += 1
    status = fence(record.handle, 0)
    record.pins -= 1
    is_set(current, record.context)
    return status


cdef inline bint is_set(Handle context, Handle current) noexcept:
    """Make a context current; False if it is gone, and its streams with it."""
    return context == current or cuCtxSetCurrent(context) == 0

# ---- what the default stream stands for ----------------------------------------------------------


cdef void end_pycuda_stream(PyObject *stream) noexcept:
    """End the record of PyCUDA's object; it has two if its ``__init__`` has run twice."""
    cdef StreamRecord *record = NULL if abandoned else first_record
    while record is not NULL:
        if record.pycuda == stream:
            end_record(record, True)
            record = first_record
        else:
            record = record.next


cdef int end_object(stream, bint is_destroyed) except -1:
    """End an object of CuPy's; with the last one, or if the stream is destroyed, its record."""
    cdef StreamRecord *record = NULL if abandoned else record_numbered(
        getattr(stream, "_bridge_record", 0)
    )
    if record is not NULL:
        record.objects -= 1
        if is_destroyed or not record.objects:
            end_record(record, is_destroyed)
    return 0


cdef StreamRecord *record_numbered(uint64_t number) noexcept:
    cdef StreamRecord *record = first_record
    while record is not NULL and (record.number != number or not number):
        record = record.next
    return record


cdef void end_record(StreamRecord *record, bint is_destroyed) noexcept:
    """Let the default stream stand for a stream, and remove its record when nobody uses it.

    Meanwhile, another thread may do the same, or begin an object for a stream that goes on.
    """
    cdef uint64_t number = record.number
    default_waits_for(record)
    while True:
        record = record_numbered(number)
        if record is NULL or (record.objects and not is_destroyed):
            return
        if not record.pins:
            break
        with nogil:
            sched_yield()
    count(record, -1)
    remove(record)


cdef void remove(StreamRecord *record) noexcept:
    global first_record
    cdef StreamRecord **place = &first_record
    while place[0] != record:
        place = &place[0].next
    place[0] = record.next
    free(record)


cdef void default_waits_for(StreamRecord *record) noexcept:
    """Let the default stream wait for the work on a stream; if it cannot now, later."""
    global ended_count
    cdef Handle current = cuda_current(), context = record.context
    cdef StreamRecord *ended
    if is_capturing(record.handle) or not is_set(context, current):
        return  # its work is part of a graph, or the context is gone
    ended = <StreamRecord *> calloc(1, sizeof(StreamRecord))
    if ended is not NULL:
        ended.handle, ended.context, ended.library = ENDED, context, BOTH
        ended.event = take_event(device_of(context))
        record.pins += 1
        with nogil:
            cuEventRecord(ended.event, record.handle)
        record.pins -= 1
        # Next to the other one: who is reading the list without the GIL meets one of the two.
        ended.next, record.next = record.next, ended
        ended_count += 1
        default_waits_for_ended()
    is_set(current, context)


cdef int default_waits_for_ended() noexcept:
    """Let the current context's default stream wait for streams that have ended.

    Return CAPTURE_IMPLICIT if it cannot, because a blocking stream is being captured.
    """
    global ended_count
    cdef Handle context = cuda_current()
    cdef StreamRecord *record = first_record if ended_count else NULL
    cdef int status
    while record is not NULL:
        if record.handle != ENDED or record.context != context or record.is_taken:
            record = record.next
            continue
        record.is_taken = True  # it stays in the list, for others, until the wait is queued
        capture_of(0, &status)
        if status:
            record.is_taken = False
            return status
        with nogil:
            cuStreamWaitEvent(0, record.event, 0)
        if is_traced:
            note_wait(0, ENDED)
        ended_count -= 1
        while record.pins:
            with nogil:
                sched_yield()
        keep_event(record.event, device_of(context), 0)
        remove(record)
        record = first_record
    return 0


cdef void note_per_thread() noexcept:
    global per_thread_is_used
    per_thread_is_used = True


cdef void note_unnamed_call() noexcept:
    global unnamed_calls
    unnamed_calls += 1


def cannot_wait(subject):
    return (
        f"{subject} cannot wait for the default stream, since a blocking stream is being captured "
        "into a graph; make streams before a capture, and capture non-blocking ones"
    )

name_of_stream = &name_of

# ---- at import -----------------------------------------------------------------------------------

# Subclasses would miss the streams of programs that have imported the names, or made some, earlier.
why = "work is ordered with all streams that are alive"
patches.apply("streams", why, drv.Stream, {"__init__": init_pycuda_stream})
patches.apply("streams", why, BASE_STREAM, {
    "__init__": init_cupy_stream, "__del__": end_external_stream,
})
patches.apply("streams", why, cupy.cuda.Stream, {"__del__": end_cupy_stream})
if end_streams_in_order(drv.Stream, &end_pycuda_stream):
    raise ImportError("bridge: pycuda.driver.Stream has another layout than PyCUDA 2026.1's")
for one in gc.get_objects():  # a hundred thousand
    with suppress(TypeError, AttributeError):  # its __init__ has not run
        if is_stream(one):
            remember(one, PYCUDA)
        elif issubclass(type(one), BASE_STREAM):
            remember(one, CUPY)
one = None
