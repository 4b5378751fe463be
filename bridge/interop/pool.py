"""One pool for both libraries: an allocator for PyCUDA, and a report of CuPy's pools.

CuPy pools reuse a block in the order of the stream that it was allocated on.  Memory that PyCUDA
allocates belongs to the default stream, which waits for all of PyCUDA's streams when the memory is
freed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

import cupy
import pycuda.driver as drv
from cupy.cuda import MemoryAsyncPool, MemoryPool

from ..errors import ContextError, named
from .contexts import cuda_device
from .cuda_status import failure, start_cuda
from .importing import ADDRESS_END
from .memory_kinds import Allocation
from .ordering import release_kept_views
from .views import allocate, views_alive

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

Malloc = Callable[[int], Any]

# The pools that allocators use, by allocator: CuPy pools have no weak references.
_pools_in_use: WeakKeyDictionary[Malloc, Any] = WeakKeyDictionary()
_lock = threading.RLock()  # iterating fails if another thread adds a pool


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError, drv.MemoryError):  # type: ignore[misc]
    """Memory cannot be allocated; either library's ``except`` catches it."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)

    def __reduce__(self) -> Any:
        return type(self), self.args


def pycuda_allocator(pool: Any = None, /) -> Malloc:
    """Return an allocator for PyCUDA that takes memory from CuPy's pool.

    Pass it as ``allocator=`` to ``GPUArray``, ``gpuarray.to_gpu`` or ``zeros``.  Results of
    arithmetic, slices and copies then use the same pool.

    Parameters
    ----------
    pool : cupy.cuda.MemoryPool or MemoryAsyncPool, optional
        If omitted, CuPy's allocator that is current at this call.

    Returns
    -------
    callable
        Accepts a number of bytes and returns ``gpudata``.  If memory runs out, it frees the unused
        memory of CuPy's pools and tries again.  If that fails, it raises an error that reports what
        each pool holds, and that either library's ``except`` catches.  It raises TypeError or
        ValueError for an impossible size, and ContextError as in `as_pycuda`.

    Raises
    ------
    TypeError
        If `pool` is not one of these pools.

    Examples
    --------
    >>> import cupy, numpy, bridge, bridge.autoinit
    >>> from pycuda import gpuarray
    >>> before = cupy.get_default_memory_pool().used_bytes()
    >>> a = gpuarray.to_gpu(numpy.arange(3.0), allocator=bridge.pycuda_allocator())
    >>> cupy.get_default_memory_pool().used_bytes() - before
    512

    Notes
    -----
    *Ownership:* a block returns to the pool when the last array on it is freed, on any thread.
    *Ordering:* a block is reused after the work queued on PyCUDA's streams (rule:
    `bridge.interop.ordering`). *Cost:* 1.5 times that of the pool.
    """
    if pool is not None and not isinstance(pool, MemoryPool | MemoryAsyncPool):
        raise TypeError(
            f"pycuda_allocator: pool is {named(pool)}; a cupy.cuda.MemoryPool, a MemoryAsyncPool "
            "or None is accepted; give PyCUDA what pycuda_allocator returns: "
            "allocator=bridge.pycuda_allocator()"
        )
    malloc: Malloc = cupy.cuda.get_allocator() if pool is None else pool.malloc

    def allocator(size: Any) -> Any:
        try:
            if type(size) is not int or not 0 <= size < ADDRESS_END:
                size = _valid_size(size)  # CuPy's pools read larger sizes as 0
            return allocate(malloc, Allocation, size)
        except Exception as error:
            _raise_unless_out_of_memory(error)
        release_kept_views()
        for one in _pools():
            one.free_all_blocks()
        try:
            return allocate(malloc, Allocation, size)
        except Exception as error:
            _raise_unless_out_of_memory(error)
            raise OutOfMemoryError(
                f"pycuda_allocator: {size:,} bytes cannot be allocated, even after all unused "
                f"memory was freed ({error}).\n{_memory_report()}\n"
                "Drop arrays, or work in smaller pieces."
            ) from error

    pool = getattr(malloc, "__self__", None)
    if isinstance(pool, MemoryPool | MemoryAsyncPool):
        with _lock:
            _pools_in_use[allocator] = pool
    return allocator


def _valid_size(size: Any) -> int:
    """Return a valid size as an int."""
    try:
        if isinstance(size, bool):
            raise TypeError
        number = index(size)
    except TypeError:
        raise TypeError(
            f"pycuda_allocator: size is {named(size)}; a number of bytes is accepted, an int"
        ) from None
    if not 0 <= number < ADDRESS_END:
        raise ValueError(f"pycuda_allocator: size is {number}; 0 to 2**63 - 1 bytes are accepted")
    return number


def _raise_unless_out_of_memory(error: Any) -> None:
    if isinstance(error, MemoryError | drv.MemoryError):
        return
    if getattr(error, "status", 0) == _OUT_OF_MEMORY:  # from CuPy without a pool
        return
    start_cuda()  # raises in a forked child process
    if reason := failure():
        raise ContextError(f"pycuda_allocator: {reason}") from error
    raise error


def _pools() -> list[Any]:
    """Return CuPy's default pool, then the pools that allocators use."""
    with _lock:
        found = [cupy.get_default_memory_pool(), *_pools_in_use.values()]
    return list(dict.fromkeys(found))


def show_memory() -> None:
    """Print what each pool holds on the current device, and count the views on all devices.

    Raises
    ------
    ContextError
        If CUDA's current context is not a primary context, or an earlier kernel has failed.

    Notes
    -----
    The pools are CuPy's default pool and those whose allocators still exist, the oldest first.
    *Cost:* 0.1 ms.
    """
    cuda_device()  # raises if the current context is not primary
    if reason := failure():
        raise ContextError(f"show_memory: {reason}")
    print(_memory_report())


def _memory_report() -> str:
    kept = release_kept_views()
    device_id = cupy.cuda.runtime.getDevice()
    available, total = map(_readable, cupy.cuda.runtime.memGetInfo())
    name = cupy.cuda.runtime.getDeviceProperties(device_id)["name"].decode()
    of_pycuda, of_cupy = views_alive()
    rows = [
        ("pool", "used", "unused", "held"),
        *itertools.starmap(_pool_row, enumerate(_pools())),
        ("view", "alive", "", "memory"),
        ("as_cupy, of PyCUDA's arrays", of_pycuda[0], "", _readable(of_pycuda[1])),
        ("as_pycuda, of CuPy's arrays", of_cupy[0], "", _readable(of_cupy[1])),
    ]
    if kept:
        rows.append(("dropped, but kept until a capture ends", kept, "", ""))
    lines = ["{:<44}{:>12}{:>12}{:>12}".format(*row).rstrip() for row in rows]
    title = f"device {device_id}: {name}, {total}, of which {available} are free"
    return "\n".join([title, *lines])


def _pool_row(number: int, pool: Any) -> tuple[str, str, str, str]:
    """Return a pool's name, and what it holds: used, unused, and in all."""
    used, held = pool.used_bytes(), pool.total_bytes()
    name = f"CuPy's {type(pool).__name__} {number}" if number else "CuPy's default MemoryPool"
    return name, _readable(used), _readable(held - used), _readable(held)


def _readable(size: float) -> str:
    """Return a number of bytes in readable units."""
    for unit in ("B", "KiB", "MiB"):
        if round(size, 1) < 1024:
            return f"{size} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
