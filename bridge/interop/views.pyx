# cython: auto_pickle=False
"""Views of memory, and their release.

It is compiled because views are released in ``__dealloc__``, which runs once, when the memory is
really freed.  Python's ``__del__`` runs before the garbage collector clears a cycle.  Another
finalizer can undo it, and a profiler can hold its frame (docs/design.md).
"""

cimport cython
from cpython.ref cimport Py_INCREF, PyObject

from bridge.interop.contexts cimport *
from bridge.interop.driver cimport *
from bridge.interop.live_streams cimport first_record, record_of, unnamed_calls
from bridge.interop.ordering cimport kept_for_capture, order_release, order_reuse
from bridge.interop.scopes cimport enter_context, leave_context
from bridge.interop.streams cimport (
    ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS, ALL_STREAMS, CUPY_STREAMS, UNORDERED, capture_of,
    current_stream,
)

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer, UnownedMemory
from pycuda.gpuarray import GPUArray

from .host_memory import keep_until_done
from .memory_kinds import classes
from ..errors import ContextError

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

cdef object cupy_current_stream = cupy.cuda.get_current_stream
cdef object null_stream = cupy.cuda.Stream.null
cdef tuple FOLLOWED = (drv.Stream, *CUPY_STREAMS)  # with records

# ---- views ---------------------------------------------------------------------------------------

cdef Py_ssize_t alive[3]  # by kind
cdef Py_ssize_t alive_bytes[3]


@cython.no_gc_clear  # the deallocator needs these attributes; clearing the arrays breaks a cycle
@cython.freelist(64)
cdef class View:
    """Keeps a view's memory alive: it is the owner of ``UnownedMemory``, or ``GPUArray.base``.

    On release, it lets the streams that may use the memory next wait for the last users, then frees
    memory and base in their context.  This works on any thread, under any context, in a cycle and
    at exit.  What waits for what depends on who frees the memory:

    - ``cuMemFree`` waits for the device: nothing is ordered.
    - a block of CuPy's pool: CuPy's streams wait for PyCUDA's, since the pool gives the block to the
      stream that it was allocated on, which cannot be seen; of a view for one stream, CuPy's
      current stream at the conversion waits for that one;
    - PyCUDA's pool gives it to any of PyCUDA's streams: they wait for CuPy's.
    """

    def __dealloc__(self):
        alive[self.kind] -= 1
        alive_bytes[self.kind] -= self.nbytes
        if abandoned:
            Py_INCREF(self.base)
            Py_INCREF(self.memory)
            Py_INCREF(self.block)
            Py_INCREF(self.stream)
            return
        if is_held(<PyObject *> self.base) and is_held(<PyObject *> self.memory) and (
            is_held(<PyObject *> self.block) and is_held(<PyObject *> self.stream)
            and not self.is_of_host
            and (self.waiter == UNORDERED or first_record is NULL)  # else the streams need order
        ):
            return  # nothing is freed now
        release(self)


cdef inline bint is_held(PyObject *value) noexcept:
    """Tell whether an object has other references than ours; None always has."""
    return Py_REFCNT(value) > 1


cdef int release(View view) except -1:
    """Order the streams, then free the memory with its context current for PyCUDA."""
    cdef Handle current = cuda_current()
    cdef int status = 0
    cdef int device_id = view.device_id
    cdef Stream waiter = view.waiter, awaited = view.awaited
    cdef bint is_elsewhere = not can_free_here(device_id)
    if view.context is not None:
        is_elsewhere = pycuda_current() is not view.context or current != primaries[device_id]
    if is_elsewhere:
        top = pycuda_current()
        try:
            enter_context(device_id, view.context)
        except (drv.Error, ContextError):
            return 0  # a kernel has failed: the context and its memory are lost
    try:
        if view.waiter != UNORDERED:
            if view.stream is not None and (
                view.unnamed_calls != unnamed_calls
                or (isinstance(view.stream, FOLLOWED) and record_of(awaited) is NULL)  # it has ended
            ):
                waiter, awaited, view.stream = ALL_CUPY_STREAMS, ALL_STREAMS, None
            status = order_release(waiter, awaited)
        elif view.is_of_host:
            capture_of(0, &status)
        if CAPTURE_ERRORS <= status < CAPTURE_ERRORS + 9:
            # A new view, since an object cannot outlive its deallocator.
            heir = new_view(
                MEMORY, view.base, view.memory, device_id, 0, waiter, awaited, view.stream
            )
            heir.block, heir.is_of_host, heir.context = view.block, view.is_of_host, view.context
            kept_for_capture.append(heir)
        elif view.is_of_host:
            for stream in {0, current_stream(device_id)}:  # the first waits for PyCUDA's streams
                keep_until_done(stream, view.memory)
        view.block = view.memory = view.base = view.stream = None
    finally:
        if is_elsewhere:
            leave_context(<intptr_t> current, top)
    return 0


