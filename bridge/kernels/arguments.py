"""The bytes of a kernel's argument, and the errors for one that does not fit its parameter.

`packing` packs the usual arguments by itself, and calls `pack_argument` for the others, which
chooses the function by the parameter.  The first row that fits an argument counts, and an argument
that fits none raises TypeError.  A NumPy array without dimensions is its element.

==================  ==============================  ================================================
parameter           argument                        packed as
==================  ==============================  ================================================
number              NumPy scalar                    its bytes, if it has the dtype, or is an integer
(`pack_number`)                                     of that width; for a bool, any integer
                    PyCUDA's memory, TextureObject  its address, for an integer of 64 bits
                    bool; number of Python, NumPy   the number in the dtype, if that is of its kind
                                                    or of a wider one; OverflowError if it does not
                                                    fit
CUDA vector         complex                         complex64 or complex128, for float2, double2
(`pack_vector`)     NumPy scalar or array, bytes    its bytes, if size and fields fit
only the size is    NumPy scalar, bytes             its bytes, if the size fits; no float, if it
known                                               must be a struct
(`pack_struct`)     bool; int in prepared calls     1 byte; 8 bytes
                    NumPy array on the host         its bytes, unless a pointer may be meant
                    others, of 8 bytes              as for a pointer, if the parameter may be one
pointer             integer of 64 bits; int in      the address
(`pack_pointer`)    prepared calls
                    None                            null; a pointer to a function has no more rows
                    In, Out, InOut; TextureObject   its memory on the device; its handle
                    object with ``gpudata``         the address of that memory
                    PyCUDA's memory, MemoryPointer  its address
                    array of any protocol           its address, unless there is an `array_mismatch`
==================  ==============================  ================================================
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import MemoryPointer, PinnedMemoryPointer
from cupy.cuda.texture import SurfaceObject, TextureObject
from pycuda.gpuarray import GPUArray, vec

from ..compiler.parameter_types import ADDRESS, DTYPES
from ..compiler.signature import Member, Parameter, item_type
from ..errors import Caller, kind, named, warn
from ..interop import dtypes
from ..interop.bare_memory import is_reachable
from ..interop.conversions import device_array
from ..interop.dtypes import OF_ADDRESSES, OF_STRUCTS, dtype_mismatch, same_bits, scalar_type
from ..interop.importing import check_array, check_device
from ..interop.memory_kinds import HOLDERS, Allocation, bare_address

Mismatch = Callable[[Exception], None] | None  # of a `LaunchPolicy`
# Returns the size of a struct, a type in C++, and those of the members that it has.
FindMembers = Callable[[str, Sequence[str]], tuple[int, dict[str, Member]]]

# Memory that PyCUDA's streams may be using.
_OF_PYCUDA = (GPUArray, drv.ArgumentHandler, *HOLDERS)
_COMPLEX: dict[Any, Any] = {DTYPES["float2"]: np.dtype("F"), DTYPES["double2"]: np.dtype("D")}
_WIDTHS = {int: "numpy.int32", float: "numpy.float32", complex: "numpy.complex64"}


def is_of_pycuda(value: Any) -> bool:
    """Tell whether an argument is memory that PyCUDA's streams may be using."""
    if isinstance(value, np.ndarray):
        return is_reachable(value)
    return isinstance(value, _OF_PYCUDA) or getattr(value, "gpudata", None) is not None


def scalar_of_array(value: Any) -> Any:
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
    mismatch: Mismatch,
) -> tuple[bytes, Any]:
    """Return the bytes of any argument that the parameter accepts, and the array of a pointer.

    `caller` begins error messages: "kernel: argument 0".  With `mismatch` of a `LaunchPolicy`,
    PyCUDA's arrays may have another dtype.
    """
    caller = f"{caller} (`{parameter.text}`)" if parameter.text else caller
    value, dtype = scalar_of_array(value), parameter.dtype
    handle = parameter.handle
    is_object = isinstance(value, TextureObject | SurfaceObject)
    if handle and (handle not in kind(value) if is_object else isinstance(value, HOLDERS)):
        raise TypeError(
            f"{caller} is {_named(value)}, but the kernel takes a cuda{handle}Object_t; pass a "
            f"cupy.cuda.texture.{handle}Object"
        )
    if is_object and parameter.is_pointer:
        raise TypeError(f"{caller} is {named(value)}, but the kernel takes a pointer")
    if type(value) is np.ndarray and value.size == 1 and parameter.is_pointer is False:
        value = value.reshape(())[()]
    if dtype is not None and not parameter.is_pointer:
        if dtype.char == "V":
            return pack_vector(value, parameter, caller), None
        return pack_number(value, dtype, caller, is_prepared), None
    if not parameter.is_pointer:
        data = pack_struct(value, parameter, caller, is_prepared)
        if data is not None:
            if isinstance(value, np.void) and (wrong := field_mismatch(value.dtype, parameter)):
                raise wrong
            return data, None
    if type(value) is GPUArray:
        try:
            dtypes.check_dtype(value.dtype, caller)
        except TypeError as error:  # CuPy lacks it, but a kernel needs no more than the address
            warn(f"{error}: the address is passed, and the items are not checked")
            value, is_prepared = value.gpudata, True  # an int, of a slice
    pointer, array = pack_pointer(value, parameter, caller, device_id, is_prepared)
    if problem := array_mismatch(pointer, array, parameter, caller, strided):
        _report(problem, mismatch if isinstance(value, _OF_PYCUDA) else None)
    return struct.pack("Q", pointer), array


