"""Kernel arguments: device pointers and numbers from the objects of any library."""

from __future__ import annotations

import re
import struct
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer
from cupy.cuda.texture import SurfaceObject, TextureObject
from pycuda.gpuarray import GPUArray, vec

from ..compiler.signature import Parameter
from ..errors import ContextError, kind, named, warn
from ..interop.conversions import as_cupy
from ..interop.importing import check_array, check_device
from ..interop.pool import Allocation
from ..interop.raw_memory import is_reachable

HOLDERS = (
    *(drv.DeviceAllocation, drv.PooledDeviceAllocation, drv.ManagedAllocation),
    *(drv.PointerHolderBase, Allocation),
)
# Memory that PyCUDA's streams may be using.
_OF_PYCUDA = (GPUArray, drv.ArgumentHandler, *HOLDERS)
# Complex numbers stand for these CUDA vectors.
_PAIRS = {
    np.dtype([("x", "f"), ("y", "f")]): np.complex64,
    np.dtype([("x", "d"), ("y", "d")]): np.complex128,
}
_WIDTHS = {int: "numpy.int32", float: "numpy.float32", complex: "numpy.complex64"}


def is_of_pycuda(value: Any) -> bool:
    """Tell whether an argument is memory that PyCUDA's streams may be using."""
    if isinstance(value, np.ndarray):
        return is_reachable(value)
    return isinstance(value, _OF_PYCUDA) or getattr(value, "gpudata", None) is not None


def pointer_of(value: Any, caller: str, device_id: int) -> tuple[int, Any]:
    """Return an argument's device pointer, and the array there; None if it is not known."""
    if value is None:
        return 0, None
    if isinstance(value, drv.ArgumentHandler):
        array = getattr(value, "array", None)  # a user's subclass may have none
        copies = isinstance(value, drv.In | drv.Out | drv.InOut)
        if copies and not (isinstance(array, np.ndarray) and array.flags.forc):
            raise TypeError(
                f"{caller} copies {named(array)}; a contiguous NumPy array is accepted there, and "
                "a device array without In, Out or InOut"
            )
        return int(value.get_device_alloc()), array if hasattr(array, "flags") else None
    if isinstance(value, TextureObject | SurfaceObject):
        return int(value.ptr), None
    if type(value) in _WIDTHS:
        is_address = type(value) is int and value >> 31
        advice = f"{_WIDTHS[type(value)]}(...), or the type that the kernel takes"
        raise TypeError(
            f"{caller} is the Python {type(value).__name__} {value!r}, which has no width; pass "
            f"{'the array itself, or numpy.uintp(address)' if is_address else advice}"
        )
    if isinstance(value, tuple | list):
        raise TypeError(
            f"{caller} is a {type(value).__name__}; pass the arguments one by one, "
            "f(x, n, block=(128, 1, 1), grid=(8, 1)), and numbers as an array, cupy.asarray(...)"
        )
    if isinstance(value, np.ndarray) and not is_reachable(value):
        raise TypeError(
            f"{caller} is a host numpy.ndarray; move it to the device first, e.g. cupy.asarray(a), "
            "or pass it in a pycuda.driver.In, Out or InOut"
        )
    if not isinstance(value, (GPUArray, *HOLDERS)) and hasattr(value, "gpudata"):  # as PyCUDA does
        memory = value.gpudata
        memory = Allocation(memory) if isinstance(memory, int | np.integer) else memory
        return pointer_of(memory, caller, device_id)[0], None
    if isinstance(value, HOLDERS):
        check_device(int(value), caller, device_id)
        return int(value), None
    if isinstance(value, MemoryPointer):  # x.data
        check_device(int(value.ptr), caller, device_id)
        return int(value.ptr), None
    try:
        # PyCUDA's memory is ordered at the launch.
        stream = -1 if isinstance(value, GPUArray | np.ndarray) else None
        array = value if type(value) is cupy.ndarray else as_cupy(value, stream=stream)
    except (TypeError, ValueError, BufferError, ContextError) as error:
        text = re.sub("^as_cupy: (the array|argument)?", f"{caller}: ", str(error))
        raise type(error)(text.replace(":  ", " ")) from None
    check_array(array, caller, device_id)
    return int(array.data.ptr), array


def by_value(value: Any) -> Any:
    """Return the element of a host array without dimensions, e.g. of ``pycuda.gpuarray.vec``."""
    if type(value) is not np.ndarray or value.shape:
        return value
    of_objects = value.dtype.hasobject  # host objects, including None
    return value if of_objects or is_reachable(value) else value[()]


