"""The block of memory in which a kernel gets its parameters: its layout, and filling it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cupy
import numpy as np
from pycuda.gpuarray import GPUArray

from .arguments import HOLDERS, code_of
from .context import libcuda
from .interface import PLAIN_DTYPES, UNREGISTERED, contiguity, pointer_attributes
from .signature import Parameter

_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_... (cuda.h)
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE

Buffer = tuple[Any, int, Any]  # the block, the address of the launch's `extra`, what keeps that


class Layout:
    """A format of `struct`, and idle buffers of its size.

    A buffer is off the list while it is in use: the launch releases the interpreter's lock, and
    another thread may launch meanwhile.

    Parameters
    ----------
    codes : iterable of str
        A code of `struct` for each parameter.
    offsets : iterable of int, optional
        Where each lies, bytes; as C aligns them if omitted.
    """

    def __init__(self, codes: Iterable[str], offsets: Iterable[int] | None = None) -> None:
        layout = ""
        if offsets is None:
            layout = "".join(codes)
        else:
            for code, offset in zip(codes, offsets, strict=True):
                layout += f"{offset - struct.calcsize(layout)}x{code}"
        packer = struct.Struct(layout)
        self.pack_into = packer.pack_into
        self.pack: Any = None  # see `make_packer` and `make_prepared_packer`
        self.idle: list[Buffer] = []
        self._size = ctypes.c_size_t(packer.size)

    def take(self) -> Buffer:
        """Return a buffer; it goes to `idle` after its use."""
        try:
            return self.idle.pop()
        except IndexError:
            pass
        block = ctypes.create_string_buffer(self._size.value or 1)
        start, size = ctypes.addressof(block), ctypes.addressof(self._size)
        extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, start, _BUFFER_SIZE, size, _END)
        return block, ctypes.addressof(extra), extra


Slots = list[tuple[int, int]]  # (offset, size) of each parameter, bytes


def slots_of(handle: int) -> Slots | None:
    """Return where a function's parameters lie, from the driver; None before CUDA 12.4."""
    query = getattr(libcuda, "cuFuncGetParamInfo", None)
    slots: Slots = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    out = ctypes.byref(offset), ctypes.byref(size)
    while query is not None:
        status = query(ctypes.c_void_p(handle), ctypes.c_size_t(len(slots)), *out)
        if status == _INVALID_VALUE:  # there are no more
            return slots
        if status:
            return None
        slots.append((offset.value, size.value))
    return None


def natural_slots(parameters: Sequence[Parameter]) -> Slots | None:
    """Return where C puts parameters; None if the size of one is not known."""
    slots, end = [], 0
    for parameter in parameters:
        dtype = np.dtype(np.uintp) if parameter.is_pointer else parameter.dtype
        if dtype is None:
            return None
        start = end + -end % dtype.itemsize
        slots.append((start, dtype.itemsize))
        end = start + dtype.itemsize
    return slots


def fit(parameters: Sequence[Parameter], slots: Slots) -> bool:
    """Tell whether what was read in the source can be what was compiled."""
    return len(parameters) == len(slots) and all(
        struct.calcsize(code_of(parameter, size)) == size
        for parameter, (_, size) in zip(parameters, slots, strict=True)
    )


# What a packer answers.
UNUSUAL, USUAL, OF_PYCUDA = 0, 1, 2
# What one raises: there are too many or too few, an array has no memory, a number does not fit.
MISFITS = (ValueError, TypeError, OverflowError, struct.error)

_POINTER = """
    if type({a}) is ndarray and {same} ({a}._c_contiguous or {a}._f_contiguous){near}:
        {a} = {a}.data.ptr
    elif (type({a}) is GPUArray and {same} {a}.size
            and ({a}.strides == ({a}.itemsize,)
                 or any(contiguity({a}.shape, {a}.strides, {a}.itemsize)))):
        {a} = int({a}.gpudata)
        answer = OF_PYCUDA{look_up}
    elif type({a}) in holders:
        {a} = int({a})
        answer = OF_PYCUDA{look_up}
    elif type({a}) not in addresses:
        return UNUSUAL"""
_LOOK_UP = """
        found = pointer_attributes({a})
        if found.device != device_id or found.type == UNREGISTERED:
            return UNUSUAL"""
_NO_ADDRESS = """
        if {a} < 0:
            return UNUSUAL"""
_SCALAR = """
    if type({a}) is not {a}_type and (type({a}) is not {python} or not {least} <= {a} <= {most}):
        return UNUSUAL"""
_OF_A_SIZE = """
    if not isinstance({a}, generic) or {a}.nbytes != {size}:
        return UNUSUAL
    {a} = {a}.tobytes()"""
_BYTES = """
    if type({a}) is not bytes or len({a}) != {size}:
        return UNUSUAL"""
# What `struct` packs as the number it is.  (Of a complex one it takes the real part; bytes it cuts,
# or fills them up.)
_NUMBER = """
    if type({a}) is not int and type({a}) not in numbers:
        return UNUSUAL"""
