"""Errors and warnings: ContextError, texts for values, and the line of the program that called."""

from __future__ import annotations

import contextlib
import inspect
import os
import runpy
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST = 100  # characters
_ADVICE = {
    "No module named 'cupy'": (
        "CuPy is not installed: `pip install cupy-cuda12x`, or cupy-cuda13x if PyCUDA is built "
        "for CUDA 13"
    ),
    "No module named 'pycuda'": (
        "PyCUDA is not installed: `pip install pycuda` builds it with the machine's CUDA toolkit; "
        "tools/build_pycuda.py, in the source of bridge, builds it without a toolkit"
    ),
    "'bridge.": (
        "one of its compiled parts is not built for this Python in the folder "
        f"{Path(__file__).parent}. If that is a checkout, it hides an installed package: work in "
        "another folder, or build it there with a C compiler, `pip install -e .`"
    ),
    "libcuda.so.1: cannot": (
        "libcuda.so.1 is missing, so there is no NVIDIA driver here: work on a machine with a GPU, "
        "or start the container with its GPUs (`docker run --gpus all`); `python -m hostcuda` in "
        "place of `python` needs no GPU (`pip install ./hostcuda` in the source of bridge)"
    ),
}


class ContextError(RuntimeError):
    """The CUDA context is missing, not primary, on another device, or lost to a failed kernel."""

    __module__ = "bridge"  # where users find it


class Caller(NamedTuple):
    """How messages begin: of the whole call, of the array, and of the argument as given."""

    name: str
    array: str
    argument: str


def caller_of(function: str) -> Caller:
    """Return how the messages of a function begin, e.g. "as_cupy: the array"."""
    return Caller(function, f"{function}: the array", f"{function}: argument")


def kind(value: Any) -> str:
    """Return the full name of an object's type, e.g. "cupy.ndarray"."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return name.removeprefix("builtins.")


def named(value: Any) -> str:
    """Return a plain value, or a sequence of them, as text; for other objects, return the type.

    Arrays are not shown, because the host would have to wait for them.
    """
    import numpy as np  # `python -m bridge run` must not import it before the program

    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    items = value if type(value) in (tuple, list) else (value,)
    if not all(isinstance(item, (*_PLAIN, np.generic)) for item in items):
        return f"a {kind(value)}"
    text = f"the {kind(value)} {value}" if isinstance(value, np.generic) else repr(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}... (a {kind(value)})"


def check_function(function: Any, subject: str, advice: str) -> None:
    """Raise TypeError for what is no function, or one whose body runs after the call."""
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"{subject} is {named(function)}; a function is accepted, not its result, and not a "
            "class"
        )
    tests = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004
        if any(test(one) for test in tests):
            raise TypeError(
                f"{subject} is {named(function)} {getattr(function, '__name__', '')!r} with a "
                f"yield or an await, whose body runs after the call; {advice}"
            )


def is_hidden(filename: str) -> bool:
    """Tell whether a file belongs to bridge, a library or Python, and not to the program."""
    packages = filter(None, map(sys.modules.get, ("bridge", "pycuda", "pytools", "cupy")))
    folders = [os.path.join(package.__path__[0], "") for package in packages]
    of_python = runpy.run_path.__code__.co_filename, contextlib.__file__
    return filename.startswith(("<frozen ", *folders)) or filename in of_python


def program_frame() -> FrameType:
    """Return the frame of the program's line that called bridge, directly or through PyCUDA."""
    frame = sys._getframe(1)
    while frame.f_back and is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the program that called bridge."""
    frame = program_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    place = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__")
    warnings.warn_explicit(message, category, *place, registry)


def import_libraries() -> None:
    """Import both libraries and the compiled part; raise ImportError with advice if one fails."""
    try:
        import cupy  # noqa: F401
        import pycuda.driver  # noqa: F401

        from .interop import contexts  # noqa: F401
    except ImportError as error:
        for sign, advice in _ADVICE.items():
            if sign in str(error):
                raise type(error)(f"bridge: {advice} ({error})", name=error.name) from None
        raise
