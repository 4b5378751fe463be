# cython: auto_pickle=False
"""What users call on streams: as_cupy_stream, wait_stream and ordered."""

from bridge.interop.contexts cimport shared_device
from bridge.interop.driver cimport CAPTURE_ISOLATION, Stream
from bridge.interop.ordering cimport (
    JOINING, REFUSED, enter_capture, kind_of_wait, note_capture, order,
)
from bridge.interop.streams cimport *

from contextlib import ContextDecorator
from types import SimpleNamespace

import cupy
import pycuda.driver as drv
from cupy.cuda import runtime

from .ordering import not_ordered
from .scopes import Scope
from .streams import PYCUDA_STREAM
from ..errors import check_function, warn


def wait_stream(waiter, awaited, /):
    """Make later work on one stream wait for the work queued on another.

    Parameters
    ----------
    waiter, awaited : pycuda.driver.Stream, cupy.cuda.Stream, any ``__cuda_stream__`` or None
        None means the current device's default stream.  Other streams may be on any device.
        `awaited` may also be an event of either library.  For one of PyCUDA's, another library's
        stream waits for the default stream, too.  In a capture, pass streams: an event of other
        work invalidates the graph.

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
    cdef int wait
    device_id = shared_device()
    first = handle_on_any_device(waiter, "wait_stream: waiter")
    if isinstance(awaited, cupy.cuda.Event):
        runtime.streamWaitEvent(first, awaited.ptr)
        return
    if isinstance(awaited, drv.Event):  # which only PyCUDA's streams know
        stream = waiter if isinstance(waiter, PYCUDA_STREAM) else drv.Stream(1)
        stream.wait_for_event(awaited)
        awaited = stream
    second = handle_on_any_device(awaited, "wait_stream: awaited")
    devices = [device_of_stream(handle)[1] for handle in (first, second)]
    if {*devices} <= {-1, device_id}:
        order(first, second, True)
        return
    wait = kind_of_wait(first, second, True)
    if wait == REFUSED:
        raise not_ordered(CAPTURE_ISOLATION, first, second)
    if wait == JOINING:
        enter_capture(first)
    try:
        # An event can only be recorded on its own device.
        with Scope(device_id if devices[1] < 0 else devices[1]):
            event = cupy.cuda.Event(disable_timing=True)
            runtime.eventRecord(event.ptr, second)
        runtime.streamWaitEvent(first, event.ptr)
        if is_traced:
            note_wait(first, second)
    except runtime.CUDARuntimeError as error:
        raise not_ordered(error.status, first, second) from error
    finally:
        if wait == JOINING:
            note_capture(first)


HAS_FROM_EXTERNAL = hasattr(cupy.cuda.Stream, "from_external")  # since CuPy 14
CUPY_STREAM = cupy.cuda.Stream if HAS_FROM_EXTERNAL else cupy.cuda.ExternalStream


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
    *Ordering:* none on entering and leaving a block: for earlier work on another stream, call
    `wait_stream`.  A PyCUDA stream waits once for the default one, with its first result.  Another
    library's waits with each, and the default stream waits for it when its last result ends: keep
    one.  Begin and end a capture of a PyCUDA stream on the result: then the default stream stands
    for it meanwhile, and other threads may go on converting.
    *Cost:* one CuPy object.
    """
    device_id = shared_device()
    handle = handle_of(stream, "as_cupy_stream", may_be_unordered=False)
    if isinstance(stream, CUPY_STREAMS):
        return stream
    if handle == 0:
        return cupy.cuda.Stream.null
    if HAS_FROM_EXTERNAL:
        result = CUPY_STREAM.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, handle)))
    else:
        result = CUPY_STREAM(handle, device_id)
    result.foreign = stream  # kept alive
    return result


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
    CuPy's streams, and that before later work on PyCUDA's streams, also if the block raises
    (rule: `bridge.interop.ordering`).  The host does not wait.
    *Cost:* two fences.
    """

    _is_idle = True

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
        shared_device()
        order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)

    def __exit__(self, *error):
        order(ALL_PYCUDA_STREAMS, ALL_CUPY_STREAMS)