def field_check(find: FindMembers, name: str, index: int, parameter: Parameter) -> Any:
    """Return the `check_fields` of a struct, or of a pointer to one; None for other parameters."""
    dtype = parameter.dtype
    of_value = parameter.is_pointer is False and dtype is None
    if not of_value and (dtype is None or dtype.char != "V" or dtype.fields):
        return None

    @functools.lru_cache(16)
    def misplaced(dtype: np.dtype[Any]) -> str | None:
        caller = f"{name}: argument {index} (`{parameter.text}`)"
        given = {of: place for of, *place in _field_places(dtype) if "pad" not in of.lower()}
        _, found = find(item_type(name, index), [*given]) if given else (0, {})
        for of, (offset, field) in given.items():
            begin, size, wanted = found.get(of, (offset, field.itemsize, None))
            if (offset, field.itemsize) != (begin, size):
                return (
                    f"{caller} has the field {of!r} in the bytes {offset} to "
                    f"{offset + field.itemsize}, and the kernel in {begin} to {begin + size}; list "
                    "the fields in the struct's order, numpy.dtype([...], align=True)"
                )
            if wanted is None or (wanted.type is np.void and not wanted.fields):
                continue  # a struct, whose members are known by size
            if not same_bits(field.base, wanted):
                return f"{caller} has {field.base} in the field {of!r}, and the kernel {wanted}"
        if others := [of for of in given if of not in found]:
            warn(
                f"{caller} has fields that are no plain members of the kernel's struct: "
                f"{', '.join(others)}; their places are not checked: name them as the source does"
            )
        return None

    return misplaced


def _field_places(dtype: np.dtype[Any], start: int = 0, prefix: str = "") -> Iterator[Any]:
    """Yield the name, offset and dtype of each field, also of structs in it: "inner.x"."""
    fields: Any = dtype.fields
    for name in filter(str.isidentifier, dtype.names or ()):
        field, offset, *_ = fields[name]
        if field.char != "V" or field.names or field.subdtype:  # plain bytes fill a gap
            yield prefix + name, start + offset, field
        yield from _field_places(field.base, start + offset, f"{prefix}{name}{'[0]' * field.ndim}.")


def field_mismatch(dtype: np.dtype[Any], parameter: Parameter) -> TypeError | None:
    """Return the error for a structured dtype whose fields are elsewhere in the kernel's struct."""
    text = parameter.check_fields(dtype) if parameter.check_fields and dtype.fields else None
    return TypeError(text) if text else None


def check_layouts(
    parameters: Any, in_c: int, in_fortran: int, warned: set[int], mismatch: Mismatch
) -> None:
    """Raise ValueError for two arrays in different orders; warn once of a lone one in Fortran's.

    `in_c` is -1 if the kernel gets no array of several axes in C order.
    """
    beside = (
        f", but argument {in_c} in C order; a kernel that indexes both alike reads one transposed"
    )
    text = (
        f"{parameters.name}: argument {in_fortran} is in Fortran order"
        f"{beside if in_c >= 0 else '; a kernel that indexes it in C order reads it transposed'}: "
        "pass a copy, e.g. cupy.ascontiguousarray(a), or strided=True if the kernel is written for "
        f"{'both orders' if in_c >= 0 else 'it'}: {parameters}"
    )
    if in_c >= 0:
        _report(ValueError(text), mismatch)
    elif in_fortran not in warned:
        warned.add(in_fortran)
        warn(text)


def _report(problem: Exception, mismatch: Mismatch) -> None:
    if mismatch is None:
        raise problem
    mismatch(problem)


