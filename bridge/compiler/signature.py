"""The types of a kernel's parameters, as the compiler reports them.

NVRTC returns the mangled name of any expression.  If the expression is a template over the kernel's
type, the name contains the parameters' types, with typedefs, macros and templates resolved.  It
also contains what the compiler knows of each pointer's target: the size and alignment of an item in
bytes, and whether it is an enum.  All three are 0 or 1 for incomplete types, void and functions.

Source: NVRTC documentation, "Accessing Lowered Names"; Itanium C++ ABI, "Mangling" and "Demangler
API".
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .parameter_types import ADDRESS, DTYPES

# Appended, to keep the line numbers.  The names are long: the source may define macros F or T.
_FOLDER = Path(__file__).with_name("include") / "bridge"
TEMPLATE = "\n" + (_FOLDER / "signature.h").read_text()
# Comments and literals, whose words are ignored.
NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_KERNEL = r"\b__global__\b[^;{}()]*?\b"
# A parameter's declaration; group 1 is its name.
_LABEL = re.compile(
    r"[^=#]*[^\w=#](?!(?:int|char|short|long|float|double|bool|signed|unsigned|const)\b)([A-Za-z_]\w*)"
    r"\s*(?:\[[^=]*\])?\s*(?:=.*)?",
    re.DOTALL,
)

_runtime = ctypes.CDLL("libstdc++.so.6")  # PyCUDA and CuPy have already loaded it
_runtime.__cxa_demangle.restype = ctypes.c_void_p


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    text: str  # e.g. "const float *x"; "" if not known
    is_pointer: bool | None  # None if not known
    # Of the value, or of the items that the pointer leads to; None if not known.  A struct that
    # NumPy does not know is bytes ("V12"), a pointer an unsigned integer.
    dtype: np.dtype[Any] | None
    size: int = 0  # bytes
    offset: int = 0
    alignment: int = 1  # of the address that a pointer holds
    is_function: bool = False  # a pointer to a function
    handle: str = ""  # "X" of a cudaXObject_t
    # Of a struct: returns what is wrong with a structured dtype, or None.
    check_fields: Callable[[np.dtype[Any]], str | None] | None = None


class Member(NamedTuple):
    """A member of a struct."""

    offset: int
    size: int  # bytes
    dtype: np.dtype[Any] | None  # of an array, that of its items; bytes ("V12") for a struct


def expression(name: str) -> str:
    """Return the expression whose mangled name `read_signature` reads."""
    return f"&bridge_signature<decltype({name})>"


@functools.lru_cache(256)  # a function asks once for its table, and once on each device
def read_signature(mangled: str, source: str, name: str) -> tuple[Parameter, ...] | None:
    """Return a kernel's parameters: their types, and their names in the source for messages."""
    found = _read_types(mangled)
    if found is None:
        return None
    label = re.search(rf"{_KERNEL}{re.escape(name)}\s*\(([^()]*)\)", _bare(source))
    declared = _split(label[1]) if label else []
    return found if len(declared) != len(found) else tuple(map(_declared, found, declared))


def _read_types(mangled: str) -> tuple[Parameter, ...] | None:
    types, _, numbers = mangled.partition("14bridge_numbersI")
    text = _demangle(f"{types}E" if numbers else mangled)  # which reads 1,024 characters
    if not text:
        return None
    parts = _split(text[text.index("(") + 1 : text.rindex(")")])
    targets = [int(number) for number in re.findall(r"Lm(\d+)E", numbers)]
    n = len(parts)
    targets = targets or n * [0] + n * [1] + n * [0]  # a name that was mangled elsewhere
    return tuple(map(_read_type, parts, targets[:n], targets[n : 2 * n], targets[2 * n :]))


def _declared(one: Parameter, text: str) -> Parameter:
    """Return a parameter with what its declaration in the source adds to its type."""
    label = _LABEL.fullmatch(text)
    handle = re.search(r"\bcuda(\w+)Object_t\b", text)
    shown = f"{one.text} {label[1]}".replace("* ", "*") if label else one.text
    return one._replace(text=shown, handle=handle[1] if handle else "")


def item_type(kernel: str, index: int) -> str:
    """Return the type of a kernel's argument, or of what it leads to, in C++ behind `fields.h`."""
    return f"bridge_argument<{index}, decltype({kernel})>::bridge_type"


def member_questions(struct: str, names: Sequence[str]) -> tuple[str, tuple[str, str]]:
    """Return C++ behind `TEMPLATE`, and expressions whose mangled names `read_members` reads."""
    macros = "".join(f"bridge_field({number}, {name})\n" for number, name in enumerate(names))
    fields = [f"bridge_field_{number}<{struct}>::bridge_" for number in range(len(names))]
    types = ", ".join(f"{field}type *" for field in fields)
    numbers = "".join(f", {field}at, {field}size" for field in fields)
    return (_FOLDER / "fields.h").read_text() + macros, (
        f"&bridge_signature<void({types})>",
        f"&bridge_signature<void, bridge_numbers<sizeof({struct}){numbers}>>",
    )


