"""The one primary context per device that both libraries share.

CuPy works in CUDA's primary context.  PyCUDA works in whatever context is on top of its
own, per-thread stack, and ``pycuda.autoinit`` puts a second context there: pointers still
work across the two, so nothing fails at first, but their default streams are not ordered
and each library can switch the other's context off.  So the bridge accepts one state only:
PyCUDA's top and CUDA's current context are both the primary context of one device.  Where both
libraries are on their default streams and there is one GPU, it takes PyCUDA's word for it, since
whatever makes that context current for PyCUDA makes it current for CUDA; this is the fast path of
`arrays`.  Launches in `function` take it for granted there until CUDA refuses one.

PyCUDA compares ``Context`` objects by handle but hashes them by identity, and frees memory
only under the very object it was allocated under.  Hence one ``Context`` object per device,
process-wide: ``_contexts``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import index
from threading import get_ident
from types import TracebackType
from typing import Any

import cupy
import pycuda.driver as drv

from .words import named, runs_later

libcuda = ctypes.CDLL("libcuda.so.1")  # for what neither library offers
_cuda_current = cupy.cuda.driver.ctxGetCurrent
_set_current = cupy.cuda.driver.ctxSetCurrent
pycuda_current = drv.Context.get_current
_pop = drv.Context.pop

# Then its handler at exit, which pops, runs after the one here.
_AUTOPRIMARYCTX_CAME_FIRST = "pycuda.autoprimaryctx" in sys.modules

_lock = threading.RLock()  # a finalizer may run under it
forked = False
_contexts: dict[int, Any] = {}  # device id -> the Context object that this process pushes
device_ids: dict[int, int] = {}  # CUcontext of a primary context -> device id
_spare: list[Any] = []  # see _retain
_makers: set[int] = set()  # the threads on which _retain made a Context object
_watched: dict[int, Any] = {}  # id() of each object in `_accepted` -> a weak reference to it


class _Accepted(dict[int, int]):
    """id() of an accepted Context object -> device id; any other is looked into, or refused."""

    def __missing__(self, _: int) -> int:
        return _accept_or_explain()


_accepted = _Accepted()

# What `_accepted` says of one Context object, on most machines of all that are met: to look there
# takes 0.05 us longer, and a conversion 1.3.  The device does not change once it is set.
usual: Any = object()  # no context
usual_device = -1

# BRIDGE_DEBUG=1: each conversion asks CUDA about the memory, which finds what was freed.
debug = os.environ.get("BRIDGE_DEBUG") == "1"

# True where devices are compared, of contexts, memory and streams: more than one GPU, or `debug`.
# Set once a context is known, because counting GPUs initialises CUDA.
check_devices = False


class ContextError(RuntimeError):
    """No CUDA context, not the primary one, one of another device, or one that a kernel ended."""


# What CUDA answers to every call after a kernel has failed: illegal address, timeout, assertion,
# hardware stack error, illegal instruction, misaligned address, invalid address space or program
# counter, launch failure.  (CUDA Driver API, CUresult: "the process must be terminated".)
_FATAL = frozenset((700, 702, 710, *range(714, 720)))


def failure() -> str:
    """Say that an earlier kernel has failed, and where to look; '' if none has.

    Asks CUDA, which works also in a stream capture.
    """
    try:
        cupy.cuda.runtime.memGetInfo()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status in _FATAL:
            return (
                f"an earlier kernel has failed ({error}), and this process cannot use the GPU any "
                "more. Start a new one, with CUDA_LAUNCH_BLOCKING=1 in its environment to have the "
                "error where it arises, or under compute-sanitizer, which names kernel and line"
            )
    return ""


def current_device() -> int:
    """Return the id of the device whose primary context both libraries have current.

    Raises
    ------
    ContextError
        If PyCUDA and CuPy do not share a primary context on this thread.

    Notes
    -----
    *Ownership:* none. *Ordering:* none. *Cost:* two look-ups, 0.35 us.
    """
    device_id = pycuda_device()
    check_current(device_id)
    return device_id


def pycuda_device() -> int:
    """Return the id of the device whose primary context PyCUDA has current on this thread.

    Raises
    ------
    ContextError
        As `current_device`, where that context was not met before.
    """
    top = pycuda_current()
    return usual_device if top is usual else _accepted[id(top)]


def check_current(device_id: int) -> None:
    """Raise ContextError unless PyCUDA's current context, of that device, is CUDA's too."""
    if device_ids.get(_cuda_current()) != device_id:
        _accept_or_explain()


def cuda_device() -> int:
    """Return the id of the device whose primary context CUDA has current on this thread.

    Where PyCUDA has no part in the matter: its stack may be empty, or have another context on top.

    Raises
    ------
    ContextError
        If CUDA's current context is not a primary one, or this is a forked child.

    Notes
    -----
    *Ownership:* none. *Ordering:* none. *Cost:* 0.1 us.
    """
    device_id = device_ids.get(_cuda_current()) if device_ids else None
    return _find_device() if device_id is None else device_id


def _find_device() -> int:
    start_cuda()
    device_id: int = cupy.cuda.runtime.getDevice()
    if not _cuda_current():
        cupy.cuda.Device(device_id).use()  # as CuPy's first allocation would
    if _retain(device_id).handle != _cuda_current():
        raise ContextError(
            f"CUDA's current context (0x{_cuda_current():x}) is not the primary one of device "
            f"{device_id}, in which CuPy works{_AUTOINIT if autoinit_ran() else ''}; work under "
            "`with bridge.primary_context():`"
        )
    return device_id


_AUTOINIT = (
    " (pycuda.autoinit makes such a context; replace `import pycuda.autoinit` by "
    "`import bridge.autoinit`)"
)


def start_cuda() -> None:
    """Make CUDA ready, or say that it cannot be: without a GPU, or in a forked child."""
    try:
        if not forked:
            drv.init()
            return
    except drv.Error as error:
        if "no CUDA-capable device" in str(error):
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise ContextError(
                f"CUDA finds no GPU ({error}): `nvidia-smi` lists those of the machine; "
                f"CUDA_VISIBLE_DEVICES hides some ({'not set' if hidden is None else repr(hidden)} "
                "here), and a container has those that it is started with (`docker run --gpus all`)"
            ) from error
        # The parent may have used CUDA without the bridge: then only cuInit's odd answer tells.
        if "initialization error" not in str(error):
            raise
    raise ContextError(
        "CUDA does not survive fork(): this process was forked from one that had already used "
        "the GPU. Start worker processes with the 'spawn' or 'forkserver' method, e.g. "
        "multiprocessing.get_context('spawn')"
    )


def at_home(device_id: int, action: Callable[[], None]) -> None:
    """Call `action` where a device's primary context is current, whichever thread this is.

    For finalizers, which run on any thread and under any context, in a process where CUDA works.
    """
    here = device_ids.get(_cuda_current()) == device_id
    if here and pycuda_current() is _contexts.get(device_id):
        action()
        return
    with primary_context(device_id):
        action()


def keep_for_ever(
    value: Any,
    py_object: Any = ctypes.py_object,
    add_reference: Callable[[Any], None] = ctypes.pythonapi.Py_IncRef,
) -> None:
    """Never let go of an object, also when the interpreter ends."""
    add_reference(py_object(value))


class Keeper:
    """Keep memory that PyCUDA allocated, and let go of it where PyCUDA can free it.

    That is where its context is current.  Elsewhere PyCUDA warns and loses the block, or, if it
    is a pool's that holds no other, aborts the process.

    A profiler that samples, such as Dask's, or a debugger may hold a frame beyond its end, and let
    go of it on a thread of its own.  So functions that finalizers call let go of memory first.

    Parameters
    ----------
    memory : object
        A ``DeviceAllocation`` or ``PooledDeviceAllocation``, or what keeps one.
    device_id : int
    gpudata : object, optional
        The ``gpudata`` of the array whose memory it is, if that is something else.
    """

    __slots__ = ("device_id", "gpudata", "memory")

    def __init__(self, memory: Any, device_id: int, gpudata: Any = None) -> None:
        self.memory = memory
        self.gpudata = gpudata
        self.device_id = device_id
        del memory, gpudata

    def __del__(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        keep: Callable[[Any], None] = keep_for_ever,
    ) -> None:
        try:
            device_id = self.device_id
        except AttributeError:  # a signal's handler raised before `__init__`
            return
        if is_finalizing() or forked:
            # The process takes it along.  PyCUDA would free it only on the thread where the
            # bridge met the device, and in a forked child nowhere.
            keep((self.memory, self.gpudata))
            return
        if _collecting and _collecting == get_ident():
            # What the garbage collector has found lets go of its own references after its
            # finalizers ran, and ours must be the last.  Or another finalizer saves it, and then
            # this one does not run again.  Hence another keeper.
            if isinstance(self.memory, _ALLOCATIONS):  # not what may be part of the cycle
                self.memory = Keeper(self.memory, device_id)
                after_collecting(self.memory)
            return
        if pycuda_current() is _contexts.get(device_id):
            self.memory = self.gpudata = None
            return
        memory = [self.memory, self.gpudata]
        self.memory = self.gpudata = None
        with suppress(drv.Error):  # the context is dead, and its memory with it
            at_home(device_id, memory.clear)


_CONTEXT = 1  # CU_POINTER_ATTRIBUTE_CONTEXT
_OF_PYCUDA = (drv.DeviceAllocation, drv.PooledDeviceAllocation)
_ALLOCATIONS = (*_OF_PYCUDA, Keeper)


def keep(value: Any) -> None:
    """Have the memory of GPUArrays freed where PyCUDA can, wherever they are dropped.

    Parameters
    ----------
    value : object
        A `GPUArray`, or a tuple, list or dict that holds some, at any depth.
    """
    library = sys.modules.get("pycuda.gpuarray")
    if library is None:  # then there are none
        return
    kinds = library.GPUArray, tuple, list, dict
    values, seen = [value], set()
    while values:
        value = values.pop()
        kind = type(value)  # and not `isinstance`, which would wake a proxy
        if issubclass(kind, kinds[1:]) and id(value) not in seen:
            seen.add(id(value))
            items = value.values() if issubclass(kind, dict) else value
            if any(issubclass(item, kinds) for item in set(map(type, items))):  # few, of many items
                values.extend(items)
        while issubclass(type(value), library.GPUArray) and id(value) not in seen:
            seen.add(id(value))
            keep_memory(value)
            value = value.base  # of a slice, what it is one of


def keep_memory(array: Any, keeper: Keeper | None = None) -> None:
    """Have the memory of one GPUArray freed so, by `keeper` where that is of the same memory."""
    gpudata = getattr(array, "gpudata", None)
    if not isinstance(gpudata, _OF_PYCUDA):  # an address, of what `base` keeps
        gpudata = getattr(array, "base", None)
    known = getattr(array, "_bridge_keeper", None)
    if isinstance(gpudata, _OF_PYCUDA) and (known is None or known.memory is not gpudata):
        if keeper is None or keeper.memory is not gpudata:
            device_id = _home_of(int(gpudata))
            keeper = None if device_id is None else Keeper(gpudata, device_id)
        if keeper is not None:
            array._bridge_keeper = keeper
    del gpudata  # see `Keeper`


def _home_of(pointer: int) -> int | None:
    """Return the id of the device in whose primary context memory is; None if it is in no such.

    Also where it has been freed, and after a kernel has failed.
    """
    found = ctypes.c_void_p()
    libcuda.cuPointerGetAttribute(ctypes.byref(found), _CONTEXT, ctypes.c_uint64(pointer))
    return device_ids.get(found.value or 0)


def keep_at_the_end(
    array: Any,
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
    keep: Callable[[Any], None] = keep_for_ever,
) -> None:
    """Do so when a GPUArray goes: a finalizer, for its class."""
    if is_finalizing() or forked:
        keep(array)
    else:
        keep_memory(array)  # always: another finalizer, or who holds a frame, may drop it later


_collecting = 0  # the thread on which the garbage collector is at work
_after_collecting: list[Any] = []


def is_collecting() -> bool:
    """Tell whether the garbage collector is at work on this thread: what it finalizes may live."""
    return _collecting == get_ident()


def after_collecting(value: Any) -> None:
    """Let go of something when the garbage collector has done its work."""
    _after_collecting.append(value)


def _watch_collector(phase: str, _: object) -> None:
    global _collecting
    if phase == "start":
        _collecting = get_ident()
        return
    _collecting = 0
    while _after_collecting:
        _after_collecting.pop()


gc.callbacks.append(_watch_collector)


def _accept_or_explain() -> int:
    """Accept a primary context met for the first time, or say what is wrong."""
    start_cuda()
    top = pycuda_current()
    if top is None:
        raise ContextError(
            "PyCUDA has no context on this thread. On the main thread, `import bridge.autoinit` "
            "(instead of pycuda.autoinit) before using PyCUDA; on any other thread, work under "
            "`with bridge.primary_context():`"
        )
    current = _cuda_current()
    device_id = device_of(top.handle)
    if _retain(device_id) != top:
        culprit = "pycuda.autoinit makes such a context; replace `import pycuda.autoinit` by"
        raise ContextError(
            f"PyCUDA's current context (0x{top.handle:x}) is not the primary context that CuPy "
            "uses, so work of the two libraries would not be ordered "
            f"({culprit if autoinit_ran() else 'use'} `import bridge.autoinit`, or work under "
            "`with bridge.primary_context():`)"
        )
    if current != top.handle:
        other: int = cupy.cuda.runtime.getDevice() if current else device_id
        where = f"on device {other}" if other != device_id else f"0x{current:x}, not that one"
        raise ContextError(
            f"PyCUDA's current context is on device {device_id}, CuPy's current one is {where}. "
            f"Work with both on one device, e.g. under `with bridge.primary_context({other}):`, or "
            f"go back with `cupy.cuda.Device({device_id}).use()` if it was another library that "
            "switched (JAX does when it starts)"
        )
    _accept(top, device_id)
    return device_id


def device_of(handle: int) -> int:
    """Return the id of the device that a CUcontext is on."""
    device_id = device_ids.get(handle)
    if device_id is not None:
        return device_id
    current = _cuda_current()
    try:
        _set_current(handle)
        return int(cupy.cuda.runtime.getDevice())
    finally:
        _set_current(current)


def _accept(context: Any, device_id: int) -> None:
    key = id(context)

    def forget(_: Any) -> None:  # before the id() becomes another object's
        _accepted.pop(key, None)
        _watched.pop(key, None)

    _watched[key] = weakref.ref(context, forget)
    _accepted[key] = device_id


def autoinit_ran() -> bool:
    """Tell whether PyCUDA's own ``pycuda.autoinit`` (not this package's) was imported."""
    module = sys.modules.get("pycuda.autoinit")
    return module is not None and module.__name__ == "pycuda.autoinit"


def _retain(device_id: int, dead: Any = None) -> Any:
    """Return the process's one ``Context`` object for a device's primary context.

    Another one than `dead`, which somebody has detached.
    """
    global check_devices, usual, usual_device
    with _lock:
        context = _contexts.get(device_id)
        if context is None:
            context = drv.Device(device_id).retain_primary_context()
            _makers.add(get_ident())
            check_devices = debug or drv.Device.count() > 1
            device_ids[context.handle] = device_id
            automatic = sys.modules.get("pycuda.autoprimaryctx")
            theirs = getattr(automatic, "context", None)
            if theirs == context and theirs is not dead:
                # PyCUDA allocates under that object already.  Ours is kept as well, because
                # PyCUDA, when it lets an object of the primary context go, pushes that context.
                _spare.append(context)
                context = theirs
            _accept(context, device_id)
            _contexts[device_id] = context
            if usual_device in (-1, device_id):
                usual_device = device_id
                usual = context
    return context


def _forget_after_fork() -> None:
    global forked, usual
    # A child of a process that has not used CUDA may use it.
    forked = forked or bool(_contexts) or pycuda_current() is not None
    device_ids.clear()
    _accepted.clear()
    usual = object()
    if not forked:
        return
    for name in ("autoinit", "autoprimaryctx"):  # would pop, at exit, what CUDA lets nobody pop
        finish = getattr(sys.modules.get(f"pycuda.{name}"), "_finish_up", None)
        if finish is not None:
            atexit.unregister(finish)
    # PyCUDA is told that the contexts are dead.  Else it aborts the child at its end, because one
    # is on its stack, or cannot be entered to free what was allocated in it.
    contexts = [*_contexts.values(), *_spare]
    while contexts or (top := pycuda_current()) is not None:  # which takes dead ones off the stack
        _bury(contexts.pop() if contexts else top)


def _bury(context: Any) -> None:
    """Detach a context on a thread that did not make it: no more than a note of PyCUDA's.

    On the one that did, PyCUDA would ask CUDA, and print that CUDA refuses.
    """

    def work() -> None:
        if get_ident() in _makers:  # of a thread that is no more
            _bury(context)
            return
        with suppress(drv.Error):  # it is dead already
            context.detach()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


os.register_at_fork(after_in_child=_forget_after_fork)


def tracked(*kinds: type) -> Iterator[Any]:
    """Yield the objects of some types that the garbage collector knows.

    The types are asked for, because `isinstance` would wake modules that are imported lazily.
    """
    for found in gc.get_objects():
        if issubclass(type(found), kinds):
            yield found


def can_free(pool: Any) -> bool:
    """Tell whether a ``DeviceMemoryPool`` can free what it holds unused, here.

    A pool does not tell whose it is, and one of a context that this thread cannot enter would
    lose its blocks.  To allocate there fails without harm, once it holds no block of that size:
    such a one is given out anywhere.
    """
    if not pool.held_blocks:
        return True
    blocks = []
    try:
        while True:
            held = pool.held_blocks
            blocks.append(drv.DeviceMemoryPool.allocate(pool, 1))
            if pool.held_blocks == held:
                return True
    except (drv.Error, RuntimeError):
        return False
    finally:
        blocks.clear()  # see `Keeper`


def _drop_kernels(primary: Any) -> None:
    """Unload the kernels that PyCUDA keeps for a context, where it is current.

    Elsewhere PyCUDA warns, unless the thread is the one on which the bridge met the device.
    """
    tools = sys.modules.get("pycuda.tools")
    for function in getattr(tools, "context_dependent_memoized_functions", ()):
        function._pycuda_ctx_dep_memoize_dic.pop(primary, None)


@atexit.register
def _finish() -> None:
    """Leave PyCUDA nothing to abort the process for.

    The last arrays go after the last context: a block that then returns to a pool which holds none
    makes it abort, a block to be freed does not.  So does a context on its stack, which a signal's
    handler may have left there.
    """
    gc.unfreeze()  # the collector is to tell of all
    pools = list(tracked(drv.DeviceMemoryPool))
    if forked:
        for pool in pools:
            pool.stop_holding()
        return
    for device_id in list(_contexts):
        with suppress(drv.Error, ContextError), primary_context(device_id) as primary:
            _drop_kernels(primary)
            for pool in pools:
                if can_free(pool):
                    pool.stop_holding()
    last = None
    while (top := pycuda_current()) in _contexts.values():
        drv.Context.pop()
        last = top
    if last is not None and _AUTOPRIMARYCTX_CAME_FIRST:
        last.push()


_DEVICES = (cupy.cuda.Device, drv.Device)


class primary_context:  # noqa: N801  (used like a function)
    """Make a device's primary context current for PyCUDA on this thread.

    A context manager and a decorator; re-entrant, and safe to share between threads.  As a
    decorator it covers the call, and what the function returns may be dropped anywhere.

    Parameters
    ----------
    device : int, cupy.cuda.Device or pycuda.driver.Device, optional
        The device; CuPy's current device if omitted.

    Raises
    ------
    ContextError
        In a process forked from one that had used CUDA.  On leaving, if PyCUDA's current context
        is not the one that was entered.
    TypeError
        If `device` is not a device; if what is decorated is a coroutine or a generator, whose body
        runs later.
    ValueError
        On entering, if there is no such device.

    Examples
    --------
    >>> import bridge
    >>> with bridge.primary_context():
    ...     pass

    Notes
    -----
    *Ownership:* the primary context lives as long as the process.  PyCUDA loses memory whose last
    reference goes where its context is not current; not that of GPUArrays that a decorated
    function returns, by themselves or inside of tuples, lists and dicts.  An exception's traceback
    keeps what the function had: memory of `pycuda_allocator` may be dropped anywhere, too.
    CUDA's current context is afterwards what it was before.  Where both libraries have the context
    current already, it is not pushed again: to pop it within the block takes away what was there.
    *Ordering:* none. *Cost:* 1.7 us for entering and leaving, 0.8 where it is current already.
    """

    def __init__(self, device: Any = None) -> None:
        if device is not None and not isinstance(device, _DEVICES):
            try:
                if isinstance(device, bool):
                    raise TypeError
                device = index(device)
            except TypeError:
                hint = "; as a decorator, write @bridge.primary_context()"
                raise TypeError(
                    f"primary_context: device is {named(device)}; an int, a cupy.cuda.Device, a "
                    f"pycuda.driver.Device or None is accepted{hint if callable(device) else ''}"
                ) from None
        # Whether there is such a device is found out on entering: this is to start no CUDA.
        self._device = device.id if isinstance(device, cupy.cuda.Device) else device

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Return the function, called where the context is current."""
        if runs_later(function):
            raise TypeError(
                f"primary_context: {getattr(function, '__name__', function)} is a coroutine or a "
                "generator, whose body runs after the call, where the context is not current; "
                "decorate the functions that it calls, or write `with bridge.primary_context():` "
                "in it, around what neither awaits nor yields"
            )

        @functools.wraps(function)
        def inner(*args: Any, **keywords: Any) -> Any:
            return call_within(self, function, args, keywords)

        return inner

    def __enter__(self) -> Any:
        if not _contexts or forked:
            start_cuda()
        top, current = pycuda_current(), _cuda_current()
        device_id = self._device
        if type(device_id) is not int:
            device_id = id_of(device_id)
        context = _contexts.get(device_id)
        if context is not None and context is top and device_ids.get(current) == device_id:
            pushed = False
        else:
            context, pushed = push(device_id), True
        _entered.contexts.append((context, pushed, top, current))
        return context

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if forked:  # it is gone: see _forget_after_fork
            return
        entered = _entered.contexts
        context, pushed, top, current = entered.pop() if entered else (None, False, None, 0)
        if context is None or pycuda_current() is not context:
            raise ContextError(
                "primary_context: PyCUDA's current context is not the one that was entered last on "
                "this thread, so it is left as it is; within the block, pop what is pushed and "
                "nothing else, and leave blocks in the reverse order of entering them"
            )
        if pushed:
            _pop()
        # PyCUDA has gone back to its own.  CuPy may have had another one, which holds unless what
        # is on PyCUDA's stack has changed.
        if _cuda_current() != current and pycuda_current() is top:
            _set_current(current)


