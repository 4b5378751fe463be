"""``skcuda.misc``: devices, sums and other reductions, arithmetic of matrices and vectors."""

from __future__ import annotations

import builtins
import functools
from math import ceil, prod
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda.gpuarray import GPUArray

from ...hooks import push_primary
from . import on_cupy, raise_missing

_global_cublas_allocator = drv.mem_alloc
_global_cublas_handle: int  # made at the first use
get_current_device = drv.Context.get_device


def init(allocator: Any = drv.mem_alloc) -> None:
    """Do nothing: CuPy makes its handles when they are needed."""


def shutdown() -> None:
    """Do nothing: CuPy's handles live as long as the process."""


def init_device(n: int = 0) -> Any:
    """Initialize CUDA, and return a device."""
    drv.init()
    return drv.Device(n)


def init_context(dev: Any) -> Any:
    """Return a device's primary context, current until `done_context` or the process's end."""
    return push_primary(dev)


def done_context(ctx: Any) -> None:
    """Make a context not current; the primary one lives as long as the process."""
    if drv.Context.get_current() == ctx:
        drv.Context.pop()


def get_compute_capability(dev: Any) -> float:
    """Return the compute capability as a number, e.g. 9.0."""
    return float("{}.{}".format(*dev.compute_capability()))


def get_dev_attrs(dev: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the most threads of a block, and the largest block and grid."""

    def ask(name: str) -> int:
        value: int = dev.get_attribute(getattr(drv.device_attribute, f"MAX_{name}"))
        return value

    block, grid = (tuple(ask(f"{of}_DIM_{axis}") for axis in "XYZ") for of in ("BLOCK", "GRID"))
    return ask("THREADS_PER_BLOCK"), block, grid


def select_block_grid_sizes(dev: Any, data_shape: Any, threads_per_block: int = 0) -> Any:
    """Return a block and a grid with a thread for each item of an array of that shape."""
    most, _, grid = get_dev_attrs(dev)
    threads = threads_per_block or most
    if threads > most:
        raise ValueError(f"threads per block: {threads} are asked for, the device has {most}")
    blocks = builtins.max(1, ceil(prod(np.atleast_1d(data_shape).tolist()) / threads))
    sizes = []
    for most in grid:
        sizes.append(builtins.min(blocks, most))
        blocks = ceil(blocks / sizes[-1])
    return (threads, 1, 1), tuple(sizes)


def isdoubletype(x: Any) -> bool:
    """Tell whether a dtype is float64 or complex128."""
    return np.dtype(x).char in "dD"


def iscomplextype(x: Any) -> bool:
    """Tell whether a dtype is complex64 or complex128."""
    return np.dtype(x).char in "FD"


def _filling(value: float) -> Any:
    def filled(shape: Any, dtype: Any, order: str = "C", allocator: Any = drv.mem_alloc) -> Any:
        dtype = np.dtype(dtype)
        return GPUArray(shape, dtype, allocator, order=order).fill(dtype.type(value))

    return filled


zeros, ones, inf = map(_filling, (0, 1, np.inf))
zeros_like, ones_like = on_cupy(cupy.zeros_like), on_cupy(cupy.ones_like)
cumsum, diff = on_cupy(lambda x: cupy.cumsum(x, dtype=x.dtype)), on_cupy(cupy.diff)
maxabs = on_cupy(lambda x: cupy.abs(x).max().astype("d" if isdoubletype(x.dtype) else "f"))


def _with_each(operations: Any, function: Any) -> list[Any]:
    """Return a function of GPUArrays for each operation, the first argument of `function`."""
    parts = [functools.partial(function, operation) for operation in operations]
    for part in parts:
        part.__doc__ = function.__doc__  # not that of `partial`
    return [*map(on_cupy, parts)]


def _reduce(reduce: Any, x: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    found = reduce(x, axis=axis, keepdims=keepdims)
    if out is None:
        return found
    out[...] = found
    return out


def _sum(x: Any, axis: Any, keepdims: bool) -> Any:
    return cupy.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)


def _find_extreme(reduce: Any, a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    if a.dtype.kind == "c":
        raise ValueError("skcuda.misc: complex numbers have no largest or smallest one")
    if axis is None or a.ndim <= 1:
        return reduce(a).reshape((1,) * a.ndim)
    return reduce(a, axis=axis, keepdims=keepdims)


def _find_index(search: Any, a: Any, axis: Any, keepdims: bool = False) -> Any:
    return search(a, axis=axis, keepdims=keepdims).astype(np.uint32)


def _measure_spread(
    reduce: Any, x: Any, ddof: int = 0, axis: Any = None, stream: Any = None, keepdims: bool = False
) -> Any:
    return reduce(x, axis=axis, ddof=ddof, keepdims=keepdims)


sum, mean = _with_each((_sum, cupy.mean), _reduce)
max, min = _with_each((cupy.max, cupy.min), _find_extreme)
argmax, argmin = _with_each((cupy.argmax, cupy.argmin), _find_index)
var, std = _with_each((cupy.var, cupy.std), _measure_spread)


def _combine(operation: Any, x: Any, y: Any) -> Any:
    if x.flags.c_contiguous != y.flags.c_contiguous:
        raise ValueError("skcuda.misc: one array is in C order, and the other in Fortran order")
    one, other = (a.reshape(()) if a.size == 1 and x.shape != y.shape else a for a in (x, y))
    try:
        shape = np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        shape = ()
    if shape not in (x.shape, y.shape):
        raise TypeError(f"skcuda.misc: the shapes {x.shape} and {y.shape} do not fit")
    return operation(one, other)


def _combine_vector(
    operation: Any, x: Any, a: Any, axis: Any = None, out: Any = None, stream: Any = None
) -> Any:
    if axis not in (None, 0, 1, -1, -2):
        raise ValueError(f"skcuda.misc: axis is {axis}; a matrix has 0 and 1")
    if axis is not None and a.ndim == 1:
        a = a[:, None] if axis % 2 == 0 else a[None, :]
    if np.broadcast_shapes(x.shape, a.shape) != x.shape:
        raise ValueError(f"a vector of shape {a.shape} does not fit {x.shape}")
    return operation(x, a, out=out)


def _c_divide(x: Any, a: Any, out: Any = None) -> Any:
    """Divide; integers towards zero."""
    if np.result_type(x, a).kind in "iu":
        return cupy.floor_divide(x - cupy.fmod(x, a), a, out=out)
    return cupy.divide(x, a, out=out)


_operations = cupy.add, cupy.subtract, cupy.multiply, _c_divide, cupy.fmod
add, subtract, multiply, divide = _with_each(_operations[:4], _combine)
_matvec = dict(zip("+-*/%", _with_each(_operations, _combine_vector), strict=True))
add_matvec, mult_matvec, div_matvec = map(_matvec.__getitem__, "+*/")


def binaryop_matvec(
    binary_op: str, x_gpu: Any, a_gpu: Any, axis: Any = None, out: Any = None, stream: Any = None
) -> Any:
    """Combine each row or column of a matrix with a vector, by "+", "-", "*", "/" or "%"."""
    return _matvec[binary_op](x_gpu, a_gpu, axis, out, stream)


def __getattr__(name: str) -> Any:
    if name == "_global_cublas_handle":  # programs pass it to `skcuda.cublas`
        return cupy.cuda.device.get_cublas_handle()
    raise_missing(__name__, name)
