"""PyCUDA's functions of arrays: any layout, and arrays of both libraries.

PyCUDA's kernels pair elements as they lie in memory, so all arrays of a call need one shape and one
layout.  If they are in C order, PyCUDA's function is called as it is.  If they are in Fortran
order, the result gets Fortran strides.  Others are copied into the layout of the first contiguous
array, and what the function wrote into a copy is copied back.  PyCUDA in C order is the reference
for numbers and dtypes.  If an argument is a CuPy array, the result is one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Iterable
from typing import Any

import cupy
import numpy as np
from cupy import ndarray
from pycuda import cumath, gpuarray
from pycuda.compyte.array import ArrayFlags, f_contiguous_strides
from pycuda.gpuarray import GPUArray

from . import patches
from .conversions import as_cupy, as_pycuda, call_with_gpuarrays
from .layouts import contiguity, dispatch_by_layout, overlap, selects

_ARITHMETIC = "add", "sub", "mul", "truediv", "div"  # PyCUDA broadcasts arrays without axes
_IN_PLACE, _REVERSED = ([f"__{c}{name}__" for name in (*_ARITHMETIC, "pow")] for c in "ir")
_OPERATORS = [f"__{name}__" for name in (*_ARITHMETIC, "pow", "eq", "ne", "lt", "le", "gt", "ge")]
_METHODS = "__neg__ __abs__ mul_add astype reverse copy fill conj conjugate real imag"
_ELEMENTWISE = "if_positive where maximum minimum logical_and logical_or logical_not"
_REDUCTIONS = "sum any all min max dot"
_BY_INDEX = "multi_put multi_take multi_take_put subset_sum subset_dot subset_min subset_max"
_CUMATH = "fabs ceil floor exp log log10 sqrt sin cos tan asin acos atan sinh cosh tanh"
_OF_FLOAT32 = "fmod", "frexp", "ldexp", "modf"  # they read any dtype as float32
_ON_DEVICE = GPUArray, ndarray
_NO_INDICES = bool, np.bool_, np.ndarray, list, *_ON_DEVICE
_PYCUDAS = dict(vars(GPUArray))
_PYCUDAS_MEMCPY = gpuarray._memcpy_discontig
_CUPYS_MATMUL = ndarray.__matmul__


def _assign(target: GPUArray, source: Any, index: Any = ...) -> None:
    """Copy elements, in order with all streams of both libraries."""
    view, x = as_cupy(target), as_cupy(source)
    view[index] = x.copy() if overlap(target, x) else x
    as_pycuda(view)


def _copied(a: GPUArray, shape: tuple[int, ...], order: str) -> GPUArray:
    """Return a copy in CuPy's memory, which is reused after the work on all PyCUDA's streams."""
    x = cupy.empty(shape, a.dtype, order)
    x[...] = as_cupy(a)
    copy = as_pycuda(x)
    copy.allocator, copy.__class__ = a.allocator, type(a)  # results get them
    return copy


def has_cupys(values: Iterable[Any]) -> bool:
    """Tell whether there is a CuPy array among the values."""
    return any(isinstance(value, ndarray) for value in values)


# ---- functions that compute ----------------------------------------------------------------------


def _in_one_layout(name: str, theirs: Any) -> Any:
    """Return PyCUDA's function for arrays of any layout."""
    if isinstance(theirs, property):
        return property(_in_one_layout(name, theirs.fget))
    names = list(inspect.signature(theirs).parameters)
    written = names[0] if name in (*_IN_PLACE, "fill") else "out"
    broadcasts_0d = name.strip("_").removeprefix("i") in _ARITHMETIC

    @functools.wraps(theirs)
    def call(*args: Any, **keywords: Any) -> Any:
        named = {**dict(zip(names, args, strict=False)), **keywords}
        if has_cupys(named.values()):
            if name not in (*_OPERATORS, *_IN_PLACE):
                return call_with_gpuarrays(whole, args, keywords)
            result = getattr(operator, name)(as_cupy(args[0]), args[1])  # CuPy computes it
            if name in _IN_PLACE:
                as_pycuda(result)
            return args[0] if name in _IN_PLACE else result
        arrays = [value for value in named.values() if isinstance(value, GPUArray)]
        if name in _OF_FLOAT32 and any(a.dtype != np.float32 for a in arrays):
            raise TypeError(f"{name}: PyCUDA reads arrays as float32; pass a.astype(numpy.float32)")
        shape = _one_shape(name, arrays, named.get(written))
        order = next(filter(None, (contiguity(a) for a in arrays if a.shape == shape)), "C")[0]
        copies = []

        def in_order(parameter: str, a: Any) -> Any:
            if not isinstance(a, GPUArray) or (broadcasts_0d and not a.shape):
                return a
            if a.shape == shape and order in contiguity(a):
                return a
            copies.append((_copied(a, shape, order), a, parameter == written))
            return copies[-1][0]

        result = theirs(
            *map(in_order, names, args),
            *args[len(names) :],
            **{parameter: in_order(parameter, value) for parameter, value in keywords.items()},
        )
        for one in result if isinstance(result, tuple) else (result,):
            if order == "F" and isinstance(one, GPUArray) and one.shape == shape:
                one.strides = f_contiguous_strides(one.itemsize, shape)
        for copy, a, is_written in copies:
            if is_written:
                _assign(a, copy)
            result = a if result is copy else result
        return result

    whole = call if name in _OF_FLOAT32 else dispatch_by_layout(theirs, call)
    return whole