def call_within(
    context: primary_context, function: Callable[..., Any], args: Any, keywords: Any
) -> Any:
    """Return what a function returns that is called where a context is current.

    GPUArrays in it may be dropped anywhere.
    """
    with context:
        result = function(*args, **keywords)
        keep(result)
        return result


class _Entered(threading.local):
    def __init__(self) -> None:
        # And whether it was pushed, and PyCUDA's and CUDA's before.
        self.contexts: list[tuple[Any, bool, Any, int]] = []


_entered = _Entered()  # what this thread has entered and not left


def push(device_id: int) -> Any:
    """Make a device's primary context PyCUDA's current one on this thread, and return it.

    Where CUDA is ready: see `start_cuda`.
    """
    context = _contexts.get(device_id)
    if context is None:
        count = drv.Device.count()
        if not 0 <= device_id < count:
            raise ValueError(
                f"primary_context: there is no device {device_id}; this process sees {count} "
                f"device{'s' * (count != 1)}, numbered from 0"
            )
        context = _retain(device_id)
    context.push()
    if pycuda_current() is not context:  # somebody has detached it
        with _lock:
            _contexts.pop(device_id, None)
        context = _retain(device_id, dead=context)
        context.push()
    return context


def id_of(device: Any) -> int:
    """Return the id of a ``pycuda.driver.Device``, or of CuPy's current device for None."""
    if device is None:
        return int(cupy.cuda.runtime.getDevice())
    return next(i for i in range(drv.Device.count()) if drv.Device(i) == device)
