"""Compile with g++, and keep what was compiled.

Two things are built: the driver of this folder, once per version of ``cuda.h``, and kernels: CUDA C
compiled for the host through ``device.h``.  The real NVRTC compiles a kernel first, for the GPU: it
says what is wrong with the source, and what a launch may ask for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from . import _nvrtc, ptx

FOLDER = Path(__file__).resolve().parent
CXX = os.environ.get("CXX", "g++")


class CompileError(RuntimeError):
    """The compiler refused the source; its text is the message."""


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "pycuda-cupy-bridge"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: Iterable[str], source: str | None = None) -> str:
    done = subprocess.run(list(command), input=source, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout


def _cached(kind: str, suffix: str, parts: Iterable[bytes], make: Callable[[Path], None]) -> Path:
    """Answer the file for this content, made first if it is not there."""
    digest = hashlib.sha256()
    for part in (CXX.encode(), *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    target = cache_folder() / f"{kind}-{digest.hexdigest()[:24]}{suffix}"
    if not target.exists():
        # Several test processes may build the same file: each makes its own, the last rename wins.
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=".new")
        os.close(handle)
        try:
            make(Path(name))
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    return target


@functools.cache
def cuda_include() -> Path:
    """Find the newest ``cuda.h`` among the interpreter's packages and ``$CUDA_HOME``."""
    folders = [path.parent for path in _nvrtc.find_files("nvidia", "*/include/cuda.h")]
    if "CUDA_HOME" in os.environ:
        folders.append(Path(os.environ["CUDA_HOME"], "include"))
    found = [folder for folder in folders if (folder / "cuda.h").exists()]
    if not found:
        raise FileNotFoundError(
            "hostcuda: no cuda.h; install nvidia-cuda-runtime (or -cu12), or set CUDA_HOME"
        )
    return max(found, key=_cuda_version)


@functools.cache
def vendor_folders() -> list[str]:
    """Find headers that nvcc would find in its toolkit: cuRAND's, and what they include."""
    if "HOSTCUDA_INCLUDE" not in os.environ:
        found = _nvrtc.find_files("nvidia", "*/include/curand_kernel.h")
        found += _nvrtc.find_files("cupy", "_core/include/cupy/_cccl/libcudacxx/nv")
        # For the processes of `_nvcc.py`, which do not see pip's packages.
        os.environ["HOSTCUDA_INCLUDE"] = os.pathsep.join(str(path.parent) for path in found)
    return list(filter(None, os.environ["HOSTCUDA_INCLUDE"].split(os.pathsep)))


def _cuda_version(include: Path) -> int:
    found = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    return int(found[1]) if found else 0


