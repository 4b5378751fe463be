"""One pool for both libraries: allocators for either, out of pools of either; and what all hold.

Each pool orders the reuse of its blocks in its own way.  CuPy's does so per stream: a block
that was allocated under a stream is handed out again under that stream.  PyCUDA's knows no
streams: what it hands out is right for PyCUDA's default stream.  The allocators here keep to the
rule of the pool that they take from, and what PyCUDA allocates belongs to its default stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from operator import index
from typing import Any

import cupy
import pycuda.driver as drv
from cupy.cuda import MemoryAsyncPool, MemoryPointer, MemoryPool, UnownedMemory
from pycuda.gpuarray import GPUArray

from . import context
from .arrays import viewed
from .context import Keeper
from .interface import pointer_device
from .streams import (
    Lease,
    end_waiting_leases,
    fence,
    is_capturing,
    source_of,
    waiting_leases,
)
from .words import named

_current_stream = cupy.cuda.get_current_stream
_NULL = cupy.cuda.Stream.null
_MEMORY_ERRORS = (MemoryError, drv.MemoryError, cupy.cuda.runtime.CUDARuntimeError)
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_CUPY_POOLS = (MemoryPool, MemoryAsyncPool)
_POOLS = (*_CUPY_POOLS, drv.DeviceMemoryPool)


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError, drv.MemoryError):  # type: ignore[misc]
    """Memory cannot be allocated, even after both libraries' unused memory was released.

    CuPy's ``OutOfMemoryError`` (a `MemoryError`) and PyCUDA's ``pycuda.driver.MemoryError`` in one:
    code of either library catches it.
    """

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)

    def __reduce__(self) -> Any:
        return type(self), self.args


class Allocation(int):
    """An address in device memory that keeps the memory: the ``gpudata`` of a `GPUArray`.

    PyCUDA's own class for the purpose, ``PointerHolderBase``, takes 0.6 us longer.

    Attributes
    ----------
    memory : object
        What keeps the memory: a ``cupy.cuda.MemoryPointer``, or a block of PyCUDA's pool.
    """

    memory: Any

    @property
    def gpudata(self) -> int:
        """The address; PyCUDA takes what has this attribute as an argument of kernels."""
        return int(self)

    def free(self) -> None:
        """Give the memory back now, as ``DeviceAllocation.free``."""
        self.memory = None


def pycuda_allocator(pool: Any = None, /) -> Callable[[int], Any]:
    """Return an allocator for PyCUDA that takes memory from CuPy's pool.

    Give it to whatever makes a `GPUArray`: ``GPUArray(..., allocator=)``, ``gpuarray.to_gpu``,
    ``zeros``.  Results of arithmetic, slices and copies then take from the same pool.

    Parameters
    ----------
    pool : optional
        A ``cupy.cuda.MemoryPool`` (managed memory included) or ``MemoryAsyncPool``.  None: what
        CuPy's current allocator is at this call.  Or a ``pycuda.tools.DeviceMemoryPool``, which
        gains that CuPy's unused memory is released where it runs out.

    Returns
    -------
    callable
        Takes a number of bytes, returns what PyCUDA takes as ``gpudata``.  Raises `ContextError`
        at the first call on a thread where the two libraries do not share a primary context (with
        one GPU, the context is not looked at again), `ValueError` for sizes that are negative, and
        a `MemoryError` of both libraries' kinds that says what each pool holds.

    Raises
    ------
    TypeError
        If `pool` is none of these pools.

    Examples
    --------
    >>> import cupy, numpy, bridge, bridge.autoinit
    >>> from pycuda import gpuarray
    >>> allocate = bridge.pycuda_allocator()
    >>> before = cupy.get_default_memory_pool().used_bytes()
    >>> a = gpuarray.to_gpu(numpy.arange(3.0), allocator=allocate)
    >>> cupy.get_default_memory_pool().used_bytes() - before
    512

    Notes
    -----
    *Ownership:* the array owns its block, which goes back to the pool with the last array on it,
    on any thread.
    *Ordering:* a block belongs to PyCUDA's default stream, whatever CuPy's current stream is: it
    is handed out again when what was queued there is done.  Work that is queued on other streams
    is unknown to the pool, unless it is queued on a view, ``as_pycuda(a, stream=s)``.
    (``pycuda.driver.mem_alloc``'s memory may be dropped at any time, since freeing it makes the
    host wait for the device.)
    *Cost:* 0.2 us more than the pool itself; 0.8 us where there are several GPUs.
    """
    if isinstance(pool, drv.DeviceMemoryPool):
        return _pycuda_from_pycuda(pool)
    malloc = _malloc_of(pool, "pycuda_allocator")

    current_stream, null = _current_stream, _NULL
    checked = threading.local()  # has `malloc` on threads whose context has been looked at

    def malloc_on_null(size: int) -> Any:
        current = current_stream(context.current_device())
        if current is null:
            return malloc(size)
        try:
            null.use()
            return malloc(size)
        finally:
            current.use()  # `with null:` would go back past a stream that was set by `use`

    def check_and_malloc(size: int) -> Any:
        memory = malloc_on_null(size)
        checked.malloc = malloc_on_null if context.check_devices else _shortcut(malloc, memory)
        return memory

    def allocate(size: int) -> Allocation:
        try:
            malloc = checked.malloc
        except AttributeError:
            malloc = check_and_malloc
        try:
            memory = malloc(size) if current_stream(0) is null else check_and_malloc(size)
        except Exception as error:
            memory = _allocate_again(check_and_malloc, size, error, "pycuda_allocator")
        allocation = Allocation(memory)
        allocation.memory = memory
        if allocation or not size:
            return allocation
        raise _no_size(size, "pycuda_allocator")

    return allocate


def _shortcut(malloc: Callable[[int], Any], memory: Any) -> Callable[[int], Any]:
    """Return a faster way to where `memory` came from, where there is one device."""
    plain = type(getattr(malloc, "__self__", None)) is MemoryPool  # nothing of the user's between
    if not plain or type(memory.mem) is not cupy.cuda.memory.PooledMemory:
        return malloc
    # A MemoryPool looks its pool of the current device up each time: 0.03 us, and a call less.
    shortcut: Callable[[int], Any] = memory.mem.pool().malloc
    return shortcut


def _pycuda_from_pycuda(pool: Any) -> Callable[[int], Any]:
    def allocate(size: int) -> Any:
        device_id = context.current_device()
        block = _take(pool, size, device_id, "pycuda_allocator")
        allocation = Allocation(block)
        allocation.memory = Keeper(block, device_id)
        return allocation

    return allocate


def cupy_allocator(pool: Any = None, /) -> Callable[[int], Any]:
    """Return an allocator for CuPy that takes memory from PyCUDA's pool.

    Use it with ``cupy.cuda.using_allocator`` or ``cupy.cuda.set_allocator``.

    Parameters
    ----------
    pool : optional
        A ``pycuda.tools.DeviceMemoryPool``.  Or a ``cupy.cuda.MemoryPool`` or ``MemoryAsyncPool``
        (None: CuPy's current allocator), which gains that the unused memory of PyCUDA's pools is
        released where it runs out.

    Returns
    -------
    callable
        Takes a number of bytes, returns a ``cupy.cuda.MemoryPointer``.  Raises as that of
        `pycuda_allocator`; and `ContextError` if `pool` is on a device other than the current one.

    Raises
    ------
    TypeError
        If `pool` is none of these pools.

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
    *Ownership:* the array owns its block, which goes back to the pool with the last array on it,
    on any thread.
    *Ordering:* PyCUDA's pool knows no streams, so its blocks belong to the default stream.  Under
    another stream, that stream waits for the default one at the allocation (but for one that is
    being captured: there, order the stream that the graph is launched on), and the default one
    for it at the release; on several streams, CuPy's own pool leaves more room for overlap.
    *Cost:* 1.6 us more than the pool itself; 1 us more again under another stream.
    """
    if isinstance(pool, drv.DeviceMemoryPool):
        return _cupy_from_pycuda(pool)
    malloc = _malloc_of(pool, "cupy_allocator")

    def allocate(size: int) -> Any:
        try:
            memory = malloc(size)
        except Exception as error:
            memory = _allocate_again(malloc, size, error, "cupy_allocator")
        if memory.ptr or not size:
            return memory
        raise _no_size(size, "cupy_allocator")

    return allocate


def _cupy_from_pycuda(pool: Any) -> Callable[[int], Any]:
    def allocate(size: int) -> Any:
        device_id = context.current_device()
        if size == 0:
            return MemoryPointer(UnownedMemory(0, 0, None, device_id), 0)
        block = _take(pool, size, device_id, "cupy_allocator")
        pointer = int(block)
        owner: Any = Keeper(block, device_id)
        current = _current_stream(device_id)
        stream = current.ptr
        if stream:
            if not is_capturing(stream):
                # Not `order`: the block's last user may have been another blocking stream.
                fence(stream, 0, device_id)
            owner = Lease(owner, 0, stream, (None, current), device_id)
        return MemoryPointer(UnownedMemory(pointer, size, owner, device_id), 0)

    return allocate


def _malloc_of(pool: Any, caller: str) -> Callable[[int], Any]:
    if pool is None:
        found: Callable[[int], Any] = cupy.cuda.get_allocator()
        return found
    if isinstance(pool, _CUPY_POOLS):
        malloc: Callable[[int], Any] = pool.malloc
        return malloc
    raise TypeError(
        f"{caller}: pool is {named(pool)}; a cupy.cuda.MemoryPool or "
        "MemoryAsyncPool, a pycuda.tools.DeviceMemoryPool or None is accepted"
    )


def _take(pool: Any, size: int, device_id: int, caller: str) -> Any:
    """Take a block from a pool of PyCUDA's."""

    def malloc(size: Any) -> Any:
        return pool.allocate(index(size))  # PyCUDA itself takes no NumPy integers

    try:
        block = malloc(size)
    except Exception as error:
        block = _allocate_again(malloc, size, error, caller)
    if context.check_devices:
        found = pointer_device(int(block), f"{caller}: the block")
        if found != device_id:
            raise context.ContextError(
                f"{caller}: the pool is on device {found}, but device {device_id} is current; make "
                f"a pool for each device, under `with bridge.primary_context({device_id}):`"
            )
    return block


def _allocate_again(malloc: Callable[[int], Any], size: Any, error: Exception, caller: str) -> Any:
    """Release what no array uses and try once more; or say what is wrong."""
    try:
        size = index(size)
    except TypeError:
        raise TypeError(
            f"{caller}: size is {named(size)}; a number of bytes is accepted, an int"
        ) from None
    if not 0 <= size < 1 << 63:
        raise _no_size(size, caller) from None
    if not _is_out_of_memory(error):
        context.start_cuda()  # says so if this is a forked child
        if failure := context.failure():
            raise context.ContextError(f"{caller}: {failure}") from error
        raise error
    device_id = cupy.cuda.runtime.getDevice()
    with context.primary_context(device_id):  # CuPy also allocates on threads that have none
        for pool in _pools():
            if not isinstance(pool, drv.DeviceMemoryPool):
                pool.free_all_blocks()
            elif context.can_free(pool):
                pool.free_held()
    try:
        return malloc(size)
    except _MEMORY_ERRORS as again:
        if not _is_out_of_memory(again):
            raise
        raise OutOfMemoryError(
            f"{caller}: {size:,} bytes cannot be allocated, also after the memory that no array "
            f"uses was released.\n{_report(device_id)}\nDrop arrays, or work in smaller pieces."
        ) from again


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, _MEMORY_ERRORS) and getattr(error, "status", 2) == _OUT_OF_MEMORY


