# cython: auto_pickle=False
"""PyCUDA's streams that are alive, each with a record for the rule of `bridge.interop.ordering`.

When a stream ends, the default stream waits for it, and stands for it from then on.  The record is
removed after this wait is queued, and before CUDA destroys the stream.  ``__del__`` would be too
early: other finalizers run later and may queue work on the stream, or save it.  The place is the
deallocator of PyCUDA's class, which runs once, whatever ended the stream.

The default stream also stands for a stream that is captured by means of `as_cupy_stream`: it waits
for what was queued before, and after the capture the stream waits for it.

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
from types import SimpleNamespace

import cupy
import pycuda.driver as drv

from . import patches

from .streams import PYCUDA_STREAM

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


cdef object stream_init = drv.Stream.__init__


def init_and_remember(self, *args, **keywords):
    """Make a stream; it waits for the default stream, which CUDA does for blocking ones.

    The default stream may have waited for the last work on memory that is reused.
    """
    stream_init(self, *args, **keywords)
    cdef StreamRecord *record = remember(self)
    if record is not NULL and (default_waits_for_ended() or wait_for_default(record)):
        raise cannot_wait("pycuda.driver.Stream: a new stream")


cdef StreamRecord *remember(stream) except? NULL:
    """Return a stream's record; NULL if CUDA does not know the stream."""
    global first_record, stream_count, non_blocking_count
    cdef Stream handle = stream.handle  # from here on, nothing runs Python
    cdef Handle context = NULL
    cdef unsigned flags = NON_BLOCKING
    cdef StreamRecord *record = first_record
    while record is not NULL:
        if record.stream == <PyObject *> stream and record.handle == handle:
            return record
        record = record.next
    if cuStreamGetCtx(handle, &context):
        return NULL
    record = <StreamRecord *> calloc(1, sizeof(StreamRecord))
    if record is NULL:
        raise MemoryError
    record.stream, record.handle, record.context = <PyObject *> stream, handle, context
    if not is_capturing(handle):  # asking for its flags would then fail, and spoil the graph
        cuStreamGetFlags(handle, &flags)
    record.is_blocking = not flags & NON_BLOCKING
    record.next, first_record = first_record, record
    stream_count += 1
    non_blocking_count += not record.is_blocking
    return record


def count_streams():
    """Return how many PyCUDA streams the rule includes beside the default stream."""
    return stream_count


cdef int wait_for_default(StreamRecord *record) noexcept:
    """Let a stream wait for the default one; return CUDA's status."""
    cdef int status = 0
    cdef Handle current = cuda_current()
    if record.is_blocking or not is_set(record.context, current):
        return 0
    status = fence(record.handle, 0)
    is_set(current, record.context)
    return status


cdef inline bint is_set(Handle context, Handle current) noexcept:
    """Make a context current; False if it is gone, and its streams with it."""
    return context == current or cuCtxSetCurrent(context) == 0

# ---- what the default stream stands for ----------------------------------------------------------


cdef void end_stream(PyObject *stream) noexcept:
    """Let the default stream stand for a stream that ends; remove its records.

    There are two if the stream's ``__init__`` has run twice.
    """
    global stream_count, non_blocking_count
    cdef StreamRecord *record = NULL if abandoned else first_record
    while record is not NULL:
        if record.stream != stream:
            record = record.next
            continue
        stand_for(record)
        stream_count -= 1
        non_blocking_count -= not record.is_blocking
        remove(record)
        record = first_record


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
        ended.handle, ended.context = ENDED, record.context
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
        capture_of(0, &status)
        if status:
            return status
        record.is_taken = True  # it stays in the list, for others, until the wait is queued
        with nogil:
            cuStreamWaitEvent(0, record.event, 0)
        ended_count -= 1
        remove(record)
        record = first_record
    return 0


cdef int default_waits_for_blocking() noexcept:
    """Queue a wait on the default stream for each of PyCUDA's blocking streams."""
    cdef int status = 0
    cdef Handle context = cuda_current()
    cdef StreamRecord *record = first_record if stream_count > non_blocking_count else NULL
    while record is not NULL and not status:
        if record.is_blocking and record.context == context:
            record.pins += 1
            status = fence(0, record.handle)
            record.pins -= 1
        record = record.next
    return status

# ---- streams of PyCUDA for CuPy ------------------------------------------------------------------

HAS_FROM_EXTERNAL = hasattr(cupy.cuda.Stream, "from_external")  # since CuPy 14
CUPY_STREAM = cupy.cuda.Stream if HAS_FROM_EXTERNAL else cupy.cuda.ExternalStream


class PyCUDAStream(CUPY_STREAM):
    """A CuPy stream over a stream of PyCUDA; the default stream stands for it in a capture."""

    def begin_capture(self, *args, **keywords):
        cdef StreamRecord *record = remember(self.foreign)
        if record is NULL or is_capturing(record.handle):
            return super().begin_capture(*args, **keywords)
        stand_for(record)
        record.capture = ANY_CAPTURE
        try:
            super().begin_capture(*args, **keywords)
        finally:
            record.capture = capture_of(record.handle)

    def end_capture(self):
        cdef StreamRecord *record = remember(self.foreign)
        try:
            return super().end_capture()
        finally:
            if record is not NULL and not is_capturing(record.handle):
                record.capture = NO_CAPTURE
                if wait_for_default(record):
                    raise cannot_wait("end_capture: the stream")


def cannot_wait(subject):
    return ValueError(
        f"{subject} cannot wait for the default stream, since a blocking stream is being captured "
        "into a graph; make streams before a capture, and capture non-blocking ones"
    )


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
    call `wait_stream`.  Begin and end a capture of a PyCUDA stream on the result: then the default
    stream stands for it meanwhile, and other threads may go on converting.
    *Cost:* one CuPy object.
    """
    device_id = shared_device()
    handle = handle_of(stream, "as_cupy_stream", may_be_unordered=False)
    if isinstance(stream, CUPY_STREAMS):
        return stream
    if handle == 0:
        return cupy.cuda.Stream.null
    kind = PyCUDAStream if isinstance(stream, PYCUDA_STREAM) else CUPY_STREAM
    if HAS_FROM_EXTERNAL:
        result = kind.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, handle)))
    else:
        result = kind(handle, device_id)
    result.foreign = stream  # kept alive
    return result

# ---- at import -----------------------------------------------------------------------------------

# A subclass would miss the streams of programs that have imported the name, or made some, earlier.
patches.apply("streams", "work is ordered with all streams that are alive", drv.Stream, {
    "__init__": init_and_remember,
})
if end_streams_in_order(drv.Stream, &end_stream):
    raise ImportError("bridge: pycuda.driver.Stream has another layout than PyCUDA 2026.1's")
for one in gc.get_objects():  # a hundred thousand
    if is_stream(one):
        with suppress(TypeError):  # its __init__ has not run
            remember(one)
one = None
