"""One pool for both libraries: allocators for each library, and a report of all pools.

CuPy pools reuse a block in the order of the stream that it was allocated on.  PyCUDA pools do not
track streams.  So memory that PyCUDA allocates belongs to the default stream, which waits for all
of PyCUDA's streams when the memory is freed.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

import cupy
import pycuda.driver as drv
from cupy.cuda import MemoryAsyncPool, MemoryPointer, MemoryPool, UnownedMemory

from ._core import allocate as take, keep_at_home, views_alive
from ._driver import cuda_device, current_device, pointer_home
from .context import ContextError, failure, primary_context, start_cuda
from .errors import named
from .interface import FAR
from .streams import PYCUDA, count_waiting, end_waiting, order

_current_stream = cupy.cuda.get_current_stream
_memoryview: Callable[..., memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_CUPY_POOLS = (MemoryPool, MemoryAsyncPool)

Malloc = Callable[[int], Any]

# The pools that allocators use.  CuPy pools have no weak references, so they are kept as long as
# their allocators.  A PyCUDA pool is on one device, which is known once the pool is used.
_cupy_pools: WeakKeyDictionary[Malloc, Any] = WeakKeyDictionary()
_pycuda_pools: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_lock = threading.RLock()  # iterating fails if another thread adds a pool


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError, drv.MemoryError):  # type: ignore[misc]
    """Memory cannot be allocated; either library's ``except`` catches it."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)

    def __reduce__(self) -> Any:
        return type(self), self.args


class Allocation(int):
    """A device address, for the ``gpudata`` of a `GPUArray`; `memory` owns the memory there."""

    memory: Any = None  # a View of a cupy.cuda.MemoryPointer

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


def pycuda_allocator(pool: Any = None, /) -> Malloc:
    """Return an allocator for PyCUDA that takes memory from CuPy's pool.

    Pass it as ``allocator=`` to ``GPUArray``, ``gpuarray.to_gpu`` or ``zeros``.  Results of
    arithmetic, slices and copies then use the same pool.

    Parameters
    ----------
    pool : cupy.cuda.MemoryPool, MemoryAsyncPool or pycuda.tools.DeviceMemoryPool, optional
        CuPy's current allocator if omitted.

    Returns
    -------
    callable
        Accepts a number of bytes and returns ``gpudata``.  If memory runs out, it frees the unused
        memory of both libraries' pools and tries again.  If that fails, it raises an error that
        reports what each pool holds, and that either library's ``except`` catches.  It raises
        TypeError or ValueError for an impossible size, and ContextError as in `as_pycuda`.

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
    `bridge.streams`). *Cost:* 1.5 times that of the pool.
    """
    malloc = _malloc_of(pool, "pycuda_allocator")
    return _trying_again(functools.partial(take, malloc, Allocation), malloc, "pycuda_allocator")


def cupy_allocator(pool: Any = None, /) -> Malloc:
    """Return an allocator for CuPy that takes memory from PyCUDA's pool.

    Pass it to ``cupy.cuda.using_allocator`` or ``cupy.cuda.set_allocator``.  `pool` is the same as
    for `pycuda_allocator`.

    Returns
    -------
    callable
        Accepts a number of bytes and returns a ``cupy.cuda.MemoryPointer``.  It tries twice and
        raises as the allocator of `pycuda_allocator` does.  It also raises ContextError if a PyCUDA
        pool is on another device.

    Raises
    ------
    TypeError
        If `pool` has another type.

    Examples
    --------
    >>> import cupy, bridge, bridge.autoinit
    >>> from pycuda.tools import DeviceMemoryPool
    >>> pool = DeviceMemoryPool()
    >>> with cupy.cuda.using_allocator(bridge.cupy_allocator(pool)):
    ...     x = cupy.zeros(1000)
    >>> pool.active_bytes
    8000

    Notes
    -----
    *Ownership:* a block returns to the pool when the last array on it is freed, on any thread.
    *Ordering:* blocks of a PyCUDA pool belong to the default stream.  If another stream is current,
    it waits for the default stream at the allocation, unless it is being captured.  At the release,
    the default stream waits for that stream.
    *Cost:* four times that of the pool, and a fence if another stream is current.
    """
    malloc = _malloc_of(pool, "cupy_allocator")
    return _trying_again(malloc, malloc, "cupy_allocator")


def _malloc_of(pool: Any, caller: str) -> Malloc:
    """Return a function that allocates from the pool for CuPy's current stream."""
    if isinstance(pool, drv.DeviceMemoryPool):
        return lambda size: _allocate_from_pycuda(pool, size, caller)
    if pool is not None and not isinstance(pool, _CUPY_POOLS):
        raise TypeError(
            f"{caller}: pool is {named(pool)}; a cupy.cuda.MemoryPool or "
            "MemoryAsyncPool, a pycuda.tools.DeviceMemoryPool or None is accepted"
        )
    malloc: Malloc = cupy.cuda.get_allocator() if pool is None else pool.malloc
    return malloc


