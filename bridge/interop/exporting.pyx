# cython: auto_pickle=False
"""GPUArray as an exporter: its array interface and DLPack, with the order of PyCUDA's streams.

PyCUDA's own array interface names no stream, so consumers read old data, and PyCUDA has no DLPack.
`export_in_order` puts these in their place, for all libraries: `bridge.autoinit` calls it.

Sources: CUDA Array Interface, version 3; Python array API standard, ``__dlpack__``.
"""

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from bridge.interop.contexts cimport cuda_current, cuda_device, device_of, primaries
from bridge.interop.conversions cimport memory_of, view_in_cupy, view_in_pycuda
from bridge.interop.dlpack cimport *
from bridge.interop.driver cimport Stream
from bridge.interop.live_streams cimport record_of
from bridge.interop.ordering cimport order
from bridge.interop.streams cimport (
    ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS, LEGACY, UNORDERED, current_stream, is_capturing,
)
from bridge.interop.views cimport AS_CUPY, MemoryRecord, new_view

import cupy
import pycuda.driver
from pycuda.gpuarray import GPUArray

from . import patches
from .conversions import address_of
from .importing import check_flags, not_on_device
from .operators import OPERATORS
from .primary import primary_context
from ..errors import caller_of, named

cdef extern from "Python.h":
    PyObject *PyEval_GetGlobals()  # of the caller: compiled functions have none

cdef object OF_INTERFACE = caller_of("GPUArray.__cuda_array_interface__")
cdef object OF_DLPACK = caller_of("GPUArray.__dlpack__")
cdef object OF_EXCHANGE = caller_of("GPUArray.__dlpack_c_exchange_api__")
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
        "strides": attributes["strides"],
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
    where = dlpack_device(self)
    if cuda_current() == primaries[where[1]]:
        return export(self, consumer, max_version, where, dl_device, copy)
    with primary_context(where[1]):
        return export(self, consumer, max_version, where, dl_device, copy)


cdef export(array, Stream consumer, max_version, tuple where, dl_device, copy):
    cdef int device_id = where[1]
    cdef Stream current = current_stream(device_id)
    cdef DLManagedTensorVersioned *managed
    cdef bint has_flags = max_version is not None and max_version[0] >= 1
    cdef bint is_here = dl_device is None or tuple(dl_device) == where
    if is_here and not copy:
        if consumer != UNORDERED:
            order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)
            if record_of(consumer) is NULL and (consumer or is_capturing(current)):
                order(consumer, ALL_PYCUDA_STREAMS)
        if has_flags:
            return capsule_of(export_gpuarray(array, device_id))
        return view_in_cupy(array, device_id).__dlpack__(stream=-1)
    order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)  # CuPy copies on its current stream
    array = view_in_cupy(array, device_id)
    if not is_here:
        keywords = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return array.__dlpack__(stream=-1, **keywords)
    array = array.copy()
    order(consumer, current)
    if not has_flags:
        return array.__dlpack__(stream=-1)
    managed = export_ndarray(array)
    managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED
    return capsule_of(managed)


def dlpack_device(self):
    """Return a GPUArray's device as DLPack's type and id: (2, id), or 13 for managed memory."""
    # An array without memory is on the current device.
    return dlpack_device_of(address_of(self, OF_DLPACK), max(device_of(cuda_current()), 0))


cdef DLManagedTensorVersioned *export_gpuarray(array, int device_id) except NULL:
    cdef dict attributes = array.__dict__
    cdef MemoryRecord memory = memory_of(array, attributes, device_id, OF_DLPACK)
    nbytes = attributes["nbytes"]
    view = new_view(AS_CUPY, array, memory, device_id, nbytes, UNORDERED, UNORDERED)
    shape, strides, dtype = attributes["shape"], attributes["strides"], attributes["dtype"]
    return export_tensor(shape, strides, dtype, memory.pointer, view, device_id)


cdef DLManagedTensorVersioned *export_ndarray(array) except NULL:
    data = array.data
    return export_tensor(array.shape, array.strides, array.dtype, data.ptr, array, data.device_id)


cdef Stream consumer_stream(stream) except? -1:
    if stream is None:
        return 0
    if type(stream) is not int or stream < -1 or stream == 0:
        raise (ValueError if type(stream) is int else TypeError)(
            f"GPUArray.__dlpack__: stream is {named(stream)}; None, -1 (no ordering), 1 (the "
            "legacy default stream), 2 (the per-thread one) or a handle, an int, is accepted"
        )
    return 0 if stream == LEGACY else stream

# ---- DLPack's C exchange API ---------------------------------------------------------------------

cdef DLPackExchangeAPI cupy_api, pycuda_api  # as long as the process lives


cdef int ndarray_to_managed(void *array, DLManagedTensorVersioned **out) except -1:
    out[0] = export_ndarray(<object> <PyObject *> array)
    return 0


cdef int gpuarray_to_managed(void *array, DLManagedTensorVersioned **out) except -1:
    cdef int device_id = cuda_device()
    # A consumer asks for the stream of its first tensor's library only.
    order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)
    out[0] = export_gpuarray(<object> <PyObject *> array, device_id)
    return 0


