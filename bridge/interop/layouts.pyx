# cython: auto_pickle=False
"""Layouts of arrays: shapes and strides, and which ones CuPy and PyCUDA expect."""

from functools import wraps
from math import prod

import cupy
from pycuda import gpuarray
from pycuda.compyte.array import c_contiguous_strides, f_contiguous_strides

cdef type ndarray = cupy.ndarray, GPUArray = gpuarray.GPUArray


cdef bint is_contiguous(tuple shape, tuple strides, Py_ssize_t step, bint in_c_order) except -1:
    """Tell whether elements lie side by side, in C order or in Fortran order, as NumPy's flags do.

    A GPUArray's own ``flags`` are cached, and do not change with its strides.
    """
    cdef Py_ssize_t axis, n, number, axes = len(shape)
    if len(strides) != axes:
        return False
    for number in range(axes):
        axis = axes - 1 - number if in_c_order else number
        n = shape[axis]
        if n != 1 and strides[axis] != step:
            return 0 in shape
        step *= n
    return True


def contiguity(array):
    """Return the orders in which an array is contiguous: "C", "F", "CF" or ""."""
    cdef Py_ssize_t itemsize = array.dtype.itemsize
    cdef tuple shape = array.shape, strides = array.strides
    is_fortran = is_contiguous(shape, strides, itemsize, False)
    if is_contiguous(shape, strides, itemsize, True):
        return "CF" if is_fortran else "C"
    return "F" if is_fortran else ""


cpdef bint share_layout(tuple args, dict keywords, bint in_c_order) except -1:
    """Tell whether all arrays of a call are contiguous GPUArrays of one shape and one layout.

    With `in_c_order`, whether they are in C order.  It is compiled, since most calls need no more.
    """
    cdef tuple shape = None, strides, first = None
    cdef dict attributes
    cdef Py_ssize_t step, itemsize = 0
    for value in (*args, *keywords.values()) if keywords else args:
        if isinstance(value, GPUArray):
            attributes = value.__dict__
            strides, step = attributes["strides"], attributes["itemsize"]
            if shape is None:
                shape = attributes["shape"]
            elif attributes["shape"] != shape:
                return False
            if first is not None and step == itemsize and strides == first:
                continue
            if not is_contiguous(shape, strides, step, True) and (
                in_c_order or first is not None or not is_contiguous(shape, strides, step, False)
            ):
                return False
            if first is not None and not in_c_order:
                return False
            first, itemsize = strides, step
        elif isinstance(value, ndarray):
            return False
    return True


def extent(array):
    """Return where the elements of an array begin and end, in bytes from the first one."""
    ends = [(n - 1) * step for n, step in zip(array.shape, array.strides)]
    return sum([end for end in ends if end < 0]), (
        sum([end for end in ends if end > 0]) + array.dtype.itemsize
    )


def overlap(one, other):
    """Tell whether the memory of two device arrays overlaps; CuPy asks whether it begins alike."""
    if not one.size or not other.size:
        return False
    start, others_start = [a.data.ptr if isinstance(a, ndarray) else int(a.gpudata) for a in (one, other)]
    (first, end), (others_first, others_end) = extent(one), extent(other)
    return start + first < others_start + others_end and others_start + others_first < start + end


def dispatch_by_layout(theirs, other):
    """Return a function that calls `theirs` if `share_layout` is true, and `other` otherwise."""
    def call(*args, **keywords):
        function = theirs if share_layout(args, keywords, True) else other
        return function(*args, **keywords) if keywords else function(*args)
    return wraps(theirs)(call)


def selects(index, shape):
    """Tell whether an index is of integers, and of slices that have elements."""
    cdef Py_ssize_t axis
    items = index if isinstance(index, tuple) else (index,)
    if len(items) > len(shape):
        return False
    for axis, item in enumerate(items):
        if type(item) is slice:
            if not len(range(*item.indices(shape[axis]))):
                return False
        elif type(item) is not int:
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
    if is_contiguous(shape, strides, itemsize, True):
        return c_contiguous_strides(itemsize, shape)
    if is_contiguous(shape, strides, itemsize, False):
        return f_contiguous_strides(itemsize, shape)
    return strides
