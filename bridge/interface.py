"""What an array of another library says of itself, checked before anything is touched.

Sources: CUDA Array Interface, version 3 (numba-cuda documentation), cited as *CAI*; DLPack
Python specification (dmlc.github.io/dlpack), cited as *DLPack*.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import cupy
import numpy as np
from numpy.lib.stride_tricks import as_strided

from ._core import new_array, pointer_home
from .errors import ContextError, kind, named
from .streams import PER_THREAD, UNORDERED, handle_of, order

# The dtypes that both libraries hold; structured ones and bfloat16 pass `check_dtype`.
PLAIN_DTYPES = frozenset(np.dtype(char) for char in "?bhilqBHILQefdFD")
# CuPy 13 does not have it; CuPy 14 needs NumPy 2.1.2 for it (seen).
HOLDS_BFLOAT16 = not cupy.__version__.startswith("13.") and (
    np.lib.NumpyVersion(np.__version__) >= "2.1.2"
)
_TYPESTRS: dict[Any, np.dtype[Any]] = {dtype.str: dtype for dtype in PLAIN_DTYPES}
_INTS = {int, *(np.dtype(char).type for char in "bhilqBHILQ")}  # bool is not one
_HOST_TYPES = (np.ndarray, np.generic, list, tuple, memoryview, bytes, int, float, complex)
_FAR = 1 << 63  # CuPy counts in 64 bits
_CUDA, _CUDA_MANAGED, _HOST = 2, 13, (1, 3)  # DLPack, DLDeviceType
_READ_ONLY, _IS_COPIED = 1, 2  # DLPack, flags
_UNPROTECTED = (
    "neither library can keep it from being written to, so a view is refused: hand over a copy"
)


def check_dtype(dtype: np.dtype[Any], caller: str) -> None:
    """Raise TypeError unless both libraries can hold `dtype`."""
    if dtype in PLAIN_DTYPES or _is_held(dtype):
        return
    problem = "is not one that both PyCUDA and CuPy hold"
    if not dtype.isnative:
        problem = "is not in native byte order; convert it on the host first, e.g. a.astype('<f4')"
    raise TypeError(
        f"{caller}: dtype {dtype} {problem} (accepted: bool, integers, float16/32/64, "
        "bfloat16 with CuPy 14 and NumPy 2.1.2, complex64/128 and structured dtypes of these)"
    )


def _is_held(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return _is_held(dtype.subdtype[0])
    if dtype.fields is not None:
        return all(_is_held(field[0]) for field in dtype.fields.values())
    if dtype.name == "bfloat16":  # of ml_dtypes
        return HOLDS_BFLOAT16
    # Plain bytes: other libraries make them of structured dtypes.
    return dtype in PLAIN_DTYPES or (dtype.type is np.void and dtype.itemsize > 0)


@lru_cache(maxsize=4096)
def contiguity(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[bool, bool]:
    """Tell whether a layout is C-contiguous, and whether it is Fortran-contiguous.

    A GPUArray's own ``flags`` are cached, and do not follow a change of its strides.
    """
    flags = as_strided(np.empty((), f"V{itemsize}"), shape, strides).flags  # only described
    return flags.c_contiguous, flags.f_contiguous


def check_device(pointer: int, subject: str, device_id: int) -> None:
    """Raise unless memory is in that device's primary context; a null pointer passes."""
    if not pointer:
        return
    found, is_foreign = pointer_home(pointer)
    if found < 0:
        raise ValueError(
            f"{subject} has the pointer 0x{pointer:x}, which is unknown to CUDA; device memory "
            "that has not been freed is accepted"
        )
    if found != device_id:
        raise elsewhere(subject, found, device_id)
    if is_foreign:
        raise ContextError(
            f"{subject} was allocated in another context than the primary one of device {found}; "
            "allocate it under `with bridge.primary_context():`"
        )


def check_array(array: Any, subject: str, device_id: int) -> None:
    """Raise ContextError for a CuPy array of another device; an empty one has none."""
    if array.data.device_id != device_id and array.size:
        raise elsewhere(subject, array.data.device_id, device_id)


def elsewhere(subject: str, found: int, device_id: int) -> ContextError:
    """Return the error for memory of another device than the current one."""
    return ContextError(
        f"{subject} is on device {found}, but device {device_id} is current; work under "
        f"`with bridge.primary_context({found}):`, or copy it to device {device_id}"
    )