def pack_number(value: Any, wanted: np.dtype[Any], caller: str, is_prepared: bool) -> bytes:
    """Return the bytes of a bool, an integer, a real or a complex number."""
    if data := bytes_of_number(value, wanted, caller, is_prepared):
        return data
    advice = f"pass {scalar_type(wanted)}(...)"
    if isinstance(value, float | np.floating) and wanted.kind in "biu":
        advice = "pass an int; or the arguments are in another order than the parameters"
    elif isinstance(value, complex | np.complexfloating) and wanted.kind != "c":
        advice = "pass its real part, or let the kernel take a complex number"
    elif hasattr(value, "__cuda_array_interface__"):
        advice = "pass a.get().item(), for which the host waits, or make it a pointer parameter"
    elif not isinstance(value, Number | np.generic):
        advice = "pass a number"
    if wanted.char == "Q":
        advice += "; for a cudaTextureObject_t, a cupy.cuda.texture.TextureObject is accepted"
    raise TypeError(
        f"{caller} is {_named(value)}, but the kernel takes {wanted} by value; {advice}"
    )


def bytes_of_number(
    value: Any, wanted: np.dtype[Any], caller: str, is_prepared: bool
) -> bytes | None:
    """Return the bytes of a number that fits the parameter; None for any other value."""
    is_float = isinstance(value, float | np.floating)
    if isinstance(value, np.generic):
        if wanted.kind == "b" and value.dtype.kind in "iu":
            return bytes([bool(value)])
        # A float16 for a `short` is a mistake; for an `unsigned short`, it is intended.
        as_bits = wanted.kind in ("u" if is_float else "biu") and value.nbytes == wanted.itemsize
        as_bits = as_bits and not is_prepared and same_bits(value.dtype, wanted)
        if as_bits or value.dtype == wanted:
            return value.tobytes()
        if value.dtype.kind not in "biufc":
            return None
        value = value.item()  # converted as a Python number is
    is_object = isinstance(value, TextureObject | SurfaceObject)
    if is_object or isinstance(value, HOLDERS):
        address = int(value.ptr) if is_object else bare_address(value)
        return struct.pack("Q", address) if wanted.char in "lqLQ" else None
    # As in CuPy, a number is converted to the other dtype, if that is of the same kind.
    if hasattr(value, "shape"):
        return None  # its __index__ would make the host wait
    is_integer = isinstance(value, int) or (is_prepared and hasattr(value, "__index__"))
    is_complex = wanted.kind == "c" and isinstance(value, complex)
    if not (is_integer or is_complex or (is_float and wanted.kind in "fcV")):
        return None
    try:
        # Only the standard formats, e.g. "<f", raise for values that are too large.
        if wanted.kind == "c":
            number = complex(value)
            return struct.pack("<2" + wanted.char.lower(), number.real, number.imag)
        if wanted.kind == "V":  # bfloat16, which has the range of a float
            struct.pack("<f", value)
            return wanted.type(value).tobytes()  # type: ignore[no-any-return]
        return struct.pack("<" * (wanted.kind == "f") + wanted.char, value)
    except (struct.error, OverflowError) as error:
        raise OverflowError(
            f"{caller} is {named(value)}, which does not fit into {wanted} ({error})"
        ) from None


def pack_vector(value: Any, parameter: Parameter, caller: str) -> bytes:
    """Return the bytes of a CUDA vector, e.g. float4, or of the "16s" of a prepared call."""
    wanted: Any = parameter.dtype
    as_complex = _COMPLEX.get(wanted)
    if as_complex and isinstance(value, complex | np.complexfloating):
        return pack_number(value, as_complex, caller, False)
    data, fits = value, True
    if isinstance(value, np.generic | np.ndarray):
        data, fits = value.tobytes(), wanted.fields is None or same_bits(value.dtype, wanted)
    if isinstance(data, bytes) and len(data) == wanted.itemsize and fits:
        return data
    if isinstance(value, np.void):
        raise TypeError(f"{caller} is a {value.dtype}, but the kernel takes {wanted}")
    maker = f"make_{parameter.text.removeprefix('const ').partition(' ')[0]}"
    if not hasattr(vec, maker):
        raise _no_bytes(value, wanted.itemsize, caller)
    raise TypeError(
        f"{caller} is {named(value)}, but the kernel takes a CUDA vector by value; pass "
        f"pycuda.gpuarray.vec.{maker}(...)"
    )


