"""The one primary context per device that both libraries share.

CuPy works in a device's primary context.  PyCUDA works in the context on top of its stack, and each
thread has its own stack.  ``pycuda.autoinit`` puts a second context there.  Pointers are valid in
both contexts, but their default streams are not ordered, and each library can make the other's
context not current.  So bridge requires that the top of PyCUDA's stack and CUDA's current context
are the same primary context.

PyCUDA frees memory only under the ``Context`` object that it was allocated under.  So the process
has one ``Context`` object per device: `_driver.primary_context_of`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cupy
import pycuda.driver as drv
from pycuda import tools
from pycuda.gpuarray import GPUArray

from . import _driver
from ._driver import cuda_device, current_device, device_of_any, find_pointer, primary_context_of
from .errors import ContextError, named

__all__ = ["ContextError", "cuda_device", "current_device", "primary_context"]

_cuda_current = cupy.cuda.driver.ctxGetCurrent
pycuda_current = drv.Context.get_current
_pycuda_push, _pycuda_pop = drv.Context.push, drv.Context.pop  # `bridge run` replaces both
_PYCUDA_POPS_LAST = "pycuda.autoprimaryctx" in sys.modules  # in its handler at exit

_lock = threading.RLock()
_known: set[int] = set()  # devices whose primary context bridge has used

# CUDA's errors after a kernel has failed.  (CUDA Driver API, CUresult: "the process must be
# terminated".)
_FATAL = frozenset((700, 702, 710, *range(714, 720)))

_ADVICE = (
    "on the main thread, `import bridge.autoinit` in place of pycuda.autoinit; on any thread, work "
    "under `with bridge.primary_context():`"
)


def failure() -> str:
    """Return a message with advice if an earlier kernel has failed, and '' otherwise."""
    try:
        cupy.cuda.runtime.memGetInfo()  # allowed in a stream capture
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status in _FATAL:
            return (
                f"an earlier kernel has failed ({error}), and this process cannot use the GPU any "
                "more. Start a new one, with CUDA_LAUNCH_BLOCKING=1 in its environment to see "
                "which call fails, or under compute-sanitizer, which names kernel and line"
            )
    return ""


def explain_context(error: Exception) -> str:
    """Return the text of PyCUDA's error; say what to do on a thread that has no context."""
    text = Exception.__str__(error)
    if "invalid device context" in text:
        text += "; a thread needs a context: work under `with bridge.primary_context():`"
    return text


def start_cuda() -> None:
    """Initialize CUDA; raise ContextError if there is no GPU, or in a forked child process."""
    try:
        drv.init()
    except drv.Error as error:
        if "no CUDA-capable device" in str(error):
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise ContextError(
                f"CUDA finds no GPU ({error}): `nvidia-smi` lists the machine's GPUs; "
                f"CUDA_VISIBLE_DEVICES hides some ({hidden!r} here), and a container has only "
                "the GPUs that it was started with (`docker run --gpus all`)"
            ) from error
        if "initialization error" in str(error):
            raise ContextError(
                "CUDA does not survive fork(): this process was forked from one that had already "
                "used the GPU. Start worker processes with the 'spawn' or 'forkserver' method, "
                "e.g. multiprocessing.get_context('spawn')"
            ) from error
        raise


def _accept_cuda_context() -> int:
    """Accept CUDA's new current context and return its device; raise if it is not primary."""
    start_cuda()
    device_id: int = cupy.cuda.runtime.getDevice()
    if not _cuda_current():
        cupy.cuda.Device(device_id).use()  # as CuPy's first allocation would
    if _retain(device_id).handle != _cuda_current():
        raise _not_primary(_cuda_current())
    return device_id


def _accept_context() -> int:
    """Accept a new context and return its device; raise if the libraries do not share it."""
    start_cuda()
    top = pycuda_current()
    if top is None:
        raise ContextError(f"PyCUDA has no context on this thread; {_ADVICE}")
    device_id = _accept_cuda_context()
    if top == primary_context_of(device_id):
        return device_id
    of_pycuda = device_of_any(top.handle)
    if of_pycuda == device_id:
        raise _not_primary(top.handle)
    raise ContextError(
        f"PyCUDA's current context is on device {of_pycuda}, CuPy's current one is on device "
        f"{device_id}. Work with both on one device, e.g. under `with bridge.primary_context("
        f"{device_id}):`, or go back with `cupy.cuda.Device({of_pycuda}).use()` if it was another "
        "library that switched (JAX does when it starts)"
    )


def _not_primary(context: int) -> ContextError:
    return ContextError(
        f"the current context (0x{context:x}) is not the primary context that CuPy uses, so work "
        f"of the two libraries would not be ordered; {_ADVICE}"
    )


