"""What a source for nvcc needs to compile with NVRTC, as the logs of failed attempts tell.

`mend` is asked only after NVRTC has failed: a source that it takes is compiled as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..signature import NOISE
from .alignment import DIRECTIVE, blank

# Headers of include/ that come before the source, and what the log says without them.
_HEADERS = {
    "bridge/textures.h": r"\b(texture|surface)\b\"? is (not a template|undefined)",
    "bridge/warps.h": r"\b__shfl(_up|_down|_xor)?\" is undefined|'vote' without '\.sync'",
}
_RELAXED = "bridge/relaxed.h"  # only with nvcc's --expt-relaxed-constexpr
_RELAXED_LOG = r"more than one instance of overloaded function|namespace \"std\" has no member"
_SHUFFLE = re.compile(r"\b__shfl(_up|_down|_xor)?\s*\(")
_MISSING = re.compile(r"(?:could not|cannot) open source file \"([^\"]+)\"")
# Headers that host code needs: those of the C++ library, and some of C.
_OF_HOST = re.compile(
    """algorithm|any|array|atomic|bitset|chrono|cassert|cctype|cerrno|cfloat|complex|csignal|cstdarg
condition_variable|deque|exception|filesystem|fstream|functional|future|initializer_list|iomanip
ios|iosfwd|iostream|istream|iterator|limits|list|locale|map|memory|mutex|new|numeric|optional
ostream|queue|random|ratio|regex|set|shared_mutex|span|sstream|stack|stdexcept|streambuf|string
string_view|system_error|thread|tuple|type_traits|typeindex|typeinfo|unordered_map|unordered_set
utility|valarray|variant|vector|thrust/.*|(unistd|sys/time|sys/stat|errno|pthread|omp|fcntl)\\.h
""".strip().replace("\n", "|")
)
_THRUST = re.compile(r"(?m)^\s*#\s*include\s*<(thrust/(?!complex\.h)[^>]+)>")
_ERROR = re.compile(r"(?m)^kernel\.cu\((\d+)\): error.*")
_CONSTANT = re.compile(
    r"\s*(?:(?:static|__device__|inline)\s+)*(const)\s+(?:float|double)\b[^*(){}]*="
)
# A function of which no word can be a macro for `__device__`: qualifiers, a type and the name.
_FUNCTION = re.compile(
    r"\s*(?:(?:static|inline|extern|const|struct|unsigned|signed|long|short|__host__)\s+)*"
    r"(?!(?:static|inline|extern|const|struct)\b|__)[A-Za-z_][\w:]*\s*(?:<[^(){}]*>)?[\s*&]+"
    r"(?:[A-Za-z]\w*::)*[A-Za-z]\w*\s*\([^{}]*\)[\s\w]*"
)
_VARIABLE = re.compile(r"\s*(?:(?:static|const|extern)\s+)*(?:std::|thrust::|FILE\b)[^(){}]*;")


class Source(NamedTuple):
    """A source, and what it is compiled with."""

    text: str
    is_relaxed: bool = False  # nvcc's --expt-relaxed-constexpr
    headers: tuple[str, ...] = ()  # of include/, before the source
    of_host: tuple[str, ...] = ()  # headers of the host that are replaced
    left_out: tuple[str, ...] = ()  # NVRTC's errors in host code that is left out


def prepare(text: str, is_relaxed: bool) -> Source:
    """Return a source for the first attempt.

    Many sources extend a shuffle to `double`, by two calls for `int`.  NVRTC has none for `int`, so
    that such a function would compile, and call itself for ever.
    """
    return Source(text, is_relaxed, ("bridge/warps.h",) if _SHUFFLE.search(text) else ())


def mend(source: Source, log: str) -> Source | None:
    """Return the source as it may compile, or None; the log is of NVRTC's failed attempt."""
    wanted = dict(_HEADERS) | ({_RELAXED: _RELAXED_LOG} if source.is_relaxed else {})
    for header, pattern in wanted.items():
        if header not in source.headers and re.search(pattern, log):
            return source._replace(headers=(*source.headers, header))
    text = source.text
    if "dynamic initialization is not supported" in log:
        text = _constants(text)
    if text != source.text:
        return source._replace(text=text)
    missing = _MISSING.search(log)
    names = [missing[1]] if missing and _OF_HOST.fullmatch(missing[1]) else []
    names += _THRUST.findall(source.text) if "/thrust/" in log else []
    if new := [name for name in names if name not in source.of_host]:
        return source._replace(of_host=(*source.of_host, *new))
    text, left_out = _without_host_code(text, log)
    if text == source.text:
        return None
    return source._replace(text=text, left_out=source.left_out + left_out)


def _declarations(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each declaration outside of functions and classes: start, end, and its code."""
    code = DIRECTIVE.sub(blank, NOISE.sub(blank, text))
    start = depth = 0
    is_function = False
    for found in re.finditer(r"[{};]", code):
        here, head = found.start(), code[start : found.start()]
        if found[0] == "{":
            if depth == 0 and re.fullmatch(r"\s*(extern|(inline\s+)?namespace[\w:\s]*)\s*", head):
                start = here + 1
                continue
            if depth == 0:
                is_function = ")" in head and not re.search(r"^[^(]*=|\b(class|union|enum)\b", head)
            depth += 1
            continue
        if found[0] == "}":
            if depth == 0:  # of a namespace
                start = here + 1
                continue
            depth -= 1
        if depth == 0 and (found[0] == ";" or is_function):
            yield start, here + 1, code[start : here + 1]
            start, is_function = here + 1, False


def _constants(text: str) -> str:
    """Return the text with constexpr for const numbers, which NVRTC takes in initializers."""
    for start, _, code in reversed(list(_declarations(text))):
        if found := _CONSTANT.match(code):
            first, last = start + found.start(1), start + found.end(1)
            text = f"{text[:first]}constexpr{text[last:]}"
    return text


def _without_host_code(text: str, log: str) -> tuple[str, tuple[str, ...]]:
    """Return the text without the host's functions that have errors, and an error of each."""
    errors = {int(found[1]): found[0] for found in reversed(list(_ERROR.finditer(log)))}
    left_out = []
    for start, end, code in list(_declarations(text)):
        head, brace, _ = code.partition("{")
        is_whole = code.endswith("}") or not brace  # not with what follows it
        is_function = is_whole and _FUNCTION.fullmatch(head.removesuffix(";"))
        if not is_function and not _VARIABLE.fullmatch(code):
            continue
        begin = start + len(code) - len(code.lstrip())
        first, last = text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 1
        if lines := [line for line in range(first, last + 1) if line in errors]:
            left_out.append(errors[lines[0]])
            text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
    return text, tuple(error for error in left_out if "explicitly marked" not in error)
