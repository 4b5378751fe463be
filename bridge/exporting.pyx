# cython: auto_pickle=False
"""GPUArray as an exporter: its array interface and DLPack, with the order of PyCUDA's streams.

PyCUDA's own array interface names no stream, so consumers read old data, and PyCUDA has no DLPack.
`bridge.autoinit` and ``bridge run`` put these in their place, for all libraries.

Sources: CUDA Array Interface, version 3; Python array API standard, ``__dlpack__``.
"""

from cpython.ref cimport PyObject

from bridge.views cimport AS_CUPY, View, new_view
from bridge.context cimport PER_THREAD, Stream, cuda_device
from bridge.arrays cimport kept_streams, memory_of, view_in_cupy
from bridge.handles cimport (
    LEGACY, PYCUDA, UNORDERED, capture_of, current_stream, is_capturing,
)
from bridge.streams cimport order

from inspect import signature

import pycuda.driver
from pycuda.gpuarray import GPUArray
from pycuda.reduction import ReductionKernel

from .context import find_pointer
from .arrays import address_of
from .foreign_arrays import mark_as_copied
from .primary import primary_context
from .errors import named

cdef extern from "Python.h":
    PyObject *PyEval_GetGlobals()  # of the caller: compiled functions have none

cdef dict PYCUDAS_GLOBALS = vars(pycuda.driver)
cdef enum:
    MOST_USERS = 8  # of CuPy's streams, for each array; each is kept alive


def array_interface(self):
    """Return the CUDA Array Interface of a GPUArray, version 3.

    The stream is the default stream (1), which waits here for PyCUDA's non-blocking streams.  It
    is None if CuPy's current stream is being captured, since the host may not wait: then CuPy's
    stream waits for the other streams of its capture.
    """
    if PyEval_GetGlobals() == <PyObject *> PYCUDAS_GLOBALS:  # PyCUDA's launches read it
        return replaced["__cuda_array_interface__"].fget(self)
    cdef int device_id = cuda_device()
    cdef dict attributes = self.__dict__
    cdef View memory = memory_of(
        self, attributes, device_id, "GPUArray.__cuda_array_interface__"
    )
    cdef Stream here = current_stream(device_id)
    cdef int status
    capture_of(0, &status)
    cdef bint can_wait = not status and not is_capturing(here)
    order(0 if can_wait else here, PYCUDA)
    users = attributes.setdefault("_bridge_users", {})
    if here not in users:  # the memory is reused after CuPy's work on the array
        if len(users) == MOST_USERS:
            users.pop(next(iter(users)))  # its release orders what is queued on that stream
        kept, nbytes = kept_streams(here, None), attributes["nbytes"]
        users[here] = new_view(AS_CUPY, None, memory, device_id, nbytes, PYCUDA, here, kept)
    return {
        "shape": attributes["shape"],
        "strides": attributes["strides"],
        "data": (memory.pointer, False),
        "typestr": attributes["dtype"].str,
        "stream": LEGACY if can_wait else None,
        "version": 3,
    }


def dlpack(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    """Export a GPUArray through DLPack: return a capsule that keeps it alive.

    Parameters
    ----------
    stream : int, optional
        The consumer's stream, which waits for PyCUDA's streams: a handle, 1 or None for the legacy
        default stream, 2 for the per-thread one.  -1 means no ordering.
    max_version : tuple of two ints, optional
        The newest version that the consumer accepts.  From (1, 0) on, the capsule has flags.
    dl_device : tuple of two ints, optional
        The device type and id that the consumer wants; the array's own if omitted.  CuPy decides
        which others are possible.
    copy : bool, optional
        True exports a copy.  False and None export the memory itself.

    Raises
    ------
    BufferError
        If DLPack has no such dtype, or the device is not possible.
    TypeError, ValueError
        If `stream` is no stream of DLPack's.
    ContextError, TypeError, ValueError
        As in `bridge.as_cupy`.
    """
    cdef Stream consumer = consumer_stream(stream)
    cdef Stream here
    cdef int device_id
    with primary_context(device_of_array(self)):
        device_id = cuda_device()
        here = current_stream(device_id)
        keywords = {"stream": -1, "max_version": max_version}
        is_here = dl_device is None or tuple(dl_device) == device_of(self, device_id)
        if not is_here:
            keywords.update(dl_device=dl_device, copy=copy)
        elif not copy:
            order(consumer, PYCUDA)
            return in_cupy(self, consumer, here, device_id).__dlpack__(**keywords)
        order(here, PYCUDA)  # CuPy copies on its current stream
        array = in_cupy(self, here, here, device_id)
        if not is_here:
            return array.__dlpack__(**keywords)
        capsule = array.copy().__dlpack__(**keywords)
        mark_as_copied(capsule)
        order(consumer, here)
        return capsule


def dlpack_device(self):
    """Return a GPUArray's device as DLPack's type and id: (2, id), or 13 for managed memory."""
    with primary_context(device_of_array(self)):
        return device_of(self, cuda_device())


cdef device_of(array, int device_id):
    return tuple(map(int, in_cupy(array, UNORDERED, 0, device_id).__dlpack_device__()))


cdef device_of_array(array):
    """Return the id of the device that a GPUArray is on; None if it has no memory."""
    pointer = address_of(array, "GPUArray.__dlpack__")
    return find_pointer(pointer)[0] if pointer else None


cdef in_cupy(array, Stream consumer, Stream here, int device_id):
    """Return a CuPy array whose release orders PyCUDA's streams after a consumer's stream.

    A consumer may destroy its stream before, unless that is a default stream or CuPy's current one.
    """
    cdef Stream user = consumer if consumer in (UNORDERED, PER_THREAD, here) else 0
    kept = kept_streams(user, None) if user == here else None
    return view_in_cupy(array, PYCUDA, user, kept, device_id, True)


cdef Stream consumer_stream(stream) except? -1:
    if stream is None:
        return 0
    if type(stream) is not int or stream < -1 or stream == 0:
        raise (ValueError if type(stream) is int else TypeError)(
            f"GPUArray.__dlpack__: stream is {named(stream)}; None, -1 (no ordering), 1 (the "
            "legacy default stream), 2 (the per-thread one) or a handle, an int, is accepted"
        )
    return 0 if stream == LEGACY else stream

# ---- in the place of PyCUDA's --------------------------------------------------------------------

cdef dict OURS = {
    "__cuda_array_interface__": property(array_interface),
    "__dlpack__": dlpack,
    "__dlpack_device__": dlpack_device,
}
cdef dict replaced = {}  # what PyCUDA's class had in their place


def export_in_order():
    """Let all GPUArrays export their memory with the order of PyCUDA's streams."""
    for name, ours in OURS.items():
        if vars(GPUArray).get(name) is not ours:
            replaced[name] = vars(GPUArray).get(name)
            setattr(GPUArray, name, ours)


def restore_gpuarray():
    """Give ``GPUArray`` PyCUDA's array interface back, which names no stream, and no DLPack."""
    for name in list(replaced):
        pycudas = replaced.pop(name)
        if pycudas is None:
            delattr(GPUArray, name)
        else:
            setattr(GPUArray, name, pycudas)


cdef object init_reduction = ReductionKernel.__init__


def init_and_keep(self, *args, **keywords):
    """Make a ReductionKernel that keeps its name and arguments, for the checks of `wrap_pycuda`."""
    init_reduction(self, *args, **keywords)
    given = signature(init_reduction).bind(self, *args, **keywords)
    given.apply_defaults()
    self._bridge_arguments = given.arguments["name"], given.arguments["arguments"]


ReductionKernel.__init__ = init_and_keep
