"""What a source for nvcc needs to compile with NVRTC, as the log of the first attempt tells.

Each mend is one that leaves a source which NVRTC takes as it is alone: `mend` is asked only after
NVRTC has failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .signature import NOISE

# Headers of include/ that come before the source, and what the log says without them.
_HEADERS = {
    "bridge/textures.h": r"\b(texture|surface)\b\"? is (not a template|undefined)",
    "bridge/warps.h": r"\b__shfl(_up|_down|_xor)?\" is undefined|'vote' without '\.sync'",
}
_RELAXED = "bridge/relaxed.h"  # only with nvcc's --expt-relaxed-constexpr
_RELAXED_LOG = r"more than one instance of overloaded function|namespace \"std\" has no member"
_MISSING = re.compile(r"(?:could not|cannot) open source file \"([^\"]+)\"")
# Headers that host code needs: those of the C++ library, and some of C.
_OF_HOST = re.compile(r"[a-z_]+|thrust/.*|(unistd|sys/time|sys/stat|errno|pthread|omp|fcntl)\.h")
_THRUST = re.compile(r"(?m)^\s*#\s*include\s*<(thrust/(?!complex\.h)[^>]+)>")
_ERROR = re.compile(r"(?m)^kernel\.cu\((\d+)\): (?:catastrophic )?error")
_CONSTANT = re.compile(
    r"\s*(?:(?:static|__device__|inline)\s+)*(const)\s+(?:float|double)\b[^*(){}]*="
)
_OF_DEVICE = re.compile(
    r"__(?:device|global|constant|shared|managed)__|\b(?:template|typedef|using|struct|class|enum|union|static_assert)\b"
)
_DIRECTIVE = re.compile(r"(?m)^[ \t]*#(?:[^\n]*\\\r?\n)*[^\n]*")


class Source(NamedTuple):
    """A source, and what it is compiled with."""

    text: str
    is_relaxed: bool = False  # nvcc's --expt-relaxed-constexpr
    headers: tuple[str, ...] = ()  # of include/, before the source
    of_host: tuple[str, ...] = ()  # headers of the host to replace
    lacks_host_code: bool = False


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
        return source._replace(of_host=(*source.of_host, *new), lacks_host_code=True)
    text = _without_host_code(text, {int(line) for line in _ERROR.findall(log)})
    return source._replace(text=text, lacks_host_code=True) if text != source.text else None


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _declarations(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each declaration outside of functions and classes: start, end, and its code."""
    code = _DIRECTIVE.sub(_blank, NOISE.sub(_blank, text))
    start = depth = 0
    is_function = False
    for found in re.finditer(r"[{};]", code):
        here, head = found.start(), code[start : found.start()]
        if found[0] == "{":
            if depth == 0 and re.fullmatch(r"\s*(extern|namespace\s+\w+|namespace)\s*", head):
                start = here + 1
                continue
            if depth == 0:
                is_function = bool(re.search(r"\)\s*$", head))
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


def _without_host_code(text: str, wrong: set[int]) -> str:
    """Return the text without the host's functions and variables that have errors."""
    for start, end, code in list(_declarations(text)):
        begin = start + len(code) - len(code.lstrip())
        first, last = text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 1
        if _OF_DEVICE.search(code.partition("{")[0]) or wrong.isdisjoint(range(first, last + 1)):
            continue
        text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
    return text