def pack_argument(
    value: Any,
    parameter: Parameter,
    caller: str,
    device_id: int,
    strided: bool,
    is_prepared: bool,
    lenient: bool,
) -> tuple[bytes, Any]:
    """Return the bytes of any argument that the parameter accepts, and the array of a pointer.

    `caller` begins error messages: "kernel: argument 0".  In prepared calls, an int may be
    an address, and any number is converted.  Programs that were not written for `bridge` are
    `lenient`: PyCUDA's arrays may have another dtype, and integers another size, with a warning.
    """
    caller = f"{caller} (`{parameter.text}`)" if parameter.text else caller
    value, wanted = by_value(value), parameter.dtype
    has_other_size = isinstance(value, np.integer) and value.nbytes != parameter.size
    if lenient and has_other_size and wanted is not None and wanted.kind in "iu":
        text = f"{caller} is {named(value)}, and the kernel takes {wanted}: it is converted"
        _report(TypeError(text), True)
        value = int(value)
    packed = None if parameter.is_pointer else _value(value, parameter, caller, is_prepared)
    if packed is not None:
        return packed, None
    pointer, array = _as_pointer(value, parameter, caller, device_id, is_prepared)
    if problem := _problem(pointer, array, parameter, caller, strided):
        _report(problem, lenient and isinstance(value, _OF_PYCUDA))
    return struct.pack("Q", pointer), array


def check_order(table: Any, in_c: int, in_fortran: int, lenient: bool) -> None:
    """Raise ValueError for two arrays in different orders, or warn if `lenient`."""
    _report(
        ValueError(
            f"{table.name}: argument {in_fortran} is in Fortran order, but argument {in_c} in C "
            "order; a kernel that indexes both alike reads one transposed: pass a copy, e.g. "
            "cupy.ascontiguousarray(a), or strided=True if the kernel is written for both orders: "
            f"{table}"
        ),
        lenient,
    )


def _report(problem: Exception, lenient: bool) -> None:
    """Raise, or warn at the line that calls the kernel."""
    if not lenient:
        raise problem
    warn(f"{problem} (bridge run --strict raises)")


def _value(value: Any, parameter: Parameter, caller: str, is_prepared: bool) -> bytes | None:
    """Return the bytes of an argument that is no pointer; None if it may be one."""
    if parameter.dtype is not None:
        return _as_number(value, parameter, caller, is_prepared)
    # Only the size is known, and perhaps that it is not a pointer: a struct or an enum.
    size, is_value = parameter.size, parameter.is_pointer is False
    if isinstance(value, np.generic) and not (is_value and isinstance(value, np.floating)):
        if value.nbytes != size:
            raise TypeError(
                f"{caller} is a {value.dtype} of {value.nbytes} bytes, but the kernel's parameter "
                f"has {size}{_layout_advice(value.dtype)}"
            )
        return value.tobytes()
    if isinstance(value, bytes) and len(value) == size:
        return value
    if isinstance(value, bool) and size == 1:
        return bytes([value])
    if is_prepared and type(value) is int and size == 8:
        return value.to_bytes(8, "little", signed=value < 0)
    # An array by value, as in PyCUDA; not where a pointer may be meant.
    if type(value) is np.ndarray and value.nbytes == size and (is_value or size != 8):
        return value.tobytes()
    if is_value or size != 8:
        raise _no_bytes(value, size, caller)
    return None


def _layout_advice(dtype: np.dtype[Any]) -> str:
    """Return how to lay a struct out as the compiler does."""
    if dtype.fields is None:
        return ""
    if dtype.isalignedstruct:  # but CUDA aligns vectors and `__align__` more than NumPy does
        return (
            "; numpy.dtype({'names': ..., 'formats': ..., 'offsets': ..., 'itemsize': ...}) "
            "places each field where the compiler does: int4, float4, double2 and the like "
            "begin at multiples of 16"
        )
    return "; numpy.dtype(..., align=True) lays structs out as C does"


def _no_bytes(value: Any, size: int, caller: str) -> TypeError:
    what = f"device memory (a {kind(value)})" if isinstance(value, HOLDERS) else named(value)
    return TypeError(
        f"{caller} is {what}, but the kernel takes {size} bytes by value; pass a NumPy number of "
        "that size, or for a struct an element of a structured array"
    )


