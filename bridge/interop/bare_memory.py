"""Arrays on bare memory: an allocation, a block of a pool, a pointer or an address.

Also on the memory of NumPy arrays that the device can reach: managed, and pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer, runtime
from cupy.cuda.memory import BaseMemory
from cupy.cuda.pinned_memory import PinnedMemory
from pycuda.gpuarray import GPUArray

from ..errors import Caller, named, warn
from .contexts import shared_device
from .dtypes import check_dtype
from .importing import ADDRESS_END, UNPROTECTED, check_device, not_an_array
from .layouts import extent, repeats_elements
from .memory_kinds import BARE_MEMORY, Global, bare_address

_UNREGISTERED = 0  # cudaMemoryTypeUnregistered: the device cannot reach it


def _attributes(array: np.ndarray[Any, Any]) -> Any:
    return runtime.pointerGetAttributes(array.__array_interface__["data"][0])


def is_reachable(array: np.ndarray[Any, Any]) -> bool:
    """Tell whether the device can reach the memory of a NumPy array: it is managed, or pinned."""
    return bool(_attributes(array).type != _UNREGISTERED)


def array_on_host(array: np.ndarray[Any, Any], caller: Caller) -> GPUArray:
    """Return a GPUArray that keeps a NumPy array's memory alive; raise if the device lacks it."""
    memory = _attributes(array)
    if memory.type == _UNREGISTERED:
        raise not_an_array(array, caller)
    if not array.flags.writeable:
        raise BufferError(f"{caller.array} is marked read-only; {UNPROTECTED}")
    check_dtype(array.dtype, caller.name)
    return GPUArray(
        array.shape, array.dtype, drv.mem_alloc, array, memory.devicePointer, array.strides
    )


# Shape, dtype, strides, order, offset and owner of an array on bare memory, as for `as_cupy`.
Description = tuple[Any, Any, Any, Any, Any, Any]


def array_on_memory(
    memory: Any,
    given: Description,
    caller: Caller,
    may_repeat: bool,
    device_array: Callable[[Any, Any, Caller], Any],
) -> GPUArray:
    """Return a GPUArray that keeps bare memory alive; raise if the array does not fit into it.

    `device_array` imports another library's buffer.
    """
    name = caller.name
    shape, dtype, strides, order, offset, owner = given
    if not isinstance(memory, BARE_MEMORY) or isinstance(memory, bool):
        memory = _exported_bytes(memory, caller, device_array)
    if shape is None or dtype is None:
        raise TypeError(
            f"{name}: the {'shape' if shape is None else 'dtype'} of bare memory is missing; give "
            "shape and dtype, e.g. shape=(480, 640), dtype=numpy.float32"
        )
    is_address = type(memory) is int or isinstance(memory, np.integer)
    if owner is not None and not is_address:
        raise TypeError(f"{name}: owner is for an address; {named(memory)} is kept without it")
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f"{name}: dtype is {named(dtype)}; a data type of NumPy's is accepted, e.g. "
            f"numpy.float32 or 'f4' ({error})"
        ) from None
    check_dtype(dtype, name)
    if dtype.subdtype:
        raise TypeError(f"{name}: dtype is {dtype}; give its base dtype, and the longer shape")
    shape = _ints(shape, "shape", name)
    strides = None if strides is None else _ints(strides, "strides", name)
    if strides is not None and len(strides) != len(shape):
        raise ValueError(
            f"{name}: shape is {shape}, strides are {strides}; give one stride per axis, in bytes"
        )
    if not all(0 <= n < ADDRESS_END for n in shape):
        raise ValueError(f"{name}: shape is {shape}; lengths of 0 to 2**63 - 1 are accepted")
    if order not in (None, "C", "F") or None not in (order, strides):
        raise ValueError(
            f"{name}: order is {named(order)}, strides are {strides}; order 'C' or 'F' is "
            "accepted, or strides, in bytes, without an order"
        )
    (offset,) = _ints(offset or 0, "offset", name)
    start = bare_address(memory)
    if not 0 < start < ADDRESS_END or getattr(memory, "memory", memory) is None:
        raise ValueError(
            f"{name}: the memory is at {start:#x}, or has been freed; memory that is allocated "
            "is accepted"
        )
    check_device(start, f"{name}: the memory", shared_device())
    if owner is None and is_address:
        warn(
            f"{name}: an address does not keep its memory allocated; give the allocation itself "
            "(of a module's variable, all of what get_global returns), or owner=, the object that "
            "keeps the memory (any object, if you keep it yourself)"
        )
    kept = owner if is_address else memory  # an `Allocation` is an int, too
    array = GPUArray(shape, dtype, drv.mem_alloc, kept, start + offset, strides, order or "C")
    if not array.size:
        array.gpudata = None
        return array
    _check_extent(array, offset, _size(memory, start), named(memory), name)
    if not may_repeat and repeats_elements(array.shape, array.strides):
        raise ValueError(
            f"{name}: strides are {array.strides}; PyCUDA cannot repeat elements, as_cupy can"
        )
    return array


