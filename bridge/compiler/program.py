"""Compile CUDA C with NVRTC, from sources and options written for nvcc.

NVRTC has no host headers: ``include/`` replaces those that kernels use.
"""

from __future__ import annotations

import _thread
import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import pycuda
import pycuda.compiler
import pycuda.driver as drv
from cupy._core.core import assemble_cupy_compiler_options
from cupy.cuda import nvrtc

from ..errors import warn
from ..interop.contexts import run_under
from .nvcc import alignment
from .nvcc.sources import Source, mend, prepare
from .signature import TEMPLATE, expression

_FOLDER = Path(__file__).with_name("include")
# Empty headers: NVRTC or the prelude declares the parts that kernels use.
_DECLARED = """builtin_types.h ciso646 climits cmath cstdbool cstddef cstdio cstdlib cstring ctime
cuda_runtime.h cuda_runtime_api.h device_functions.h device_launch_parameters.h endian.h iso646.h
limits.h math.h math_functions.h memory.h stdbool.h stddef.h stdio.h stdlib.h string.h
surface_functions.h sys/types.h time.h vector_types.h"""
_PRELUDE, _ALIGNMENT = "bridge/prelude.h", "bridge/alignment.h"
# NVRTC searches the folder of this file for headers.  Here it has none, as in PyCUDA.
_NAME = "/dev/null/kernel.cu"
_PATIENCE = 60  # seconds
_ALWAYS = (
    f"--pre-include={_PRELUDE}",
    "--device-as-default-execution-space",  # unmarked functions are device functions
    "--device-int128",
)

# nvcc's options with a value that NVRTC spells differently, or that are read here.
_WITH_VALUE = {
    "-D": "-D",
    "-U": "-U",
    **dict.fromkeys(("-std", "--std"), "-std="),
    **dict.fromkeys(("-Xptxas", "--ptxas-options"), "--ptxas-options="),
    **dict.fromkeys(("-I", "--include-path", "-isystem", "--system-include"), "folder"),
    **dict.fromkeys(("-arch", "--gpu-architecture"), "arch"),
    **dict.fromkeys(("-code", "--gpu-code", "-gencode", "--generate-code"), "code"),
    **dict.fromkeys(("-Xcompiler", "--compiler-options"), "ignored"),
    **dict.fromkeys(("-ccbin", "--compiler-bindir", "-e", "--entries"), "ignored"),
}
# Options that NVRTC does not need: its own defaults, and options for host code.
_NEEDLESS = re.compile(
    r"-O\d?|-g|-m64|--?expt-relaxed-constexpr|(--expt|-expt|-)-extended-lambda"
    r"|-Wno-deprecated-gpu-targets|--?allow-unsupported-compiler"
)
# NVRTC accepts these linker options, but the code could not be loaded.
_REFUSED = re.compile(
    r"(-rdc|--relocatable-device-code)(=true)?|-d[cw]|--device-[cw]|-dlto|--dlink-time-opt"
)


