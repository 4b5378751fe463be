"""The block of memory in which a kernel gets its parameters: its layout, and filling it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cupy
import numpy as np
from pycuda.gpuarray import GPUArray

from .arguments import code_of
from .context import libcuda
from .interface import PLAIN_DTYPES, contiguity
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
        self.pack_numbers: Any = None  # of a prepared call: see `make_number_packer`
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


# What `make_packer`'s functions answer.
UNUSUAL, USUAL, OF_PYCUDA = 0, 1, 2
# What they raise: there are too many or too few, an array has no memory, a number does not fit.
MISFITS = (ValueError, TypeError, OverflowError, struct.error)

_POINTER = """
    if type({a}) is ndarray and {same} ({a}._c_contiguous or {a}._f_contiguous){here}:
        {a} = {a}.data.ptr
    elif (type({a}) is GPUArray and {same} {a}.size
            and ({a}.strides == ({a}.itemsize,)
                 or any(contiguity({a}.shape, {a}.strides, {a}.itemsize)))):
        {a} = int({a}.gpudata)
        answer = OF_PYCUDA
    else:
        return UNUSUAL"""
_SCALAR = """
    if type({a}) is not {a}_type and (type({a}) is not {python} or not {least} <= {a} <= {most}):
        return UNUSUAL"""
_SCALARS_OF = {  # NumPy's types by size, bytes
    size: frozenset(dtype.type for dtype in PLAIN_DTYPES if dtype.itemsize == size)
    for size in (1, 2, 4, 8, 16)
}
_BYTES = """
    if type({a}) not in {a}_types:
        return UNUSUAL
    {a} = {a}.tobytes()"""


def _range(dtype: np.dtype[Any]) -> tuple[str, Any, Any]:
    """Return Python's type for a dtype's kind, and between which numbers it holds them."""
    if dtype.kind == "b":
        return "bool", False, True
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return "float", -most, most
    return "int", int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def make_packer(
    parameters: Sequence[Parameter], slots: Slots, layout: Layout, look_up: bool
) -> Callable[[Any, Sequence[Any], int], int]:
    """Return a function that packs the usual arguments.

    The function takes a block, the arguments and the device's id.  It packs contiguous arrays of
    either library of the parameter's dtype, NumPy scalars of the parameter's type, and Python's
    of its kind.  It answers USUAL; or OF_PYCUDA if a GPUArray is among the arguments; or UNUSUAL
    if one is something else or does not fit.  It raises one of `MISFITS` if it cannot tell.

    It is generated, a few comparisons in a row for each parameter: a loop over them costs 1.5 us
    more for five arguments, half of what CUDA takes for the launch.

    Parameters
    ----------
    look_up : bool
        An array's device must be looked at: CuPy arrays know theirs; GPUArrays are unusual then.
    """
    names: dict[str, Any] = {
        "ndarray": cupy.ndarray,
        "GPUArray": None if look_up else GPUArray,
        "contiguity": contiguity,
        "pack_into": layout.pack_into,
        **{"UNUSUAL": UNUSUAL, "USUAL": USUAL, "OF_PYCUDA": OF_PYCUDA},
    }
    arguments = [f"a{i}" for i in range(len(parameters))]
    body = ""
    for a, parameter, (_, size) in zip(arguments, parameters, slots, strict=True):
        if parameter.is_pointer:
            names[f"{a}_dtype"] = parameter.dtype
            same = f"{a}.dtype is {a}_dtype and" if parameter.dtype else ""
            here = f" and {a}.data.device_id == device_id" if look_up else ""
            body += _POINTER.format(a=a, same=same, here=here)
        elif parameter.dtype is not None:
            names[f"{a}_type"] = parameter.dtype.type
            python, least, most = _range(parameter.dtype)
            body += _SCALAR.format(a=a, python=python, least=least, most=most)
        else:  # only the size is known
            names[f"{a}_types"] = _SCALARS_OF.get(size, ())
            body += _BYTES.format(a=a)
    packer: Callable[[Any, Sequence[Any], int], int]
    packer = _generate("block, arguments, device_id", arguments, body, names)
    return packer


# What `struct` packs as the number it is.  (Of a complex one it takes the real part; bytes it cuts,
# or fills them up.)
_REAL = (dtype.type for dtype in PLAIN_DTYPES if dtype.kind != "c")
_NUMBERS = frozenset({bool, int, float, *_REAL})
_NUMBER = """
    if type({a}) is not int and type({a}) not in numbers:
        return UNUSUAL"""


def make_number_packer(count: int, layout: Layout) -> Callable[[Any, Sequence[Any]], int]:
    """Return a function that packs the arguments of a prepared call, if all are numbers.

    Like `make_packer`'s, but the function looks at no kinds and widths: `struct` does.
    """
    names = {"pack_into": layout.pack_into, "numbers": _NUMBERS}
    names |= {"UNUSUAL": UNUSUAL, "USUAL": USUAL}
    arguments = [f"a{i}" for i in range(count)]
    body = "".join(_NUMBER.format(a=a) for a in arguments)
    packer: Callable[[Any, Sequence[Any]], int]
    packer = _generate("block, arguments", arguments, body, names)
    return packer


def _generate(signature: str, arguments: list[str], body: str, names: dict[str, Any]) -> Any:
    listed = "".join(f"{a}, " for a in arguments)
    source = (
        f"def pack({signature}):\n"
        f"    answer = USUAL\n"
        f"    ({listed}) = arguments{body}\n"
        f"    pack_into(block, 0, {listed})\n"
        f"    return answer\n"
    )
    exec(compile(source, f"<{__name__}>", "exec"), names)  # as dataclasses and namedtuple do
    return names["pack"]