def _no_size(size: int, caller: str) -> ValueError:
    return ValueError(f"{caller}: size is {size}; 0 to 2**63 - 1 bytes are accepted")


def _pools() -> Iterator[Any]:
    """Yield every pool of device memory in this process: the garbage collector knows both kinds."""
    default = cupy.get_default_memory_pool()
    yield default
    for found in context.tracked(*_POOLS):
        if found is not default:
            yield found


def show_memory() -> None:
    """Print what each pool holds on the current device, and which bridged views are alive.

    Raises
    ------
    ContextError
        If CUDA's current context is not a primary one, or a kernel has ended it.

    Examples
    --------
    >>> import bridge, bridge.autoinit
    >>> bridge.show_memory()  # doctest: +ELLIPSIS
    device 0: ...

    Notes
    -----
    All pools of the process are found, whoever made them (but for those that ``gc.freeze`` hides).
    PyCUDA's do not tell their device, and are shown in any case.
    *Ownership:* none. *Ordering:* none. *Cost:* a look at every object of the process:
    milliseconds.
    """
    device_id = context.cuda_device()
    if failure := context.failure():
        raise context.ContextError(f"show_memory: {failure}")
    print(_report(device_id))


def _report(device_id: int) -> str:
    end_waiting_leases(all_of_them=True)
    available, total = cupy.cuda.runtime.memGetInfo()
    name = cupy.cuda.runtime.getDeviceProperties(device_id)["name"].decode()
    lines = [
        f"device {device_id}: {name}, {_text(total)}, of which {_text(available)} are free",
        f"{'pool':<44}{'used':>12}{'unused':>12}{'held':>12}",
    ]
    for pool in _pools():
        label, used, held = _row(pool)
        unused = held - used
        lines.append(f"{label:<44}{_text(used):>12}{_text(unused):>12}{_text(held):>12}")
    lines.append(f"{'view':<44}{'alive':>12}{'':>12}{'of':>12}")
    for label, sizes in _views().items():
        lines.append(f"{label:<44}{len(sizes):>12}{'':>12}{_text(sum(sizes)):>12}")
    if waiting := waiting_leases():
        lines.append(f"{'gone, but kept until a capture ends':<44}{waiting:>12}")
    return "\n".join(lines)