def _one_shape(name: str, arrays: list[GPUArray], result: Any) -> tuple[int, ...]:
    """Return the shape that all arrays of a call get."""
    shapes = list(dict.fromkeys(a.shape for a in arrays))
    with contextlib.suppress(ValueError):
        shape = shapes[0] if len(shapes) == 1 else np.broadcast_shapes(*shapes)
        if len(shapes) == 1 or (name != "dot" and getattr(result, "shape", shape) == shape):
            return shape
    raise ValueError(
        f"{name}: the arrays have the shapes {', '.join(map(str, shapes))}; pass arrays of one "
        "shape, or operands that NumPy broadcasts to the shape of the result"
    )


def _of_sequences(name: str, theirs: Any) -> Any:
    """Return PyCUDA's function of arrays that differ, or are in lists."""

    @functools.wraps(theirs)
    def call(*args: Any, **keywords: Any) -> Any:
        values = (*args, *keywords.values())
        items = [i for v in values for i in (v if isinstance(v, list | tuple) else [v])]
        if has_cupys(items):
            return call_with_gpuarrays(call, args, keywords)
        arrays = [item for item in items if isinstance(item, GPUArray)]
        if name in _BY_INDEX.split() and any("C" not in contiguity(a) for a in arrays):
            raise ValueError(f"{name}: an array is not in C order; pass a.reshape(a.size), a copy")
        return theirs(*args, **keywords)

    return call


def _like(_: str, theirs: Any) -> Any:
    @functools.wraps(theirs)
    def call(other_ary: Any, dtype: Any = None, order: str = "K") -> Any:
        if isinstance(other_ary, ndarray):
            return call_with_gpuarrays(call, (other_ary, dtype, order), {})
        # Of a slice, PyCUDA's result would have the strides, and less memory.
        return theirs(other_ary, dtype, order if contiguity(other_ary) or order != "K" else "C")

    return call


# ---- copies and views ----------------------------------------------------------------------------


def _memcpy(dst: Any, src: Any, async_: bool = False, stream: Any = None) -> Any:
    """Copy between arrays; PyCUDA's function is wrong for two orders, and for steps backwards."""
    if not hasattr(src, "strides"):
        return _PYCUDAS_MEMCPY(dst, src, async_, stream)  # raises
    to_device, from_device = isinstance(dst, _ON_DEVICE), isinstance(src, _ON_DEVICE)
    orders, source_orders = contiguity(dst), contiguity(src)
    is_pycudas = not (isinstance(dst, ndarray) or isinstance(src, ndarray))
    may_be_pycudas = is_pycudas and not (to_device and from_device and overlap(dst, src))
    if may_be_pycudas and orders == source_orders != "" and dst.size:
        return _PYCUDAS_MEMCPY(dst, src, async_, stream)
    fits = dst.shape == src.shape and dst.dtype == src.dtype  # PyCUDA's raises otherwise
    if fits and not dst.size:
        return None
    if is_pycudas and not (fits and (to_device or from_device)):
        return _PYCUDAS_MEMCPY(dst, src, async_, stream)
    if may_be_pycudas and not (orders and source_orders) and min(*dst.strides, *src.strides) > 0:
        with contextlib.suppress(ValueError, RuntimeError, TypeError):  # CUDA copies three axes
            return _PYCUDAS_MEMCPY(dst, src, async_, stream)
    if to_device and from_device:
        _assign(as_pycuda(dst), src)  # as_pycuda raises if a CuPy array repeats elements
    elif async_ and not (source_orders if to_device else orders):
        raise ValueError("GPUArray: pass a contiguous host array to an asynchronous copy")
    elif to_device:
        src = src if source_orders else np.ascontiguousarray(src)
        staged = as_pycuda(cupy.empty(src.shape, src.dtype, contiguity(src)[0]))
        _PYCUDAS_MEMCPY(staged, src, async_, stream)
        _assign(dst, staged)
    else:
        host = dst if orders else np.empty(dst.shape, dst.dtype)
        _PYCUDAS_MEMCPY(host, _copied(src, src.shape, contiguity(host)[0]), async_, stream)
        if host is not dst:
            dst[...] = host


def _take(a: Any, indices: Any, out: Any = None, stream: Any = None) -> GPUArray:
    """Take elements by their index in C order; PyCUDA's function needs what CUDA 12 removed."""
    out = GPUArray(indices.shape, a.dtype, a.allocator) if out is None else out
    _assign(out, as_cupy(a).ravel()[as_cupy(indices)])
    return out


