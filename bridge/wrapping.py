"""wrap_pycuda: functions written for GPUArrays, called with CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
from pycuda.gpuarray import GPUArray

from .arrays import as_cupy, as_pycuda
from .context import current_device, primary_context, pycuda_current
from .streams import is_capturing, order
from .words import named


def wrap_pycuda(func: Callable[..., Any], /) -> Callable[..., Any]:
    """Make a function of ``GPUArray``s one of CuPy arrays; also a decorator.

    Parameters
    ----------
    func : callable
        Anything called with `GPUArray`s: a function, ``pycuda.cumath.exp``, an
        ``ElementwiseKernel``, a ``ReductionKernel``, a scan.

    Returns
    -------
    callable
        Takes a `cupy.ndarray` wherever `func` takes a `GPUArray`, and returns one wherever
        `func` returns a `GPUArray`, also inside of tuples, lists and dicts.  Every other value
        passes as it is.  An array that `func` returns as it got it comes back as the same array.

    Raises
    ------
    TypeError
        If `func` cannot be called.
    ContextError, TypeError, ValueError
        On calling, as `as_pycuda` and `as_cupy`; ValueError, if CuPy's current stream is being
        captured into a graph; and whatever `func` raises.

    Examples
    --------
    >>> import cupy, bridge, bridge.autoinit
    >>> first_half = bridge.wrap_pycuda(lambda a: a[: a.size // 2])
    >>> first_half(cupy.arange(6))
    array([0, 1, 2])

    Notes
    -----
    *Ownership:* a result keeps its `GPUArray` alive, which keeps the memory; as with `as_cupy`.
    *Ordering:* `func` runs as if on CuPy's current stream: its work on PyCUDA's default stream
    happens after what was queued there and before what is queued later (rule:
    `bridge.streams`).  Work that it queues on streams of its own is its own to order.
    *Cost:* a conversion an array and a result, 1.3 us each.  On a thread where PyCUDA has no
    context, the primary one is made current for the call: 1 us.
    """
    if not callable(func):
        raise TypeError(
            f"wrap_pycuda: func is {named(func)}; a callable is accepted: wrap the function, then "
            "call it with the arrays"
        )

    name = getattr(func, "__name__", "wrap_pycuda")

    @functools.wraps(func)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        if pycuda_current() is None:
            with primary_context():
                return wrapper(*args, **keywords)
        device_id = current_device()
        here = cupy.cuda.get_current_stream(device_id).ptr
        if is_capturing(here):
            raise ValueError(
                f"{name}: CuPy's current stream is being captured into a graph, but what is "
                "wrapped works on PyCUDA's default stream, which cannot be; call it before or "
                "after, or launch its kernels with stream="
            )
        order(0, here, device_id)
        try:
            return _to_cupy(func(*map(_to_pycuda, args), **_to_pycuda(keywords)))
        finally:
            order(here, 0, device_id)

    return wrapper


def _to_pycuda(value: Any) -> Any:
    return as_pycuda(value) if isinstance(value, cupy.ndarray) else _inside(value, _to_pycuda)


def _to_cupy(value: Any) -> Any:
    return as_cupy(value) if isinstance(value, GPUArray) else _inside(value, _to_cupy)


def _inside(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert what is inside of a tuple, a list or a dict; nothing else is looked into."""
    if type(value) is dict:
        return {key: convert(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(convert, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(convert, value))
    return value
