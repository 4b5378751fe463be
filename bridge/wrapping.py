"""wrap_pycuda: functions written for GPUArrays, called with CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
from pycuda.elementwise import ElementwiseKernel, VectorArg
from pycuda.gpuarray import GPUArray
from pycuda.tools import parse_c_arg
from pytools.prefork import ExecError

from . import context
from .arrays import call
from .context import primary_context
from .errors import kind, named
from .kernels.arguments import check_dtype


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
        Takes and returns a `cupy.ndarray` for each `GPUArray` of `func`, also directly in a tuple,
        list or dict.  Other values pass unchanged.  An array that passes through is the same array.

    Raises
    ------
    TypeError
        If `func` cannot be called.  On calling, if an array has another dtype than an
        ``ElementwiseKernel`` or a scan was made for; a ``ReductionKernel`` keeps no dtypes.
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

    dtypes = _dtypes(func)

    @functools.wraps(func)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        if dtypes:
            _check(dtypes, args, keywords)
        try:
            if context.pycuda_current() is None:  # by its module: cloudpickle cannot pickle it
                with primary_context():
                    return call(func, args, keywords)
            return call(func, args, keywords)
        except ExecError as error:
            raise ExecError(
                f"wrap_pycuda: PyCUDA cannot compile: {error}; call bridge.use_nvrtc() before, "
                "which needs no nvcc"
            ) from error

    return wrapper


def _dtypes(func: Any) -> dict[int | str, Any]:
    """Return the dtypes of what a kernel object of PyCUDA's takes, by argument; None: a number."""
    if isinstance(func, ElementwiseKernel):
        arguments = func.gen_kwargs["arguments"]
        if isinstance(arguments, str):
            arguments = [parse_c_arg(argument) for argument in arguments.split(",")]
        return {
            i: one.dtype if isinstance(one, VectorArg) else None for i, one in enumerate(arguments)
        }
    if any(kind.__module__ == "pycuda.scan" for kind in type(func).__mro__):
        return dict.fromkeys((0, 1, "input_ary", "output_ary"), func.dtype)
    return {}


def _check(dtypes: dict[Any, Any], args: Any, keywords: dict[str, Any]) -> None:
    for where, value in (*enumerate(args), *keywords.items()):
        caller, wanted = f"wrap_pycuda: argument {where}", dtypes.get(where)
        if wanted is not None and hasattr(value, "dtype"):
            check_dtype(value.dtype, wanted, caller)
        elif wanted is not None and value is not None:
            raise TypeError(f"{caller} is {named(value)}; the kernel takes an array of {wanted}")
        elif where in dtypes and isinstance(value, GPUArray | cupy.ndarray):
            raise TypeError(f"{caller} is a {kind(value)}; the kernel takes a number: a.item()")
