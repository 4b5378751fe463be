# cython: auto_pickle=False
"""GPUArray as an exporter: its array interface and DLPack, with the order of PyCUDA's streams.

PyCUDA's own array interface names no stream, so consumers read old data, and PyCUDA has no DLPack.
`export_in_order` puts these in their place, for all libraries: `bridge.autoinit` calls it.

Sources: CUDA Array Interface, version 3; Python array API standard, ``__dlpack__``.
"""

from cpython.ref cimport PyObject

from bridge.interop.contexts cimport cuda_current, cuda_device, device_of, primaries
from bridge.interop.conversions cimport memory_of, new_cupy_view
from bridge.interop.dlpack cimport dlpack_device_of
from bridge.interop.driver cimport Stream
from bridge.interop.ordering cimport order
from bridge.interop.streams cimport (
    ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS, LEGACY, UNORDERED, current_stream, is_capturing,
)
from bridge.interop.views cimport MemoryRecord

import cupy
import pycuda.driver
from pycuda.gpuarray import GPUArray

from . import patches
from .conversions import address_of
from .primary import primary_context
from ..errors import caller_of, named

cdef extern from "Python.h":
    PyObject *PyEval_GetGlobals()  # of the caller: compiled functions have none

cdef object OF_INTERFACE = caller_of("GPUArray.__cuda_array_interface__")
cdef object OF_DLPACK = caller_of("GPUArray.__dlpack__")
cdef object PYCUDAS_INTERFACE = GPUArray.__cuda_array_interface__
cdef dict PYCUDAS_GLOBALS = vars(pycuda.driver)


def array_interface(self):
    """Return the CUDA Array Interface of a GPUArray, version 3.

    The stream is the default stream (1), which waits here for PyCUDA's streams, as CuPy's streams
    do.  It is None if CuPy's current stream is being captured, since the host may not wait: then
    the streams of its capture are ordered.
    """
    if PyEval_GetGlobals() == <PyObject *> PYCUDAS_GLOBALS:  # PyCUDA's launches read it
        return PYCUDAS_INTERFACE.fget(self)
    cdef int device_id = cuda_device()
    cdef dict attributes = self.__dict__
    cdef MemoryRecord memory = memory_of(self, attributes, device_id, OF_INTERFACE)
    order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)
    return {
        "shape": attributes["shape"],
        "strides": attributes["strides"] if attributes["size"] else None,  # CuPy refuses steps of 0
        "data": (memory.pointer, False),
        "typestr": attributes["dtype"].str,
        "stream": None if is_capturing(current_stream(device_id)) else LEGACY,
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
        False and None export the memory itself.  CuPy accepts True for a copy to the host only.

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
    cdef int device_id = dlpack_device(self)[1]
    keywords = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
    if cuda_current() == primaries[device_id]:
        return export(self, consumer, keywords, device_id)
    with primary_context(device_id):
        return export(self, consumer, keywords, device_id)


cdef export(array, Stream consumer, dict keywords, int device_id):
    """Let CuPy export a view; it copies on its current stream."""
    cdef Stream current = current_stream(device_id)
    cdef bint is_copied = keywords["dl_device"] is not None
    if consumer != UNORDERED:
        order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)
    capsule = new_cupy_view(array, device_id).__dlpack__(stream=-1, **keywords)
    if is_copied:
        order(consumer, current)
    elif consumer or is_capturing(current):
        order(consumer, ALL_PYCUDA_STREAMS)
    return capsule


def dlpack_device(self):
    """Return a GPUArray's device as DLPack's type and id: (2, id), or 13 for managed memory."""
    # An array without memory is on the current device.
    return dlpack_device_of(address_of(self, OF_DLPACK), max(device_of(cuda_current()), 0))


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


def export_in_order():
    """Let all GPUArrays export their memory with the order of PyCUDA's streams."""
    why = "consumers wait for the work queued on PyCUDA's streams"
    patches.apply("exports", why, GPUArray, OURS)


def restore_gpuarray():
    """Give ``GPUArray`` PyCUDA's array interface back, which names no stream, and no DLPack."""
    patches.undo("exports")
