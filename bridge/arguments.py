"""What a kernel is given: device pointers and numbers out of the objects of any library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda.texture import SurfaceObject, TextureObject
from pycuda._pvt_struct import calcsize, pack
from pycuda.gpuarray import GPUArray

from . import context
from .arrays import address_of, as_cupy
from .errors import named
from .interface import PLAIN_DTYPES, check_array, check_device, contiguity
from .memory import Allocation
from .signature import Parameter

_ndarray = cupy.ndarray
HOLDERS = (drv.DeviceAllocation, drv.PooledDeviceAllocation, drv.PointerHolderBase, Allocation)
# Memory that PyCUDA's default stream may be working on.
_OF_PYCUDA = (GPUArray, drv.ArgumentHandler, *HOLDERS)
_PLAIN = {np.dtype(char).type: char for char in "bhilqBHILQfdFD"}
_WIDTHS = {
    int: "numpy.int32 or numpy.int64",
    float: "numpy.float32 or numpy.float64",
    complex: "numpy.complex64 or numpy.complex128",
}


def is_of_pycuda(value: Any) -> bool:
    """Tell whether an argument is memory that PyCUDA's default stream may be working on."""
    if isinstance(value, np.ndarray):
        return isinstance(value.base, drv.ManagedAllocation)
    return isinstance(value, _OF_PYCUDA) or getattr(value, "gpudata", None) is not None


def pack_arguments(
    args: Sequence[Any], device_id: int, strided: bool, caller: str
) -> tuple[list[Any], bytes, bool]:
    """Return PyCUDA's argument handlers, the parameter buffer, and if PyCUDA's memory is in it.

    The buffer is a C struct of the arguments, as ``pycuda.driver.Function.__call__`` lays it out.
    """
    layout = ""
    values: list[Any] = []
    handlers: list[Any] = []
    of_pycuda = False
    for index, value in enumerate(args):
        value = by_value(value)
        kind = type(value)
        if kind is _ndarray and value._c_contiguous and value.data.device_id == device_id:
            layout += "P"
            values.append(value.data.ptr)
        elif kind in _PLAIN:
            layout += _PLAIN[kind]
            values.append(value)
        elif isinstance(value, np.generic):
            if value.dtype not in PLAIN_DTYPES and not isinstance(value, np.void):
                raise TypeError(
                    f"{caller}: argument {index} is a {value.dtype}, no type of CUDA C; bool, "
                    "integers, float16/32/64 and complex64/128 are accepted"
                )
            layout += "x" * (-calcsize(layout) % _alignment(value.dtype)) + f"{value.nbytes}s"
            values.append(value.tobytes())
        elif isinstance(value, bool):
            layout += "B"
            values.append(value)
        else:
            of_pycuda = of_pycuda or is_of_pycuda(value)
            if isinstance(value, drv.ArgumentHandler):
                handlers.append(value)
            layout += "P"
            values.append(pointer_of(value, f"{caller}: argument {index}", device_id, strided)[0])
    return handlers, pack(layout, *values), of_pycuda


def _alignment(dtype: np.dtype[Any]) -> int:
    """Return how C aligns a type: a struct as its most demanding member."""
    members = (dtype.base.fields or {}).values()
    return max((_alignment(member[0]) for member in members), default=dtype.base.alignment)


def pointer_of(
    value: Any, caller: str, device_id: int, strided: bool
) -> tuple[int, np.dtype[Any] | None]:
    """Return an argument's device pointer, and the dtype there if it is known."""
    if value is None:
        return 0, None
    if isinstance(value, HOLDERS):
        return _checked(int(value), caller, device_id), None
    if isinstance(value, drv.ArgumentHandler):
        return int(value.get_device_alloc()), getattr(value.array, "dtype", None)
    if isinstance(value, TextureObject | SurfaceObject):
        return int(value.ptr), None
    if type(value) in _WIDTHS:
        raise TypeError(
            f"{caller} is the Python {type(value).__name__} {value!r}, which has no width; say "
            f"{_WIDTHS[type(value)]}, as the kernel declares it"
        )
    if isinstance(value, np.ndarray):
        if isinstance(value.base, drv.ManagedAllocation):
            return int(value.base), value.dtype
        raise TypeError(
            f"{caller} is a host numpy.ndarray; move it to the device first, e.g. cupy.asarray(a), "
            "or pass it in a pycuda.driver.In, Out or InOut"
        )
    if isinstance(value, GPUArray):
        array = value
        layout = tuple(value.shape), tuple(value.strides), value.dtype.itemsize
        contiguous = any(contiguity(*layout))
        pointer = _checked(address_of(value, caller), caller, device_id)
    elif hasattr(value, "gpudata") and not isinstance(value, type):  # as PyCUDA does
        if isinstance(value.gpudata, int | np.integer):
            return _checked(int(value.gpudata), caller, device_id), None
        return pointer_of(value.gpudata, caller, device_id, strided)[0], None
    else:
        try:
            array = as_cupy(value) if type(value) is not cupy.ndarray else value
        except (TypeError, ValueError, BufferError, context.ContextError) as error:
            text = f"{caller}: {str(error).removeprefix('as_cupy: ')}"
            raise type(error)(text.replace(f"{caller}: argument", caller, 1)) from None
        contiguous, pointer = array.flags.forc, int(array.data.ptr)
        check_array(array, caller, device_id)
    if not (contiguous or strided):
        raise ValueError(
            f"{caller} is not contiguous (shape {value.shape}, strides {value.strides}); pass a "
            "contiguous copy, or strided=True if the kernel takes the strides into account"
        )
    return pointer, array.dtype