def pack_struct(value: Any, parameter: Parameter, caller: str, is_prepared: bool) -> bytes | None:
    """Return the bytes of a struct or an enum; None if the parameter may be a pointer."""
    size, is_value = parameter.size, parameter.is_pointer is False
    if isinstance(value, np.generic) and not (is_value and isinstance(value, np.floating)):
        if value.nbytes != size:
            raise TypeError(
                f"{caller} is a {value.dtype} of {value.nbytes} bytes, but the kernel's parameter "
                f"has {size}{OF_STRUCTS if value.dtype.names else ''}"
            )
        return value.tobytes()
    if isinstance(value, bytes) and len(value) == size:
        return value
    if isinstance(value, bool) and size == 1:
        return bytes([value])
    if is_prepared and type(value) is int and size == 8:
        return value.to_bytes(8, "little", signed=value < 0)
    if is_value or size != 8:
        if type(value) is np.ndarray and value.nbytes == size:  # an array by value, as in PyCUDA
            return value.tobytes()
        raise _no_bytes(value, size, caller)
    return None


def _no_bytes(value: Any, size: int, caller: str) -> TypeError:
    return TypeError(
        f"{caller} is {_named(value)}, but the kernel takes {size} bytes by value; pass a NumPy "
        'number of that size, or for a struct numpy.zeros((), module.dtype("NAME"))'
    )


def _named(value: Any) -> str:
    return f"device memory (a {kind(value)})" if isinstance(value, HOLDERS) else named(value)


def pack_pointer(
    value: Any, parameter: Parameter, caller: str, device_id: int, is_prepared: bool
) -> tuple[int, Any]:
    """Return an argument's device pointer, and the array there; None if it is not known."""
    if not parameter.is_pointer:
        return pointer_of(value, caller, device_id)
    is_address = isinstance(value, np.integer) and value.nbytes == 8
    if is_address or (is_prepared and type(value) is int):
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
            f"{caller} is {named(value)}, but the kernel takes a pointer; an array or a slice is "
            "accepted (a slice's gpudata is an int), None for a null pointer, or "
            "numpy.uintp(address), which is not ordered"
        )
    if isinstance(value, tuple | list) and parameter.dtype == ADDRESS:
        raise TypeError(f"{caller} is a {kind(value)}; {OF_ADDRESSES}")
    return pointer_of(value, caller, device_id)


def pointer_of(value: Any, caller: str, device_id: int) -> tuple[int, Any]:
    """Return the device pointer of what is no number, and the array there, as `pack_pointer`."""
    if value is None:
        return 0, None
    if isinstance(value, drv.ArgumentHandler):
        array = getattr(value, "array", None)  # a user's subclass may have none
        copies = isinstance(value, drv.In | drv.Out | drv.InOut)
        if isinstance(array, memoryview) or (
            isinstance(array, np.generic) and not isinstance(value, drv.Out)  # is not writable
        ):
            array = np.asarray(array)
        if copies and not (isinstance(array, np.ndarray) and array.flags.forc):
            raise TypeError(
                f"{caller} is a pycuda.driver.{type(value).__name__} with {named(array)}; it "
                "copies a contiguous NumPy array, In also a number; pass a device array without it"
            )
        if isinstance(value, drv.Out) and array is not None and not array.flags.writeable:
            raise ValueError(
                f"{caller} is copied back into a read-only array; give it in pycuda.driver.In if "
                "the kernel only reads it, or a copy of it"
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
    if isinstance(value, (*HOLDERS, MemoryPointer)):  # MemoryPointer: x.data
        pointer = bare_address(value)
        check_device(pointer, caller, device_id)
        return pointer, None
    if isinstance(value, drv.PagelockedHostAllocation | PinnedMemoryPointer):
        raise TypeError(
            f"{caller} is {named(value)}; pass a NumPy array on that memory: the one that "
            "pagelocked_empty returned, or numpy.frombuffer(memory, dtype) for memory of CuPy"
        )
    array = value
    if type(value) is not cupy.ndarray:
        # PyCUDA's memory is ordered at the launch.
        stream = -1 if isinstance(value, GPUArray | np.ndarray) else None
        array = device_array(value, stream, Caller(caller, caller, caller))
    check_array(array, caller, device_id)
    return int(array.data.ptr), array


def array_mismatch(
    pointer: int, array: Any, parameter: Parameter, caller: str, strided: bool
) -> TypeError | ValueError | None:
    """Return the error for an array that the kernel would misread, or None."""
    wanted = parameter.dtype
    if array is not None and not (strided or array.flags.forc):
        return ValueError(
            f"{caller} is not contiguous (shape {array.shape}, strides {array.strides}); pass a "
            "contiguous copy, or strided=True if the kernel takes the strides into account"
        )
    if array is not None and wanted is not None:
        dtype = array.dtype
        problem: Any = dtype_mismatch(dtype, wanted, caller) or field_mismatch(dtype, parameter)
        if problem:
            return problem  # type: ignore[no-any-return]
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
