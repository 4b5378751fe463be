"""One pool for both libraries: allocators for either, and what all pools hold.

CuPy's pools order the reuse of a block by the stream it was allocated on.  PyCUDA's pools know no
streams.  Memory that PyCUDA allocates therefore belongs to PyCUDA's default stream.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

import cupy
import pycuda.driver as drv
from cupy.cuda import MemoryAsyncPool, MemoryPointer, MemoryPool, UnownedMemory

from . import _core
from ._core import allocate as take, keep_at_home, pointer_home
from ._driver import cuda_device, current_device
from .context import ContextError, failure, primary_context, start_cuda
from .errors import named
from .interface import FAR
from .streams import fence, is_capturing

_current_stream = cupy.cuda.get_current_stream
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_CUPY_POOLS = (MemoryPool, MemoryAsyncPool)

Malloc = Callable[[int], Any]

# The pools that allocators take from.  CuPy's have no weak references, so they are kept as long as
# their allocators.  PyCUDA's have one device each, which is known when they were used.
_cupy_pools: WeakKeyDictionary[Malloc, Any] = WeakKeyDictionary()
_pycuda_pools: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_lock = threading.RLock()  # an iteration fails where another thread adds a pool


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError, drv.MemoryError):  # type: ignore[misc]
    """Memory cannot be allocated; either library's ``except`` catches it."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)

    def __reduce__(self) -> Any:
        return type(self), self.args


class Allocation(int):
    """An address in device memory, the ``gpudata`` of a `GPUArray`; `memory` keeps the memory."""

    memory: Any = None  # a cupy.cuda.MemoryPointer

    @property
    def gpudata(self) -> int:
        """The address.  PyCUDA's kernels accept objects with this attribute."""
        return int(self)

    def free(self) -> None:
        """Free the memory now, as ``DeviceAllocation.free``."""
        self.memory = None


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
        Takes a number of bytes, returns ``gpudata``.  Where memory runs out, it frees the unused
        memory of both libraries' pools and tries again.  Then it raises an error that either
        library's ``except`` catches and that says what each pool holds.  Raises TypeError or
        ValueError for an impossible size, and ContextError as `as_pycuda`.

    Raises
    ------
    TypeError
        If `pool` is none of these pools.

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
    *Ownership:* a block returns to the pool with the last array on it, on any thread.
    *Ordering:* a block is reused after the work on PyCUDA's default stream.  Other streams are not
    tracked, except on a view, ``as_pycuda(a, stream=s)``. *Cost:* half as much again as the pool.
    """
    malloc = _malloc_of(pool, "pycuda_allocator")
    return _trying_again(functools.partial(take, malloc, Allocation), malloc, "pycuda_allocator")


def cupy_allocator(pool: Any = None, /) -> Malloc:
    """Return an allocator for CuPy that takes memory from PyCUDA's pool.

    Pass it to ``cupy.cuda.using_allocator`` or ``cupy.cuda.set_allocator``.  `pool` is any that
    `pycuda_allocator` takes.

    Returns
    -------
    callable
        Takes a number of bytes, returns a ``cupy.cuda.MemoryPointer``.  Tries twice and raises as
        that of `pycuda_allocator`; also ContextError if a PyCUDA pool is on another device.

    Raises
    ------
    TypeError
        If `pool` is no such pool.

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
    *Ownership:* a block returns to the pool with the last array on it, on any thread.
    *Ordering:* a PyCUDA pool's blocks belong to the default stream.  Another current stream waits
    for it at the allocation (unless it is being captured), and it for that stream at the release.
    *Cost:* four times the pool, and a fence under another stream.
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
    if stream and not is_capturing(stream):
        # Not `order`: the block's last user may have been another blocking stream.
        fence(stream, 0, device_id)
    owner = keep_at_home(block, device_id, 0, stream, (None, current))
    return MemoryPointer(UnownedMemory(pointer, size, owner, device_id), 0)


def _trying_again(allocate: Malloc, malloc: Malloc, caller: str) -> Malloc:
    """Return an allocator that releases unused memory where memory runs out, and tries again."""

    def allocator(size: Any) -> Any:
        try:
            if type(size) is int and 0 <= size < FAR:  # CuPy's pools take larger ones for 0
                return allocate(size)
        except Exception:  # it arises again, and is explained there
            pass
        size = _bytes(size, caller)
        for is_last in (False, True):
            try:
                return allocate(size)
            except Exception as error:
                _raise_unless_out_of_memory(error, caller)
                if is_last:
                    raise OutOfMemoryError(
                        f"{caller}: {size:,} bytes cannot be allocated, also after the memory that "
                        f"no array uses was released.\n{_report()}\n"
                        "Drop arrays, or work in smaller pieces."
                    ) from error
            _release_unused()

    pool = getattr(malloc, "__self__", None)
    if isinstance(pool, _CUPY_POOLS):
        with _lock:
            _cupy_pools[allocator] = pool
    return allocator


def _bytes(size: Any, caller: str) -> int:
    """Return a possible size as an int."""
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
    if getattr(error, "status", 0) == _OUT_OF_MEMORY:  # of CuPy without a pool
        return
    start_cuda()  # says so if this is a forked child
    if reason := failure():
        raise ContextError(f"{caller}: {reason}") from error
    raise error


def _release_unused() -> None:
    _core.end_waiting()
    with primary_context():  # CuPy also allocates on threads that have none
        for pool in _pools():
            if isinstance(pool, drv.DeviceMemoryPool):
                pool.free_held()
            else:
                pool.free_all_blocks()


def _pools() -> list[Any]:
    """Return CuPy's default pool, and those that allocators take from on CuPy's device."""
    device_id = cupy.cuda.runtime.getDevice()
    with _lock:
        found = [cupy.get_default_memory_pool(), *_cupy_pools.values()]
        found += [pool for pool, home in _pycuda_pools.items() if home == device_id]
    return list(dict.fromkeys(found))


def show_memory() -> None:
    """Print what each pool holds on the current device, and how many views are alive on all.

    Raises
    ------
    ContextError
        If CUDA's current context is not a primary one, or a kernel has ended it.

    Notes
    -----
    Shows CuPy's default pool, PyCUDA pools that an allocator has taken from, and any other CuPy
    pool as long as its allocator exists. *Ownership:* none. *Ordering:* none. *Cost:* 0.1 ms.
    """
    cuda_device()  # or an error for another context than a primary one
    if reason := failure():
        raise ContextError(f"show_memory: {reason}")
    print(_report())


def _report() -> str:
    _core.end_waiting()
    device_id = cupy.cuda.runtime.getDevice()
    available, total = map(_text, cupy.cuda.runtime.memGetInfo())
    name = cupy.cuda.runtime.getDeviceProperties(device_id)["name"].decode()
    of_pycuda, of_cupy, waiting = _core.views_alive()
    rows = [
        ("pool", "used", "unused", "held"),
        *map(_row, _pools()),
        ("view", "alive", "", "of"),
        ("as_cupy, of PyCUDA's arrays", of_pycuda[0], "", _text(of_pycuda[1])),
        ("as_pycuda, of CuPy's arrays", of_cupy[0], "", _text(of_cupy[1])),
    ]
    if waiting:
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
    """Return a number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB"):
        if round(size, 1) < 1024:
            return f"{size} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
