# cython: auto_pickle=False
"""Arrays of other libraries: check their interfaces, then import them.

Sources: CUDA Array Interface, version 3 (numba-cuda documentation), cited as *CAI*; DLPack
Python specification (dmlc.github.io/dlpack), cited as *DLPack*.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from bridge.interop.contexts cimport cuda_current, is_in_primary_context
from bridge.interop.dlpack cimport *
from bridge.interop.driver cimport Handle, PER_THREAD, Stream, cuCtxSetCurrent
from bridge.interop.ordering cimport order
from bridge.interop.streams cimport LEGACY, UNORDERED, handle_of
from bridge.interop.views cimport new_array

from collections.abc import Mapping
from math import prod
from weakref import ProxyTypes

import cupy
import numpy as np

from .contexts import find_pointer
from .dtypes import PLAIN_DTYPES, check_dtype
from .memory_kinds import BARE_MEMORY, Global
from ..errors import ContextError, kind, named

ADDRESS_END = 1 << 63  # CuPy has signed sizes of 64 bits
UNPROTECTED = (
    "neither library can keep it from being written to, so a view is refused: hand over a copy"
)

# ---- checks --------------------------------------------------------------------------------------


def check_device(pointer, subject, int device_id):
    """Raise unless memory is in that device's primary context; a null pointer passes."""
    if is_in_primary_context(pointer, device_id):
        return
    found, is_foreign = find_pointer(pointer)
    if found < 0:
        raise ValueError(
            f"{subject} has the pointer 0x{pointer:x}, which is unknown to CUDA; device memory "
            "that has not been freed is accepted"
        )
    if found != device_id:
        raise not_on_device(subject, found, device_id)
    if is_foreign:
        raise ContextError(
            f"{subject} was allocated in another context than the primary one of device {found}; "
            "allocate it under `with bridge.primary_context():`"
        )


def check_array(array, subject, int device_id):
    """Raise ContextError for a CuPy array on another device; an empty array passes."""
    if array.data.device_id != device_id and array.size:
        raise not_on_device(subject, array.data.device_id, device_id)


def not_on_device(subject, int found, int device_id):
    """Return the error for memory on a device that is not current."""
    return ContextError(
        f"{subject} is on device {found}, but device {device_id} is current; work under "
        f"`with bridge.primary_context({found}):`, or copy it to device {device_id}"
    )


def import_array(array, stream, Stream waiter, int device_id, caller):
    """Return a CuPy view of another library's array; order the array's work before `waiter`.

    DLPack is tried first, because its exporters order their pending work.  The array interfaces of
    PyTorch and PyCUDA name no stream.
    """
    if isinstance(array, (type, Global)):
        raise not_an_array(array, caller)
    is_negative = getattr(array, "is_neg", None)  # no protocol exports this bit
    if is_negative is not None and is_negative():
        raise BufferError(
            "the tensor is the negative of its memory (is_neg()); pass tensor.resolve_neg(), a copy"
        )
    found = import_exchanged(array, stream, waiter, device_id, caller)
    if found is not None:
        return found
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return import_dlpack(array, stream, waiter, device_id, caller)
    if isinstance(array, ProxyTypes):
        raise TypeError(
            f"{caller.argument} is a weakref.proxy, which does not keep its array; pass the array"
        )
    cdef Handle current = cuda_current()
    try:
        found = array.__cuda_array_interface__
    except AttributeError:
        raise not_an_array(array, caller) from None
    restore_after_exporter(current)
    pointer, shape, strides, dtype, nbytes, awaited = read_interface(found, caller)
    check_device(pointer, caller.array, device_id)
    if stream is not None:
        awaited = handle_of(stream, caller.name)
    if awaited is not None:
        order(waiter, awaited)
    return new_array(shape, dtype, strides, pointer, nbytes, array, device_id)


cdef void restore_after_exporter(Handle current) noexcept:
    """Make a context current again, if an exporter has switched the device."""
    if cuda_current() != current:
        cuCtxSetCurrent(current)


cdef tuple HOST_TYPES = (
    np.ndarray, np.generic, list, tuple, memoryview, bytes, int, float, complex
)


cpdef not_an_array(array, caller, is_host=False):
    """Return the error for an argument that is not a device array."""
    if isinstance(array, BARE_MEMORY) and not isinstance(array, bool):
        meant = ", taken for an address" if isinstance(array, (int, np.integer)) else ""
        problem = (
            f"{named(array)}{meant}; memory tells neither shape nor dtype: give both, e.g. "
            "shape=(480, 640), dtype=numpy.float32"
        )
    elif is_host or isinstance(array, HOST_TYPES) or hasattr(array, "__array_interface__"):
        problem = f"a host {kind(array)}; move it to the device first, e.g. cupy.asarray(a)"
    else:
        problem = (
            f"{named(array)}; a GPUArray, a cupy.ndarray or an object with "
            "__cuda_array_interface__ or __dlpack__ is accepted"
        )
    return TypeError(f"{caller.argument} is {problem}")