def translate(options: Iterable[str]) -> tuple[str | None, list[str], list[str]]:
    """Translate nvcc's options: return the architecture, header folders and NVRTC's options."""
    arch: list[str] = []
    code: list[str] = []
    folders, rest = [], []
    pending = iter(options)
    for option in pending:
        name, separator, value = option.partition("=")
        if option[:2] in ("-D", "-U", "-I") and len(option) > 2:
            name, separator, value = option[:2], "=", option[2:].removeprefix("=")
        kind = _WITH_VALUE.get(name)
        if option in ("-res-usage", "--resource-usage"):
            _ignore(option)
            continue
        if kind is None:
            if _REFUSED.fullmatch(option):
                raise ValueError(
                    f"SourceModule: the option {option} means nothing to NVRTC: it is for the "
                    "linker; leave it out, or compile with backend='nvcc' or "
                    "pycuda.compiler.DynamicSourceModule"
                )
            if not _NEEDLESS.fullmatch(option):
                rest.append(option)
            continue
        value = (value if separator else next(pending, "")).strip()
        if not value:
            raise ValueError(
                f"SourceModule: the option {name} has no value; give it one, in the same item "
                "of the list or in the next"
            )
        if kind == "ignored":
            _ignore(f"{name} {value}")
        elif kind == "folder":
            folders.append(value)
        elif kind == "arch":
            arch += [value] if value != "native" else []
        elif kind == "code":  # -gencode arch=compute_90,code=sm_90 names it last
            code += re.findall(r"(?:sm|compute)_\w+", value.rpartition("code=")[2]) or [value]
        elif kind == "--ptxas-options=":
            rest += [kind + part for part in re.split(r"[,\s]+", value)]
        else:
            rest.append(kind + value)
    wanted = set(code or arch)
    if len(wanted) > 1:
        raise ValueError(
            f"SourceModule: code for {' and '.join(sorted(wanted))} is asked for; NVRTC compiles "
            "for one architecture: name one, or none for the current device's"
        )
    return wanted.pop() if wanted else None, folders, rest


def _ignore(option: str) -> None:
    warn(f"the option {option} has no meaning for NVRTC: it is ignored")


class Compiled(NamedTuple):
    """The result of a compilation."""

    code: bytes  # a cubin, or PTX for ``compute_*``
    mangled: dict[str, str]  # the names of the valid expressions
    log: str = ""  # NVRTC's remarks


class Request(NamedTuple):
    """What to compile: the arguments of ``pycuda.compiler.compile``, in their order."""

    source: str
    nvcc: str
    options: list[str]
    keep: bool
    no_extern_c: bool
    arch: str | None
    code: str | None
    cache_dir: Any
    include_dirs: list[str]


