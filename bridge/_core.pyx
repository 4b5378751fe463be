# cython: auto_pickle=False
"""The compiled core: fences between streams, views, and the release of their memory.

It is compiled because views are released in ``__dealloc__``, which runs once, when the memory is
really freed.  Python's ``__del__`` runs before the garbage collector clears a cycle.  Another
finalizer can undo it, and a profiler can hold its frame (docs/design.md).
"""

cimport cython
from cpython.ref cimport Py_INCREF, PyObject

from bridge._driver cimport *

from types import GetSetDescriptorType
from weakref import ref

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer, UnownedMemory
from pycuda.gpuarray import GPUArray

from .errors import ContextError

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef *d_getset

cdef object cupy_current_stream = cupy.cuda.get_current_stream
cdef object null_stream = cupy.cuda.Stream.null

# ---- streams -------------------------------------------------------------------------------------

# Idle events.  A fence takes its event off the list: another thread or the garbage collector may
# make a fence at the same time.
cdef enum:
    MOST_IDLE = 64  # per device; more are destroyed

cdef Handle idle[MOST_DEVICES][MOST_IDLE]
cdef int idle_count[MOST_DEVICES]


cpdef bint is_capturing(Stream handle) noexcept:
    """Tell whether a stream is being captured into a graph; the default stream cannot be.

    Also True if an error has invalidated the graph.  False for an invalid handle, since the next
    call on the handle reports it.
    """
    cdef int state = 0
    return handle != 0 and cuStreamIsCapturing(handle, &state) == 0 and state != 0


cpdef tuple device_of_stream(Stream handle):
    """Return CUDA's status, and the id of the device that a stream was made on.

    The id is -1 for the default streams, since every device has them.
    """
    cdef int state, status
    cdef Handle context = NULL
    if 0 <= handle <= PER_THREAD:
        return 0, -1
    status = cuStreamIsCapturing(handle, &state)
    if not status:  # the next call crashes for a destroyed stream (H200, driver 580)
        status = cuStreamGetCtx(handle, &context)
    return status, (-1 if status else device_of_any(<intptr_t> context))


cdef bint is_non_blocking(Stream handle) noexcept:
    cdef unsigned flags = 0
    return cuStreamGetFlags(handle, &flags) == 0 and flags & NON_BLOCKING != 0


cpdef int fence(Stream waiter, Stream awaited, int device_id, bint default_too=False) noexcept:
    """Make a stream wait, on the device, for the work queued on another stream.

    With `default_too`, the default stream waits as well.  The GIL is released, because CUDA waits
    if a stream's queue is full.
    """
    cdef Handle event = NULL
    cdef int status = 0
    if idle_count[device_id]:
        idle_count[device_id] -= 1
        event = idle[device_id][idle_count[device_id]]
    with nogil:
        if event is NULL:
            status = cuEventCreate(&event, DISABLE_TIMING)
        if not status:
            status = cuEventRecord(event, awaited)
        if not status:
            status = cuStreamWaitEvent(waiter, event, 0)
        if not status and default_too:
            status = cuStreamWaitEvent(0, event, 0)
    # The event can be reused: CUDA read its state when the waits were queued.
    if event is NULL:
        pass
    elif idle_count[device_id] < MOST_IDLE:
        idle[device_id][idle_count[device_id]] = event
        idle_count[device_id] += 1
    else:
        cuEventDestroy(event)
    return status


cpdef int order(Stream waiter, Stream awaited, int device_id) noexcept:
    """Apply the ordering rule: later work on `waiter` runs after the work queued on `awaited`.

    Return CUDA's status, or OUTSIDE_OF_CAPTURE.
    """
    cdef unsigned flags = 0
    cdef int status
    if waiting and not is_capturing(waiter) and not is_capturing(awaited):
        end_waiting()
    if waiter == awaited or waiter < 0 or awaited < 0:
        return 0
    if waiter and awaited:
        if is_capturing(waiter) and not is_capturing(awaited):  # CUDA would invalidate the graph
            return OUTSIDE_OF_CAPTURE
    elif is_capturing(waiter or awaited):
        return 0  # the default stream cannot take part in a capture
    elif waiter:
        # A blocking stream follows the default stream.  The reverse needs a fence: CUDA delays only
        # *work* on the default stream.  If there is none, a third stream ordered after it would not
        # wait.
        status = cuStreamGetFlags(waiter, &flags)
        if status or not flags & NON_BLOCKING:
            return status
    return fence(waiter, awaited, device_id)