# ---- the CUDA Array Interface --------------------------------------------------------------------

cdef dict dtypes_by_typestr = {dtype.str: dtype for dtype in PLAIN_DTYPES}
cdef dict accepted = {
    "version": "an int from 0 to 3",  # RMM's buffers have version 0
    "shape": "a tuple of ints from 0 to 2**63 - 1",
    "strides": "None, or a tuple of ints (bytes) of 64 bits, one for each axis,",
    "typestr": "a str that numpy.dtype accepts, e.g. '<f4',",
    "data": "a tuple (pointer, read-only), the pointer an address of 63 bits,",
    "stream": (
        "None (no ordering needed), 1 (the legacy default stream), 2 (the per-thread one) or an "
        "int handle"
    ),
}


def read_interface(found, caller):
    """Check an ``__cuda_array_interface__``; return pointer, shape, strides, dtype, nbytes, stream.

    The pointer of an empty array is 0.  Strides of None are C-contiguous.  The stream is a handle,
    0 for the legacy default stream, or None if no order is needed.
    """
    try:
        if not isinstance(found, (dict, Mapping)):
            raise TypeError(f"is a {kind(found)}; a dict is accepted")
        return read_entries(found)
    except (KeyError, TypeError, ValueError, BufferError) as error:
        raised, problem = type(error), str(error)
        if raised is KeyError:
            raised, problem = ValueError, f"has no {problem} entry, which CAI requires"
        raise raised(f"{caller.name}: the argument's __cuda_array_interface__ {problem}") from None


cdef tuple read_entries(found):
    shape, typestr, data = found["shape"], found["typestr"], found["data"]
    strides, stream = found.get("strides"), found.get("stream")
    check_ints(found, "version", (found["version"],), 0, 4)
    if found.get("mask") is not None:
        raise BufferError(
            "has a mask; neither library has masked arrays: hand over the data without it"
        )
    check_ints(found, "shape", shape, 0)
    shape = tuple(shape)  # CuPy takes lists, too
    dtype = dtypes_by_typestr.get(typestr) if isinstance(typestr, str) else None
    if dtype is None:
        dtype = read_dtype(found)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes >= ADDRESS_END:
        raise ValueError(f"has shape {shape} of {dtype}, more bytes than there are addresses")
    if strides is not None:
        check_ints(found, "strides", strides, -ADDRESS_END)
        if len(strides) != len(shape):
            raise interface_error(ValueError, found, "strides")
        strides = tuple(strides)

    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise interface_error(TypeError, found, "data")
    pointer, is_read_only = data
    if is_read_only:
        raise BufferError(f"is marked read-only; {UNPROTECTED}")
    if nbytes == 0:
        pointer = 0  # before version 2, CAI allows any pointer
    else:
        check_ints(found, "data", (pointer,), 1)
        pointer = int(pointer)  # of a NumPy integer

    if stream is not None:
        check_ints(found, "stream", (stream,), 1)
        stream = 0 if stream == 1 else stream
    return pointer, shape, strides, dtype, nbytes, stream


cdef int check_ints(found, entry, values, low, high=ADDRESS_END) except -1:
    """Raise unless an entry's values are ints in a range, in a tuple or list; no bools."""
    if not isinstance(values, (tuple, list)):
        raise interface_error(TypeError, found, entry)
    for value in values:
        if type(value) is not int and not isinstance(value, np.integer):
            raise interface_error(TypeError, found, entry)
        if not low <= value < high:
            raise interface_error(ValueError, found, entry)
    return 0


cdef interface_error(error, found, entry):
    """Return the error for an entry: what came, and what is accepted."""
    return error(f"has {entry} {found[entry]!r}; {accepted[entry]} is accepted")


cdef read_dtype(found):
    typestr, descr = found["typestr"], found.get("descr")
    if not isinstance(typestr, str):
        raise interface_error(TypeError, found, "typestr")
    try:
        dtype = np.dtype(typestr)
        # CAI: descr refines a void typestr.  For plain arrays, it is [('', typestr)].
        if dtype.kind == "V" and descr is not None and descr != [("", typestr)]:
            dtype = np.dtype(descr)
            if dtype.itemsize != np.dtype(typestr).itemsize:
                raise ValueError(f"descr describes {dtype.itemsize} bytes")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"has typestr {typestr!r}, descr {descr!r}: {error}; {accepted['typestr']} is accepted"
        ) from None
    check_dtype(dtype, f"has typestr {typestr!r}")
    return dtype

# ---- DLPack --------------------------------------------------------------------------------------