def compile(
    request: Request,
    default_arch: str,
    kernels: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Compiled:
    """Compile a request with NVRTC, and return the mangled names of `kernels` with the code.

    `options` are passed to NVRTC as they are.
    """
    given = list(request.options)
    for name, value in (("-arch", request.arch), ("-code", request.code)):
        given += [name, value] if value is not None else []
    arch, folders, translated = translate(given)
    arch, folders = arch or default_arch, [*folders, *request.include_dirs]
    keep = request.keep or drv.CUDA_DEBUGGING
    options = [*translated, *options, *["-G"] * drv.CUDA_DEBUGGING]
    # Not as options: the prelude may use the names.  But it asks for NDEBUG, as assert.h does.
    defined = [option for option in options if option[:2] in ("-D", "-U")]
    macros = "".join(map(_directive, defined))

    def wrap(text: str) -> str:
        text = f'#line 1 "kernel.cu"\n{text}'  # keeps the user's line numbers
        return macros + (text if request.no_extern_c else f'extern "C" {{\n{text}\n}}\n')

    expressions = [*kernels, *map(expression, kernels)]
    # Not with folders: a header there may change, or shadow one that a vendor's header includes.
    cache = None if drv.CUDA_DEBUGGING or folders else _cache_folder(request.cache_dir)
    path = _place(cache, wrap(request.source), (arch, *options, *expressions)) if cache else None
    if path and (kept := _load(path)) is not None:
        return kept
    searched = [f"-I{folder}" for folder in (*folders, *vendor_folders())]
    others = [o for o in options if o not in defined or o.partition("=")[0] == "-DNDEBUG"]
    every = [f"-arch={arch}", *_ALWAYS, *others, *searched]
    with _starting:
        _start()
    source = prepare(
        alignment.apply(
            request.source, options, folders, lambda text: _parse(wrap(text), every, folders)
        ),
        any("expt-relaxed-constexpr" in option for option in request.options),
    )
    while not isinstance(
        compiled := _run_patiently(source, wrap, every, folders, expressions), Compiled
    ):
        mended = mend(source, compiled)
        if mended is None:
            raise _explain(every, compiled, not request.no_extern_c, source)
        source = mended
    if path:
        _save(path, compiled)
    if keep:
        folder = Path(tempfile.mkdtemp())
        (folder / "kernel.cu").write_text(wrap(source.text), encoding="utf-8")
        (folder / "kernel.cubin").write_bytes(compiled.code)
        print(f"*** compiler output in {folder}")
    if remarks := "\n".join(filter(None, (_left_out(source), compiled.log))):
        warn(f"NVRTC compiled the source, but says:\n{remarks}")
    return compiled


def _directive(option: str) -> str:
    if option.startswith("-U"):
        return f"#undef {option[2:]}\n"
    name, _, value = option[2:].partition("=")
    return f"#define {name} {value if '=' in option else 1}\n"


@functools.cache
def _headers() -> dict[str, bytes]:
    """Return the headers that replace files of the same name."""
    files = filter(Path.is_file, _FOLDER.rglob("*"))
    found = {str(path.relative_to(_FOLDER)): path.read_bytes() for path in files}
    return dict.fromkeys(_DECLARED.split(), b"") | found


@functools.cache
def vendor_folders() -> tuple[str, ...]:
    """Return the header folders of PyCUDA, of CuPy (CCCL) and of the CUDA that CuPy finds."""
    found = [o[2:] for o in assemble_cupy_compiler_options(()) if o.startswith("-I")]
    for folder in tuple(found):
        # Each pip package for CUDA 12 has its own folder, and CuPy names only the runtime's.
        for package, header in ("curand", "curand_kernel.h"), ("cuda_nvcc", "crt/mma.h"):
            other = Path(folder).parents[1] / package / "include"
            if (other / header).exists():
                found.append(str(other))
    return pycuda.compiler._find_pycuda_include_path(), *found


def _create(source: str, folders: Sequence[str], of_host: Sequence[str] = ()) -> int:
    headers = {
        name: text
        for name, text in {**_headers(), **dict(map(_replacement, of_host))}.items()
        if not any(Path(folder, name).is_file() for folder in folders)  # the user's own comes first
    }
    names = [name.encode() for name in headers]
    program: int = nvrtc.createProgram(source, _NAME, list(headers.values()), names)
    return program


def _replacement(name: str) -> tuple[str, bytes]:
    """Return a header of the C++ library: what CCCL has of it, or else an empty one."""
    if not any(Path(folder, "cuda/std", name).is_file() for folder in vendor_folders()):
        return name, b""
    text = f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}"
    return name, f'extern "C++" {{\n{text}\n}}\n'.encode()


def _parse(source: str, options: Sequence[str], folders: Sequence[str]) -> str:
    """Return the log of NVRTC's front end about the source's alignments."""
    before, *others = (o for o in options if o not in ("-w", "--disable-warnings"))
    program = _create(source, folders)
    try:
        given = before, f"--pre-include={_ALIGNMENT}", "--fdevice-syntax-only", *others
        with suppress(nvrtc.NVRTCError):  # the compilation itself shows an error of the source
            nvrtc.compileProgram(program, given)
        return _log(program)
    finally:
        nvrtc.destroyProgram(program)


def _run_patiently(*arguments: Any) -> Compiled | str:
    """Run NVRTC on a thread: some sources take it very long, and an interrupt must not wait."""
    found: list[Any] = []

    def work() -> None:
        sys.settrace(threading.gettrace())  # as threading.Thread does
        sys.setprofile(threading.getprofile())
        try:
            found.append(_run(*arguments))
        except BaseException as error:
            found.append(error)

    ended = threading.Lock()
    ended.acquire()
    _thread.start_new_thread(run_under, (drv.Context.get_current(), work, ended))
    if not ended.acquire(timeout=_PATIENCE):
        warn(
            "NVRTC has been compiling the source for a minute; some sources on which NVRTC 12.9 "
            "does not end compile with 13.0, or with backend='nvcc'"
        )
        ended.acquire()
    if isinstance(found[0], BaseException):
        raise found[0]
    result: Compiled | str = found[0]
    return result


