"""NVRTC's calls: a program's code or its errors, and the thread that compiles it."""

from __future__ import annotations

import _thread
import atexit
import functools
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pycuda.driver as drv
from cupy.cuda import nvrtc

from ..errors import warn
from ..interop.scopes import run_under
from .headers import PRELUDE, for_program, vendor_folders
from .signature import TEMPLATE

FILE = "kernel.cu"  # the source's name in NVRTC's log
# NVRTC searches the folder of this file for headers.  Here it has none, as in PyCUDA.
_NAME = f"/dev/null/{FILE}"
_PATIENCE = 60  # seconds
ALWAYS = (
    "--device-as-default-execution-space",  # unmarked functions are device functions
    "--device-int128",
)
_MACRO = re.compile(r"-[DU]")
_DIRECTIVE = re.compile(r"-D(?!NDEBUG(=|$))|-U")  # the prelude asks for NDEBUG, as assert.h does
# NVRTC 13.0 fails if two first compilations run at once ("failed to open libnvrtc-builtins").
_starting = threading.Lock()
_INVALID = re.compile(r"#pragma nv_mangled_name (.*)")


class Program(NamedTuple):
    """A source with everything that NVRTC needs to compile it."""

    source: str  # CUDA C, as fixes have changed it
    arch: str
    options: tuple[str, ...] = ()  # NVRTC's
    folders: tuple[str, ...] = ()  # of the user's headers
    in_extern_c: bool = False
    expressions: tuple[str, ...] = ()  # C++, whose mangled names are asked for
    is_relaxed: bool = False  # nvcc's --expt-relaxed-constexpr
    fixes: tuple[str, ...] = ()  # their names
    headers: tuple[str, ...] = ()  # of include/, before the source
    host_headers: tuple[str, ...] = ()  # the host's headers that are replaced
    left_out: tuple[str, ...] = ()  # NVRTC's errors in host code that is left out
    templates: str = ""  # C++ for the expressions, behind the source

    def translation_unit(self) -> str:
        """Return the text to compile, in which the source's lines keep their numbers."""
        # Not as options: the prelude may use the names.
        macros = "".join(map(_directive, filter(_MACRO.match, self.options)))
        text = f'#line 1 "{FILE}"\n{self.source}'
        return macros + (f'extern "C" {{\n{text}\n}}\n' if self.in_extern_c else text)

    def given_options(self) -> list[str]:
        """Return the options that are passed to NVRTC as they are."""
        return [f"-arch={self.arch}", *(o for o in self.options if not _DIRECTIVE.match(o))]

    def all_options(self) -> list[str]:
        """Return the options of this program, of every program, and for the headers."""
        included = [f"--pre-include={name}" for name in (PRELUDE, *self.headers)]
        searched = [f"-I{folder}" for folder in (*self.folders, *vendor_folders())]
        return [*included, *ALWAYS, *self.given_options(), *searched]


class Compiled(NamedTuple):
    """The result of a compilation."""

    code: bytes  # a cubin, or PTX for ``compute_*``
    mangled: dict[str, str]  # the names of the valid expressions
    log: str = ""  # NVRTC's remarks
    fixes: tuple[str, ...] = ()  # that the source needed; not known of cached code


def architecture(capability: int) -> str:
    """Return the best target for a device: its architecture, or PTX if NVRTC does not know it."""
    known = nvrtc.getSupportedArchs()
    best = max((number for number in known if number <= capability), default=capability)
    return f"sm_{best}" if capability in known else f"compute_{best}"


def compile_on_thread(program: Program) -> Compiled | str:
    """Compile on a thread: some sources take NVRTC very long, and an interrupt must not wait."""
    found: list[Compiled | str | BaseException] = []

    def work() -> None:
        sys.settrace(threading.gettrace())  # as threading.Thread does
        sys.setprofile(threading.getprofile())
        try:
            found.append(compile_program(program))
        except BaseException as error:
            found.append(error)

    ended = threading.Lock()
    ended.acquire()
    _compiling.append(ended)
    try:
        _thread.start_new_thread(run_under, (drv.Context.get_current(), work, ended))
    except RuntimeError:  # Python 3.12 and later start none after the main thread's last line
        _compiling.remove(ended)
        return compile_program(program)
    if not ended.acquire(timeout=_PATIENCE):
        warn(
            "NVRTC has been compiling the source for a minute; some sources on which NVRTC 12.9 "
            "does not end compile with 13.0, or with backend='nvcc'"
        )
        ended.acquire()
    _compiling.remove(ended)
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


_compiling: list[threading.Lock] = []  # of threads that have not ended, or were interrupted


@atexit.register
def _end_threads() -> None:
    """Wait for NVRTC: when a process ends, the library goes under a thread that is still in it."""
    for ended in _compiling:
        ended.acquire()


def compile_program(program: Program) -> Compiled | str:
    """Return the code, or NVRTC's log if it has errors."""
    text = program.translation_unit()
    text += TEMPLATE + program.templates if program.expressions else ""
    with _created(text, for_program(program.folders, program.host_headers)) as handle:
        try:
            for name in program.expressions:
                nvrtc.addNameExpression(handle, name)
            nvrtc.compileProgram(handle, tuple(program.all_options()))
            is_ptx = program.arch.startswith("compute_")
            code = (nvrtc.getPTX if is_ptx else nvrtc.getCUBIN)(handle)
            mangled = {name: nvrtc.getLoweredName(handle, name) for name in program.expressions}
            return Compiled(code, mangled, _log(handle), program.fixes)
        except nvrtc.NVRTCError as error:
            log = _log(handle) or str(error)
    if not program.expressions:
        return log
    # An expression is invalid if a macro leaves the kernel out, or if it is overloaded.
    invalid = set(_INVALID.findall(log)) & {*program.expressions} or program.expressions
    valid = tuple(name for name in program.expressions if name not in invalid)
    return compile_program(program._replace(expressions=valid))


def front_end_log(program: Program, header: str) -> str:
    """Return the log of NVRTC's front end for the source after a header of ``include/``."""
    options = (o for o in program.all_options() if o not in ("-w", "--disable-warnings"))
    given = f"--pre-include={header}", "--fdevice-syntax-only", *options
    headers = for_program(program.folders, program.host_headers)
    with _created(program.translation_unit(), headers) as handle:
        with suppress(nvrtc.NVRTCError):  # the compilation itself shows an error of the source
            nvrtc.compileProgram(handle, given)
        return _log(handle)


@contextmanager
def _created(text: str, headers: dict[str, bytes]) -> Iterator[int]:
    names = [name.encode() for name in headers]
    handle = nvrtc.createProgram(text, _NAME, list(headers.values()), names)
    try:
        yield handle
    finally:
        nvrtc.destroyProgram(handle)


def start() -> None:
    """Let the first compilation of the process end before others begin."""
    with _starting:
        _compile_nothing()


@functools.cache
def _compile_nothing() -> None:
    with _created("", {}) as handle:
        nvrtc.compileProgram(handle, ())


def _log(handle: int) -> str:
    log: str = nvrtc.getProgramLog(handle)
    return log.strip("\0\n ").replace(_NAME, FILE)


def _directive(option: str) -> str:
    name, equals, value = option[2:].partition("=")
    return f"#define {name} {value if equals else 1}\n" if option[1] == "D" else f"#undef {name}\n"
