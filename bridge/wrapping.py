"""wrap_pycuda: functions written for GPUArrays, called with CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import context
from .arrays import call
from .context import primary_context
from .errors import named


def wrap_pycuda(func: Callable[..., Any], /) -> Callable[..., Any]:
    """Make a function of GPUArrays one of CuPy arrays; also a decorator.

    Parameters
    ----------
    func : callable
        Any function of GPUArrays, e.g. ``pycuda.cumath.exp`` or an ``ElementwiseKernel``; no
        coroutine and no generator, whose body runs after the call.

    Returns
    -------
    callable
        Takes and returns a `cupy.ndarray` for each `GPUArray` of `func`, also in a tuple, list or
        dict.  Other values pass unchanged.  An array that passes through is the same array.

    Raises
    ------
    TypeError
        If `func` cannot be called.
    ContextError, TypeError, ValueError
        On calling, as `as_pycuda` and `as_cupy`.  ValueError also while CuPy's current stream is
        captured into a graph.

    Examples
    --------
    >>> import cupy, bridge, bridge.autoinit
    >>> first_half = bridge.wrap_pycuda(lambda a: a[: a.size // 2])
    >>> first_half(cupy.arange(6))
    array([0, 1, 2])

    Notes
    -----
    *Ownership:* as with `as_cupy`, a result keeps its `GPUArray` alive.
    *Ordering:* work of `func` on PyCUDA's default stream runs after what CuPy's current stream has
    queued, and before its later work (rule: `bridge.streams`).  Other streams are not ordered.
    *Cost:* a conversion per array.  A thread without a PyCUDA context gets one for the call.
    """
    if not callable(func):
        raise TypeError(
            f"wrap_pycuda: func is {named(func)}; a callable is accepted: wrap the function, then "
            "call it with the arrays"
        )

    @functools.wraps(func)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        if context.pycuda_current() is None:  # by its module: cloudpickle cannot pickle it
            with primary_context():
                return call(func, args, keywords)
        return call(func, args, keywords)

    return wrapper
