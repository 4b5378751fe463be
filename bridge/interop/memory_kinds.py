"""Kinds of memory: a row for each class.

The size of memory is found in `bridge.interop.bare_memory`.  `bridge.kernels.arguments.pointer_of`
accepts what is `of_pycuda`, and lists the other classes that a kernel takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer, PinnedMemoryPointer

_memoryview: Callable[..., memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))


class Allocation(int):
    """A device address, for the ``gpudata`` of a `GPUArray`; `memory` owns the memory there."""

    memory: Any = None  # a View of a block of CuPy's

    @property
    def gpudata(self) -> int:
        """The address.  PyCUDA's kernels accept objects with this attribute."""
        return int(self)

    def free(self) -> None:
        """Free the memory now, as ``DeviceAllocation.free`` does."""
        self.memory = None

    def as_buffer(self, size: int, offset: int = 0) -> memoryview:
        """Return a part of the memory as a buffer, as ``DeviceAllocation.as_buffer`` does."""
        return _memoryview(self + offset, size, 0x200)  # PyBUF_WRITE


class Global(tuple[int, int]):
    """A variable of a module: ``(pointer, size in bytes)``; for other libraries an array of bytes.

    Write it with ``pycuda.driver.memcpy_htod(pointer, array)``, and then call `bridge.as_cupy` of
    any array, or from CuPy as ``bridge.as_cupy(g, shape, dtype)``.
    """

    _module: Any  # kept alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as bytes (CUDA Array Interface, version 3)."""
        pointer, size = self
        return {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class Kind(NamedTuple):
    """What is known of a class of memory."""

    address: Callable[[Any], int] = int  # of what is bare
    is_bare: bool = True  # `bridge.interop.bare_memory` makes arrays on it
    of_pycuda: bool = False  # PyCUDA's streams may be using it
    is_fixed: bool = False  # an object's address does not change
    on_host: bool = False  # the host may use it at once when it is released


def _of_holder(memory: Any) -> int:
    return int(getattr(memory, "gpudata", memory))  # as PyCUDA reads it


KINDS: dict[type, Kind] = {
    drv.DeviceAllocation: Kind(of_pycuda=True, is_fixed=True),
    drv.PooledDeviceAllocation: Kind(of_pycuda=True, is_fixed=True),
    drv.PointerHolderBase: Kind(_of_holder, of_pycuda=True),
    drv.ManagedAllocation: Kind(of_pycuda=True),
    drv.PagelockedHostAllocation: Kind(lambda m: m.get_device_pointer(), on_host=True),
    MemoryPointer: Kind(lambda m: m.ptr),
    PinnedMemoryPointer: Kind(lambda m: m.ptr, on_host=True),
    Global: Kind(lambda m: m[0]),
    Allocation: Kind(of_pycuda=True, is_fixed=True),
    int: Kind(is_fixed=True),
    np.integer: Kind(is_fixed=True),
    np.ndarray: Kind(is_bare=False, on_host=True),
    type(None): Kind(is_bare=False, is_fixed=True),
}


def classes(**wanted: bool) -> tuple[type, ...]:
    """Return the classes whose kinds have these values."""
    return tuple(
        one
        for one, kind in KINDS.items()
        if all(getattr(kind, name) == value for name, value in wanted.items())
    )


BARE_MEMORY = classes(is_bare=True)
HOLDERS = classes(of_pycuda=True)


def bare_address(memory: Any) -> int:
    """Return the address of bare memory."""
    return next(kind.address(memory) for one, kind in KINDS.items() if isinstance(memory, one))