def import_array(array: Any, stream: Any, waiter: int, device_id: int, caller: str) -> Any:
    """View another library's array as a CuPy array, its work ordered before `waiter`.

    DLPack is asked first: its exporters order their pending work, while the array interfaces of
    PyTorch and PyCUDA name no stream.
    """
    if isinstance(array, type):
        raise _refusal(array, caller)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _import_dlpack(array, stream, waiter, device_id, caller)
    try:
        interface = array.__cuda_array_interface__
    except AttributeError:
        raise _refusal(array, caller) from None
    pointer, shape, strides, dtype, nbytes, awaited = read_interface(interface, caller)
    check_device(pointer, f"{caller}: the array", device_id)
    if stream is not None:
        awaited = handle_of(stream, caller)
    if awaited is not None:
        order(waiter, awaited, device_id)
    return new_array(shape, dtype, strides, pointer, nbytes, array, device_id)


def _refusal(array: Any, caller: str, is_host: bool = False) -> TypeError:
    if type(array) is int:
        problem = (
            f"the int {array}; if that is an address, it tells neither shape nor dtype: pass the "
            "array itself, or a GPUArray(shape, dtype, gpudata=address)"
        )
    elif is_host or isinstance(array, _HOST_TYPES) or hasattr(array, "__array_interface__"):
        problem = f"a host {kind(array)}; move it to the device first, e.g. cupy.asarray(a)"
    else:
        problem = (
            f"{named(array)}; a GPUArray, a cupy.ndarray or an object with "
            "__cuda_array_interface__ or __dlpack__ is accepted"
        )
    return TypeError(f"{caller}: argument is {problem}")


def read_interface(found: Any, caller: str) -> tuple[Any, ...]:
    """Check an ``__cuda_array_interface__``; return pointer, shape, strides, dtype, nbytes, stream.

    The pointer of an empty array is 0.  Strides of None are C-contiguous.  The stream is a handle,
    0 for the legacy default stream, or None if no order is needed.
    """
    try:
        return _read_entries(found)
    except (KeyError, TypeError, ValueError, BufferError) as error:
        raised, problem = type(error), str(error)
        if raised is KeyError:
            raised, problem = ValueError, f"has no {problem} entry, which CAI requires"
        raise raised(f"{caller}: the argument's __cuda_array_interface__ {problem}") from None


def _read_entries(found: Any) -> tuple[Any, ...]:
    if type(found) is not dict and not isinstance(found, Mapping):
        raise TypeError(f"is a {type(found).__name__}; a dict is accepted")
    shape, typestr, data, version = (
        found["shape"],
        found["typestr"],
        found["data"],
        found["version"],
    )
    if type(version) not in _INTS or not 0 <= version <= 3:  # RMM's buffers say 0
        raise ValueError(f"has version {version!r}; versions 0 to 3 are accepted")
    if found.get("mask") is not None:
        raise BufferError(
            "has a mask; neither library has masked arrays: hand over the data without it"
        )

    if not isinstance(shape, tuple) or not _INTS.issuperset(map(type, shape)):
        raise TypeError(f"has shape {shape!r}; a tuple of ints is accepted")
    for length in shape:
        if not 0 <= length < _FAR:
            raise ValueError(f"has shape {shape!r}; lengths from 0 to 2**63 - 1 are accepted")
    dtype = _TYPESTRS.get(typestr) if type(typestr) is str else None
    if dtype is None:
        dtype = _read_dtype(typestr, found.get("descr"))
    nbytes = prod(shape) * dtype.itemsize
    if nbytes >= _FAR:
        raise ValueError(f"has shape {shape} of {dtype}, more bytes than there are addresses")

    strides = found.get("strides")
    if strides is not None:
        if not isinstance(strides, tuple) or not _INTS.issuperset(map(type, strides)):
            raise TypeError(f"has strides {strides!r}; None or a tuple of ints (bytes) is accepted")
        if len(strides) != len(shape):
            raise ValueError(
                f"has strides {strides!r}, {len(strides)} strides for {len(shape)} axes of shape "
                f"{shape}; None or one for each axis is accepted"
            )
        if strides and not -_FAR <= min(strides) <= max(strides) < _FAR:
            raise ValueError(f"has strides {strides!r}; what 64 bits hold is accepted")

    if not isinstance(data, tuple) or len(data) != 2 or type(data[0]) not in _INTS:
        raise TypeError(f"has data {data!r}; a tuple (pointer, read-only) is accepted")
    pointer, is_read_only = data
    if is_read_only:
        raise BufferError(f"is marked read-only; {_UNPROTECTED}")
    if 0 in shape:
        pointer = 0  # CAI before version 2: it may be any
    elif not 0 < pointer < 1 << 64:
        raise ValueError(
            f"has pointer {pointer} for an array of shape {shape}; the address of its memory is "
            "accepted"
        )

    stream = found.get("stream")
    if stream is not None:
        if type(stream) not in _INTS:
            raise TypeError(f"has stream {stream!r}; None or an int handle is accepted")
        if stream < 1 or stream >> 63:
            raise ValueError(
                f"has stream {stream}, which CAI forbids (1 is the legacy default stream, 2 the "
                "per-thread one, None needs no ordering, and else it is a handle)"
            )
        stream = 0 if stream == 1 else int(stream)
    return int(pointer), shape, strides, dtype, nbytes, stream


