"""How a kernel's parameters lie in memory, and how arguments are packed there."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np
from pycuda.gpuarray import GPUArray

from .arguments import HOLDERS, code_of, convert
from .context import ContextError
from .interface import PLAIN_DTYPES, check_device, contiguity
from .signature import Parameter

libcuda = ctypes.CDLL("libcuda.so.1")  # for what neither library offers

_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_... (cuda.h)

Buffer = tuple[Any, int, Any]  # the block, the address of the launch's `extra`, its owner

# What a packer returns, and what it raises where arguments do not fit.
UNUSUAL, USUAL, OF_PYCUDA = 0, 1, 2
MISFITS = (ValueError, TypeError, OverflowError, ContextError, struct.error)
Packer = Callable[[Any, Sequence[Any], int], int]  # of the block, the arguments and the device


class Layout:
    """A format of `struct`, and idle buffers of its size.

    Without offsets (bytes), the parameters lie as C aligns them.  A buffer is off the list while it
    is in use: another thread may launch meanwhile.
    """

    pack: Packer  # packs the usual arguments
    fill: Callable[[Any, Sequence[Any], int, bool], None]  # packs any, or raises

    def __init__(self, codes: Iterable[str], offsets: Iterable[int] | None = None) -> None:
        layout = ""
        if offsets is None:
            layout = "".join(codes)
        else:
            for code, offset in zip(codes, offsets, strict=True):
                layout += f"{offset - struct.calcsize(layout)}x{code}"
        packer = struct.Struct(layout)
        self.pack_into = packer.pack_into
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
UNKNOWN = Parameter("", None, None)


class Declaration(NamedTuple):
    """What is known of a kernel's parameters."""

    name: str
    # None where neither the source nor the driver tells: the arguments decide then.
    parameters: list[Parameter] | None
    slots: Slots | None

    def __str__(self) -> str:
        """Show the kernel as the source declares it."""
        if self.parameters is None:
            return f"{self.name}(...)"
        return f"{self.name}({', '.join(p.text or '?' for p in self.parameters)})"

    def layout(self) -> Layout:
        """Return a layout for calls with arguments as they are declared."""
        parameters, slots = self.parameters or [], self.slots or []
        codes = [code_of(p, size) for p, (_, size) in zip(parameters, slots, strict=True)]
        layout = Layout(codes, [offset for offset, _ in slots])
        layout.pack = make_packer(parameters, slots, layout)
        pack_into = layout.pack_into

        def fill(block: Any, args: Sequence[Any], device_id: int, strided: bool) -> None:
            if len(args) != len(parameters):
                given = "1 argument" if len(args) == 1 else f"{len(args)} arguments"
                raise TypeError(f"{self.name}: {given} for {len(parameters)} parameters: {self}")
            values = [
                convert(value, parameter, size, f"{self.name}: argument {i}", device_id, strided)
                for i, (value, parameter, (_, size)) in enumerate(
                    zip(args, parameters, slots, strict=True)
                )
            ]
            pack_into(block, 0, *values)

        layout.fill = fill
        return layout


def declaration(name: str, parameters: list[Parameter] | None, slots: Slots | None) -> Declaration:
    """Return what is known of a kernel's parameters from its source, and from the driver."""
    if slots is None and parameters is not None:
        slots = natural_slots(parameters)
    if slots is None:
        return Declaration(name, None, None)
    if (
        parameters is None
        or len(parameters) != len(slots)
        or any(
            struct.calcsize(code_of(parameter, size)) != size
            for parameter, (_, size) in zip(parameters, slots, strict=True)
        )
    ):  # the source means something else than it seems to
        parameters = [UNKNOWN] * len(slots)
    return Declaration(name, parameters, slots)


def slots_of(handle: int) -> Slots | None:
    """Return where a function's parameters lie, from the driver; None before CUDA 12.4."""
    query = getattr(libcuda, "cuFuncGetParamInfo", None)
    if query is None:
        return None
    slots: Slots = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    out = ctypes.byref(offset), ctypes.byref(size)
    while not query(ctypes.c_void_p(handle), ctypes.c_size_t(len(slots)), *out):
        slots.append((offset.value, size.value))
    return slots


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


