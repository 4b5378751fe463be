"""Operators of a GPUArray with a CuPy array on the right, for which PyCUDA has no kernel.

PyCUDA leaves ``a + x`` to CuPy.  The others fail in PyCUDA: here, CuPy computes them, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from cupy import ndarray
from pycuda.gpuarray import GPUArray

from .conversions import as_cupy, as_pycuda

_IN_PLACE = "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__setitem__"
_COMPARED = "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"


def _by_cupy(name: str) -> Callable[..., Any]:
    """Return an operator that CuPy computes if its last operand is a CuPy array."""
    theirs, compute = vars(GPUArray)[name], getattr(operator, name)

    @functools.wraps(theirs)
    def computed(self: Any, *operands: Any) -> Any:
        if not isinstance(operands[-1], ndarray):
            return theirs(self, *operands)
        view = as_cupy(self)
        result = compute(view, *operands)
        if name not in _IN_PLACE:
            return result
        as_pycuda(view)  # PyCUDA's streams wait for the work
        return self

    return computed


OPERATORS = {name: _by_cupy(name) for name in (*_IN_PLACE, *_COMPARED, "__pow__")}