@cython.final
@cython.no_gc  # in a cycle, the collector would finalize a stream before the view's release
cdef class Streams:
    """The streams that a view's release orders, and the objects that keep their handles valid."""


cdef bint needs_order(Stream owner, Stream user) noexcept:
    """Tell whether the owner's pool must wait for `user` when a view is released."""
    if user < 0 or owner < 0:
        return False
    # The block may belong to the default stream in the pool, whatever `owner` is.  While a stream
    # is being captured, CUDA does not report its flags.
    return user != 0 or (owner != 0 and (is_capturing(owner) or is_non_blocking(owner)))

# ---- views ---------------------------------------------------------------------------------------

cdef enum:
    EVERY = -2  # instead of a stream: all followed streams

cdef list waiting = []  # views that cannot be released before a capture ends
cdef Py_ssize_t alive[3]  # by kind
cdef Py_ssize_t alive_bytes[3]


@cython.final
@cython.no_gc_clear  # the deallocator needs the attributes; clearing the arrays breaks a cycle
@cython.freelist(64)
cdef class View:
    """Keeps a view's memory alive: it is the owner of ``UnownedMemory``, or ``GPUArray.base``.

    On release, it orders the owner's stream after the user's, then frees memory and source in their
    context.  This works on any thread, under any context, in a cycle and at exit.
    """

    def __dealloc__(self):
        alive[self.kind] -= 1
        alive_bytes[self.kind] -= self.nbytes
        self.gpudata = None  # `memory`, or an address
        if abandoned:
            Py_INCREF(self.source)
            Py_INCREF(self.memory)
            Py_INCREF(self.streams)
            return
        if self.streams is None and is_held(<PyObject *> self.source) and is_held(
            <PyObject *> self.memory
        ):
            return  # nothing is freed now
        release(self)


cdef inline bint is_held(PyObject *value) noexcept:
    """Tell whether an object has other references, so that dropping ours frees nothing.

    None always has.
    """
    return Py_REFCNT(value) > 1


cdef int release(View view) except -1:
    """Order the streams, then free the memory with its context current for PyCUDA."""
    cdef Handle current = cuda_current()
    cdef int status = 0
    top = pycuda_current()
    cdef bint away = primaries[view.device_id] != current or top is not homes[view.device_id]
    if away:
        try:
            enter(view.device_id)
        except (drv.Error, ContextError):
            return 0  # a kernel has failed: the context and its memory are lost
    try:
        if view.streams is not None:
            status = order_release(view.streams, view.device_id)
            if CAPTURE_ERRORS <= status < CAPTURE_ERRORS + 9:
                waiting.append(heir_of(view))
        view.streams = view.memory = view.source = None
    finally:
        if away:
            leave(<intptr_t> current, top)
    return 0


cdef int order_release(Streams streams, int device_id) except *:
    """Make the owner's stream wait for the work queued on the user's; return CUDA's status."""
    cdef Stream owner = streams.owner
    cdef Stream user = streams.user
    if user == EVERY:
        return order_all(device_id)
    # If the default stream waits while a blocking stream is being captured, the graph is invalid.
    # So check CuPy's current stream, and the one that was current at the first attempt.
    current = cupy_current_stream(device_id)
    captured = is_capturing(current.ptr)
    if len(streams.kept) > 2:
        captured = captured or is_capturing(streams.kept[2].ptr)
    if captured or is_capturing(user) or is_capturing(owner):
        streams.kept = (*streams.kept, current)[:3]
        if user != owner and is_capturing(user) and is_capturing(owner):
            fence(owner, user, device_id)  # within the graph
        return CAPTURE_ERRORS
    # The per-thread handle may have meant another thread's stream.  If this thread's stream waited,
    # the thread would end later.  So use the default stream: an event on it covers every thread's
    # work, and a wait on it delays every thread's work (seen on an H200, driver 580).
    if user == PER_THREAD:
        user = 0
    if owner == PER_THREAD or owner == user:
        owner = 0
    # The default stream waits as well: the block may be older than a switch of streams.
    return fence(owner, user, device_id, owner != 0 and user != 0)


