"""What a device array of any library says of itself, checked before anything is touched.

Sources: CUDA Array Interface, version 3 (numba-cuda documentation), cited as *CAI*; DLPack
Python specification (dmlc.github.io/dlpack), cited as *DLPack*.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import index
from typing import Any

import cupy
import numpy as np

from . import context
from .context import ContextError
from .words import kind, named

pointer_attributes = cupy.cuda.runtime.pointerGetAttributes
UNREGISTERED = 0  # cudaMemoryTypeUnregistered
_CUDA, _CUDA_MANAGED = 2, 13  # DLPack, DLDeviceType
_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
# CuPy 13 has none; CuPy 14 does not say that it wants NumPy 2.1.2 for it (seen).
HOLDS_BFLOAT16 = not cupy.__version__.startswith("13.") and (
    np.lib.NumpyVersion(np.__version__) >= "2.1.2"
)
_VERSIONS = range(4)  # CAI; RMM's buffers say 0 to this day
_HOST_TYPES = (np.ndarray, np.generic, list, tuple, memoryview, bytes, int, float, complex)
FAR = 1 << 63  # beyond what CuPy counts with
_DLPACK_MAJOR = 1
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_IS_COPIED = 2  # DLPACK_FLAG_BITMASK_IS_COPIED

# The dtypes that both libraries hold; structured ones and bfloat16 pass `check_dtype`.
PLAIN_DTYPES = frozenset(np.dtype(char) for char in "?bhilqBHILQefdFD")


_TYPESTRS: dict[Any, np.dtype[Any]] = {dtype.str: dtype for dtype in PLAIN_DTYPES}

# A device array as its `__cuda_array_interface__` describes it: pointer (0 where, and only where,
# the array has no elements), shape, strides in bytes (None is C-contiguous), dtype, and stream: a
# CUDA handle, 0 for the legacy default stream; None is "no order needed".
DeviceArray = tuple[int, tuple[int, ...], tuple[int, ...] | None, "np.dtype[Any]", int | None]


def check_dtype(dtype: np.dtype[Any], caller: str) -> None:
    """Raise TypeError unless both libraries can hold `dtype`."""
    if _is_held(dtype):
        return
    if not dtype.isnative:
        problem = "is not in native byte order; convert it on the host first, e.g. a.astype('<f4')"
    else:
        problem = "is not one that both PyCUDA and CuPy hold"
    raise TypeError(
        f"{caller}: dtype {dtype} {problem} (accepted: bool, integers, float16/32/64, "
        "bfloat16 with CuPy 14 and NumPy 2.1.2, complex64/128 and structured dtypes of these)"
    )


def _is_held(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return _is_held(dtype.subdtype[0])
    if dtype.fields is not None:
        return all(_is_held(field[0]) for field in dtype.fields.values())
    # Plain bytes: what a structured dtype becomes on the way through other libraries.
    if dtype.name == "bfloat16":  # of ml_dtypes
        return HOLDS_BFLOAT16
    return dtype in PLAIN_DTYPES or (dtype.type is np.void and dtype.itemsize > 0)


@lru_cache(maxsize=4096)
def contiguity(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[bool, bool]:
    """Tell whether a layout is C-contiguous, and whether it is Fortran-contiguous.

    Strides of axes of length 1 mean nothing.  (A GPUArray's ``flags`` stay what they were when
    they were first asked for, whatever is done to its strides.)
    """

    def runs(axes: Iterable[int]) -> bool:
        step = itemsize
        for axis in axes:
            if shape[axis] != 1 and strides[axis] != step:
                return False
            step *= shape[axis]
        return True

    axes = range(len(shape))
    return (True, True) if 0 in shape else (runs(reversed(axes)), runs(axes))


def pointer_device(pointer: int, subject: str) -> int:
    """Return the id of the device that a pointer belongs to.

    Raises
    ------
    ValueError
        If CUDA does not know the pointer: host memory, or freed already.
    """
    attributes = pointer_attributes(pointer)
    if attributes.type == UNREGISTERED:  # page-locked memory is the GPU's too
        raise ValueError(
            f"{subject} has the pointer 0x{pointer:x}, which is unknown to CUDA; device memory "
            "that has not been freed is accepted"
        )
    return int(attributes.device)


def check_device(pointer: int, subject: str, device_id: int) -> None:
    """Raise ContextError for memory of another device; a null pointer has none."""
    if not pointer:
        return
    attributes = pointer_attributes(pointer)
    if attributes.device != device_id or attributes.type == UNREGISTERED:
        raise elsewhere(subject, pointer_device(pointer, subject), device_id)


def check_array(array: Any, subject: str, device_id: int) -> None:
    """Raise ContextError for a CuPy array of another device; an empty one has none."""
    if not array.size:
        return
    if array.data.device_id != device_id:
        raise elsewhere(subject, array.data.device_id, device_id)
    if context.debug:
        check_device(array.data.ptr, subject, device_id)


def elsewhere(subject: str, found: int, device_id: int) -> ContextError:
    """Return the error for memory of another device than the current one."""
    return ContextError(
        f"{subject} is on device {found}, but device {device_id} is current; work under "
        f"`with bridge.primary_context({found}):`, or copy it to device {device_id}"
    )


def refuse(array: Any, caller: str, host: bool = False) -> TypeError:
    """Return the error for an object that is no device array."""
    if type(array) is int:
        return TypeError(
            f"{caller}: argument is the int {array}; if that is an address, it tells neither shape "
            "nor dtype: pass the array itself, or a GPUArray(shape, dtype, gpudata=address)"
        )
    if host or isinstance(array, _HOST_TYPES) or hasattr(array, "__array_interface__"):
        return TypeError(
            f"{caller}: argument is a host {kind(array)}; move it to the device first, "
            "e.g. cupy.asarray(a)"
        )
    return TypeError(
        f"{caller}: argument is {named(array)}; a GPUArray, a cupy.ndarray or an object with "
        "__cuda_array_interface__ or __dlpack__ is accepted"
    )


def _usual(found: Any) -> DeviceArray | None:
    """Read an interface as most libraries write it; None if something is to be looked into.

    It takes 0.6 us, a tenth of what finding out takes what is wrong.
    """
    if type(found) is not dict:
        return None
    get = found.get
    shape, strides, data, stream = get("shape"), get("strides"), get("data"), get("stream")
    dtype, version = _TYPESTRS.get(get("typestr")), get("version")
    if dtype is None or type(version) is not int or not 2 <= version <= 3:
        return None
    if type(shape) is not tuple or type(data) is not tuple or get("mask") is not None:
        return None
    pointer, read_only = data
    if type(pointer) is not int or not 0 < pointer < 1 << 64 or read_only is not False:
        return None
    for n in shape:
        if type(n) is not int or not 0 < n < FAR:
            return None
    if strides is not None:
        if type(strides) is not tuple or len(strides) != len(shape):
            return None
        for step in strides:
            if type(step) is not int or not -FAR <= step < FAR:
                return None
    if stream is not None:
        if type(stream) is not int or not 0 < stream < 1 << 64:
            return None
        if stream == 1:
            stream = 0
    return pointer, shape, strides, dtype, stream


def read_interface(found: Any, caller: str) -> DeviceArray:
    """Read and check an ``__cuda_array_interface__``.

    Raises
    ------
    TypeError
        If an entry has the wrong type, or the dtype is not supported.
    ValueError
        If an entry is missing or has an impossible value.
    BufferError
        If the array is read-only or masked.
    """
    try:
        usual = _usual(found)
    except (TypeError, ValueError):  # an unhashable typestr; no pair
        usual = None
    if usual is not None:
        return usual
    prefix = f"{caller}: the argument's __cuda_array_interface__"
    if not isinstance(found, Mapping):
        raise TypeError(f"{prefix} is a {type(found).__name__}; a dict is accepted")
    for key in ("shape", "typestr", "data", "version"):
        if key not in found:
            raise ValueError(f"{prefix} has no {key!r} entry, which CAI requires")

    version = found["version"]
    if not _is_int(version) or version not in _VERSIONS:
        raise ValueError(f"{prefix} has version {version!r}; versions 0 to 3 are accepted")
    if found.get("mask") is not None:
        raise BufferError(
            f"{prefix} has a mask; neither library has masked arrays: hand over the data without it"
        )

    shape = found["shape"]
    if not isinstance(shape, tuple) or not all(map(_is_int, shape)):
        raise TypeError(f"{prefix} has shape {shape!r}; a tuple of ints is accepted")
    if not all(0 <= n < FAR for n in shape):
        raise ValueError(f"{prefix} has shape {shape!r}; lengths from 0 to 2**63 - 1 are accepted")

    dtype = _read_dtype(found["typestr"], found.get("descr"), prefix)
    check_dtype(dtype, caller)

    strides = found.get("strides")
    if strides is not None:
        if not isinstance(strides, tuple) or not all(map(_is_int, strides)):
            raise TypeError(
                f"{prefix} has strides {strides!r}; None or a tuple of ints (bytes) is accepted"
            )
        if len(strides) != len(shape):
            raise ValueError(
                f"{prefix} has strides {strides!r}, {len(strides)} strides for {len(shape)} axes "
                f"of shape {shape}; None or one for each axis is accepted"
            )
        if not all(-FAR <= step < FAR for step in strides):
            raise ValueError(f"{prefix} has strides {strides!r}; what 64 bits hold is accepted")

    data = found["data"]
    if not isinstance(data, tuple) or len(data) != 2 or not _is_int(data[0]):
        raise TypeError(f"{prefix} has data {data!r}; a tuple (pointer, read-only) is accepted")
    pointer, read_only = data
    if read_only:
        raise BufferError(
            f"{prefix} is marked read-only; neither library can keep it from being written to, "
            "so a view is refused: hand over a copy"
        )
    if pointer < 0 or pointer >> 64 or (pointer == 0 and 0 not in shape):
        raise ValueError(
            f"{prefix} has pointer {pointer} for an array of shape {shape}; the address of its "
            "memory is accepted"
        )

    stream = found.get("stream")
    if stream is not None:
        if not _is_int(stream):
            raise TypeError(f"{prefix} has stream {stream!r}; None or an int handle is accepted")
        if stream < 1 or stream >> 64:
            raise ValueError(
                f"{prefix} has stream {stream}, which CAI forbids (1 is the legacy default "
                "stream, 2 the per-thread one, None needs no ordering, and else it is a handle)"
            )
        stream = 0 if stream == 1 else int(stream)
    if 0 in shape:
        pointer = 0  # CAI before version 2 does not say what an empty array points to
    strides = None if strides is None else tuple(map(int, strides))
    return int(pointer), tuple(map(int, shape)), strides, dtype, stream


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _read_dtype(typestr: Any, descr: Any, prefix: str) -> np.dtype[Any]:
    if not isinstance(typestr, str):
        raise TypeError(f"{prefix} has typestr {typestr!r}; a str such as '<f4' is accepted")
    try:
        dtype: np.dtype[Any] = np.dtype(typestr)
        # CAI: descr refines a void typestr; plain arrays repeat themselves as [('', typestr)].
        if dtype.kind == "V" and descr is not None and descr != [("", typestr)]:
            dtype = np.dtype(descr)
            if dtype.itemsize != np.dtype(typestr).itemsize:
                raise ValueError(f"descr describes {dtype.itemsize} bytes")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{prefix} has typestr {typestr!r}, descr {descr!r}: {error}; what "
            "numpy.dtype takes is accepted, e.g. '<f4'"
        ) from None
    return dtype


def dlpack_device(array: Any, caller: str) -> int | None:
    """Return the id of the CUDA device that holds an ``__dlpack__`` exporter's data.

    None if the exporter need not say it: managed memory has id 0 on every device.

    Raises
    ------
    TypeError
        If the data is not in CUDA device memory, or the exporter's answer is no pair.
    """
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
    if device_type == _CUDA:
        return device_id
    if device_type == _CUDA_MANAGED:
        return None
    if device_type in _HOST_DEVICES:
        raise refuse(array, caller, host=True)
    raise TypeError(
        f"{caller}: argument is on DLPack device type {device_type}; CUDA (2) and CUDA "
        "managed memory (13) are accepted"
    )


def read_dlpack(array: Any, stream: int, caller: str) -> Any:
    """Import an ``__dlpack__`` exporter as a CuPy array, its work ordered before `stream`.

    The exporter makes `stream` (a handle, not the per-thread 2, which PyTorch refuses) wait for
    its own pending work: that is DLPack's rule, and exporters keep it by an event.  CuPy does
    the rest, but forgets the read-only flag.

    Raises
    ------
    BufferError
        If the exporter refuses, or marks its data as read-only or as a copy, or answers with
        another major version of DLPack than 1.
    """
    handle = stream if stream else 1  # DLPack: 0 is forbidden, 1 is the legacy default stream
    try:
        capsule = array.__dlpack__(stream=handle, max_version=(_DLPACK_MAJOR, 0))
    except TypeError:  # an exporter from before DLPack 1.0
        capsule = array.__dlpack__(stream=handle)
    _check_capsule(capsule, caller)
    return cupy.from_dlpack(capsule)


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _check_capsule(capsule: Any, caller: str) -> None:
    """Raise BufferError for a capsule that is not to be read, which then deletes its tensor."""
    name = b"dltensor_versioned"
    if not _capsule_is_valid(capsule, name):
        if _capsule_is_valid(capsule, b"dltensor"):
            return  # DLPack before 1.0 has neither version nor flags
        raise BufferError(
            f"{caller}: the argument's __dlpack__() returns {capsule!r}; a capsule named dltensor "
            "or dltensor_versioned is accepted, which nobody has consumed"
        )
    # struct DLManagedTensorVersioned { uint32_t version[2]; void *context; void (*deleter)();
    #                                   uint64_t flags; ... }
    address = _capsule_pointer(capsule, name)
    major = ctypes.c_uint32.from_address(address).value
    if major != _DLPACK_MAJOR:  # first of all: what follows the version may lie elsewhere then
        raise BufferError(
            f"{caller}: the argument is exported as DLPack {major}; version {_DLPACK_MAJOR} is "
            "accepted, and asked for"
        )
    flags = ctypes.c_uint64.from_address(address + 24).value
    if flags & _READ_ONLY:
        raise BufferError(
            f"{caller}: the argument is exported as read-only; neither library can keep it from "
            "being written to, so a view is refused: hand over a copy"
        )
    if flags & _IS_COPIED:
        raise BufferError(
            f"{caller}: the argument's library exports a copy of it, and what is written to that "
            "would be lost; hand over an array that it can export in place"
        )
