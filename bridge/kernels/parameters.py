"""Parameters of a kernel, of prepared calls, and of the arguments' own types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pycuda.gpuarray import vec

from ..compiler.parameter_types import ADDRESS
from ..compiler.signature import Parameter
from ..errors import named
from ..interop.dtypes import PLAIN_DTYPES, same_bits
from .arguments import FindMembers, field_check, scalar_of_array
from .packing import Parameters, parameter_slots

# Codes of `struct` that mean another type in NumPy.
_CODES: dict[str, Any] = {"n": np.intp, "N": np.uintp, "c": "b"}
_known: dict[Any, Parameters] = {}  # results of `parameters_of_values`, by the arguments' types
_MOST_KNOWN = 1024
_VECTORS = {dtype for dtype in vars(vec).values() if isinstance(dtype, np.dtype)}


def parameters_of_kernel(
    name: str, types: Sequence[Parameter] | None, function: int, find: FindMembers
) -> Parameters:
    """Return a kernel's parameters: sizes from the driver, types from the compiler, if known."""
    slots = parameter_slots(function, None if types is None else len(types))
    found = []
    for index, one in enumerate(types or [Parameter("", None, None)] * len(slots)):
        offset, size = slots[index]
        check = field_check(find, name, index, one)
        found.append(one._replace(size=size, offset=offset, check_fields=check))
    return Parameters(name, found)


def _alignment(dtype: np.dtype[Any]) -> int:
    """Return the alignment of a type in C; a struct has the largest of its members."""
    members = (dtype.base.fields or {}).values()
    return max((_alignment(member[0]) for member in members), default=dtype.base.alignment)


def parameters_of_values(args: Sequence[Any], caller: str) -> Parameters:
    """Return the arguments' own types, for a kernel with unknown parameters."""
    kinds = tuple(map(type, args))
    if known := _known.get((caller, kinds)):
        return known
    placed: list[Parameter] = []
    end = 0
    for index, value in enumerate(map(scalar_of_array, args)):
        dtype = value.dtype if isinstance(value, np.generic) else None
        if dtype is not None and dtype not in PLAIN_DTYPES and dtype.kind != "V":
            raise TypeError(
                f"{caller}: argument {index} is a {dtype}, no type of CUDA C; bool, integers, "
                "float16/32/64 and complex64/128 are accepted"
            )
        dtype = np.dtype(bool) if isinstance(value, bool) else dtype
        size = (dtype or ADDRESS).itemsize
        start = end + -end % _alignment(dtype or ADDRESS)
        if dtype in _VECTORS and start % min(size & -size, 16):
            raise TypeError(
                f"{caller}: argument {index} is {dtype}: a CUDA vector and a struct have "
                "different offsets, and CUDA does not report which one the kernel takes. For a "
                "vector, use bridge.SourceModule; for a struct, rename the fields"
            )
        placed.append(Parameter("", None if dtype is None else False, dtype, size, start))
        end = start + size
    found = Parameters(caller, placed)
    if not any(issubclass(kind, np.ndarray | np.void) for kind in kinds):  # these have any dtype
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[caller, kinds] = found
    return found


def parameters_of_prepare(
    name: str, types: Sequence[np.dtype[Any]], known: Parameters
) -> Parameters:
    """Return the parameters of prepared calls.

    The kernel's types count.  A prepared type counts where the kernel's is not known, or has the
    same bits.  Raise TypeError for another number of types than the kernel's.
    """
    if len(types) != len(known.each):
        raise TypeError(
            f"{name}: {len(types)} types prepared for {len(known.each)} parameters: {known}"
        )
    merged = []
    for own, given in zip(types, known.each, strict=True):
        may_be_address = given.is_pointer is None and own.kind in "iu" and own.itemsize == 8
        fits = given.dtype is None or same_bits(own, given.dtype)
        if not (given.is_pointer or may_be_address) and own.itemsize == given.size and fits:
            given = given._replace(is_pointer=False, dtype=own)
        merged.append(given)
    return Parameters(name, merged, is_prepared=True)


def types_of_prepare(arg_types: Any, caller: str) -> list[np.dtype[Any]]:
    """Return the types given to ``prepare`` as PyCUDA reads them; a pointer is an integer."""
    if isinstance(arg_types, bytes) or not isinstance(arg_types, Iterable):
        raise TypeError(
            f"{caller}: arg_types is {named(arg_types)}; a str of struct codes, e.g. 'PPi', or a "
            "sequence of struct codes and NumPy types is accepted"
        )
    types = []
    for kind in [arg_types] if isinstance(arg_types, str) else arg_types:
        if isinstance(kind, np.dtype) or (
            isinstance(kind, type) and issubclass(kind, np.number | np.bool_)
        ):
            dtype = np.dtype(kind)
            types.append(np.dtype(f"V{dtype.itemsize}" if dtype.char == "V" else dtype.char))
            continue
        for count, code in re.findall(r"(\d*)\s*(\S)", kind if isinstance(kind, str) else "P"):
            if code not in "?cbBhHiIlLqQnNPefdFDs":
                raise TypeError(
                    f"{caller}: {code!r} in {kind!r} is not a type code; struct codes are "
                    "accepted: P for pointers, i for int, f for float, ..."
                )
            if code == "s":
                types.append(np.dtype(f"V{count or 1}"))
            else:
                types += [np.dtype(_CODES.get(code, code))] * int(count or 1)
    return types
