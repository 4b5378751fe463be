"""What sources for nvcc need so that NVRTC compiles them alike: an ordered table of fixes.

A fix changes a program before NVRTC's first attempt, or after a failed one, as its log tells.  What
NVRTC compiles at once is not changed by the latter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import warn
from . import alignment
from .alignment import DIRECTIVE, blank
from .nvrtc import Program
from .signature import NOISE


class Fix(NamedTuple):
    """A fix; its functions return the program as it is where nothing is to be done."""

    name: str
    before: Callable[[Program], Program] = lambda program: program  # the first attempt
    after: Callable[[Program, str], Program] = lambda program, log: program  # a failed attempt


def before_first_attempt(program: Program) -> Program:
    """Return the program with the fixes that its source asks for."""
    for fix in FIXES:
        program = _named(fix, program, fix.before(program))
    return program


def after_failed_attempt(program: Program, log: str) -> Program | None:
    """Return the program with the first fix that the log asks for; None if there is none."""
    for fix in FIXES:
        if (fixed := _named(fix, program, fix.after(program, log))) != program:
            return before_first_attempt(fixed)  # what NVRTC reports behind a header it lacked
    return None


def _named(fix: Fix, program: Program, fixed: Program) -> Program:
    names = (*program.fixes, fix.name)
    return fixed if fixed == program else fixed._replace(fixes=tuple(dict.fromkeys(names)))


def _include_header(program: Program, header: str, pattern: str, text: str) -> Program:
    """Return the program with a header before its source, if the text has the pattern."""
    if header in program.headers or not re.search(pattern, text):
        return program
    return program._replace(headers=(*program.headers, header))


def _declare_called_shuffles(program: Program) -> Program:
    """Declare shuffles before a source that extends them to `double`, by two calls for `int`.

    NVRTC has none for `int`, so that such a function would compile, and call itself for ever.
    """
    pattern = r"\b__shfl(_up|_down|_xor)?\s*\("
    return _include_header(program, "bridge/warps.h", pattern, program.source)


def _declare_warp_functions(program: Program, log: str) -> Program:
    pattern = r"\b__shfl(_up|_down|_xor)?\" is undefined|'vote' without '\.sync'"
    return _include_header(program, "bridge/warps.h", pattern, log)


def _overload_math(program: Program, log: str) -> Program:
    pattern = r"more than one instance of overloaded function|namespace \"std\" has no member"
    is_asked = program.is_relaxed  # otherwise, nvcc has no overloads either
    return _include_header(program, "bridge/relaxed.h", pattern, log) if is_asked else program


def _declare_references(program: Program, log: str) -> Program:
    """Declare texture and surface references, which CUDA 12 removed."""
    pattern = r"\b(texture|surface)\b\"? is (not a template|undefined)"
    return _include_header(program, "bridge/textures.h", pattern, log)


def _leave_out_old_standard(program: Program, log: str) -> Program:
    """Leave out ``-std=c++14`` where a header needs more: NVRTC's own default is C++17."""
    given = [option for option in program.options if option.startswith("-std=")]
    if not given or not (needed := re.search(r"\S+ requires at least C\+\+ ?\d+", log)):
        return program
    warn(f"the option {given[-1]} is left out: {needed[0]}")
    return program._replace(options=tuple(o for o in program.options if o not in given))


