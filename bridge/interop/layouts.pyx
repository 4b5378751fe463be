# cython: auto_pickle=False
"""Layouts of arrays: shapes and strides, and which ones CuPy and PyCUDA expect."""

from functools import lru_cache
from math import prod

import cupy
import numpy as np
from numpy.lib.stride_tricks import as_strided
from pycuda import gpuarray
from pycuda.compyte.array import c_contiguous_strides, f_contiguous_strides

cdef type ndarray = cupy.ndarray, GPUArray = gpuarray.GPUArray


@lru_cache(maxsize=4096)
def contiguity(shape, strides, itemsize):
    """Tell whether a layout is C-contiguous, and whether it is Fortran-contiguous.

    A GPUArray's own ``flags`` are cached, and do not change with its strides.
    """
    flags = as_strided(np.empty((), f"V{itemsize}"), shape, strides).flags  # no memory is read
    return flags.c_contiguous, flags.f_contiguous


def share_layout(tuple args, dict keywords, bint in_c_order):
    """Tell whether all arrays of a call are GPUArrays of one shape, and of the same strides.

    With `in_c_order`, whether they are in C order.  It is compiled, since most calls need no more.
    """
    cdef tuple shape = None, strides, first
    cdef Py_ssize_t axis, step
    for value in (*args, *keywords.values()) if keywords else args:
        if isinstance(value, GPUArray):
            strides, step = value.strides, value.itemsize
            if shape is None:
                shape, first = value.shape, strides
            elif value.shape != shape or not (in_c_order or strides == first):
                return False
            if not in_c_order:
                continue
            if len(strides) != len(shape):
                return False
            for axis in range(len(shape) - 1, -1, -1):
                if strides[axis] != step and shape[axis] != 1:
                    return False
                step *= max(1, <Py_ssize_t> shape[axis])
        elif isinstance(value, ndarray):
            return False
    return True


cdef int check_axes(tuple shape, tuple strides, subject) except -1:
    """Raise for a GPUArray of which the program has set the shape, but not the strides."""
    if len(shape) != len(strides):
        raise ValueError(
            f"{subject} has shape {shape}, but strides {strides}: its shape was set without its "
            "strides; use a.reshape(shape)"
        )
    return 0


cdef bint has_cupys_strides(tuple shape, tuple strides, Py_ssize_t step) except -1:
    """Tell whether CuPy gives the shape these strides; False if an axis is shorter than 2."""
    cdef Py_ssize_t axis, n
    for axis in range(len(shape) - 1, -1, -1):
        n = shape[axis]
        if n < 2 or strides[axis] != step:
            return False
        step *= n
    return True


def repeats_elements(shape, strides):
    """Tell whether elements share memory; a step of 0 along an axis of length 1 repeats nothing."""
    return bool(prod(shape)) and any([n > 1 and not step for n, step in zip(shape, strides)])


def pycudas_strides(shape, strides, itemsize):
    """Return a layout's strides as PyCUDA expects them for axes of length 1, which have no step."""
    of_c, of_fortran = contiguity(shape, strides, itemsize)
    if of_c or of_fortran:
        return (c_contiguous_strides if of_c else f_contiguous_strides)(itemsize, shape)
    return strides