cdef int managed_to_ndarray(DLManagedTensorVersioned *managed, void **out) except -1:
    owner = own_tensor(managed)
    array = None
    if managed.major == 1 and managed.dl_tensor.device_type in (kDLCUDA, kDLCUDAManaged):
        check_flags(managed.flags, caller_of("__dlpack_c_exchange_api__"))
        array = array_on_tensor(owner)
    if array is None:
        raise BufferError("a CuPy array has CUDA's memory and a data type of NumPy's, in DLPack 1")
    Py_INCREF(array)
    out[0] = <void *> array
    return 0


cdef int managed_to_gpuarray(DLManagedTensorVersioned *managed, void **out) except -1:
    managed_to_ndarray(managed, out)
    array = <object> <PyObject *> out[0]
    Py_DECREF(array)
    array = view_in_pycuda(array, UNORDERED, managed.dl_tensor.device_id)
    Py_INCREF(array)
    out[0] = <void *> array
    return 0


cdef int cupys_stream(int32_t device_type, int32_t device_id, void **out) except -1:
    is_of_cuda = device_type in (kDLCUDA, kDLCUDAManaged)
    out[0] = <void *> current_stream(device_id) if is_of_cuda else NULL
    return 0


cdef int pycudas_stream(int32_t device_type, int32_t device_id, void **out) except -1:
    """Give CuPy's current stream, after the work that is queued on PyCUDA's."""
    cupys_stream(device_type, device_id, out)
    if device_type in (kDLCUDA, kDLCUDAManaged):
        if device_id != cuda_device():
            raise not_on_device(OF_EXCHANGE.array, device_id, cuda_device())
        order(ALL_CUPY_STREAMS, ALL_PYCUDA_STREAMS)
    return 0


cdef int allocate_tensor(
    DLTensor *like, DLManagedTensorVersioned **out, void *context,
    void (*set_error)(void *, const char *, const char *) noexcept
) noexcept with gil:
    """Allocate in CuPy's pool an array of the shape, type and device of another tensor."""
    cdef DLManagedTensorVersioned asked
    try:
        asked.dl_tensor, asked.deleter = like[0], NULL
        asked.dl_tensor.data, asked.dl_tensor.strides, asked.dl_tensor.byte_offset = NULL, NULL, 0
        array = array_on_tensor(own_tensor(&asked))
        if array is None or like.device_type not in (kDLCUDA, kDLCUDAManaged):
            raise BufferError("CuPy has no such data type or device")
        with cupy.cuda.Device(like.device_id):
            out[0] = export_ndarray(cupy.empty(array.shape, array.dtype))
        return 0
    except BaseException as error:
        kind, text = type(error).__name__.encode(), str(error).encode()
        set_error(context, kind, text)
        return -1


cupy_api.major, cupy_api.minor, cupy_api.managed_tensor_allocator = 1, 3, &allocate_tensor
cupy_api.managed_tensor_from_py_object_no_sync = &ndarray_to_managed
cupy_api.managed_tensor_to_py_object_no_sync = &managed_to_ndarray
cupy_api.current_work_stream = &cupys_stream
pycuda_api = cupy_api
pycuda_api.managed_tensor_from_py_object_no_sync = &gpuarray_to_managed
pycuda_api.managed_tensor_to_py_object_no_sync = &managed_to_gpuarray
pycuda_api.current_work_stream = &pycudas_stream


def offer_c_exchange():
    """Let CuPy arrays offer DLPack's C exchange API, as GPUArrays do after ``bridge.autoinit``.

    Libraries such as tvm-ffi then take a `cupy.ndarray` without a call of Python.

    Notes
    -----
    *Ownership:* a consumer keeps the array alive.  `cupy.ndarray` keeps the attribute
    ``__dlpack_c_exchange_api__`` until the process ends.
    *Ordering:* consumers work on CuPy's current stream.
    *Cost:* less than that of ``__dlpack__``.

    Examples
    --------
    >>> import cupy, bridge
    >>> bridge.offer_c_exchange()
    >>> hasattr(cupy.ndarray, "__dlpack_c_exchange_api__")
    True
    """
    cupy.ndarray.__dlpack_c_exchange_api__ = PyCapsule_New(&cupy_api, "dlpack_exchange_api", NULL)

# ---- in the place of PyCUDA's --------------------------------------------------------------------

cdef dict OURS = {
    "__cuda_array_interface__": property(array_interface),
    "__dlpack__": dlpack,
    "__dlpack_device__": dlpack_device,
    "__dlpack_c_exchange_api__": PyCapsule_New(&pycuda_api, "dlpack_exchange_api", NULL),
}


def export_in_order():
    """Let all GPUArrays export their memory with the order of PyCUDA's streams."""
    why = "consumers wait for the work queued on PyCUDA's streams"
    patches.apply("exports", why, GPUArray, OURS)
    patches.apply("exports", "CuPy computes a += x, a == x and the like", GPUArray, OPERATORS)


def restore_gpuarray():
    """Give ``GPUArray`` PyCUDA's array interface back, which names no stream, and no DLPack."""
    patches.undo("exports")
