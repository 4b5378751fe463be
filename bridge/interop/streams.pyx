# cython: auto_pickle=False
"""Streams: handles of any library's, captures, and fences between two of them.

`bridge.interop.ordering` has the rule that says which streams are ordered.

Source: CUDA Driver API, "Stream Management"; cuda.core, ``__cuda_stream__``.
"""

from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport intptr_t, uint64_t

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *

from operator import index

import cupy
import pycuda.driver as drv
from cupy_backends.cuda import stream as cupy_backend

from ..errors import ContextError, kind, named

# ---- handles -------------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <frameobject.h>  /* Python 3.10 */

    /* Append code and line of each frame of this thread, the innermost first. */
    static void append_frames(PyObject *list) {
        PyFrameObject *frame = PyEval_GetFrame(), *back;
        Py_XINCREF(frame);
        for (; frame; frame = back) {
            int line = PyFrame_GetLineNumber(frame);
            PyObject *pair = Py_BuildValue("Ni", PyFrame_GetCode(frame), line);
            if (pair)
                PyList_Append(list, pair);
            Py_XDECREF(pair);
            back = PyFrame_GetBack(frame);
            Py_DECREF(frame);
        }
    }
    """
    bint PyGC_Disable()
    void PyGC_Enable()
    void append_frames(list)

PYCUDA_STREAM = drv.Stream
cdef tuple CUPY_STREAMS = (cupy.cuda.Stream, cupy.cuda.ExternalStream)
cdef str ACCEPTED = (
    "None, a pycuda.driver.Stream, a cupy.cuda.Stream or an object whose __cuda_stream__() returns "
    "(0, handle) is accepted"
)

# CuPy's C function for the handle: cupy.cuda.get_current_stream() takes 0.08 us more.
cdef Stream (*on_current_device)() except? -1
if "get_stream_ptr" in cupy_backend.__pyx_capi__:  # since CuPy 14
    (<void **> &current_stream)[0] = PyCapsule_GetPointer(
        cupy_backend.__pyx_capi__["get_stream_ptr"], b"intptr_t (int)"
    )
else:
    (<void **> &on_current_device)[0] = PyCapsule_GetPointer(
        cupy_backend.__pyx_capi__["get_current_stream_ptr"], b"intptr_t (void)"
    )
    current_stream = stream_of_cupy13


cdef Stream stream_of_cupy13(int device_id) except? -1:
    if device_id == device_of(cuda_current()):
        return on_current_device()
    with cupy.cuda.Device(device_id):
        return on_current_device()


cpdef Stream handle_of(stream, caller, bint may_be_unordered=True) except? -1:
    """Return the handle of a stream on the current device; -1 for the int -1."""
    if may_be_unordered and type(stream) is int and stream == UNORDERED:
        return UNORDERED
    cdef Stream handle = handle_on_any_device(stream, f"{caller}: stream", may_be_unordered)
    _, found = device_of_stream(handle)
    if found >= 0 and found != (device_id := cuda_device()):
        raise ContextError(
            f"{caller}: stream is on device {found}, but device {device_id} is current; work under "
            f"`with bridge.primary_context({found}):`, or order the two devices' streams by "
            "bridge.wait_stream"
        )
    return handle


cdef Stream handle_on_any_device(stream, subject, bint may_be_unordered=False) except? -1:
    """Return the handle of a stream on any device; 0 for the default stream."""
    cdef Stream handle = -1
    if stream is None:
        return 0
    if PyObject_TypeCheck(stream, <PyTypeObject *> PYCUDA_STREAM):  # a proxy keeps none
        return stream.handle
    if isinstance(stream, CUPY_STREAMS):
        handle = stream.ptr
    # A proxy of PyCUDA's is an instance, too.
    elif hasattr(stream, "__cuda_stream__") and not isinstance(stream, (type, PYCUDA_STREAM)):
        answer = stream.__cuda_stream__()
        try:
            version, handle = map(index, answer)
        except (TypeError, ValueError, OverflowError):
            version = -1
        if version != 0 or handle < 0:
            got = f"a {kind(stream)} whose __cuda_stream__() returns {answer!r}"
            raise not_a_stream(subject, got, may_be_unordered)
    else:
        raise not_a_stream(subject, named(stream), may_be_unordered)
    return 0 if handle == LEGACY else handle


cdef not_a_stream(subject, got, bint may_be_unordered):
    also = "; -1 means 'do not order'" if may_be_unordered else ""
    return TypeError(f"{subject} is {got}; {ACCEPTED}{also}")


cpdef tuple device_of_stream(Stream handle):
    """Return CUDA's status, and a stream's device id; -1 for the default streams of any device."""
    cdef int state, status
    cdef Handle context = NULL
    if 0 <= handle <= PER_THREAD:
        return 0, -1
    status = cuStreamIsCapturing(handle, &state)
    if not status:  # the next call crashes for a destroyed stream (H200, driver 580)
        status = cuStreamGetCtx(handle, &context)
    return status, (-1 if status else device_of_context(<intptr_t> context))


cdef bint is_blocking(Stream handle) noexcept:
    """Tell whether CUDA orders a stream with the default one; not if it cannot be asked."""
    cdef unsigned flags = 0
    return cuStreamGetFlags(handle, &flags) == 0 and flags & NON_BLOCKING == 0

# ---- captures ------------------------------------------------------------------------------------

cpdef bint is_capturing(Stream handle) noexcept:
    """Tell whether a stream is being captured into a graph; the default stream cannot be.

    Also True if an error has invalidated the graph.  False for an invalid handle, since the next
    call on the handle reports it.
    """
    return handle > 0 and capture_of(handle) != NO_CAPTURE


cdef uint64_t capture_of(Stream handle, int *status=NULL) noexcept nogil:
    """Return the number of the capture that a stream is part of; NO_CAPTURE if there is none.

    Asked about the default stream, `status` is CAPTURE_IMPLICIT while a blocking stream of the
    context is being captured, and the stream cannot be used.  Asking is allowed.
    """
    cdef int state = 0, found
    cdef uint64_t number = NO_CAPTURE
    found = cuStreamIsCapturing(handle, &state)  # it knows destroyed streams (H200, driver 580)
    if status is not NULL:
        status[0] = found
    if found or not state:
        return NO_CAPTURE
    if state == CAPTURE_INVALIDATED or cuStreamGetCaptureInfo(
        handle, &state, &number, NULL, NULL, NULL
    ):
        return <uint64_t> -1
    return number

# ---- fences --------------------------------------------------------------------------------------

# Idle events.  A fence takes its event off the list: another thread or the garbage collector may
# make a fence at the same time.
cdef enum:
    MOST_IDLE = 64  # per device; more are destroyed

cdef Handle idle[MOST_DEVICES][MOST_IDLE]
cdef int idle_count[MOST_DEVICES]


cdef Handle take_event(int device_id) noexcept:
    """Return an idle event of the current context; NULL if one must be created, or cannot be."""
    cdef Handle event = NULL
    if device_id >= 0 and idle_count[device_id]:
        idle_count[device_id] -= 1
        return idle[device_id][idle_count[device_id]]
    cuEventCreate(&event, DISABLE_TIMING)
    return event


cdef int keep_event(Handle event, int device_id, int status) noexcept:
    """Keep an event for the next fence: CUDA read its state when the waits were queued."""
    if not status and device_id >= 0 and idle_count[device_id] < MOST_IDLE:
        idle[device_id][idle_count[device_id]] = event
        idle_count[device_id] += 1
    elif event is not NULL:
        cuEventDestroy(event)
    return status


cpdef int fence(Stream waiter, Stream awaited) noexcept:
    """Make a stream wait, on the device, for the work queued on another; return CUDA's status.

    0 is the default stream of the current context; it is not used while that would spoil a capture.
    The GIL is released, because CUDA waits if a stream's queue is full.
    """
    cdef int device_id = device_of(cuda_current())  # events belong to a context
    cdef Handle event = take_event(device_id)
    cdef int status = 0
    # cuStreamQuery could save the fence of an idle stream, in half the time.  But in each mode it
    # invalidates a capture of the stream, which a thread may just have begun (seen on an H200).
    with nogil:
        if waiter == 0 or awaited == 0:
            capture_of(0, &status)
        if not status:
            status = cuEventRecord(event, awaited)
        if not status:
            status = cuStreamWaitEvent(waiter, event, 0)
    if is_traced and not status:
        note_wait(waiter, awaited)
    return keep_event(event, device_id, status)

# ---- what bridge.trace_order shows ---------------------------------------------------------------

cdef list traces = []  # where to put each wait, with the lines of code that led to it


def begin_trace(list waits):
    """Put each wait into a list, until `end_trace`: its streams' names, code objects and lines."""
    global is_traced
    traces.append(waits)
    is_traced = True


def end_trace(list waits):
    global traces, is_traced
    traces = [one for one in traces if one is not waits]
    is_traced = bool(traces)


cdef void note_wait(Stream waiter, Stream awaited) noexcept:
    """Note a wait; no Python runs here, nor the collector, since records may be pinned."""
    cdef bint collects = PyGC_Disable()
    cdef list lines = []
    append_frames(lines)
    for waits in traces:
        (<list> waits).append((name_of_stream(waiter), name_of_stream(awaited), lines))
    if collects:
        PyGC_Enable()

# ---- CuPy's objects ------------------------------------------------------------------------------


def pycuda_stream_of(stream):
    """Return the ``pycuda.driver.Stream`` that `stream` is or wraps; None if there is none."""
    found = getattr(stream, "foreign", stream)
    return found if isinstance(found, PYCUDA_STREAM) else None


def seconds_between(begin, end):
    """Wait for the second of two CuPy events; return the seconds between them."""
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3
