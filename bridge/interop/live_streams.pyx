# cython: auto_pickle=False
"""Both libraries' streams that are alive, each with a record for `bridge.interop.ordering`.

A new stream waits for the default stream.  When a stream ends, the default stream waits for it, and
stands for it from then on.  The record is removed after this wait is queued, and before CUDA
destroys the stream.  For PyCUDA's, ``__del__`` would be too early: other finalizers run later and
may queue work on the stream, or save it.  The place is the deallocator of PyCUDA's class, which runs
once, whatever ended the stream.  CuPy destroys its streams in ``__del__``.

A record is of an object, and a handle may have several: PyCUDA's stream, and CuPy's over it.  The
default streams have none.  Four rules keep the list right:

- A record leaves the list only with the GIL held, and with no pins.
- Who releases the GIL pins the records that it reads again.
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
    end_records(<PyObject *> self, getattr(self, "_foreign_stream_ref", None) is None)
    cupy_del(self)


def end_external_stream(self):
    """Let the default stream stand for a stream whose object in CuPy ends."""
    end_records(<PyObject *> self, False)


cdef int begin_stream(stream, int library) except -1:
    """Record a stream that begins; return CUDA's status if it cannot wait for the default one."""
    cdef StreamRecord *record = remember(stream, library)
    if record is NULL or is_capturing(record.handle):
        return 0
    return default_waits_for_ended() or wait_for_default(record)


cdef StreamRecord *remember(stream, int library) except? NULL:
    """Return a stream's record; NULL for default streams, and if CUDA does not know the stream."""
    global first_record
    cdef Stream handle = stream.handle if library == PYCUDA else stream.ptr
    cdef Handle context = NULL  # from here on, nothing runs Python
    cdef StreamRecord *record = first_record
    cdef int state = 0
    while record is not NULL:
        if record.stream == <PyObject *> stream and record.handle == handle:
            return record
        record = record.next
    if handle <= PER_THREAD or cuStreamIsCapturing(handle, &state) or cuStreamGetCtx(handle, &context):
        return NULL
    record = <StreamRecord *> calloc(1, sizeof(StreamRecord))
    if record is NULL:
        raise MemoryError
    record.stream, record.handle, record.context = <PyObject *> stream, handle, context
    record.library = library
    record.is_blocking = not state and is_blocking(handle)  # asking would spoil a capture
    record.next, first_record = first_record, record
    count(record, 1)
    return record


cdef void count(StreamRecord *record, int change) noexcept:
    cdef Py_ssize_t *counts = &non_blocking_count[0]
    if record.is_blocking:
        counts = &blocking_count[0]
    counts[record.library] += change
    counts[BOTH] += change


cdef StreamRecord *record_of(Stream handle) noexcept:
    """Return a record of a stream of the current context; NULL if it is not known."""
    cdef StreamRecord *record = first_record
    cdef Handle context = cuda_current()
    while record is not NULL and (record.handle != handle or record.context != context):
        record = record.next
    return record


def count_streams():
    """Return how many objects of both libraries have a record."""
    return blocking_count[BOTH] + non_blocking_count[BOTH]


cdef int wait_for_default(StreamRecord *record) noexcept:
    """Let a stream wait for the default one; return CUDA's status.

    CUDA does so for the work of a blocking stream, but only after work on the default one: an event
    there, which stands for other blocking streams in a call, does not delay it.
    """
    cdef int status = 0
    cdef Handle current = cuda_current()
    if record.is_blocking and (blocking_count[BOTH] < 2 or not unnamed_calls):
        return 0
    if not is_set(record.context, current):
        return 0
    status = fence(record.handle, 0)
    is_set(current, record.context)
    return status


cdef inline bint is_set(Handle context, Handle current) noexcept:
    """Make a context current; False if it is gone, and its streams with it."""
    return context == current or cuCtxSetCurrent(context) == 0

# ---- what the default stream stands for ----------------------------------------------------------


