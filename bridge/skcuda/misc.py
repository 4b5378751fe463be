"""``skcuda.misc``: devices, sums and other reductions, arithmetic of matrices and vectors."""

from __future__ import annotations

import builtins
from math import ceil, prod
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda.gpuarray import GPUArray

from ..errors import named
from . import missing, on_cupy

_global_cublas_allocator = drv.mem_alloc
get_current_device = drv.Context.get_device


def init(allocator: Any = drv.mem_alloc) -> None:
    """Do nothing: CuPy makes its handles when they are needed."""


def shutdown() -> None:
    """Do nothing: CuPy's handles live as long as the process."""


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
    blocks = ceil(prod(np.atleast_1d(data_shape).tolist()) / threads)
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
cumsum, diff = on_cupy(cupy.cumsum), on_cupy(cupy.diff)
maxabs = on_cupy(lambda x: cupy.abs(x).max())
get_by_index = on_cupy(lambda src, ind: src[ind])


@on_cupy
def set_by_index(dest: Any, ind: Any, src: Any, ind_which: str = "dest") -> None:
    """Copy items: to the indices of `dest`, or from those of `src`."""
    if ind_which == "dest":
        dest[ind] = src[: ind.size]
    elif ind.size:
        dest[...] = src[ind]


def _reduction(reduce: Any) -> Any:
    def function(x: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        found = reduce(x, axis=axis, keepdims=keepdims)
        if out is None:
            return found
        out[...] = found
        return out

    return on_cupy(function)


def _spread(reduce: Any) -> Any:
    def function(
        x: Any, ddof: int = 0, axis: Any = None, stream: Any = None, keepdims: bool = False
    ) -> Any:
        return reduce(x, axis=axis, ddof=ddof, keepdims=keepdims)

    return on_cupy(function)


def _index(search: Any) -> Any:
    def function(a: Any, axis: Any, keepdims: bool = False) -> Any:
        return search(a, axis=axis, keepdims=keepdims).astype(np.uint32)

    return on_cupy(function)


sum, mean, max, min = map(_reduction, (cupy.sum, cupy.mean, cupy.max, cupy.min))
var, std = map(_spread, (cupy.var, cupy.std))
argmax, argmin = map(_index, (cupy.argmax, cupy.argmin))


def _divide(x: Any, y: Any, out: Any = None) -> Any:
    both_whole = np.result_type(x, y).kind in "iu"
    return (cupy.floor_divide if both_whole else cupy.divide)(x, y, out=out)


def _of_two(operation: Any) -> Any:
    def function(x: Any, y: Any) -> Any:
        orders = [(a.flags.c_contiguous, a.flags.f_contiguous) for a in (x, y)]
        if x.shape != y.shape or orders[0] != orders[1]:
            raise ValueError(f"{named(x)} and {named(y)} differ in shape or order")
        return operation(x, y)

    return on_cupy(function)


def _with_vector(operation: Any) -> Any:
    def function(x: Any, a: Any, axis: Any = None, out: Any = None, stream: Any = None) -> Any:
        if axis is not None and a.ndim == 1:
            a = a[:, None] if axis % 2 == 0 else a[None, :]
        if np.broadcast_shapes(x.shape, a.shape) != x.shape:
            raise ValueError(f"a vector of shape {a.shape} does not fit {x.shape}")
        return operation(x, a, out=out)

    return on_cupy(function)


add, subtract, multiply, divide = map(_of_two, (cupy.add, cupy.subtract, cupy.multiply, _divide))
add_matvec, mult_matvec, div_matvec = map(_with_vector, (cupy.add, cupy.multiply, _divide))


def __getattr__(name: str) -> Any:
    if name == "_global_cublas_handle":  # programs pass it to `skcuda.cublas`
        return cupy.cuda.device.get_cublas_handle()
    raise missing(__name__, name)
