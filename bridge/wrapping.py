"""wrap_pycuda: functions written for GPUArrays, called with CuPy arrays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import cupy
from pycuda.gpuarray import GPUArray

from . import context
from .arrays import as_cupy, lend, viewed_by
from .context import call_within, primary_context, pycuda_device
from .streams import end_waiting_leases, is_capturing, order
from .words import named, runs_later

_ndarray = cupy.ndarray
_current_stream = cupy.cuda.get_current_stream


def wrap_pycuda(func: Callable[..., Any], /) -> Callable[..., Any]:
    """Make a function of GPUArrays one of CuPy arrays; also a decorator.

    Parameters
    ----------
    func : callable
        Anything called with GPUArrays: a function, ``pycuda.cumath.exp``, an
        ``ElementwiseKernel``, a ``ReductionKernel``, a scan.

    Returns
    -------
    callable
        Takes a `cupy.ndarray` wherever `func` takes a `GPUArray`, and returns one wherever
        `func` returns a `GPUArray`, also inside of tuples, lists and dicts (of classes
        derived from list or dict, not).  What `func` writes into a list or a dict is there after
        the call.  Every other value passes as it is.  An array that `func` returns as it got it
        comes back as the same array.

    Raises
    ------
    TypeError
        If `func` cannot be called, or is a coroutine or a generator, whose body runs later.
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
    *Cost:* 1 us, and 1 us more an array or a result.  On a thread where PyCUDA has no context, the
    primary one is made current for the call: 2 us.
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
        top = context.pycuda_current()  # not by a name of its own, which cloudpickle would pickle
        if top is None:
            return call_within(primary_context(), wrapper, args, keywords)
        device_id = context.usual_device if top is context.usual else pycuda_device()
        current = _current_stream(device_id)
        here = current.ptr
        context.check_current(device_id)
        if is_capturing(here):
            raise ValueError(
                f"{name}: CuPy's current stream is being captured into a graph, but what is "
                "wrapped works on PyCUDA's default stream, which cannot be; call it before or "
                "after, or launch its kernels with stream="
            )
        if here:
            end_waiting_leases()
            order(0, here, device_id)
        there: Containers = {}

        def to_pycuda(array: Any) -> Any:
            return lend(array, here, 0, (None, current), device_id, True)

        try:
            converted = [
                to_pycuda(value)  # as _converted does, which takes 0.1 us longer for being called
                if isinstance(value, _ndarray)
                else _converted(value, _ndarray, to_pycuda, there)
                for value in args
            ]
            for key in keywords:
                keywords[key] = _converted(keywords[key], _ndarray, to_pycuda, there)
            back = {id(theirs): (theirs, ours) for ours, theirs in there.values()} if there else {}
            try:
                result = func(*converted, **keywords)
            finally:
                if back:
                    _write_back(back)
            if isinstance(result, GPUArray):
                return _handed_back(result)
            return _converted(result, GPUArray, _handed_back, back)
        finally:
            if here:
                order(here, 0, device_id)

    return wrapper


Containers = dict[int, tuple[Any, Any]]  # lists and dicts by their id(), and what each became


def _converted(value: Any, array: type, convert: Callable[[Any], Any], known: Containers) -> Any:
    """Convert an array, or the arrays inside of a tuple, a list or a dict.

    A list or a dict becomes one other, wherever it is found: itself, if no array is inside.
    """
    if isinstance(value, array):
        return convert(value)
    if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):
        items = [_converted(item, array, convert, known) for item in value]
        if _same(items, value):
            return value
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    if type(value) not in (list, dict):
        return value
    if id(value) not in known:
        result = type(value)()
        known[id(value)] = value, result  # first, since it may be inside of itself
        _fill(result, value, lambda item: _converted(item, array, convert, known))
        if _same(result, value):
            known[id(value)] = value, value
    return known[id(value)][1]


def _fill(result: Any, source: Any, convert: Callable[[Any], Any]) -> None:
    if type(source) is dict:
        result.update((key, convert(item)) for key, item in source.items())
    else:
        result.extend(map(convert, source))


def _same(one: Any, other: Any) -> bool:
    """Tell whether two tuples, lists or dicts hold the same objects."""
    if type(one) is dict:
        return [*one] == [*other] and all(item is other[key] for key, item in one.items())
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _handed_back(array: Any) -> Any:
    """Convert a GPUArray that the function returns, where the streams are in order already."""
    source = None if context.check_devices else viewed_by(array)
    return as_cupy(array) if source is None else source


def _write_back(back: Containers) -> None:
    """Give the caller's lists and dicts what the function wrote into those that it got."""
    for theirs, ours in list(back.values()):
        result = type(ours)()
        _fill(result, theirs, lambda item: _converted(item, GPUArray, _handed_back, back))
        if not _same(result, ours):
            ours.clear()
            _fill(ours, result, lambda item: item)