def driver() -> Path:
    """Build the driver and answer its path."""
    include = cuda_include()
    apart = FOLDER / "refused.cpp"  # must not see cuda.h
    sources = sorted(set(FOLDER.glob("*.cpp")) - {apart})
    headers = [*sorted(FOLDER.glob("*.h")), include / "cuda.h"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{include}"]
    # The name under which PyCUDA and CuPy ask for the driver.
    flags += ["-shared", "-Wl,-soname,libcuda.so.1"]

    def make(target: Path) -> None:
        # As one unit: the headers take longer than the code.
        text = "".join(f'#include "{source}"\n' for source in sources)
        _run([CXX, *flags, "-x", "c++", "-", str(apart), "-o", str(target)], text)

    parts = [path.read_bytes() for path in (*sources, apart, *headers)]
    return _cached("driver", ".so", [" ".join(flags).encode(), *parts], make)


KERNEL_FLAGS = ["-std=c++17", "-O1", "-w", "-Wno-narrowing", "-fPIC", "-fno-strict-aliasing"]
# Before the folders of a source's own options: headers in place of those that want a CUDA toolkit.
KERNEL_FLAGS += [f"-I{FOLDER}/include"]


@functools.cache
def _device_header() -> Path:
    """Answer a header with ``device.h``; g++ finds it precompiled, by the same name and .gch."""
    text = f'#include "{FOLDER}/device.h"\n'
    key = text, compiler_key(), " ".join(KERNEL_FLAGS), _run([CXX, "--version"])
    parts = [part.encode() for part in key]
    header = _cached("device", ".h", parts, lambda target: target.write_text(text))
    command = [CXX, *KERNEL_FLAGS, "-x", "c++-header", str(header), "-o"]
    _cached("device", ".h.gch", parts, lambda target: _run([*command, str(target)]))
    return header


def preprocess(source: str, options: Iterable[str] = ()) -> str:
    """Answer the source with headers and macros expanded; ``device.h`` may stay precompiled."""
    if PTX:  # those who ask compare it with what they have compiled before
        return _checked_with_lines(source, tuple(options)).ptx
    given = _host_options(options)
    # Behind device.h, which may use the names; but it has assert.h, which asks for NDEBUG.
    defined = [o for o in given if o[:2] in ("-D", "-U") and o.partition("=")[0] != "-DNDEBUG"]
    lines = "".join(map(_directive, defined))
    text = f'#include "{_device_header()}"\n{lines}{source}\n'
    given = tuple(option for option in given if option not in defined)
    command = [CXX, *KERNEL_FLAGS, *given, "-E", "-fpch-preprocess"]
    return _run([*command, "-x", "c++", "-"], text)


def _directive(option: str) -> str:
    name, _, value = option[2:].partition("=")
    if option.startswith("-U"):
        return f"#undef {name}\n"
    return f"#define {name} {value if '=' in option else 1}\n"


def _host_macros() -> str:
    """Answer a header with the limits and constants of the host's headers, for NVRTC."""
    include = "".join(f"#include <{name}.h>\n" for name in ("float", "limits", "math", "stdint"))

    def make(target: Path) -> None:
        known = _run([CXX, "-dM", "-E", "-x", "c++", "-"], include)
        limits = r"#define ((?:[A-Z]+_)?(?:MIN|MAX|EPSILON|DIG)|M_\w+|CHAR_BIT) "
        names = re.findall(limits, known)
        text = "".join(f'"@{name}" {name}\n' for name in names)
        values = re.findall(
            r'"@(\w+)" (.*)', _run([CXX, "-E", "-P", "-x", "c++", "-"], include + text)
        )
        target.write_text("".join(f"#define {name} {value}\n" for name, value in values))

    return _cached(
        "macros", ".h", [include.encode(), Path(__file__).read_bytes()], make
    ).read_text()


PTX = os.environ.get("HOSTCUDA_PTX") == "1"  # run what NVRTC makes, in place of the source
_PTX_FLAGS = """-std=c++17 -O2 -w -fPIC -shared -ffp-contract=off -fwrapv -fno-strict-aliasing
-fno-finite-loops -fno-math-errno -fvisibility=hidden -fno-exceptions -fno-rtti
-fno-asynchronous-unwind-tables -fno-gnu-unique -Wl,-Bsymbolic -nostdlib -pipe"""
PTX_FLAGS = _PTX_FLAGS.split()


@functools.cache
def _processor_flags() -> list[str]:
    """Return options for instructions that this processor has."""
    try:
        known = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return []
    return ["-mfma"] if "fma" in known else []


UNABLE = "hostcuda: compiled for the GPU; the host cannot run it"


class Compiled(NamedTuple):
    """A kernel module for the host."""

    image: bytes  # for ``cuModuleLoadData``
    log: str  # NVRTC's remarks
    lowered: dict[str, str]  # the mangled names of the name expressions


def compile(
    source: str,
    options: Iterable[str] = (_nvrtc.ARCHITECTURE,),
    names: Iterable[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
    of_nvcc: bool = False,
) -> Compiled:
    """Compile CUDA C for the host, after NVRTC has compiled it for the GPU.

    `options` and `headers` are NVRTC's, or nvcc's options if `of_nvcc`.  For the host, those about
    headers and macros count (``-I``, ``-D``, ``-U``).

    Raises
    ------
    CompileError
        With NVRTC's log; or with g++'s, if only the host cannot run the kernel.
    """
    options, names = tuple(options), tuple(names)
    if PTX:
        return _compile_ptx(source, options, names, headers, of_nvcc)
    # Of the headers in memory, those that come before the source.
    first = [o.partition("=")[2] for o in options if o.startswith("--pre-include=")]
    texts = {name: (headers or {}).get(name, f'#include "{name}"') for name in first}
    # The C++ library's headers may not be read inside of extern "C", where NVRTC may have others.
    early = dict.fromkeys(re.findall(r"(?m)^\s*#\s*include\s*<([a-z_]+)>", source))
    source_here = "".join(f"#if __has_include(<{n}>)\n#include <{n}>\n#endif\n" for n in early)
    source_here += "".join(f'#line 1 "{name}"\n{_text(text)}\n' for name, text in texts.items())
    source_here += f'#line 1 "kernel.cu"\n{re.sub(_STATIC, "", source)}'
    # A module must not share its static variables or functions with another module of equal names.
    link = ["-shared", "-fno-gnu-unique", "-fno-threadsafe-statics", "-Wl,-Bsymbolic"]

    @functools.cache
    def checked() -> _nvrtc.Checked:
        try:
            if of_nvcc:
                standard = [o for o in options if o.startswith(("-std=", "--std="))]
                given = [*_host_options(options), *standard]
                return _nvrtc.check_for_nvcc(source, given, _host_macros())
            return _nvrtc.check(source, options, names, headers)
        except _nvrtc.Refused as error:
            raise CompileError(str(error)) from None

    def make(target: Path) -> None:
        found = checked()
        try:
            text = _host_source(preprocess(source_here, options), found)
            command = [CXX, *KERNEL_FLAGS, *link, "-fpreprocessed", "-x", "c++", "-", "-o"]
            _run([*command, str(target)], text)
        except CompileError as error:
            raise CompileError(f"{UNABLE}:\n{error}") from None
        if _has_variables(target):
            _run(["objcopy", *_MARKED, str(target)])

    def note(target: Path) -> None:
        target.write_text(json.dumps(checked()[:2]))

    key = source_here
    if "inc" in source:  # what it includes may change under it
        try:
            key = preprocess(source_here, options)
        except CompileError as error:
            checked()  # may raise an error of its own
            raise CompileError(f"{UNABLE}:\n{error}") from None
    parts = (compiler_key(), repr((options, names, _nvrtc.version())), key)
    encoded = [part.encode() for part in parts]
    image = _cached("kernel", ".so", encoded, make).read_bytes()
    log, lowered = json.loads(_cached("kernel", ".json", encoded, note).read_text())
    return Compiled(image, log, lowered)


_LINES = {"-lineinfo", "--generate-line-info", "-G", "--device-debug"}


def _checked_with_lines(
    source: str,
    options: tuple[str, ...],
    names: tuple[str, ...] = (),
    headers: Mapping[str, str | bytes] | None = None,
    of_nvcc: bool = True,
) -> _nvrtc.Checked:
    """Compile with NVRTC, which notes the lines of the source in the PTX."""
    lines = [] if _LINES & {*options} else ["-lineinfo"]
    try:
        if of_nvcc:
            standard = [o for o in options if o.startswith(("-std=", "--std="))]
            given = [*_host_options(options), *standard, *lines]
            return _nvrtc.check_for_nvcc(source, given, _host_macros())
        return _nvrtc.check(source, [*options, *lines], names, headers)
    except _nvrtc.Refused as error:
        raise CompileError(str(error)) from None


def _compile_ptx(
    source: str,
    options: tuple[str, ...],
    names: tuple[str, ...],
    headers: Mapping[str, str | bytes] | None,
    of_nvcc: bool,
) -> Compiled:
    """Translate the PTX that NVRTC makes."""

    @functools.cache
    def checked() -> _nvrtc.Checked:
        return _checked_with_lines(source, options, names, headers, of_nvcc)

    def make(target: Path) -> None:
        if not checked().ptx:
            raise CompileError("hostcuda: NVRTC makes no PTX with these options")
        try:
            text = ptx.translate(checked().ptx, checked().limits)
        except ptx.Unsupported as error:
            raise CompileError(str(error)) from None
        flags = [*PTX_FLAGS, *_processor_flags()]
        _run([CXX, *flags, "-x", "c++", "-", "-o", str(target), "-lm", "-lc"], text)

    def note(target: Path) -> None:
        target.write_text(json.dumps(checked()[:2]))

    # What a source includes may change under it.
    key = checked().ptx if "inc" in source else source
    parts = compiler_key(), repr((options, names, of_nvcc, _nvrtc.version())), key
    encoded = [part.encode() for part in parts]
    image = _cached("kernel", ".so", encoded, make).read_bytes()
    log, lowered = json.loads(_cached("kernel", ".json", encoded, note).read_text())
    return Compiled(image, log, lowered)


def _text(header: str | bytes) -> str:
    return header if isinstance(header, str) else header.decode()


# A section and a symbol in it, by which a cubin says that there are variables.
_MARKED = [
    "--add-section=.nv.global=/dev/null",
    "--add-symbol=variables=.nv.global:0,local,object",
]


def _has_variables(image: Path) -> bool:
    """Tell whether a module has a state; not that of static variables, as shared memory is here."""
    symbols = [
        line.split() for line in _run(["nm", "-D", "--defined-only", str(image)]).splitlines()
    ]
    return any(kind in "BD" and name != "hostcuda_kernels" for _, kind, name in symbols)


def compiler_key() -> str:
    """Name what compiled kernels depend on besides their source, for the caches of others."""
    digest = hashlib.sha256(CXX.encode() + Path(__file__).read_bytes())
    if PTX:
        digest.update(" ".join(["PTX", *_processor_flags()]).encode())
        for path in ptx.FILES:
            digest.update(path.read_bytes())
    for path in (*FOLDER.glob("*.h"), *FOLDER.glob("include/**/*.h"), *FOLDER.glob("_n*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _host_options(options: Iterable[str]) -> tuple[str, ...]:
    """Answer the options about headers and macros, and those for the vendors' headers."""
    kept = []
    rest = iter(options)
    for option in rest:
        option = option.replace("--include-path=", "-I").replace("--define-macro=", "-D")
        if option in ("-I", "-D", "-U", "--include-path", "--define-macro"):
            option = {"--include-path": "-I", "--define-macro": "-D"}.get(option, option) + next(
                rest
            )
        if option[:2] in ("-I", "-D", "-U"):
            kept.append(option)
    return (*kept, *(f"-I{folder}" for folder in vendor_folders()))


_DYNAMIC = r"(?:extern\s+__shared__|__shared__\s+extern)\s+([^;\[\]]*?)(\w+)\s*\[\s*\]\s*;"
_ATTRIBUTE = r"__attribute__\s*\(\(.*?\)\)\s*"
_FIXED_WIDTH = (
    r"\btypedef\s+(?:(?:unsigned|signed|char|short|int|long)\s+)+u?int(?:8|16|32|64)_t\s*;"
)
# Of variables, which the GPU's driver finds by name all the same.
_STATIC = r"\bstatic\s+(?=(?:__(?:constant|device)__\s|(?:texture|surface)\s*<)[^;(){}]*[;={])"
_VOLATILE = r"\bvolatile\s+[\w:<>]+\s*\*\s*(\w+)\s*="
_KERNEL = rf"\b__global__\s+(?:{_ATTRIBUTE}|\w+\s+)*?(\w+)\s*\("


def _declared(text: str) -> list[str]:
    """Return the kernels of a source that NVRTC could not judge, without templates."""
    return [
        match[1]
        for match in re.finditer(_KERNEL, text)
        if not re.search(r"\btemplate\s*<", re.split(r"[;{}]", text[: match.start()])[-1])
    ]


def _host_source(text: str, checked: _nvrtc.Checked) -> str:
    """Give preprocessed CUDA C the host's words, and the table of its kernels (``kernel.h``)."""

    def row(function: str, symbol: str) -> str:
        limits = ", ".join(map(str, checked.limits.get(symbol, _nvrtc.Limits())))
        return f'hostcuda_entry<&{function}>::make("{symbol}", {{{limits}}})'

    def dynamic(match: re.Match[str]) -> str:
        kind = re.sub(_ATTRIBUTE, "", match[1])
        return f"static {kind} *const {match[2]} = ({kind} *)hostcuda_dynamic_shared;"

    # By the symbols that the GPU's driver would look for.  Templates are named by expressions.
    symbols = [*checked.limits] or _declared(text)
    names = [_nvrtc.demangled(symbol) for symbol in symbols]
    rows = {
        symbol: row(name, symbol)
        for name, symbol in zip(names, symbols, strict=True)
        if name and names.count(name) == 1  # not an overload
    }
    for name, symbol in checked.lowered.items():
        if symbol in checked.limits:  # a kernel; not a variable
            rows[symbol] = row(name, symbol)
    # Kernels older than Volta, PyCUDA's reductions among them, count on the threads of a warp
    # running in step where they write through a pointer to volatile. Here such a write waits.
    for pointer in set(re.findall(_VOLATILE, text)):
        text = re.sub(rf"(\b{pointer}\s*\[[^;]*?\]\s*=[^=;][^;]*;)", r"{ \1 __syncwarp(); }", text)
    # NVRTC has no <stdint.h>, so that sources define its types; here they are the host's.
    text = re.sub(_FIXED_WIDTH, "", text)
    text = re.sub(_DYNAMIC, dynamic, text)
    text = re.sub(r"(?:\bstatic\s+)?\b__shared__\b", "static", text)
    text = re.sub(r"\b__global__\b", "", text)
    table = "".join(f"{row}, " for row in rows.values())
    # The names that a cubin's sections have: programs look for kernels there.
    sections = "".join(rf".nv.constant0.{symbol}\0" for symbol in rows)
    return (
        f'{text}\nextern "C" hostcuda_kernel hostcuda_kernels[] = {{{table}{{}}}};\n'
        f'__attribute__((used)) static const char hostcuda_sections[] = "{sections}";\n'
    )
