"""Read a kernel's parameters in its source; what cannot be read is not guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

_KEYWORDS = frozenset(
    ["unsigned", "signed", "bool", "char", "short", "int", "long", "float", "double", "void"]
)
_DTYPES = {
    "bool": "?",
    "char": "i1",
    "float": "f4",
    "double": "f8",
    "half": "f2",
    "__half": "f2",
    "size_t": "u8",
    "ptrdiff_t": "i8",
    **{f"int{bits}_t": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{"ushort": "u2", "uint": "u4", "ulong": "u8"},
    **{"cudaTextureObject_t": "u8", "cudaSurfaceObject_t": "u8"},
}
_QUALIFIERS = re.compile(
    r"\b(const|volatile|__restrict__|__restrict|restrict|register|struct|__grid_constant__)\b"
)
# Comments and literals, in which words mean nothing.
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


_IF, _ENDIF = "\1", "\2"
_MARKS = {"if": _IF, "en": _ENDIF}  # by the first two letters: #if, #ifdef, #ifndef, #endif


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    text: str  # as in the source, e.g. "const float *x"
    is_pointer: bool | None  # None where the source does not tell
    dtype: np.dtype[Any] | None  # of the value, or of what is pointed to; None where not known


def read_parameters(source: str, name: str, options: Iterable[str] = ()) -> list[Parameter] | None:
    """Return the parameters of an ``extern "C"`` kernel; None if the source does not tell.

    The source is not preprocessed, and macros may be defined in the compiler's options.
    """
    text = _NOISE.sub(" ", re.sub(r"\\\r?\n", " ", source))
    # "-DN=1", "-D N=1" and "--define-macro N=1" alike.
    given = re.findall(r"(?:-D|--define-macro)[\s=]*(\w+)", "\n".join(options))
    defined = {*re.findall(r"#\s*define\s+(\w+)", text), *given}
    if defined & _KEYWORDS:
        return None
    own_headers = bool(re.search(r'#\s*include\s*"', source))
    # Keep only marks of directives, and of where conditions begin and end.
    text = re.sub(r"^\s*#\s*(\w*)[^\n]*", lambda m: _MARKS.get(m[1][:2], "#"), text, flags=re.M)
    # Names of the source's own, which may stand for anything.
    kinds = r"\b(?:using|struct|class|union|enum)\s+(?:\w+\s*\([^)]*\)\s*)*(\w+)"
    named = set(re.findall(kinds, text)) | defined
    for names in re.findall(r"\btypedef\b([^;{]*);|\}([^;{}]*);", text):
        named.update(re.findall(r"\w+", "".join(names)))
    if own_headers:
        named.update(_DTYPES)
    named -= _KEYWORDS

    found = []
    for match in re.finditer(rf"\b__global__\b([^;{{}}]*?)\b{re.escape(name)}\s*\(", text):
        before = text[: match.start()]
        inside = _parenthesised(text, match.end())
        conditional = before.count(_IF) > before.count(_ENDIF) or "#" in match[1]
        if conditional or "template" in re.split(r"[;{}]", before)[-1]:
            return None
        if inside is None or set("#=" + _IF + _ENDIF) & set(inside):
            return None  # (= begins a default, which may be any expression)
        found.append([_read_parameter(part, named) for part in _split(inside)])
    if not found or any(_types(other) != _types(found[0]) for other in found):
        return None
    return found[0]


def kernel_names(source: str) -> list[str]:
    """Return the names that stand before a parenthesis after ``__global__``: for a message."""
    text = re.sub(r"__launch_bounds__\s*\([^)]*\)", " ", _NOISE.sub(" ", source))
    return sorted(set(re.findall(r"\b__global__\b[^;{}()]*?\b(\w+)\s*\(", text)))


def _types(parameters: list[Parameter]) -> list[Any]:
    return [(one.is_pointer, one.dtype) for one in parameters]


def _parenthesised(text: str, start: int) -> str | None:
    """Return what is between an opened parenthesis and the one that closes it."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if not depth:
            return text[start:position]
    return None


def _split(text: str) -> list[str]:
    """Split at commas outside of any brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [] if parts == ["void"] or not "".join(parts).strip() else parts


def _read_parameter(declaration: str, named: set[str]) -> Parameter:
    text = " ".join(declaration.split())
    bare = re.sub(r"\[\[.*?\]\]", " ", text)  # attributes
    bare = re.sub(r"\[[^\]]*\]", "[]", _QUALIFIERS.sub(" ", bare))
    words = re.findall(r"\w+", bare)
    stars = bare.count("*") + len(re.findall(r"\[", bare))
    if not words or re.search(r"[(&<:]", bare) or stars > 1:
        # A reference or a template, or a pointer to an unknown type.
        pointer = True if stars and not re.search(r"[(&]", bare) else None
        return Parameter(text, pointer, None)
    kind = [word for word in words if word in _KEYWORDS]
    base = " ".join(kind) if kind else words[0]
    others = words[1:] if not kind else [word for word in words if word not in _KEYWORDS]
    known = kind or (base in _DTYPES and base not in named)
    # Only the parameter's name may follow the type: anything else may be a macro.
    odd = len(others) > 1 or any(w in named or w.startswith("__") for w in others)
    if not known or odd or base == "void":
        # A name that the user defined may stand for anything, also for a pointer.
        return Parameter(text, True if stars else None, None)
    return Parameter(text, bool(stars), _dtype(kind) if kind else np.dtype(_DTYPES[base]))


def _dtype(words: list[str]) -> np.dtype[Any] | None:
    """Return the dtype that a fundamental type of C is on 64-bit Linux."""
    rest = [word for word in words if word not in ("signed", "unsigned", "int")]
    if rest in (["long", "double"], ["void"]):
        return None
    sizes = {"char": 1, "short": 2, "long": 8}
    if not rest or rest[0] in sizes:
        size = sizes[rest[0]] if rest else 4
        return np.dtype(f"{'u' if 'unsigned' in words else 'i'}{size}")
    return np.dtype(_DTYPES[rest[0]])
