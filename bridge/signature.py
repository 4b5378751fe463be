"""What a kernel's parameters are, as far as its source says: what cannot be read is not guessed."""

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


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    text: str  # as in the source, e.g. "const float *x"
    is_pointer: bool | None  # None where the source does not tell
    dtype: np.dtype[Any] | None  # of the value, or of what is pointed to; None where not known


def read_parameters(source: str, name: str, options: Iterable[str] = ()) -> list[Parameter] | None:
    """Return the parameters of an ``extern "C"`` kernel; None if the source does not tell.

    Parameters
    ----------
    source : str
        CUDA C, before the preprocessor has seen it.
    name : str
        The kernel, as the compiled module knows it.
    options : iterable of str
        The compiler's, which may define macros.
    """
    text = _NOISE.sub(" ", source.replace("\\\n", " "))
    defined = set(re.findall(r"#\s*define\s+(\w+)", text))
    defined |= {o[2:].partition("=")[0].strip() for o in options if o.startswith("-D")}
    if defined & _KEYWORDS:
        return None
    text = re.sub(r"^[ \t]*#[^\n]*", "#", text, flags=re.MULTILINE)  # a directive was here
    # Names of the source's own, which may stand for anything.
    named = set(re.findall(r"\b(?:using|struct|class|union|enum)\s+(\w+)", text)) | defined
    for names in re.findall(r"\btypedef\b([^;{]*);|\}([^;{}]*);", text):
        named.update(re.findall(r"\w+", "".join(names)))
    named -= _KEYWORDS

    found = []
    for match in re.finditer(rf"\b__global__\b([^;{{}}]*?)\b{re.escape(name)}\s*\(", text):
        before = re.split(r"[;{}]", text[: match.start()])[-1]
        inside = _parenthesised(text, match.end())
        if "template" in before or inside is None or "#" in inside:
            return None
        found.append([_read_parameter(part, named) for part in _split(inside)])
    if not found or any(_types(other) != _types(found[0]) for other in found):
        return None
    return found[0]


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
        depth += {"<": 1, "(": 1, "[": 1, "{": 1, ">": -1, ")": -1, "]": -1, "}": -1}.get(
            character, 0
        )
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [] if parts in ([""], ["void"]) or not "".join(parts).strip() else parts


def _read_parameter(declaration: str, named: set[str]) -> Parameter:
    text = " ".join(declaration.split())
    bare = _QUALIFIERS.sub(" ", text).partition("=")[0]
    words = re.findall(r"\w+", bare)
    stars = bare.count("*") + len(re.findall(r"\[", bare))
    if not words or re.search(r"[(&<:]", bare) or stars > 1:
        # A reference or a template; or a pointer to something that is not looked into.
        pointer = True if stars and not re.search(r"[(&]", bare) else None
        return Parameter(text, pointer, None)
    kind = [word for word in words if word in _KEYWORDS]
    base = " ".join(kind) if kind else words[0]
    unknown = words[0] in named or not (kind or words[0] in _DTYPES) or base == "void"
    if unknown:
        # A name of the user's own may stand for anything, a pointer included.
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
