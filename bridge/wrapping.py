"""wrap_pycuda: functions written for GPUArrays, called with CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
from pycuda.gpuarray import GPUArray

from . import context
from ._driver import current_device
from .arrays import as_cupy, view_in_pycuda
from .context import ContextError, primary_context
from .errors import named, runs_later
from .streams import is_capturing, order

ndarray = cupy.ndarray


def wrap_pycuda(func: Callable[..., Any], /) -> Callable[..., Any]:
    """Make a function of GPUArrays one of CuPy arrays; also a decorator.

    Parameters
    ----------
    func : callable
        Any function of GPUArrays, e.g. ``pycuda.cumath.exp`` or an ``ElementwiseKernel``.

    Returns
    -------
    callable
        Takes and returns a `cupy.ndarray` for each `GPUArray` of `func`, also in a tuple, list or
        dict.  Other values pass unchanged.  An array that passes through is the same array.

    Raises
    ------
    TypeError
        If `func` cannot be called, or is a coroutine or a generator, whose body runs later.
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
    name = getattr(func, "__name__", "wrap_pycuda")
    if runs_later(func):
        raise TypeError(
            f"wrap_pycuda: {name} is a coroutine or a generator, whose body runs after the call, "
            "where nothing is ordered; wrap the functions that it calls"
        )

    @functools.wraps(func)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        try:
            device_id = current_device()
        except ContextError:
            if context.pycuda_current() is not None:  # by its module: cloudpickle cannot pickle it
                raise
            with primary_context():
                return wrapper(*args, **keywords)
        current = cupy.cuda.get_current_stream(device_id)
        here = current.ptr
        if is_capturing(here):
            raise ValueError(
                f"{name}: CuPy's current stream is being captured into a graph, but PyCUDA's "
                "default stream, on which the function works, cannot be; call it before or after "
                "the capture, or launch its kernels with stream="
            )
        if here:
            order(0, here, device_id)

        def to_pycuda(array: Any) -> Any:
            return view_in_pycuda(array, here, 0, (None, current), device_id, True)

        try:
            converted = [
                to_pycuda(value)  # as `_converted` does, which takes 0.1 us longer
                if isinstance(value, ndarray)
                else _converted(value, ndarray, to_pycuda)
                for value in args
            ]
            for key, value in keywords.items():
                keywords[key] = _converted(value, ndarray, to_pycuda)
            return _converted(func(*converted, **keywords), GPUArray, as_cupy)
        finally:
            if here:
                order(here, 0, device_id)

    return wrapper


def _converted(value: Any, array: type, convert: Callable[[Any], Any]) -> Any:
    """Convert an array, or a tuple, list or dict that has some; any other value is itself."""
    if isinstance(value, array):
        return convert(value)
    if type(value) is not dict and type(value) is not list and not isinstance(value, tuple):
        return value
    items = list(value.values() if type(value) is dict else value)
    if not any(isinstance(item, array) for item in items):
        return value
    items = [convert(item) if isinstance(item, array) else item for item in items]
    if type(value) is dict:
        return dict(zip(value, items, strict=True))
    return value._make(items) if hasattr(value, "_make") else type(value)(items)