def _retain(device_id: int) -> Any:
    """Return the ``Context`` object of a device's primary context."""
    with _lock:
        context = primary_context_of(device_id)
        if context is None:
            device = drv.Device(device_id)
            automatic: Any = sys.modules.get("pycuda.autoprimaryctx")
            context = getattr(automatic, "context", None)  # PyCUDA may have allocated under it
            if context is None or automatic.device != device:
                context = device.retain_primary_context()
            _driver.set_primary_context(device_id, context)
            _known.add(device_id)
    return context


def push(device: Any) -> Any:
    """Make a device's primary context PyCUDA's current one on this thread, and return it.

    `device` is an id, a ``pycuda.driver.Device``, or None for CuPy's current device.
    """
    start_cuda()
    count = drv.Device.count()
    if device is None:
        device = cupy.cuda.runtime.getDevice()
    elif isinstance(device, drv.Device):
        device = next(i for i in range(count) if drv.Device(i) == device)
    if not 0 <= device < count:
        raise ValueError(
            f"primary_context: there is no device {device}; this process sees {count} "
            f"device{'s' * (count != 1)}, numbered from 0"
        )
    context = _retain(device)
    _pycuda_push(context)
    if pycuda_current() is not context:  # it was detached
        context = drv.Device(device).retain_primary_context()
        _driver.set_primary_context(device, context)
        _pycuda_push(context)
    return context


_driver.set_up(_accept_context, _accept_cuda_context, push)


class primary_context(_driver.Scope):  # noqa: N801  (used like a function)
    """Make a device's primary context current for PyCUDA on this thread.

    A context manager and a decorator; re-entrant, and safe to share between threads.

    Parameters
    ----------
    device : int, cupy.cuda.Device or pycuda.driver.Device, optional
        The device; CuPy's current device if omitted.

    Raises
    ------
    ContextError
        On entering, if this process was forked from one that had used CUDA.  On leaving, if
        PyCUDA's current context is not the one that was entered.
    TypeError
        If `device` is not a device.  On decorating a generator function or a coroutine function,
        since their bodies run after the call.
    ValueError
        On entering, if there is no such device.

    Examples
    --------
    >>> import bridge
    >>> with bridge.primary_context():
    ...     pass

    Notes
    -----
    Do not pop the context within the block: if it was current already, it is not pushed again.  On
    leaving, CUDA's current context is restored.
    *Ownership:* the primary context lives as long as the process.  Any thread can free bridged
    arrays, memory of `pycuda_allocator`, and the GPUArrays that a decorated function returns,
    directly or in a tuple, list or dict.  PyCUDA leaks other memory that is freed on a thread
    without its context.
    *Ordering:* none. *Cost:* PyCUDA's push and pop, unless the context is already current.
    """

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Return a function that calls `function` with the context current."""
        refuse_late_body(
            function,
            "primary_context: the decorated function",
            "write `with bridge.primary_context():` around its steps, without a yield or an await "
            "inside, or decorate the functions that it calls",
        )

        @functools.wraps(function)
        def inner(*args: Any, **keywords: Any) -> Any:
            with self:
                result = function(*args, **keywords)
                let_any_thread_free(result)
                return result

        return inner


def refuse_late_body(function: Any, subject: str, advice: str) -> None:
    """Raise TypeError for a function whose body runs after the call."""
    tests = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004
        if any(test(one) for test in tests):
            raise TypeError(
                f"{subject} is {named(function)} {getattr(function, '__name__', '')!r} with a "
                f"yield or an await, whose body runs after the call; {advice}"
            )


def let_any_thread_free(result: Any) -> None:
    """Let any thread free the memory of a GPUArray, or of those in a tuple, list or dict."""
    from .views import learn_memory  # which imports this module

    items = result.values() if type(result) is dict else result
    for item in items if type(result) in (dict, tuple, list) else (result,):
        if issubclass(type(item), GPUArray) and item.gpudata is not None:  # not a lazy proxy
            pointer = int(item.gpudata)
            device_id, is_foreign = find_pointer(pointer)
            if device_id >= 0 and not is_foreign:
                learn_memory(item, pointer, device_id)


def _forget_after_fork() -> None:
    if _known:  # a child of a process that has not used CUDA may use it
        _driver.abandon(True)
        atexit.unregister(_finish)


os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _finish() -> None:
    """Empty PyCUDA's pools and context stack: otherwise PyCUDA aborts the process."""
    _driver.abandon()
    for device_id in _known:
        with suppress(drv.Error, ContextError), primary_context(device_id) as primary:
            for function in tools.context_dependent_memoized_functions:
                # PyCUDA warns if its kernels are unloaded elsewhere.
                with suppress(AttributeError):
                    function._pycuda_ctx_dep_memoize_dic.pop(primary, None)
            if len(_known) == 1:  # a pool does not report its device
                for found in gc.get_objects():
                    if type(found) is drv.DeviceMemoryPool:
                        found.stop_holding()  # or a block that returns later aborts the process
    last = None
    while (top := pycuda_current()) in map(primary_context_of, _known):
        _pycuda_pop()
        last = top
    if last is not None and _PYCUDA_POPS_LAST:
        _pycuda_push(last)