def _exported_bytes(buffer: Any, caller: Caller, device_array: Any) -> MemoryPointer:
    """Return the memory that another library exports as bytes: cuda.core's Buffer, RMM's."""
    has_shape = isinstance(buffer, GPUArray | cupy.ndarray | np.ndarray)
    names = "__dlpack__", "__cuda_array_interface__"
    if not has_shape and any(hasattr(type(buffer), name) for name in names):
        array = device_array(buffer, None, caller)
        if array.ndim == array.itemsize == 1 and array.flags.c_contiguous:
            return array.data  # keeps the buffer
        has_shape = True
    problem = "has its own shape and dtype: write .reshape(...) or .view(dtype) of the result"
    raise TypeError(
        f"{caller.argument} is {named(buffer)}{f', which {problem}' if has_shape else ''}; shape, "
        "dtype and the like are for bare memory: an allocation or PointerHolderBase of PyCUDA, a "
        "pointer of CuPy (cupy.cuda.MemoryPointer, PinnedMemoryPointer), another library's buffer "
        "of bytes or an address; stream=s gives a stream"
    )


def _ints(value: Any, name: str, caller: str) -> tuple[int, ...]:
    try:
        return tuple(map(index, value if hasattr(value, "__iter__") else (value,)))
    except TypeError:
        raise TypeError(
            f"{caller}: {name} is {named(value)}; an int or a sequence of ints is accepted"
        ) from None


def _size(memory: Any, start: int) -> int:
    """Return the number of bytes from `start` to the end of the memory, or of its block."""
    if isinstance(memory, Global):
        return memory[1]
    for _ in "Allocation", "View":  # to the block itself
        memory = getattr(memory, "memory", memory)
    memory = getattr(memory, "mem", memory)
    if isinstance(memory, BaseMemory | PinnedMemory):
        return int(memory.ptr + memory.size) - start
    base, size = drv.mem_get_address_range(start)
    return int(base + size) - start


def _check_extent(array: Any, offset: int, size: int, memory: str, caller: str) -> None:
    """Raise if elements are outside of the memory, or misaligned."""
    first, last = (offset + end for end in extent(array))
    if first < 0 or last > size:
        raise ValueError(
            f"{caller}: shape {array.shape}, strides {array.strides}, offset {offset} and dtype "
            f"{array.dtype} need the bytes from {first} to {last}; {memory} has those from 0 to "
            f"{size}"
        )
    if any(step % array.dtype.alignment for step in (array.gpudata, *array.strides)):
        raise ValueError(
            f"{caller}: offset {offset} and strides {array.strides} give addresses that a "
            f"{array.dtype} cannot have; they must be multiples of {array.dtype.alignment}"
        )