# ---- every stream --------------------------------------------------------------------------------

cdef dict followed = {}  # weak references to streams, and their devices


def follow(stream, int device_id):
    """Order a stream with every later release of memory kept by `keep_behind_all`."""
    cdef Stream handle = stream.handle
    if not is_any_captured(followed_on(device_id)):
        fence(handle, 0, device_id)
    followed[id(stream)] = ref(stream), device_id


def unfollow(stream):
    """End `follow` before a stream is destroyed; later releases still wait for its work."""
    cdef Handle current = cuda_current()
    cdef Stream handle
    _, device_id = followed.pop(id(stream), (None, None))
    if device_id is None or abandoned or is_any_captured(followed_on(device_id)):
        return
    handle, top = stream.handle, pycuda_current()
    try:
        enter(device_id)  # this thread may have no context now
    except (drv.Error, ContextError):
        return  # a kernel has failed
    fence(0, handle, device_id)
    leave(<intptr_t> current, top)


def keep_behind_all(value, int device_id):
    """Return a view that keeps memory; its release orders all later work after all earlier work."""
    cdef View view = new_view(MEMORY, None, value, device_id, 0, 0, 0, None)
    view.streams = Streams.__new__(Streams)
    view.streams.user = EVERY
    return view


cdef list followed_on(int device_id):
    """Return the followed streams, kept alive: CUDA crashes for destroyed streams."""
    found = [stream() for stream, home in followed.values() if home == device_id]
    return [stream for stream in found if stream is not None]


cdef bint is_any_captured(list streams) except -1:
    return any([is_capturing(stream.handle) for stream in streams])


cdef int order_all(int device_id) except *:
    """Order all followed streams through the default stream; return CUDA's status."""
    cdef Stream handle
    streams = followed_on(device_id)
    if is_any_captured(streams):  # the graph would be invalid
        return CAPTURE_ERRORS
    for stream in streams:
        handle = stream.handle
        fence(0, handle, device_id)
    for stream in streams:
        handle = stream.handle
        fence(handle, 0, device_id)
    return 0


cdef View heir_of(View view):
    """Return a new view of the same memory, since an object cannot outlive its deallocator."""
    cdef View heir = new_view(MEMORY, view.source, view.memory, view.device_id, 0, 0, 0, None)
    heir.streams = view.streams
    return heir


cdef View new_view(
    int kind, source, memory, int device_id, Py_ssize_t nbytes, Stream owner, Stream user,
    tuple kept,
):
    """Return a view that keeps memory, and on release orders `owner` after `user` if needed."""
    cdef View view = View.__new__(View)
    view.kind, view.source, view.memory = kind, source, memory
    view.device_id, view.nbytes = device_id, nbytes
    alive[kind] += 1
    alive_bytes[kind] += nbytes
    if (owner or user) and needs_order(owner, user):
        view.streams = Streams.__new__(Streams)
        view.streams.owner, view.streams.user, view.streams.kept = owner, user, kept
    return view


def keep_at_home(value, int device_id, Stream owner, Stream user, tuple kept):
    """Return a view that frees `value` with its device's context current.

    `value` may be a block of a PyCUDA pool.  First, the view orders `owner` after `user`.
    """
    return new_view(MEMORY, None, value, device_id, 0, owner, user, kept)


def end_waiting():
    """Release the views that waited for the end of a capture; some may have to wait again."""
    global waiting
    waiting = []  # with the old list, its views are released


def views_alive():
    """Return how many views of each kind are alive, with their bytes, and how many wait."""
    return (
        (alive[AS_CUPY], alive_bytes[AS_CUPY]),
        (alive[AS_PYCUDA], alive_bytes[AS_PYCUDA]),
        len(waiting),
    )


# ---- memory --------------------------------------------------------------------------------------

