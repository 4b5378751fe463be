"""What error messages say of what they were given."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_MOST = 100  # characters


def runs_later(function: Any) -> bool:
    """Tell whether a function is a coroutine or a generator, whose body runs after the call."""
    later = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    method = inspect.getattr_static(type(function), "__call__", None)  # of an object
    return any(tell(function) or tell(method) for tell in later)


def kind(value: Any) -> str:
    """Return the full name of an object's type, e.g. "cupy.ndarray"."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return name.removeprefix("builtins.")


def named(value: Any) -> str:
    """Return the value of a number, a text or a short sequence of such, and else the type.

    Arrays are not shown: the host would wait for what is queued on them.
    """
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    items = value if type(value) in (tuple, list) else (value,)
    if all(isinstance(item, _PLAIN) for item in items):
        text = repr(value)
        if isinstance(value, np.generic) and not text.startswith("np."):  # NumPy 1
            text = f"np.{type(value).__name__}({text})"
        return text if len(text) <= _MOST else f"{text[:_MOST]}... (a {kind(value)})"
    return f"a {kind(value)}"