class _Methods:
    """Methods of GPUArrays in the place of PyCUDA's, and methods that PyCUDA does not have."""

    def __getitem__(self: Any, index: Any) -> GPUArray:
        """Index as PyCUDA does, which returns elements for some slices that have none."""
        if self.size and selects(index, self.shape):
            return _PYCUDAS["__getitem__"](self, index)
        items = index if isinstance(index, tuple) else (index,)
        if any([isinstance(item, _NO_INDICES) for item in items]):
            raise IndexError(
                "GPUArray: masks, arrays and lists are no indices; index bridge.as_cupy(a)"
            )
        shape = np.empty(self.shape, "V0")[index].shape
        if 0 in shape:
            memory = (self, int(self.gpudata)) if self.size else ()
            return GPUArray(shape, self.dtype, self.allocator, *memory)
        return _PYCUDAS["__getitem__"](self, index)

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        if isinstance(value, ndarray):
            return _assign(self, value, index)
        return _PYCUDAS["__setitem__"](self, index, value)  # type: ignore[no-any-return]

    def reshape(self: Any, *shape: Any, **keywords: Any) -> GPUArray:
        """Return a view, or a view of a copy if the array has another order."""
        order = keywords.get("order", "C")
        a = self if order in contiguity(self) else _copied(self, self.shape, order)
        return _PYCUDAS["reshape"](a, *shape, **keywords)

    def view(self: Any, dtype: Any = None) -> GPUArray:
        if np.dtype(dtype or self.dtype).itemsize != self.itemsize and (
            min(map(abs, self.strides), default=0) != self.itemsize or min(self.strides) < 0
        ):
            raise ValueError("GPUArray.view: items are not side by side; pass a.copy().view(dtype)")
        return _PYCUDAS["view"](self, dtype)

    def squeeze(self: Any) -> GPUArray:
        if not self.size:  # PyCUDA drops axes without elements, too
            return GPUArray(tuple(n for n in self.shape if n != 1), self.dtype, self.allocator)
        return _PYCUDAS["squeeze"](self)

    def transpose(self: Any, axes: Any = None) -> GPUArray:
        if axes is not None and len({axis % max(1, self.ndim) for axis in axes}) != self.ndim:
            raise ValueError(f"GPUArray.transpose: axes are {axes}; name each axis once")
        return _PYCUDAS["transpose"](self, axes)

    def __matmul__(self: Any, other: Any) -> Any:
        """Multiply matrices with CuPy, which takes no GPUArray here."""
        if not isinstance(self, GPUArray) and not isinstance(other, GPUArray):
            return _CUPYS_MATMUL(self, other)
        if not isinstance(other, _ON_DEVICE):
            return NotImplemented
        product = as_cupy(self) @ as_cupy(other)
        return product if has_cupys((self, other)) else as_pycuda(product)

    def __float__(self: Any) -> float:
        return float(self.get().item())

    def __getattr__(self: Any, name: str) -> Any:
        if hasattr(type(self), name):  # a property of a subclass, whose own error counts
            return object.__getattribute__(self, name)
        raise AttributeError(f"'GPUArray' object has no attribute {name!r}; use bridge.as_cupy(a)")


_NEW: dict[Any, dict[str, Any]] = {
    GPUArray: {name: one for name, one in vars(_Methods).items() if inspect.isfunction(one)},
    ArrayFlags: {"__getattr__": _Methods.__getattr__},
    gpuarray: {"_memcpy_discontig": _memcpy, "take": _of_sequences("take", _take)},
    cumath: {},
    ndarray: {"__matmul__": _Methods.__matmul__},
}
for _target, _names, _wrapped in (
    (GPUArray, [*_OPERATORS, *_REVERSED, *_IN_PLACE, *_METHODS.split()], _in_one_layout),
    (gpuarray, [*_ELEMENTWISE.split(), *_REDUCTIONS.split()], _in_one_layout),
    (gpuarray, [*_BY_INDEX.split(), "concatenate", "stack"], _of_sequences),
    (gpuarray, ["empty_like", "zeros_like", "ones_like"], _like),
    (cumath, [*_CUMATH.split(), *_OF_FLOAT32], _in_one_layout),
):
    _NEW[_target] |= {_name: _wrapped(_name, vars(_target)[_name]) for _name in _names}


def adapt_arrays() -> None:
    """Let PyCUDA's functions of arrays take any layout, and arrays of both libraries."""
    for target, new in _NEW.items():
        patches.apply("arrays", "any layout, and arrays of both libraries", target, new)


def _refuse(self: Any, *args: Any, **keywords: Any) -> Any:
    raise TypeError(
        "NumPy takes no GPUArray; pass a.get(), or use CuPy with bridge.as_cupy(a); an operator of "
        "PyCUDA takes another GPUArray, e.g. pycuda.gpuarray.to_gpu(h) of a NumPy array h"
    )


def keep_from_numpy() -> None:
    """Let NumPy's functions raise for a GPUArray, of which they copy one element at a time."""
    patches.apply("arrays", "NumPy's functions say what to pass", GPUArray, {"__array__": _refuse})