def _run(
    source: Source,
    wrap: Callable[[str], str],
    options: Sequence[str],
    folders: Sequence[str],
    expressions: Sequence[str],
) -> Compiled | str:
    """Return the code, or NVRTC's log if it has errors."""
    text = wrap(source.text)
    program = _create(text + TEMPLATE if expressions else text, folders, source.of_host)
    headers = [f"--pre-include={name}" for name in source.headers]
    try:
        for name in expressions:
            nvrtc.addNameExpression(program, name)
        nvrtc.compileProgram(program, (*options[:2], *headers, *options[2:]))
        ptx = any(option.startswith("-arch=compute_") for option in options)
        code = (nvrtc.getPTX if ptx else nvrtc.getCUBIN)(program)
        mangled = {name: nvrtc.getLoweredName(program, name) for name in expressions}
        return Compiled(code, mangled, _log(program))
    except nvrtc.NVRTCError as error:
        log = _log(program) or str(error)
    finally:
        nvrtc.destroyProgram(program)
    if not expressions:
        return log
    # An expression is invalid if a macro leaves the kernel out, or if it is overloaded.
    wrong = set(_WRONG.findall(log)) & set(expressions) or expressions
    left = [name for name in expressions if name not in wrong]
    return _run(source, wrap, options, folders, left)


def _log(program: int) -> str:
    log: str = nvrtc.getProgramLog(program)
    return log.strip("\0\n ").replace(_NAME, "kernel.cu")


_WRONG = re.compile(r"#pragma nv_mangled_name (.*)")
# In a header, C++ that may not stand inside of extern "C" can be an overload as well.
_IN_EXTERN_C = r"(?m)may not have extern \"C\" linkage|^(?!kernel\.cu\().*has \"C\" linkage"
_NO_HEADERS = "no headers of the host (<cuda/std/...> has parts of the C++ library for kernels)"
_HINTS = {
    _IN_EXTERN_C: (
        'the source is compiled inside of extern "C"; for templates and other C++ pass '
        'no_extern_c=True, put extern "C" before kernels, and list instances of kernels that are '
        'templates: name_expressions=["scale<float>"]'
    ),
    r"(?m)^kernel\.cu\(.*overloaded function .* has \"C\" linkage": (
        "CUDA, or the source, has another function of that name: rename one"
    ),
    r"identifier \"u?int\d+_t\" is undefined": "write #include <cstdint>",
    r"identifier \"cuda[A-Z]\w*\" is undefined|<<<": (
        "NVRTC compiles device code only: leave host code, such as main, cudaMalloc and <<<...>>>, "
        "out of the source"
    ),
    r"not open source file \"crt/": (
        "<mma.h> needs headers of the pip package nvidia-cuda-nvcc-cu12 (for CUDA 13: "
        "nvidia-cuda-crt), or of a toolkit (CUDA_PATH)"
    ),
    r"not open source file \"(cu|nv)[^\"]*\.": (
        "CUDA's headers come with a toolkit (CUDA_PATH) or from pip (curand_kernel.h: "
        "nvidia-curand-cu12 or nvidia-curand); name the folder of your own in include_dirs"
    ),
    r"not open source file \"(?!cu|nv|crt/)[^\"]*\.": (
        "the header is not found: name its folder, include_dirs=['...']"
    ),
    r"not open source file \"[^\".]*\"": f"NVRTC has {_NO_HEADERS}",
}


def _left_out(source: Source) -> str:
    errors = "\n".join(source.left_out)
    return errors and f"Host code is left out, where NVRTC found errors:\n{errors}"