def _row(pool: Any) -> tuple[str, int, int]:
    """Return a pool's name, and what it holds in bytes: used, and in all."""
    if isinstance(pool, drv.DeviceMemoryPool):
        label = f"PyCUDA's DeviceMemoryPool 0x{id(pool):x}"
        return label, int(pool.active_bytes), int(pool.managed_bytes)
    if pool is cupy.get_default_memory_pool():
        return "CuPy's default MemoryPool", pool.used_bytes(), pool.total_bytes()
    label = f"CuPy's {type(pool).__name__} 0x{id(pool):x}"
    return label, pool.used_bytes(), pool.total_bytes()


def _views() -> dict[str, list[int]]:
    """Return the sizes in bytes of the memory under each view of the other library's."""
    of_pycuda: list[int] = []
    of_cupy: list[int] = []
    for found in context.tracked(UnownedMemory, GPUArray):
        if isinstance(found, UnownedMemory):
            if viewed(found._owner) is not None:
                of_pycuda.append(int(found.size))
        else:
            base = getattr(found, "base", None)  # not there yet in one that is being allocated
            if isinstance(source_of(base), cupy.ndarray):
                of_cupy.append(int(found.nbytes))
    return {"as_cupy, of PyCUDA's arrays": of_pycuda, "as_pycuda, of CuPy's arrays": of_cupy}


def _text(size: int) -> str:
    """Return a number of bytes as people read it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if round(value, 1) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