def _checked(pointer: int, caller: str, device_id: int) -> int:
    check_device(pointer, caller, device_id)
    return pointer


def by_value(value: Any) -> Any:
    """Return what a host array of no dimensions holds, as of ``pycuda.gpuarray.vec``."""
    if type(value) is not np.ndarray or value.shape:
        return value
    of_objects = value.dtype.hasobject  # which are on the host, None included
    return value if of_objects or isinstance(value.base, drv.ManagedAllocation) else value[()]


def convert(
    value: Any, parameter: Parameter, size: int, caller: str, device_id: int, strided: bool
) -> Any:
    """Return an argument as `struct` packs it under the code of `code_of`.

    `size` is the parameter's, in bytes.  `caller` begins error messages: "kernel: argument 0".
    """
    caller = f"{caller} (`{parameter.text}`)" if parameter.text else caller
    value = by_value(value)
    if parameter.is_pointer:
        return _as_pointer(value, parameter, caller, device_id, strided)
    if parameter.dtype is not None:
        return _as_number(value, parameter.dtype, caller)
    # Only the size is known.
    if isinstance(value, np.generic):
        if value.nbytes != size:
            raise TypeError(
                f"{caller} is a {value.dtype} of {value.nbytes} bytes, but the kernel's parameter "
                f"has {size}"
            )
        return value.tobytes()
    if isinstance(value, bool) and size == 1:
        return bytes([value])
    if type(value) is np.ndarray and value.nbytes == size != 8:
        return value.tobytes()  # by value, as PyCUDA does; of eight bytes it may be a mistake
    pointer, _ = pointer_of(value, caller, device_id, strided)
    if size != 8:
        raise TypeError(
            f"{caller} is a device pointer, but the kernel's parameter has {size} bytes"
        )
    return pointer.to_bytes(8, "little")


def code_of(parameter: Parameter, size: int) -> str:
    """Return the code of `struct` under which the parameter is packed."""
    if parameter.is_pointer:
        return "Q"  # "P" takes negative numbers
    if parameter.dtype is None:
        return f"{size}s"
    return str(parameter.dtype.char)


def _as_pointer(
    value: Any, parameter: Parameter, caller: str, device_id: int, strided: bool
) -> int:
    if isinstance(value, np.integer) and value.nbytes == 8:
        if value < 0:
            raise ValueError(f"{caller} is {named(value)}, which is no address")
        return int(value)
    if isinstance(value, np.generic) or type(value) in (bool, int, float, complex):
        raise TypeError(
            f"{caller} is {named(value)}, but the kernel takes a pointer; a device array is "
            "accepted, or an address as numpy.uintp(address)"
        )
    pointer, dtype = pointer_of(value, caller, device_id, strided)
    wanted = parameter.dtype
    if dtype is not None and wanted is not None and not _same_bits(dtype, wanted):
        raise TypeError(
            f"{caller} is an array of {dtype}, but the kernel takes {wanted}: convert it with "
            f"a.astype(numpy.{wanted}), or say with a.view(numpy.{wanted}) that bytes are meant"
        )
    return pointer


def _same_bits(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Tell whether a kernel may read one dtype as the other.

    Integers of one width are interchangeable, and 16-bit ones with float16, which older kernels
    declare so.  Complex numbers are pairs of their parts.  Structs and bytes may be anything.
    """
    if not one.isnative:
        return False
    if one == other or one.kind == "V" or (one.kind == "S" and other.itemsize == 1):
        return True
    if one.kind == "c":
        return other.kind == "f" and one.itemsize == 2 * other.itemsize
    kinds = "iubf" if one.itemsize == 2 else "iub"
    return one.itemsize == other.itemsize and one.kind in kinds and other.kind in kinds


def _as_number(value: Any, wanted: np.dtype[Any], caller: str) -> Any:
    if type(value) is np.ndarray and value.size == 1:
        value = value.reshape(())[()]
    if isinstance(value, np.generic):
        if value.dtype == wanted:
            return value
        if wanted.kind == "b" and value.dtype.kind in "iu":
            return bool(value)
        # A float16 is passed as a `short` by mistake, as an `unsigned short` on purpose.
        as_bits = wanted.kind in ("u" if value.dtype.kind == "f" else "biu")
        as_bits = as_bits and value.nbytes == wanted.itemsize
        if as_bits and _same_bits(value.dtype, wanted):
            return value.view(wanted)
    elif type(value) in (bool, int, float):
        # CuPy's rule: Python's numbers take the type of what they meet, if it is of their kind.
        if wanted.kind in ("f" if type(value) is float else "biuf"):
            if type(value) is int and wanted.kind in "iu":
                limits = np.iinfo(wanted)
                if not limits.min <= value <= limits.max:
                    raise OverflowError(f"{caller} is {value}, which does not fit into {wanted}")
            elif wanted.kind == "f" and float(np.finfo(wanted).max) < abs(value) < float("inf"):
                raise OverflowError(f"{caller} is {value}, which does not fit into {wanted}")
            return value
    elif isinstance(value, TextureObject | SurfaceObject) and wanted.itemsize == 8:
        return int(value.ptr)
    advice = f"pass numpy.{wanted}(...)"
    if type(value) is float and wanted.kind in "biu":
        advice = "pass an int, e.g. round(...)"  # numpy.int32(...) would drop the fraction
    if hasattr(value, "__cuda_array_interface__"):
        advice = "pass a.get().item(), for which the host waits, or let it take a pointer"
    raise TypeError(f"{caller} is {named(value)}, but the kernel takes {wanted} by value; {advice}")