cdef import_exchanged(array, stream, Stream waiter, int device_id, caller):
    """Import through DLPack's C exchange API.

    Return None if the array's type has none, or it does not help: then the other protocols tell.
    """
    cdef DLPackExchangeAPI *api = exchange_api_of(type(array))
    cdef DLManagedTensorVersioned *managed = NULL
    cdef void *awaited = NULL
    cdef Handle current = cuda_current()
    if api is NULL or getattr(array, "requires_grad", False):
        return None
    try:
        api.managed_tensor_from_py_object_no_sync(<void *> array, &managed)
        if managed is NULL:
            return None
        owner = own_tensor(managed)
        if stream is None:
            api.current_work_stream(kDLCUDA, device_id, &awaited)
    except Exception:
        return None
    finally:
        restore_after_exporter(current)
    if managed.major != 1 or managed.dl_tensor.device_type not in (kDLCUDA, kDLCUDAManaged):
        return None
    if managed.dl_tensor.device_type == kDLCUDA and managed.dl_tensor.device_id != device_id:
        raise not_on_device(caller.array, managed.dl_tensor.device_id, device_id)
    check_flags(managed.flags, caller)
    managed.dl_tensor.device_id = device_id
    result = None
    # PyTorch's __dlpack__ refuses a tensor that is the conjugate of its memory.
    if managed.dl_tensor.code != kDLComplex or not hasattr(array, "is_conj") or not array.is_conj():
        result = array_on_tensor(owner)
    if result is not None:
        if managed.dl_tensor.device_type == kDLCUDAManaged:
            check_device(result.data.ptr, caller.array, device_id)
        if stream is not None:
            order(waiter, handle_of(stream, caller.name))
        else:
            order(waiter, 0 if <Stream> awaited == LEGACY else <Stream> awaited)
    return result


cdef import_dlpack(array, stream, Stream waiter, int device_id, caller):
    """Import through DLPack.  The exporter makes the stream that it receives wait for its work."""
    cdef Handle current = cuda_current()
    holder = dlpack_device(array, caller)
    restore_after_exporter(current)
    if holder is not None and holder != device_id:
        raise not_on_device(caller.array, holder, device_id)
    if stream is not None:
        order(waiter, handle_of(stream, caller.name))
        waiter = UNORDERED
    # DLPack: 1 is the default stream, never 0.  The thread's own, which PyTorch does not accept, runs
    # after a wait that is queued there.
    told = LEGACY if waiter == 0 or waiter == PER_THREAD else waiter
    try:
        capsule = array.__dlpack__(stream=told, max_version=(1, 0))
    except TypeError:  # an exporter from before DLPack 1.0
        capsule = array.__dlpack__(stream=told)
    restore_after_exporter(current)
    try:
        check_capsule(capsule, caller)
        result = cupy.from_dlpack(capsule)
    except Exception:
        capsule = None  # its destructor may run Python: do so while no error is pending
        raise
    if holder is None:
        check_device(result.size and result.data.ptr, caller.array, device_id)
    return result


cdef dlpack_device(array, caller):
    """Return the device id; None for managed memory, which reports 0 on every device."""
    cdef int where, device_id
    found, device_id = array.__dlpack_device__()
    where = getattr(found, "value", found)  # the array API allows any Enum, not only IntEnum
    if where == kDLCPU or where == kDLCUDAHost:
        raise not_an_array(array, caller, is_host=True)
    if where != kDLCUDA and where != kDLCUDAManaged:
        raise TypeError(
            f"{caller.argument} is on DLPack device type {where}; CUDA (2) and CUDA managed "
            "memory (13) are accepted"
        )
    return device_id if where == kDLCUDA else None


cdef int check_capsule(capsule, caller) except -1:
    """Raise BufferError for data that is read-only or a copy: CuPy ignores the flags."""
    cdef DLManagedTensorVersioned *managed
    if PyCapsule_IsValid(capsule, "dltensor"):
        return 0  # DLPack before 1.0 has neither version nor flags
    if not PyCapsule_IsValid(capsule, "dltensor_versioned"):
        raise BufferError(
            f"{caller.name}: the argument's __dlpack__() returns {capsule!r}; a capsule named "
            "dltensor or dltensor_versioned that has not been consumed is accepted"
        )
    managed = <DLManagedTensorVersioned *> PyCapsule_GetPointer(capsule, "dltensor_versioned")
    if managed.major != 1:  # other versions have another layout
        raise BufferError(
            f"{caller.name}: the argument is exported as DLPack {managed.major}; version 1 is "
            "accepted"
        )
    check_flags(managed.flags, caller)
    return 0


def check_flags(uint64_t flags, caller):
    """Raise BufferError for data that is read-only or a copy."""
    if flags & DLPACK_FLAG_BITMASK_READ_ONLY:
        raise BufferError(f"{caller.name}: the argument is exported as read-only; {UNPROTECTED}")
    if flags & DLPACK_FLAG_BITMASK_IS_COPIED:
        raise BufferError(
            f"{caller.name}: the argument's library exports a copy of it; hand over an array that "
            "it can export in place"
        )