# Most programs need none of these: `re` compiles them when they are first used.
_MISSING = r"(?:could not|cannot) open source file \"([^\"]+)\""
# Headers that host code needs: those of the C++ library, and some of C.
_OF_HOST = """algorithm|any|array|atomic|bitset|chrono|cassert|cctype|cerrno|cfloat|complex
csignal|cstdarg
condition_variable|deque|exception|filesystem|fstream|functional|future|initializer_list|iomanip
ios|iosfwd|iostream|istream|iterator|limits|list|locale|map|memory|mutex|new|numeric|optional
ostream|queue|random|ratio|regex|set|shared_mutex|span|sstream|stack|stdexcept|streambuf|string
string_view|system_error|thread|tuple|type_traits|typeindex|typeinfo|unordered_map|unordered_set
utility|valarray|variant|vector|thrust/.*|(unistd|sys/time|sys/stat|errno|pthread|omp|fcntl)\\.h
""".strip().replace("\n", "|")
_THRUST = r"(?m)^\s*#\s*include\s*<(thrust/(?!complex\.h)[^>]+)>"
_ERROR = r"(?m)^kernel\.cu\((\d+)\): error.*"
_CONSTANT = r"\s*(?:(?:static|__device__|inline)\s+)*(const)\s+(?:float|double)\b[^*(){}]*="
# A function of which no word can be a macro for `__device__`: qualifiers, a type and the name.
_FUNCTION = (
    r"\s*(?:(?:static|inline|extern|const|struct|unsigned|signed|long|short|__host__)\s+)*"
    r"(?!(?:static|inline|extern|const|struct)\b|__)[A-Za-z_][\w:]*\s*(?:<[^(){}]*>)?[\s*&]+"
    r"(?:[A-Za-z]\w*::)*[A-Za-z]\w*\s*\([^{}]*\)[\s\w]*"
)
_VARIABLE = r"\s*(?:(?:static|const|extern)\s+)*(?:std::|thrust::|FILE\b)[^(){}]*;"


def _make_constants_constexpr(program: Program, log: str) -> Program:
    """Write constexpr for const numbers, which NVRTC then takes in initializers."""
    source = program.source
    if "dynamic initialization is not supported" not in log:
        return program
    for start, _, code in reversed(list(_declarations(source))):
        if found := re.match(_CONSTANT, code):
            first, last = start + found.start(1), start + found.end(1)
            source = f"{source[:first]}constexpr{source[last:]}"
    return program._replace(source=source)


def _replace_host_headers(program: Program, log: str) -> Program:
    missing = re.search(_MISSING, log)
    names = [missing[1]] if missing and re.fullmatch(_OF_HOST, missing[1]) else []
    names += re.findall(_THRUST, program.source) if "/thrust/" in log else []
    new = [name for name in names if name not in program.host_headers]
    return program._replace(host_headers=(*program.host_headers, *new))


def _leave_out_host_code(program: Program, log: str) -> Program:
    """Leave out the host's functions and variables that have errors."""
    source = program.source
    errors = {int(found[1]): found[0] for found in reversed(list(re.finditer(_ERROR, log)))}
    left_out = []
    for start, end, code in list(_declarations(source)):
        head, brace, _ = code.partition("{")
        is_whole = code.endswith("}") or not brace  # not with what follows it
        is_function = is_whole and re.fullmatch(_FUNCTION, head.removesuffix(";"))
        if not is_function and not re.fullmatch(_VARIABLE, code):
            continue
        begin = start + len(code) - len(code.lstrip())
        first, last = source.count("\n", 0, begin) + 1, source.count("\n", 0, end) + 1
        if lines := [line for line in range(first, last + 1) if line in errors]:
            left_out.append(errors[lines[0]])
            source = source[:begin] + re.sub(r"[^\n]", " ", source[begin:end]) + source[end:]
    shown = (error for error in left_out if "explicitly marked" not in error)
    return program._replace(source=source, left_out=(*program.left_out, *shown))


def _declarations(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield each declaration outside of functions and classes: start, end, and its code."""
    code = DIRECTIVE.sub(blank, NOISE.sub(blank, source))
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


FIXES = (
    Fix("texture references", after=_declare_references),
    Fix("C++17", after=_leave_out_old_standard),
    Fix("alignments of structs", before=alignment.move_alignments),
    Fix("warp functions", _declare_called_shuffles, _declare_warp_functions),
    Fix("relaxed constexpr", after=_overload_math),
    Fix("constants of constants", after=_make_constants_constexpr),
    Fix("headers of the host", after=_replace_host_headers),
    Fix("host code", after=_leave_out_host_code),
)