def _as_pointer(
    value: Any, parameter: Parameter, caller: str, device_id: int, is_prepared: bool
) -> tuple[int, Any]:
    if not parameter.is_pointer:
        return pointer_of(value, caller, device_id)
    if (isinstance(value, np.integer) and value.nbytes == 8) or (
        is_prepared and type(value) is int
    ):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{caller} is {named(value)}, which is no address")
        return int(value), None
    if parameter.is_function and value is not None:
        raise TypeError(
            f"{caller} is {named(value)}, but the kernel takes a function; its address on the "
            "device is accepted, as numpy.uintp(address)"
        )
    if isinstance(value, np.generic) or type(value) in (bool, int, float, complex):
        raise TypeError(
            f"{caller} is {named(value)}, but the kernel takes a pointer; an array is accepted "
            "(not its gpudata: the order of streams would be lost), None for a null pointer, or an "
            "address as numpy.uintp(address)"
        )
    return pointer_of(value, caller, device_id)


def _problem(
    pointer: int, array: Any, parameter: Parameter, caller: str, strided: bool
) -> TypeError | ValueError | None:
    """Return the error for an array that the kernel would misread."""
    wanted = parameter.dtype
    if array is not None and not (strided or array.flags.forc):
        return ValueError(
            f"{caller} is not contiguous (shape {array.shape}, strides {array.strides}); pass a "
            "contiguous copy, or strided=True if the kernel takes the strides into account"
        )
    if array is not None and wanted is not None:
        if problem := mismatch(array.dtype, wanted, caller):
            return problem
        if array.nbytes % wanted.itemsize:
            return ValueError(
                f"{caller} is an array of {array.nbytes} bytes, which end within an item: the "
                f"kernel's items have {wanted.itemsize}"
            )
        if array.dtype.itemsize < wanted.itemsize and not (strided or array.flags.c_contiguous):
            return ValueError(
                f"{caller} is in Fortran order, so that the kernel's items of {wanted.itemsize} "
                "bytes would lie across its rows; pass a copy, e.g. cupy.ascontiguousarray(a)"
            )
    if pointer % parameter.alignment:
        return ValueError(
            f"{caller} begins at the address {pointer:#x}, but the kernel reads items at "
            f"multiples of {parameter.alignment}; pass a copy, or a slice that begins at such a "
            "multiple"
        )
    return None


def mismatch(found: np.dtype[Any], wanted: np.dtype[Any], caller: str) -> TypeError | None:
    """Return the error for an array of dtype `found` where a kernel takes one of `wanted`."""
    if same_bits(found, wanted):
        return None
    numbers = wanted if wanted.fields is None else wanted[0]
    if found.kind == "c" and numbers.kind == "f" and numbers.itemsize > 2:  # pairs of floats
        numbers = np.dtype(f"c{2 * numbers.itemsize}")
    takes, name = str(numbers), _name(numbers)
    advice = (
        f"pass a.astype({name}), a copy, if the kernel only reads it, or an array of {numbers} if "
        f"it writes; a.view({name}) reinterprets the bytes"
    )
    if wanted.type is np.void and wanted.fields is None:
        takes = f"items of {wanted.itemsize} bytes"
        advice = "give a.view(numpy.uint8) for raw bytes, or a structured dtype of that size"
        if found.fields is not None:
            advice = f"yours have {found.itemsize}{_layout_advice(found)}"
    elif wanted == np.uintp and found.itemsize != wanted.itemsize:
        advice = (
            "for pointers to pointers, pass an array of addresses, e.g. cupy.array([a.data.ptr, "
            "b.data.ptr], dtype=numpy.uintp)"
        )
    return TypeError(f"{caller} is an array of {found}, but the kernel takes {takes}: {advice}")


def _name(dtype: np.dtype[Any]) -> str:
    return f"{'ml_dtypes' if dtype.name == 'bfloat16' else 'numpy'}.{dtype}"