cdef void end_stream(PyObject *stream) noexcept:
    """Let the default stream stand for a stream that is destroyed; remove its records."""
    end_records(stream, True)


cdef void end_records(PyObject *stream, bint is_destroyed) noexcept:
    """Remove an object's records, and others of a stream that is destroyed.

    An object has two if its ``__init__`` has run twice.
    """
    cdef StreamRecord *record = NULL if abandoned else first_record
    cdef Stream handle
    cdef Handle context
    while record is not NULL:
        if record.stream != stream:
            record = record.next
            continue
        handle, context = record.handle, record.context
        record.stream = NULL  # from here on, it is this thread's to remove
        record.pins += 1
        stand_for(record)
        record.pins -= 1
        end_record(record)
        record = first_record
        while is_destroyed and record is not NULL:
            if record.handle != handle or record.context != context:
                record = record.next
                continue
            if record.stream is NULL:  # another thread is at the same place with it
                with nogil:
                    sched_yield()
            else:
                end_record(record)
            record = first_record
        record = first_record


cdef void end_record(StreamRecord *record) noexcept:
    count(record, -1)
    remove(record)


cdef void remove(StreamRecord *record) noexcept:
    """Remove a record when nobody uses it any more."""
    global first_record
    cdef StreamRecord **place = &first_record
    while record.pins:
        with nogil:
            sched_yield()
    while place[0] != record:
        place = &place[0].next
    place[0] = record.next
    if record.event is not NULL:
        keep_event(record.event, device_of(record.context), 0)
    free(record)


cdef void stand_for(StreamRecord *record) noexcept:
    """Let the default stream wait for the work on a stream; if it cannot now, later."""
    global ended_count
    cdef Handle current = cuda_current()
    cdef StreamRecord *ended
    if is_capturing(record.handle) or not is_set(record.context, current):
        return  # its work is part of a graph, or the context is gone
    ended = <StreamRecord *> calloc(1, sizeof(StreamRecord))
    if ended is not NULL:
        ended.handle, ended.context, ended.library = ENDED, record.context, BOTH
        ended.event = take_event(device_of(record.context))
        with nogil:
            cuEventRecord(ended.event, record.handle)
        # Next to the other one: who is reading the list without the GIL meets one of the two.
        ended.next, record.next = record.next, ended
        ended_count += 1
        default_waits_for_ended()
    is_set(current, record.context)


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
        ended_count -= 1
        remove(record)
        record = first_record
    return 0


cdef void note_unnamed_call() noexcept:
    global unnamed_calls
    unnamed_calls += 1


cdef void note_capture(Stream handle, uint64_t capture) noexcept:
    """Note of a stream's records during which capture the default stream stands for it."""
    cdef StreamRecord *record = first_record
    while record is not NULL:
        if record.handle == handle:
            record.capture = capture
        record = record.next


def cannot_wait(subject):
    return (
        f"{subject} cannot wait for the default stream, since a blocking stream is being captured "
        "into a graph; make streams before a capture, and capture non-blocking ones"
    )

# ---- at import -----------------------------------------------------------------------------------

# Subclasses would miss the streams of programs that have imported the names, or made some, earlier.
why = "work is ordered with all streams that are alive"
patches.apply("streams", why, drv.Stream, {"__init__": init_pycuda_stream})
patches.apply("streams", why, BASE_STREAM, {
    "__init__": init_cupy_stream, "__del__": end_external_stream,
})
patches.apply("streams", why, cupy.cuda.Stream, {"__del__": end_cupy_stream})
if end_streams_in_order(drv.Stream, &end_stream):
    raise ImportError("bridge: pycuda.driver.Stream has another layout than PyCUDA 2026.1's")
for one in gc.get_objects():  # a hundred thousand
    with suppress(TypeError, AttributeError):  # its __init__ has not run
        if is_stream(one):
            remember(one, PYCUDA)
        elif issubclass(type(one), BASE_STREAM):
            remember(one, CUPY)
one = None
