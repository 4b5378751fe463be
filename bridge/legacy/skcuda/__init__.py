"""scikit-cuda's commonest functions for GPUArrays, with CuPy's FFT, BLAS and solvers inside.

``import bridge.legacy.skcuda`` makes ``import skcuda`` and ``import scikits.cuda`` find these
modules; ``bridge run`` does so, too.  An installed scikit-cuda that imports is used instead; 0.5.3
does not import beside current packages.  Parameters, and the dtypes and orders of results, are
those of its documentation.

*Ordering:* work queued on PyCUDA's streams runs before a function's work, which runs on CuPy's
current stream, and later work on PyCUDA's streams runs after it (rule: `bridge.interop.ordering`).
*Ownership:* results are in CuPy's pool.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import bridge

from ..names import SERVED, not_served
from .finder import Finder

__version__ = "0.5.3"  # whose functions these are
sys.meta_path.insert(0, Finder())


def __getattr__(name: str) -> Any:
    if name in SERVED or name.startswith("_"):  # it is a module that is not yet imported
        raise AttributeError(name)
    raise ImportError(not_served(name))


def raise_missing(module: str, name: str) -> NoReturn:
    """Raise the error for a name of scikit-cuda that is not here."""
    raise AttributeError(
        f"{module} has no {name!r}: it has scikit-cuda's commonest functions; convert with "
        "bridge.as_cupy(a), and use cupy, cupy.linalg or cupyx.scipy"
    )


def address(pointer: Any) -> int:
    """Return the address in a pointer of PyCUDA or of `ctypes`, or that is a number."""
    try:
        return int(pointer)
    except TypeError:
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """Make PyCUDA's stream, or one by its handle, CuPy's current one; None leaves what is."""
    if stream is None:
        return nullcontext()
    if isinstance(stream, int):
        stream = SimpleNamespace(__cuda_stream__=lambda handle=stream: (0, handle))
    current: AbstractContextManager[Any] = bridge.as_cupy_stream(stream)
    return current


def on_cupy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of CuPy arrays one of GPUArrays; an argument that it returns stays itself."""

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        import cupy  # importing this package touches neither library
        from pycuda.gpuarray import GPUArray

        from ...hooks import Allocation

        given: list[tuple[Any, Any]] = []  # views, and the arguments that they are of

        def to_cupy(value: Any) -> Any:
            if not isinstance(value, GPUArray):
                return value
            given.append((bridge.as_cupy(value, stream=-1), value))
            return given[-1][0]

        def to_pycuda(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(to_pycuda, value))
            if not isinstance(value, cupy.ndarray):
                return value
            for view, array in given:
                if view is value:
                    return array
            array = bridge.as_pycuda(value)
            if array.gpudata is not None:  # programs call its free()
                memory = Allocation(array.gpudata)
                memory.memory, array.base, array.gpudata = array.base, None, memory
            return array

        with bridge.ordered():
            args = tuple(map(to_cupy, args))
            keywords = {name: to_cupy(value) for name, value in keywords.items()}
            return to_pycuda(function(*args, **keywords))

    return wrapper