cdef tuple ALLOCATIONS = (drv.DeviceAllocation, drv.PooledDeviceAllocation)
# Objects whose address cannot change.
cdef tuple FIXED = (int, np.integer, *ALLOCATIONS, type(None))


def pointer_home(intptr_t pointer):
    """Return a pointer's device id, and whether it is outside of the primary context.

    The id is negative for a pointer that CUDA does not know.
    """
    cdef bint is_foreign = False
    device = ask_home(pointer, &is_foreign)
    return device, is_foreign


cdef bint is_at_home(intptr_t pointer, int device_id) noexcept:
    """Tell whether a pointer is in a device's primary context; True for a null pointer."""
    cdef bint is_foreign = False
    return not pointer or (ask_home(pointer, &is_foreign) == device_id and not is_foreign)


cdef int ask_home(intptr_t pointer, bint *is_foreign) noexcept:
    cdef int attributes[2]
    cdef void *answers[2]
    cdef int device = -1
    cdef Handle context = NULL
    attributes[:] = [POINTER_DEVICE, POINTER_CONTEXT]
    answers[:] = [&device, &context]
    if cuPointerGetAttributes(2, attributes, answers, <uint64_t> pointer):
        return -1
    is_foreign[0] = context is not NULL and device_of(context) != device
    return device


cpdef View learn_memory(array, intptr_t pointer, int device_id, dtype=None):
    """Record a GPUArray's memory on the array, so that any thread can free it in its context.

    Also record `dtype`, if both libraries support it.
    """
    gpudata, root = array.gpudata, array
    while isinstance(root.base, GPUArray):  # a slice has only an address and a base
        root = root.base
    kept = getattr(root, "gpudata", None)  # users may delete it
    if type(kept) is int or isinstance(kept, np.integer):  # an `Allocation` is an int, too
        kept = root.base
    cdef View memory = new_view(MEMORY, None, kept, device_id, 0, 0, 0, None)
    memory.gpudata = gpudata if isinstance(gpudata, FIXED) else False
    memory.dtype, memory.pointer = dtype, pointer
    array.__dict__["_bridge_memory"] = memory
    if root is not array and isinstance(kept, ALLOCATIONS):
        known = root.__dict__.get("_bridge_memory")
        if known is None or (<View> known).gpudata is not kept:
            learn_memory(root, int(kept), device_id)
    return memory


cdef PyGetSetDef *attribute(kind, name) except NULL:
    """Return the getter of an attribute of a compiled class."""
    found = getattr(kind, name)
    if type(found) is not GetSetDescriptorType:
        raise ImportError(f"bridge: CuPy {cupy.__version__} has another {kind.__name__}.{name}")
    return (<PyGetSetDescrObject *> found).d_getset


array_dtype = attribute(cupy.ndarray, "dtype")
array_data = attribute(cupy.ndarray, "data")
is_c_contiguous = attribute(cupy.ndarray, "_c_contiguous")
is_f_contiguous = attribute(cupy.ndarray, "_f_contiguous")
data_device = attribute(MemoryPointer, "device_id")
data_pointer = attribute(MemoryPointer, "ptr")

# cupy.ndarray(shape, dtype, memptr, strides) does these two steps (`_init` is the second).  Passing
# its arguments takes 0.3 us more.  A test compares the results.
cdef object ndarray = cupy.ndarray
cdef object new_ndarray = cupy.ndarray.__base__.__new__


cdef new_array(shape, dtype, strides, intptr_t pointer, nbytes, owner, int device_id):
    """Return a CuPy array on memory that `owner` keeps; strides of None mean C order."""
    result = new_ndarray(ndarray)
    memory = MemoryPointer(UnownedMemory(pointer, nbytes, owner, device_id), 0)
    result._init(shape, dtype, memory, strides)
    return result


def allocate(malloc, holder, size):
    """Allocate from CuPy's pool for the default stream; return a `holder` that keeps it."""
    current = cupy_current_stream(current_device())
    cdef bint is_other = current.ptr != 0
    try:
        if is_other:
            null_stream.use()
        memory = malloc(size)
    finally:
        if is_other:
            current.use()  # `with null:` would not restore a stream that was set by `use`
    found = holder(memory.ptr)
    found.memory = memory
    return found
