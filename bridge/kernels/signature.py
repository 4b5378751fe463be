"""The types of a kernel's parameters, as the compiler reports them.

NVRTC returns the mangled name of any expression.  If the expression is a template over the kernel's
type, the name contains the parameters' types, with typedefs, macros and templates resolved.

Source: NVRTC documentation, "Accessing Lowered Names"; Itanium C++ ABI, "Mangling" and "Demangler
API".
"""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

# Appended, to keep the line numbers.  The names are long: the source may define macros F or T.
TEMPLATE = """
#if __cplusplus >= 201402L
template <class bridge_kernel> __device__ char bridge_signature;
#endif
"""
_PLAIN = {
    **{"bool": "?", "char": "b", "signed char": "b", "unsigned char": "B"},
    **{"short": "h", "unsigned short": "H", "int": "i", "unsigned int": "I"},
    **{"long": "l", "unsigned long": "L", "long long": "q", "unsigned long long": "Q"},
    **{"float": "f", "double": "d", "__half": "e"},
    **{f"{space}::complex<float>": "F" for space in ("pycuda", "thrust")},
    **{f"{space}::complex<double>": "D" for space in ("pycuda", "thrust")},
}
_VECTORS = {
    **{"char": "b", "uchar": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I"},
    **{"long": "l", "ulong": "L", "longlong": "q", "ulonglong": "Q", "float": "f", "double": "d"},
}
_DTYPES = {name: np.dtype(code) for name, code in _PLAIN.items()} | {
    f"{name}{size}": np.dtype([(axis, code) for axis in "xyzw"[:size]])
    for name, code in _VECTORS.items()
    for size in range(1, 5)
}
with suppress(ImportError):  # without it, there are no such arrays
    import ml_dtypes

    _DTYPES["__nv_bfloat16"] = np.dtype(ml_dtypes.bfloat16)
# Comments and literals, whose words are ignored.
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_KERNEL = r"\b__global__\b[^;{}()]*?\b"
_ALIGN = r"(?:__align__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
# Alignment that NVRTC 12.9 and 13.0 ignore: after the closing brace, or before `struct`.
_IGNORED = re.compile(
    rf"\}}\s*{_ALIGN}\s*\w*\s*[;,]|\}}\s*\w+\s*{_ALIGN}\s*;|{_ALIGN}\s*(?:struct|union|class)\b"
)
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
    dtype: np.dtype[Any] | None  # of the value or pointee; None if not known
    size: int = 0  # bytes
    offset: int = 0

    def code(self) -> str:
        """Return the `struct` code that packs the parameter."""
        if self.is_pointer:
            return "Q"  # "P" accepts negative numbers
        if self.dtype is None or self.dtype.kind in "cV":
            return f"{self.size}s"
        return str(self.dtype.char)


def expression(name: str) -> str:
    """Return the expression whose mangled name `read_signature` reads."""
    return f"&bridge_signature<decltype({name})>"


def read_signature(mangled: str, source: str, name: str) -> list[Parameter] | None:
    """Return a kernel's parameters: their types, and their names in the source for messages."""
    text = _demangle(mangled)
    if not text:
        return None
    found = [_read_type(part) for part in _split(text[text.index("(") + 1 : text.rindex(")")])]
    label = re.search(rf"{_KERNEL}{re.escape(name)}\s*\(([^()]*)\)", _bare(source))
    labels = [_LABEL.fullmatch(part) for part in _split(label[1])] if label else []
    if len(labels) != len(found):
        return found
    return [
        one._replace(text=f"{one.text} {label[1]}".replace("* ", "*")) if label else one
        for one, label in zip(found, labels, strict=True)
    ]


def kernel_names(source: str, templates: bool = False) -> list[str]:
    """Return the names before a parenthesis after ``__global__``."""
    text = _bare(source)
    if not templates:
        text = re.sub(r"\btemplate\s*<[^;{}()]*>[^;{}()]*__global__", " ", text)
    return sorted(set(re.findall(rf"{_KERNEL}(\w+)\s*\(", text)))


def ignored_alignment(source: str) -> re.Match[str] | None:
    """Return the first alignment of a struct that nvcc applies and NVRTC silently ignores."""
    # Keep the line numbers.
    return _IGNORED.search(_NOISE.sub(lambda noise: "\n" * noise[0].count("\n") or " ", source))


def _bare(source: str) -> str:
    bounds = r"\b__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
    return re.sub(bounds, " ", _NOISE.sub(" ", source))


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


def _read_type(text: str) -> Parameter:
    text = re.sub(r"::THRUST_\w+_NS\b", "", text)  # a namespace per version
    plain = re.sub(r"\b(const|volatile)\b", "", text).rstrip()
    base, outside = plain.rstrip("* "), text
    while outside != (outside := re.sub(r"<[^<>]*>|\(anonymous namespace\)", "", outside)):
        pass  # template arguments may be pointers
    depth = plain[len(base) :].count("*")
    if re.search(r"\([*&]", outside):  # a pointer to a function or an array
        return Parameter(text, True, None)
    shown = re.sub(r"^([^*]*?) const\b", r"const \1", text)
    shown = shown.replace("*", " *", 1) if depth else shown
    return Parameter(shown, bool(depth), _DTYPES.get(base) if depth < 2 else None)