_POINTER = """
    if type({a}) is ndarray and {same} ({a}._c_contiguous or {a}._f_contiguous):
        {a} = {a}.data
        if {a}.device_id != device_id:
            return UNUSUAL
        {a} = {a}.ptr
    elif (type({a}) is GPUArray and {same} {a}.size
            and ({a}.strides == ({a}.itemsize,)
                 or any(contiguity({a}.shape, {a}.strides, {a}.itemsize)))):
        {a} = int({a}.gpudata)
        answer = OF_PYCUDA
        check_device({a}, "", device_id)
    elif type({a}) in holders:
        {a} = int({a})
        answer = OF_PYCUDA
        check_device({a}, "", device_id)
    elif type({a}) not in addresses:
        return UNUSUAL"""
_SCALAR = """
    if type({a}) is not {a}_type and (type({a}) is not {a}_python {limit}):
        return UNUSUAL"""
# `struct` checks the range of all other types.
_LIMIT_OF_FLOATS = f"or abs({{a}}) > {float(np.finfo(np.float32).max)}"
_OF_A_SIZE = """
    if not isinstance({a}, generic) or {a}.nbytes != {size}:
        return UNUSUAL
    {a} = {a}.tobytes()"""
# `struct` would drop a complex number's imaginary part.
_NUMBER = """
    if type({a}) is not int and type({a}) not in numbers:
        return UNUSUAL"""
_NUMBER_OR_POINTER = """
    if type({a}) is int or type({a}) in numbers:
        pass
    el""" + _POINTER.lstrip()
_PYTHON = {"b": bool, "f": float}
_NAMES = {
    "ndarray": cupy.ndarray,
    "GPUArray": GPUArray,
    "contiguity": contiguity,
    "holders": frozenset(HOLDERS),
    "addresses": frozenset(dtype.type for dtype in PLAIN_DTYPES if dtype.char in "lqLQ"),
    "numbers": frozenset({bool, int, float, *(d.type for d in PLAIN_DTYPES if d.kind != "c")}),
    "generic": np.generic,
    "check_device": check_device,
    **{"UNUSUAL": UNUSUAL, "USUAL": USUAL, "OF_PYCUDA": OF_PYCUDA},
}


def make_packer(parameters: Sequence[Parameter], slots: Slots, layout: Layout) -> Packer:
    """Return a function that packs the usual arguments.

    For a pointer it packs contiguous arrays of the parameter's dtype, PyCUDA's memory and NumPy's
    integers of 8 bytes; for a number, NumPy scalars of the parameter's type and Python's of its
    kind.  It returns USUAL; or OF_PYCUDA with PyCUDA's memory among the arguments; or UNUSUAL for
    anything else.  It may raise one of `MISFITS`.

    It is generated: a loop over the parameters would take half as long as the launch itself.
    """
    names: dict[str, Any] = {}
    body = ""
    for i, (parameter, (_, size)) in enumerate(zip(parameters, slots, strict=True)):
        a = f"a{i}"
        if parameter.is_pointer:
            body += _pointer(_POINTER, a, parameter, names)
        elif parameter.dtype is not None:
            names[f"{a}_type"] = parameter.dtype.type
            names[f"{a}_python"] = _PYTHON.get(parameter.dtype.kind, int)
            limit = _LIMIT_OF_FLOATS.format(a=a) if parameter.dtype.char == "f" else ""
            body += _SCALAR.format(a=a, limit=limit)
        else:  # only the size is known
            body += _OF_A_SIZE.format(a=a, size=size)
    return _generate(len(parameters), body, names, layout)


def make_prepared_packer(
    codes: Sequence[str], parameters: Sequence[Parameter], layout: Layout
) -> Packer:
    """Return a function like `make_packer`'s for prepared calls, which take numbers of any type."""
    names: dict[str, Any] = {}
    body = ""
    for i, (code, parameter) in enumerate(zip(codes, parameters, strict=True)):
        a = f"a{i}"
        if may_be_pointer(code, parameter):
            body += _pointer(_NUMBER_OR_POINTER, a, parameter, names)
        elif code.endswith("s"):
            body += "\n    return UNUSUAL"  # `struct` would cut or fill up bytes
        else:
            body += _NUMBER.format(a=a)
    return _generate(len(codes), body, names, layout)


def may_be_pointer(code: str, parameter: Parameter) -> bool:
    """Tell whether a parameter with this code of `struct` may be a pointer."""
    return code in tuple("PnNlLqQ") and (parameter.is_pointer or parameter.dtype is None)


def _pointer(template: str, a: str, parameter: Parameter, names: dict[str, Any]) -> str:
    names[f"{a}_dtype"] = parameter.dtype
    return template.format(a=a, same=f"{a}.dtype is {a}_dtype and" if parameter.dtype else "")


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