def _explain(options: Sequence[str], log: str, in_extern_c: bool, source: Source) -> Exception:
    text = log.removeprefix("nvrtc: error: ")
    if text != log:
        return ValueError(
            f"SourceModule: NVRTC refuses the options ({options[0]} ...): {text}; leave out "
            "options that it does not support, or compile with backend='nvcc'"
        )
    hints = [
        hint
        for pattern, hint in _HINTS.items()
        if re.search(pattern, log) and (in_extern_c or pattern != _IN_EXTERN_C)
    ]
    if not in_extern_c and re.search(r"may not have extern \"C\" linkage", log):
        hints.append('move templates and other C++ out of the source\'s own extern "C" { }')
    if source.of_host:
        names = ", ".join(f"<{name}>" for name in source.of_host)
        hints.append(f"NVRTC has {_NO_HEADERS}: what it lacks of {names} is left out")
    message = "; ".join(["NVRTC could not compile the source", *hints])
    log = "\n\n".join(filter(None, (log, _left_out(source))))
    shown = [o for o in options if o not in _ALWAYS and not o.startswith("-I")]
    error: Exception = drv.CompileError(message, ["nvrtc", *shown], stderr=log)
    return error


# A path in a source that may lead to a folder outside of the vendors'.
_PATH = re.compile(r"[\"<]/|\.\./")


def _place(cache: Path, source: str, options: Sequence[str]) -> Path | None:
    """Return the path of the code in the cache; None if the source may include a user's file."""
    if any(word in option for option in options for word in ("include", "-I", "pch")):
        return None
    if any(map(_PATH.search, (source, *options))):
        return None
    digest = hashlib.sha256(repr((_version(), options, source)).encode())
    return cache / f"{digest.hexdigest()}.cubin"


# NVRTC 13.0 fails if two first compilations run at once ("failed to open libnvrtc-builtins").
_starting = threading.Lock()


@functools.cache
def _start() -> None:
    """Compile nothing."""
    program = nvrtc.createProgram("", "empty.cu", [], [])
    try:
        nvrtc.compileProgram(program, ())
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def _version() -> str:
    """Identify the compiler and the headers of every compilation."""
    version = nvrtc.getVersion()  # loads the library
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    files = sorted(Path(name) for name in mapped if "/libnvrtc.so" in name)
    builds = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    # Installing a package changes the times of the folders.
    folders = [(folder, Path(folder).stat().st_mtime_ns) for folder in vendor_folders()]
    headers = TEMPLATE, _headers(), folders, cupy.__version__, pycuda.VERSION_TEXT
    return repr((version, builds, _ALWAYS, headers))


def _load(path: Path) -> Compiled | None:
    try:
        content = path.expanduser().read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, rest = content[:32], content[32:]  # of SHA-256
    if digest != hashlib.sha256(rest).digest():
        return None
    mangled, _, code = rest.partition(b"\n")
    return Compiled(code, json.loads(mangled))


def _save(path: Path, compiled: Compiled) -> None:
    try:
        path = path.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Write a new file, then replace: other processes may read or write this one.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder, path.name)
            content = json.dumps(compiled.mangled).encode() + b"\n" + compiled.code
            new.write_bytes(hashlib.sha256(content).digest() + content)
            new.replace(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        warn(
            f"SourceModule: compiled code is not kept for next time: {error}; name a folder in "
            "CUPY_CACHE_DIR or cache_dir"
        )


def _cache_folder(cache_dir: Any) -> Path | None:
    """Return the folder for compiled code, by default CuPy's; None for no cache."""
    if "PYCUDA_DISABLE_CACHE" in os.environ:
        return None
    if cache_dir is not None:
        return Path(cache_dir) if cache_dir else None
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return None
    return Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache")


def architecture(capability: int) -> str:
    """Return the best target for a device: its architecture, or PTX if NVRTC does not know it."""
    known = nvrtc.getSupportedArchs()
    if capability in known:
        return f"sm_{capability}"
    return f"compute_{max((n for n in known if n < capability), default=capability)}"
