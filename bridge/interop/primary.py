"""primary_context: make the context that both libraries share current on a thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from pycuda.gpuarray import GPUArray

from ..errors import check_function
from .contexts import find_pointer
from .scopes import Scope
from .views import record_memory


class _Class(type):
    """The class of `primary_context`: `with` does not take it without its parentheses."""

    def __enter__(cls) -> NoReturn:
        raise TypeError(
            "primary_context: `with` got the class; write `with bridge.primary_context():`"
        )

    def __exit__(cls, *error: object) -> None:
        """Do nothing: `with` looks for it before it enters."""


class primary_context(Scope, metaclass=_Class):  # noqa: N801  (used like a function)
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
        check_function(
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


def let_any_thread_free(result: Any) -> None:
    """Let any thread free the memory of a GPUArray, or of those in a tuple, list or dict."""
    items = result.values() if type(result) is dict else result
    for item in items if type(result) in (dict, tuple, list) else (result,):
        if issubclass(type(item), GPUArray) and item.gpudata is not None:  # not a lazy proxy
            pointer = int(item.gpudata)
            device_id, is_foreign = find_pointer(pointer)
            if device_id >= 0 and not is_foreign:
                record_memory(item, pointer, device_id)