def read_members(
    types: str | None, numbers: str | None, names: Sequence[str]
) -> tuple[int, dict[str, Member]]:
    """Return the size of a struct in bytes, and its members of these names."""
    if not types or not numbers:
        return 0, {}
    size, *places = [int(number) for number in re.findall(r"Lm(\d+)E", numbers)]
    dtypes = [one.dtype for one in _read_types(types) or ()]
    members = zip(names, map(Member, places[::2], places[1::2], dtypes), strict=True)
    return size, {name: member for name, member in members if member.size}


def declared_members(source: str, struct: str) -> list[str] | None:
    """Return the names of a struct's members, in its order; None if its text cannot be read.

    Read are a struct without a base, functions, or braces within its own.
    """
    name, body = rf"\b{re.escape(struct)}\s*", r"\{((?:[^{}()#:]|::)*)\}"
    pattern = rf"\bstruct\b[^;{{}}]*?{name}{body}|\bstruct\b[^;{{}}]*{body}\s*{name}[;,]"
    found = re.search(pattern, _bare(source)) if struct else None
    declared = r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=[^,;]*)?[,;]"
    return re.findall(declared, found[1] or found[2] or "") if found else None


def kernel_names(source: str, templates: bool = False) -> list[str]:
    """Return the names before a parenthesis after ``__global__``."""
    text = _bare(source)
    if not templates:
        text = re.sub(r"\btemplate\s*<[^;{}()]*>[^;{}()]*__global__", " ", text)
    return sorted(set(re.findall(rf"{_KERNEL}(\w+)\s*\(", text)))


def entries(code: bytes) -> list[str]:
    """Return the names of the kernels in a cubin or in PTX, as the source says them.

    A cubin has a bank of constants for the parameters of each.
    """
    symbols = set(re.findall(rb"(?:\.nv\.constant0\.|\.entry\s+)([\w$]+)", code))
    names = [symbol.decode() for symbol in sorted(symbols)]
    return [_demangle(name).partition("(")[0] if name[:2] == "_Z" else name for name in names]


def variable_names(source: str, templates: Sequence[str] = ()) -> list[str]:
    """Return the names of variables after ``__constant__`` or ``__device__``, and of templates."""
    starts = "|".join([r"__(?:constant|device)__\b", *(rf"{name}\s*<" for name in templates)])
    declaration = rf"\b(?:{starts})[^;{{}}()=]*?\b(\w+)\s*(?:\[[^;{{}}()]*\]\s*)*[;={{]"
    return sorted(set(re.findall(declaration, _bare(source))))


def _bare(source: str) -> str:
    bounds = r"\b__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
    return re.sub(bounds, " ", NOISE.sub(" ", source))


def _demangle(name: str) -> str:
    status = ctypes.c_int()
    found = _runtime.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    text = ctypes.string_at(found).decode() if found else ""
    _runtime.free(ctypes.c_void_p(found))
    return text


def _split(text: str) -> list[str]:
    """Split at commas outside of any brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts] if text else []


def _read_type(text: str, size: int, alignment: int, is_enum: int) -> Parameter:
    """Return a parameter; the numbers are those of a pointer's target."""
    text = re.sub(r"::THRUST_\w+_NS\b| restrict\b", "", text)  # a namespace per version
    plain = re.sub(r" ?\b(const|volatile)\b", "", text)
    outside = plain
    while outside != (outside := re.sub(r"<[^<>]*>|\(anonymous namespace\)", "", outside)):
        pass  # template arguments may be pointers
    shown = re.sub(r"^([^*]*?) const\b", r"const \1", text)
    if behind := re.search(r"\((\*+)\)(\(?)", outside):  # an array or a function
        if len(behind[1]) == 1 and behind[2]:
            return Parameter(text, True, None, is_function=True)
        base = plain[: plain.index(behind[0])].rstrip()
        is_address = len(behind[1]) > 1 or base.endswith("*")
        shown = text
    else:
        base = plain.rstrip("* ")
        depth = plain[len(base) :].count("*")
        if not depth:
            return Parameter(shown, False, DTYPES.get(base))
        is_address = depth > 1
        shown = re.sub(r"^((?:[^*<]|<[^<>]*>)*?) ?\*", r"\1 *", shown)
    dtype = ADDRESS if is_address else DTYPES.get(base)
    if dtype is None and size:
        dtype = np.dtype(f"i{size}" if is_enum else f"V{size}")
    return Parameter(shown, True, dtype, alignment=alignment)
