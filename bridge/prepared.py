"""Prepared calls: the types of the arguments are fixed by ``prepare``, as `struct` packs them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pycuda.driver as drv

from .arguments import HOLDERS, by_value, convert
from .errors import kind, named
from .interface import PLAIN_DTYPES
from .parameters import UNKNOWN, Declaration, Layout, make_prepared_packer, may_be_pointer

_PACKED = {"F": "0f8s", "D": "0d16s"}  # complex numbers, aligned as their parts
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
# Codes under which a number of a dtype may be prepared.
_KINDS = {dtype: "efd" if dtype.kind == "f" else "?cbBhHiIlLqQnNPe" for dtype in PLAIN_DTYPES}


class Prepared(Layout):
    """A layout of the types given to ``prepare``."""

    def __init__(self, arg_types: Iterable[Any], declaration: Declaration) -> None:
        self._name = declaration.name
        if isinstance(arg_types, bytes) or not isinstance(arg_types, Iterable):
            raise TypeError(
                f"{self._name}: arg_types is {named(arg_types)}; a str of struct's codes, e.g. "
                "'PPi', or a sequence of such and of NumPy's types is accepted"
            )
        if isinstance(arg_types, str):
            arg_types = [arg_types]
        self.codes = [code for kind in arg_types for code in self._codes_of(kind)]
        packed = [_PACKED.get(code, code) for code in self.codes]
        super().__init__(packed, self._offsets(packed, declaration))
        parameters = declaration.parameters
        if parameters is None or len(parameters) != len(self.codes):
            parameters = [UNKNOWN] * len(self.codes)
        self._parameters = parameters
        self.pack = make_prepared_packer(self.codes, parameters, self)

    def _codes_of(self, kind: Any) -> list[str]:
        """Return the codes of `struct` that PyCUDA reads in a type given to ``prepare``."""
        if isinstance(kind, type) and issubclass(kind, np.number | np.bool_):
            kind = np.dtype(kind)
        if isinstance(kind, np.dtype):
            return [f"{kind.itemsize}s" if kind.char == "V" else kind.char]
        if not isinstance(kind, str):
            return ["P"]
        codes = []
        for count, code in re.findall(r"(\d*)\s*(\S)", kind):
            if code not in "?cbBhHiIlLqQnNefdFDPs":
                raise TypeError(
                    f"{self._name}: {code!r} in {kind!r} is no type's code; those of struct are "
                    "accepted: P for pointers, i for int, f for float, ..."
                )
            codes += [count + code] if code == "s" else [code] * int(count or 1)
        return codes

    def _offsets(self, packed: list[str], declaration: Declaration) -> list[int] | None:
        """Return the parameters' offsets; None to align the types as C does."""
        parameters, slots = declaration.parameters, declaration.slots
        if parameters is None or slots is None:
            return None
        if len(packed) != len(slots):
            # A struct may be prepared as its parts.
            end = sum(slots[-1]) if slots else 0
            if struct.calcsize("".join(packed)) == end:
                return None
            raise TypeError(
                f"{self._name}: {len(packed)} types prepared for {len(slots)} parameters: "
                f"{declaration}"
            )
        for index, (code, parameter, (_, size)) in enumerate(
            zip(packed, parameters, slots, strict=True)
        ):
            kind = "PnNlLqQ" if parameter.is_pointer else code
            if not parameter.is_pointer and parameter.dtype is not None:
                kind = _KINDS[parameter.dtype]
            if struct.calcsize(code) != size or code not in kind:
                raise TypeError(
                    f"{self._name}: type {index} is {self.codes[index]!r}, of "
                    f"{struct.calcsize(code)} bytes, but the parameter is another, of {size}: "
                    f"{declaration}"
                )
        return [offset for offset, _ in slots]

    def fill(self, block: Any, args: Sequence[Any], device_id: int, strided: bool) -> None:
        """Pack any arguments that the prepared types can hold, or raise TypeError."""
        if len(args) != len(self.codes):
            raise TypeError(
                f"{self._name}: prepared for {', '.join(self.codes)}, but the number of arguments "
                f"is {len(args)}"
            )
        values = []
        for index, (code, arg) in enumerate(zip(self.codes, args, strict=True)):
            values.append(self._value(index, arg, device_id))
            try:
                struct.pack(_PACKED.get(code, code), values[-1])
            except (struct.error, TypeError, OverflowError) as error:
                raise TypeError(
                    f"{self._name}: argument {index} is {named(arg)}, but {code!r} is prepared: "
                    f"{error}"
                ) from None
        self.pack_into(block, 0, *values)

    def _value(self, index: int, value: Any, device_id: int) -> Any:
        """Return an argument as `struct` takes it."""
        caller = f"{self._name}: argument {index}"
        if isinstance(value, drv.ArgumentHandler):
            raise TypeError(
                f"{caller} is a pycuda.driver.{type(value).__name__}, which prepared calls do not "
                "take; call the function itself"
            )
        code, parameter = self.codes[index], self._parameters[index]
        value, accepted = by_value(value), "a number"
        is_number, is_memory = isinstance(value, _NUMBERS), isinstance(value, HOLDERS)
        # A device array's __index__ would make the host wait for its value.
        is_index = is_number or (hasattr(value, "__index__") and not hasattr(value, "shape"))
        if is_memory or not is_index:
            if may_be_pointer(code, UNKNOWN if is_memory else parameter):
                parameter = parameter._replace(is_pointer=True)
                return convert(value, parameter, 8, caller, device_id, False)
        elif code in _PACKED and is_number:
            return np.array(value, code).tobytes()
        if code in _PACKED or code.endswith("s"):
            size = struct.calcsize(_PACKED.get(code, code))
            data = value.tobytes() if isinstance(value, np.generic | np.ndarray) else value
            if isinstance(data, bytes) and len(data) == size:
                return data
            accepted = f"{size} bytes"
        elif is_index and not is_memory and not np.iscomplexobj(value):
            return value  # (of a complex number `struct` takes the real part)
        what = f"device memory (a {kind(value)})" if is_memory else named(value)
        raise TypeError(f"{caller} is {what}, but {code!r} is prepared: {accepted} is accepted")