_NUMBER_OR_POINTER = """
    if type({a}) is int or type({a}) in numbers:
        pass
    el""" + _POINTER.lstrip()
_NAMES = {
    "ndarray": cupy.ndarray,
    "GPUArray": GPUArray,
    "contiguity": contiguity,
    "holders": frozenset(HOLDERS),
    "addresses": frozenset(dtype.type for dtype in PLAIN_DTYPES if dtype.char in "lqLQ"),
    "numbers": frozenset({bool, int, float, *(d.type for d in PLAIN_DTYPES if d.kind != "c")}),
    "generic": np.generic,
    "pointer_attributes": pointer_attributes,
    "UNREGISTERED": UNREGISTERED,
    **{"UNUSUAL": UNUSUAL, "USUAL": USUAL, "OF_PYCUDA": OF_PYCUDA},
}


def _range(dtype: np.dtype[Any]) -> tuple[str, Any, Any]:
    """Return Python's type for a dtype's kind, and between which numbers it holds them."""
    if dtype.kind == "b":
        return "bool", False, True
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return "float", -most, most
    return "int", int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


# Fills a block from the arguments, for a device.
Packer = Callable[[Any, Sequence[Any], int], int]


def make_packer(
    parameters: Sequence[Parameter], slots: Slots, layout: Layout, look_up: bool
) -> Packer:
    """Return a function that packs the usual arguments.

    The function takes a block, the arguments and the device's id.  For a pointer it packs
    contiguous arrays of either library of the parameter's dtype, PyCUDA's memory and NumPy's
    integers of 8 bytes; for a number NumPy scalars of the parameter's type, and Python's of its
    kind.  It answers USUAL; or OF_PYCUDA if memory of PyCUDA's is among the arguments; or UNUSUAL
    if one is something else or does not fit.  It raises one of `MISFITS` if it cannot tell.

    It is generated, a few comparisons in a row for each parameter: a loop over them costs 1.5 us
    more for five arguments, half of what CUDA takes for the launch.

    Parameters
    ----------
    look_up : bool
        An array's device must be looked at: CuPy arrays know theirs, of other memory CUDA is asked.
    """
    names: dict[str, Any] = {}
    body = ""
    for i, (parameter, (_, size)) in enumerate(zip(parameters, slots, strict=True)):
        a = f"a{i}"
        if parameter.is_pointer:
            body += _pointer(_POINTER, a, parameter, names, look_up, "")
        elif parameter.dtype is not None:
            names[f"{a}_type"] = parameter.dtype.type
            python, least, most = _range(parameter.dtype)
            body += _SCALAR.format(a=a, python=python, least=least, most=most)
        else:  # only the size is known
            body += _OF_A_SIZE.format(a=a, size=size)
    return _generate(len(parameters), body, names, layout)


def make_prepared_packer(
    codes: Sequence[str], parameters: Sequence[Parameter], layout: Layout, look_up: bool
) -> Packer:
    """Return a function that packs the usual arguments of a prepared call.

    Like `make_packer`'s, but numbers may be of any type, also for pointers: `struct` looks at kinds
    and widths, though not at the sign of an address.
    """
    names: dict[str, Any] = {}
    body = ""
    for i, (code, parameter) in enumerate(zip(codes, parameters, strict=True)):
        a = f"a{i}"
        if may_be_pointer(code, parameter):
            body += _pointer(_NUMBER_OR_POINTER, a, parameter, names, look_up, _NO_ADDRESS)
        elif code.endswith("s"):
            body += _BYTES.format(a=a, size=struct.calcsize(code))
        else:
            body += _NUMBER.format(a=a)
    return _generate(len(codes), body, names, layout)


def may_be_pointer(code: str, parameter: Parameter) -> bool:
    """Tell whether a parameter that is prepared under a code of `struct` may be a pointer."""
    return code in tuple("PnNlLqQ") and (parameter.is_pointer or parameter.dtype is None)


def _pointer(
    template: str,
    a: str,
    parameter: Parameter,
    names: dict[str, Any],
    look_up: bool,
    otherwise: str,
) -> str:
    names[f"{a}_dtype"] = parameter.dtype
    return template.format(
        a=a,
        same=f"{a}.dtype is {a}_dtype and" if parameter.dtype else "",
        near=f" and {a}.data.device_id == device_id" if look_up else "",
        look_up=(_LOOK_UP if look_up else otherwise).format(a=a),
    )


def _generate(count: int, body: str, names: dict[str, Any], layout: Layout) -> Packer:
    names |= {**_NAMES, "pack_into": layout.pack_into}
    listed = "".join(f"a{i}, " for i in range(count))
    source = (
        f"def pack(block, arguments, device_id):\n"
        f"    answer = USUAL\n"
        f"    ({listed}) = arguments{body}\n"
        f"    pack_into(block, 0, {listed})\n"
        f"    return answer\n"
    )
    exec(compile(source, f"<{__name__}>", "exec"), names)  # as dataclasses and namedtuple do
    packer: Packer = names["pack"]
    return packer