def same_bits(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Tell whether a kernel may read one dtype as the other.

    Integers of one width are interchangeable.  16-bit integers also stand for float16 and bfloat16,
    as older kernels declare them.  A complex number is a pair of floats.  Structs and bytes may
    hold any type.
    """
    if not one.isnative:
        return False
    if one == other:
        return True
    if other.type is np.void and other.fields is None:  # a struct
        if one.type is np.void and one.itemsize == other.itemsize:
            return True
        return one.str in ("|u1", "|V1", "|S1")
    if other.fields is not None:  # a CUDA vector
        fields = [field[0] for field in (one.fields or {}).values()]
        return all(same_bits(field, other[0]) for field in fields or [one])
    if one.char == "V" or (one.kind == "S" and other.itemsize == 1):
        return True
    if one.kind == "c":
        return other.kind == "f" and one.itemsize == 2 * other.itemsize
    floats = [dtype.kind for dtype in (one, other) if dtype.kind not in "iub"]
    halves = len(floats) == 1 and floats[0] in "fV" and one.itemsize == 2
    return one.itemsize == other.itemsize and (halves or not floats)


def _as_number(value: Any, parameter: Parameter, caller: str, is_prepared: bool) -> bytes:
    wanted: Any = parameter.dtype
    if type(value) is np.ndarray and value.size == 1:
        value = value.reshape(())[()]
    if type(value) is np.float64 and wanted.kind in "fc":
        value = float(value)  # e.g. numpy.sqrt(2.0)
    if wanted.char == "V":  # a CUDA vector; or bytes, if prepared
        pair = _PAIRS.get(wanted)
        if type(value) is complex and pair:
            value = pair(value)
        data = value.tobytes() if isinstance(value, np.generic | np.ndarray) else value
        fits = data is value or wanted.fields is None or same_bits(value.dtype, wanted)
        if isinstance(data, bytes) and len(data) == wanted.itemsize and fits:
            return data
        if isinstance(value, np.void):
            raise TypeError(f"{caller} is a {value.dtype}, but the kernel takes {wanted}")
        maker = f"make_{parameter.text.removeprefix('const ').partition(' ')[0]}"
        if pair and isinstance(value, np.complexfloating):
            advised = f"numpy.{np.dtype(pair)}"
        elif hasattr(vec, maker):
            advised = f"pycuda.gpuarray.vec.{maker}"
        else:
            raise _no_bytes(value, wanted.itemsize, caller)
        raise TypeError(
            f"{caller} is {named(value)}, but the kernel takes a CUDA vector by value; pass "
            f"{advised}(...)"
        )
    if number := _fitting(value, wanted, caller, is_prepared):
        return number[0]
    advice = f"pass {_name(wanted)}(...)"
    if type(value) is float and wanted.kind in "biu":
        advice = "pass an int; or the arguments are in another order than the parameters"
    elif isinstance(value, complex | np.complexfloating) and wanted.kind != "c":
        advice = "pass its real part, or let the kernel take a complex number"
    elif value is None:
        advice = "pass a number"
    elif hasattr(value, "__cuda_array_interface__"):
        advice = "pass a.get().item(), for which the host waits, or make it a pointer parameter"
    what = f"device memory (a {kind(value)})" if isinstance(value, HOLDERS) else named(value)
    raise TypeError(f"{caller} is {what}, but the kernel takes {wanted} by value; {advice}")


def _fitting(
    value: Any, wanted: np.dtype[Any], caller: str, is_prepared: bool
) -> tuple[bytes] | None:
    """Return the bytes of a number that fits; None for any other value."""
    is_float = isinstance(value, float | np.floating)
    if isinstance(value, np.generic) and not is_prepared:
        if value.dtype == wanted:
            return (value.tobytes(),)
        if wanted.kind == "b" and value.dtype.kind in "iu":
            return (bytes([bool(value)]),)
        # A float16 for a `short` is a mistake; for an `unsigned short`, it is intended.
        as_bits = wanted.kind in ("u" if is_float else "biu") and value.nbytes == wanted.itemsize
        return (value.tobytes(),) if as_bits and same_bits(value.dtype, wanted) else None
    if isinstance(value, (*HOLDERS, TextureObject, SurfaceObject)):  # addresses, as numbers
        address = int(value.ptr if hasattr(value, "ptr") else value)
        return (struct.pack("Q", address),) if wanted.char in "lqLQ" else None
    # As in CuPy, a Python number is converted to the other dtype, if that is of the same kind.
    if hasattr(value, "shape") and not isinstance(value, np.generic):
        return None  # its __index__ would make the host wait
    numbers = {"c": complex | float | int | np.number, "V": float | int}.get(wanted.kind)
    if numbers is not None and isinstance(value, numbers):  # complex numbers and bfloat16
        return (wanted.type(value).tobytes(),)
    is_number = isinstance(value, int) or is_float or (is_prepared and hasattr(value, "__index__"))
    if not is_number or (is_float and wanted.kind != "f"):
        return None
    try:
        # Only the standard formats, e.g. "<f", raise for values that are too large.
        return (struct.pack("<" * (wanted.kind == "f") + wanted.char, value),)
    except (struct.error, OverflowError) as error:
        raise OverflowError(
            f"{caller} is {value}, which does not fit into {wanted} ({error})"
        ) from None