def _read_dtype(typestr: Any, descr: Any) -> np.dtype[Any]:
    if not isinstance(typestr, str):
        raise TypeError(f"has typestr {typestr!r}; a str such as '<f4' is accepted")
    try:
        dtype: np.dtype[Any] = np.dtype(typestr)
        # CAI: descr refines a void typestr; plain arrays repeat themselves as [('', typestr)].
        if dtype.kind == "V" and descr is not None and descr != [("", typestr)]:
            dtype = np.dtype(descr)
            if dtype.itemsize != np.dtype(typestr).itemsize:
                raise ValueError(f"descr describes {dtype.itemsize} bytes")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"has typestr {typestr!r}, descr {descr!r}: {error}; what numpy.dtype takes is "
            "accepted, e.g. '<f4'"
        ) from None
    check_dtype(dtype, f"has typestr {typestr!r}")
    return dtype


def _import_dlpack(array: Any, stream: Any, waiter: int, device_id: int, caller: str) -> Any:
    """Import by DLPack, whose exporters make the stream that they are told wait for their work."""
    holder = _dlpack_device(array, caller)
    if holder is not None and holder != device_id:
        raise elsewhere(f"{caller}: the array", holder, device_id)
    if stream is not None:
        order(waiter, handle_of(stream, caller), device_id)
        waiter = UNORDERED
    # PyTorch refuses the per-thread stream: a stream in between does the same.
    between = cupy.cuda.Stream(non_blocking=True) if waiter == PER_THREAD else None
    told = between.ptr if between else waiter or 1  # DLPack: 1 is the default stream, never 0
    try:
        capsule = array.__dlpack__(stream=told, max_version=(1, 0))
    except TypeError:  # an exporter from before DLPack 1.0
        capsule = array.__dlpack__(stream=told)
    _check_capsule(capsule, caller)
    result = cupy.from_dlpack(capsule)
    if between:
        order(waiter, told, device_id)
    if holder is None:
        check_device(result.size and result.data.ptr, f"{caller}: the array", device_id)
    return result


def _dlpack_device(array: Any, caller: str) -> int | None:
    """Return the id of the device; None for managed memory, which says 0 on every device."""
    answer = array.__dlpack_device__()
    try:
        device_type, device_id = answer
        # The array API's type is any Enum, not IntEnum.
        device_type, device_id = index(getattr(device_type, "value", device_type)), index(device_id)
    except (TypeError, ValueError):
        raise TypeError(
            f"{caller}: the argument's __dlpack_device__() returns {answer!r}; two ints, (type, "
            "id), are accepted"
        ) from None
    if device_type in _HOST:
        raise _refusal(array, caller, is_host=True)
    if device_type not in (_CUDA, _CUDA_MANAGED):
        raise TypeError(
            f"{caller}: argument is on DLPack device type {device_type}; CUDA (2) and CUDA "
            "managed memory (13) are accepted"
        )
    return device_id if device_type == _CUDA else None


_is_valid = ctypes.pythonapi["PyCapsule_IsValid"]  # one of our own, unlike an attribute
_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = _is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _check_capsule(capsule: Any, caller: str) -> None:
    """Raise BufferError for data that is read-only or a copy: CuPy forgets the flags."""
    if not _is_valid(capsule, b"dltensor_versioned"):
        if _is_valid(capsule, b"dltensor"):
            return  # DLPack before 1.0 has neither version nor flags
        raise BufferError(
            f"{caller}: the argument's __dlpack__() returns {capsule!r}; a capsule named dltensor "
            "or dltensor_versioned is accepted, which nobody has consumed"
        )
    # It begins with uint32_t version[2]; void *context; void (*deleter)(); uint64_t flags.
    address = _pointer(capsule, b"dltensor_versioned")
    major = ctypes.c_uint32.from_address(address).value
    if major != 1:  # of another version nothing else can be read
        raise BufferError(
            f"{caller}: the argument is exported as DLPack {major}; version 1 is accepted"
        )
    flags = ctypes.c_uint64.from_address(address + 24).value
    if flags & _READ_ONLY:
        raise BufferError(f"{caller}: the argument is exported as read-only; {_UNPROTECTED}")
    if flags & _IS_COPIED:
        raise BufferError(
            f"{caller}: the argument's library exports a copy of it; hand over an array that it "
            "can export in place"
        )