def _allocate_from_pycuda(pool: Any, size: int, caller: str) -> Any:
    device_id = current_device()
    block = pool.allocate(size)
    pointer = int(block)
    found, _ = pointer_home(pointer)
    if found != device_id:
        del block  # or the error's traceback would keep it
        raise ContextError(
            f"{caller}: the pool is on device {found}, but device {device_id} is current; make "
            f"a pool for each device, under `with bridge.primary_context({device_id}):`"
        )
    with _lock:
        _pycuda_pools[pool] = device_id
    current = _current_stream(device_id)
    stream = current.ptr
    order(stream, PYCUDA)  # one of them may be the block's last user
    owner = keep_at_home(block, device_id, PYCUDA, stream, (current,))
    return MemoryPointer(UnownedMemory(pointer, size, owner, device_id), 0)


def _trying_again(allocate: Malloc, malloc: Malloc, caller: str) -> Malloc:
    """Return an allocator that frees unused memory if memory runs out, and tries again."""

    def allocator(size: Any) -> Any:
        try:
            if type(size) is int and 0 <= size < FAR:  # CuPy's pools read larger sizes as 0
                return allocate(size)
        except Exception:  # it is raised again below, and explained
            pass
        size = _bytes(size, caller)
        for is_last in (False, True):
            try:
                return allocate(size)
            except Exception as error:
                _raise_unless_out_of_memory(error, caller)
                if is_last:
                    raise OutOfMemoryError(
                        f"{caller}: {size:,} bytes cannot be allocated, even after all unused "
                        f"memory was freed.\n{_report()}\n"
                        "Drop arrays, or work in smaller pieces."
                    ) from error
            _release_unused()

    pool = getattr(malloc, "__self__", None)
    if isinstance(pool, _CUPY_POOLS):
        with _lock:
            _cupy_pools[allocator] = pool
    return allocator


def _bytes(size: Any, caller: str) -> int:
    """Return a valid size as an int."""
    try:
        if isinstance(size, bool):
            raise TypeError
        number = index(size)
    except TypeError:
        raise TypeError(
            f"{caller}: size is {named(size)}; a number of bytes is accepted, an int"
        ) from None
    if not 0 <= number < FAR:
        raise ValueError(f"{caller}: size is {number}; 0 to 2**63 - 1 bytes are accepted")
    return number


def _raise_unless_out_of_memory(error: Any, caller: str) -> None:
    if isinstance(error, MemoryError | drv.MemoryError):
        return
    if getattr(error, "status", 0) == _OUT_OF_MEMORY:  # from CuPy without a pool
        return
    start_cuda()  # raises in a forked child process
    if reason := failure():
        raise ContextError(f"{caller}: {reason}") from error
    raise error


def _release_unused() -> None:
    end_waiting()
    with primary_context():  # CuPy also allocates on threads without it
        for pool in _pools():
            if isinstance(pool, drv.DeviceMemoryPool):
                pool.free_held()
            else:
                pool.free_all_blocks()


def _pools() -> list[Any]:
    """Return CuPy's default pool, and the pools that allocators use on CuPy's current device."""
    device_id = cupy.cuda.runtime.getDevice()
    with _lock:
        found = [cupy.get_default_memory_pool(), *_cupy_pools.values()]
        found += [pool for pool, home in _pycuda_pools.items() if home == device_id]
    return list(dict.fromkeys(found))


def show_memory() -> None:
    """Print what each pool holds on the current device, and count the views on all devices.

    Raises
    ------
    ContextError
        If CUDA's current context is not a primary context, or an earlier kernel has failed.

    Notes
    -----
    The pools are CuPy's default pool, PyCUDA pools that an allocator has used, and other CuPy pools
    whose allocators still exist. *Ownership:* none. *Ordering:* none. *Cost:* 0.1 ms.
    """
    cuda_device()  # raises if the current context is not primary
    if reason := failure():
        raise ContextError(f"show_memory: {reason}")
    print(_report())


def _report() -> str:
    end_waiting()
    device_id = cupy.cuda.runtime.getDevice()
    available, total = map(_text, cupy.cuda.runtime.memGetInfo())
    name = cupy.cuda.runtime.getDeviceProperties(device_id)["name"].decode()
    of_pycuda, of_cupy = views_alive()
    rows = [
        ("pool", "used", "unused", "held"),
        *map(_row, _pools()),
        ("view", "alive", "", "of"),
        ("as_cupy, of PyCUDA's arrays", of_pycuda[0], "", _text(of_pycuda[1])),
        ("as_pycuda, of CuPy's arrays", of_cupy[0], "", _text(of_cupy[1])),
    ]
    if waiting := count_waiting():
        rows.append(("dropped, but kept until a capture ends", waiting, "", ""))
    lines = ["{:<44}{:>12}{:>12}{:>12}".format(*row).rstrip() for row in rows]
    title = f"device {device_id}: {name}, {total}, of which {available} are free"
    return "\n".join([title, *lines])


def _row(pool: Any) -> tuple[str, str, str, str]:
    """Return a pool's name, and what it holds: used, unused, and in all."""
    if isinstance(pool, drv.DeviceMemoryPool):
        library, used, held = "PyCUDA", pool.active_bytes, pool.managed_bytes
    else:
        library, used, held = "CuPy", pool.used_bytes(), pool.total_bytes()
    name = f"{library}'s {type(pool).__name__} 0x{id(pool):x}"
    if pool is cupy.get_default_memory_pool():
        name = "CuPy's default MemoryPool"
    return name, _text(used), _text(held - used), _text(held)


def _text(size: float) -> str:
    """Return a number of bytes in readable units."""
    for unit in ("B", "KiB", "MiB"):
        if round(size, 1) < 1024:
            return f"{size} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