cdef bint is_block(memory) except -1:
    """Tell whether memory is an `Allocation`, whose view orders its release."""
    return type(getattr(memory, "memory", None)) is View


cdef View new_view(
    int kind, base, memory, int device_id, Py_ssize_t nbytes, Stream waiter, Stream awaited,
    stream=None
):
    """Return a view that keeps memory; on release, `waiter` waits for `awaited`, of `stream`."""
    cdef View view = View.__new__(View)
    view.kind, view.base, view.memory = kind, base, memory
    view.device_id, view.nbytes = device_id, nbytes
    view.waiter, view.awaited, view.stream = waiter, awaited, stream
    view.unnamed_calls = unnamed_calls
    if type(memory) is MemoryRecord and is_block((<MemoryRecord> memory).memory):
        view.block = (<MemoryRecord> memory).memory.memory
    alive[kind] += 1
    alive_bytes[kind] += nbytes
    return view


cdef bint views_are_alive() noexcept:
    """Tell whether CuPy may use memory of PyCUDA's, or PyCUDA memory of CuPy's."""
    return alive[AS_CUPY] or alive[AS_PYCUDA]


def views_alive():
    """Return how many views of each kind are alive, with their bytes."""
    return (alive[AS_CUPY], alive_bytes[AS_CUPY]), (alive[AS_PYCUDA], alive_bytes[AS_PYCUDA])


# ---- memory --------------------------------------------------------------------------------------

cdef tuple ALLOCATIONS = (drv.DeviceAllocation, drv.PooledDeviceAllocation)
cdef tuple HOST_MEMORY = classes(on_host=True), FIXED = classes(is_fixed=True)


@cython.final
cdef class MemoryRecord(View):
    """What is known of a GPUArray's memory.  The array has it, so that any thread can free it."""


cdef MemoryRecord recorded_memory(dict attributes):
    """Return the record of an array's memory; None if there is none, or the memory has changed."""
    cdef MemoryRecord record = attributes.get("_bridge_memory")
    if record is not None and record.gpudata is not attributes.get("gpudata"):
        return None
    return record


cpdef MemoryRecord record_memory(array, intptr_t pointer, int device_id, dtype=None):
    """Record a GPUArray's memory on the array, so that any thread can free it in its context.

    Also record `dtype`, if both libraries support it.
    """
    gpudata, root = array.gpudata, array
    while isinstance(root.base, GPUArray):  # a slice has only an address and a base
        root = root.base
    holder = getattr(root, "gpudata", None)  # users may delete it
    if type(holder) is int or isinstance(holder, np.integer):  # an `Allocation` is an int, too
        holder = root.base
    cdef MemoryRecord record = MemoryRecord.__new__(MemoryRecord)
    record.kind, record.memory, record.device_id = MEMORY, holder, device_id
    record.waiter = UNORDERED
    record.context = own_context(device_id)
    alive[MEMORY] += 1
    # Where the address can change, the record is not used again: no array's gpudata is False.
    record.gpudata = gpudata if isinstance(gpudata, FIXED) else False
    record.dtype, record.pointer = dtype, pointer
    record.is_of_host = isinstance(holder, HOST_MEMORY)
    if record.is_of_host:
        record.waiter, record.awaited = 0, ALL_STREAMS
    elif isinstance(holder, drv.PooledDeviceAllocation):
        record.waiter, record.awaited = ALL_PYCUDA_STREAMS, ALL_CUPY_STREAMS
    elif holder is not None and not isinstance(holder, (drv.DeviceAllocation, View)) and (
        not is_block(holder)
    ):
        record.waiter, record.awaited = ALL_STREAMS, ALL_STREAMS  # perhaps CuPy's block
    array.__dict__["_bridge_memory"] = record
    if root is not array and isinstance(holder, ALLOCATIONS) and (
        recorded_memory(root.__dict__) is None
    ):
        record_memory(root, int(holder), device_id)
    return record


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


cdef View view_of(memory):
    """Return the view that keeps a CuPy array's memory, or None."""
    owner = memory._owner if type(memory) is UnownedMemory else None
    return owner if type(owner) is View else None


def allocate(malloc, holder, size):
    """Allocate from CuPy's pool for the default stream; return a `holder` that keeps it."""
    cdef int device_id = shared_device()
    cdef bint is_other = current_stream(device_id) != 0
    cdef Stream owner
    try:
        if is_other:
            current = cupy_current_stream(device_id)
            null_stream.use()
        owner = current_stream(device_id)  # PER_THREAD where that is CuPy's null stream
        memory = malloc(size)
        order_reuse(owner)
    finally:
        if is_other:
            current.use()  # `with null:` would not restore a stream that was set by `use`
    found = holder(memory.ptr)
    found.memory = new_view(MEMORY, None, memory.mem, device_id, 0, owner, ALL_STREAMS)
    return found
