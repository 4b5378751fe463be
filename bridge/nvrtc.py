"""Compile CUDA C with NVRTC, from sources and options written for nvcc.

NVRTC has no headers of the host: ``include/`` replaces the ones that kernels use.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cupy
import pycuda
import pycuda.compiler
import pycuda.driver as drv
from cupy._core.core import assemble_cupy_compiler_options
from cupy.cuda import nvrtc

_FOLDER = Path(__file__).with_name("include")
# Empty headers: NVRTC or the prelude declares what kernels use of them.
_DECLARED = """builtin_types.h climits cmath cstddef cstdio cstdlib cstring cuda.h
cuda_runtime.h cuda_runtime_api.h device_functions.h device_launch_parameters.h limits.h math.h
math_functions.h memory.h stdbool.h stddef.h stdio.h stdlib.h string.h sys/types.h time.h
vector_types.h"""
_PRELUDE = "bridge/prelude.h"
# NVRTC searches the folder of this name for headers: there is none, as with PyCUDA.
_NAME = "/dev/null/kernel.cu"
_ALWAYS = (
    f"--pre-include={_PRELUDE}",
    "--device-as-default-execution-space",  # functions without a word are for the device
    "--device-int128",
)

# nvcc's options with a value: those that NVRTC spells otherwise, or that are read here.
_WITH_VALUE = {
    "-D": "-D",
    "-U": "-U",
    **dict.fromkeys(("-std", "--std"), "-std="),
    **dict.fromkeys(("-Xptxas", "--ptxas-options"), "--ptxas-options="),
    **dict.fromkeys(("-I", "--include-path", "-isystem", "--system-include"), "folder"),
    **dict.fromkeys(("-arch", "--gpu-architecture"), "arch"),
    **dict.fromkeys(("-code", "--gpu-code", "-gencode", "--generate-code"), "code"),
}
# Options for what NVRTC does anyway, or for host code.
_NEEDLESS = re.compile(
    r"-O\d?|-g|-m64|--?expt-relaxed-constexpr|(--expt|-expt|-)-extended-lambda"
    r"|-Wno-deprecated-gpu-targets|--?allow-unsupported-compiler"
)
# The linker's would be accepted by NVRTC, for code that cannot be loaded.
_REFUSED = re.compile(
    r"(-Xcompiler|--compiler-options)(=.*)?"
    r"|(-rdc|--relocatable-device-code)(=true)?|-d[cw]|--device-[cw]|-dlto|--dlink-time-opt"
)


def translate(options: Iterable[str]) -> tuple[str | None, list[str], list[str]]:
    """Return what nvcc's options ask for: architecture, folders of headers, NVRTC's options."""
    arch: list[str] = []
    code: list[str] = []
    folders, rest = [], []
    pending = iter(options)
    for option in pending:
        name, separator, value = option.partition("=")
        if option[:2] in ("-D", "-U", "-I") and len(option) > 2:
            name, separator, value = option[:2], "=", option[2:].removeprefix("=")
        kind = _WITH_VALUE.get(name)
        if kind is None:
            if _REFUSED.fullmatch(option):
                raise ValueError(
                    f"SourceModule: the option {option} means nothing to NVRTC: it is for nvcc's "
                    "host compiler or linker; leave it out, or compile with backend='nvcc' or "
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
        if kind == "folder":
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


def compile(
    source: str,
    options: Sequence[str],
    folders: Sequence[str],
    cache: Path | None,
    default_arch: str,
) -> tuple[bytes, str]:
    """Compile CUDA C; return the code (a cubin, or PTX for ``compute_*``) and NVRTC's remarks.

    `options` are nvcc's.  Headers are searched in the options' folders, then in `folders`.  The
    code is kept in the folder `cache`.  `default_arch` is used if the options name none.
    """
    with _starting:
        _version()
    arch, own, rest = translate(options)
    arch = arch or default_arch
    folders = [*own, *folders]
    # A header there may change at any time, or shadow one that a vendor's header includes.
    path = _place(cache, source, (arch, *rest)) if cache and not folders else None
    if path and (kept := _load(path)) is not None:
        return kept, ""
    searched = [f"-I{folder}" for folder in (*folders, *_vendor_folders())]
    code, log = _run(source, (f"-arch={arch}", *_ALWAYS, *rest, *searched), folders)
    if path:
        _save(path, code)
    return code, log


@functools.cache
def _headers() -> dict[str, bytes]:
    """Return the headers that replace files of the same name."""
    text = {path.name: path.read_bytes() for path in _FOLDER.glob("*.h")}
    names = {"stdint.h": ["stdint.h", "cstdint", "inttypes.h", "cinttypes"]}
    names |= {"float.h": ["float.h", "cfloat"], "assert.h": ["assert.h", "cassert"]}
    names |= {"prelude.h": [_PRELUDE]}
    found = {name: text[file] for file, aliases in names.items() for name in aliases}
    return dict.fromkeys(_DECLARED.split(), b"") | found


@functools.cache
def _vendor_folders() -> tuple[str, ...]:
    """Return the folders of PyCUDA's headers, CuPy's (CCCL) and those of CUDA that CuPy finds."""
    found = [o[2:] for o in assemble_cupy_compiler_options(()) if o.startswith("-I")]
    for folder in tuple(found):
        # pip's packages for CUDA 12 have a folder each, and CuPy names only the runtime's.
        curand = Path(folder).parents[1] / "curand" / "include"
        if (curand / "curand_kernel.h").exists():
            found.append(str(curand))
    return pycuda.compiler._find_pycuda_include_path(), *found


def _run(source: str, options: tuple[str, ...], folders: Sequence[str]) -> tuple[bytes, str]:
    headers = {
        name: text
        for name, text in _headers().items()
        if not any(Path(folder, name).is_file() for folder in folders)  # the user's own comes first
    }
    names = [name.encode() for name in headers]
    program = nvrtc.createProgram(source, _NAME, list(headers.values()), names)
    try:
        nvrtc.compileProgram(program, options)
        ptx = any(option.startswith("-arch=compute_") for option in options)
        code = (nvrtc.getPTX if ptx else nvrtc.getCUBIN)(program)
        return code, _log(program)
    except nvrtc.NVRTCError as error:
        raise _explain(options, _log(program) or str(error)) from None
    finally:
        nvrtc.destroyProgram(program)


def _log(program: int) -> str:
    log: str = nvrtc.getProgramLog(program)
    return log.strip("\0\n ").replace(_NAME, "kernel.cu")


_HINTS = {
    r"\b(texture|surface) is not a template|\btextureReference": (
        "texture references are gone since CUDA 12: take a `cudaTextureObject_t` as an argument "
        "instead, and pass a cupy.cuda.texture.TextureObject"
    ),
    r"may not have extern \"C\" linkage|has \"C\" linkage": (
        'the source is compiled inside of extern "C"; for C++ pass no_extern_c=True, and put '
        'extern "C" before the kernels'
    ),
    r"could not open source file|cannot open source file": (
        "NVRTC has no host headers; name the folder of a header of yours in include_dirs. CUDA's "
        "come with a toolkit (CUDA_PATH) or from pip (curand_kernel.h: nvidia-curand-cu12 or "
        "nvidia-curand)"
    ),
    r"identifier \"__shfl(_up|_down|_xor)?\" is undefined|vote.* without .*sync": (
        "warp functions take the mask of their threads since CUDA 9: __shfl_down_sync("
        "0xffffffff, ...)"
    ),
}


def _explain(options: tuple[str, ...], log: str) -> Exception:
    text = log.removeprefix("nvrtc: error: ")
    if text != log:
        return ValueError(
            f"SourceModule: NVRTC refuses the options ({options[0]} ...): {text}; leave out what "
            "is not for it, or compile with backend='nvcc'"
        )
    hints = [hint for pattern, hint in _HINTS.items() if re.search(pattern, log)]
    message = "; ".join(["NVRTC could not compile the source", *hints])
    error: Exception = drv.CompileError(message, ["nvrtc", *options], stderr=log)
    return error


# What may read a file.  Group 1: the name, in a plain #include of a header that lies in a folder
# given to NVRTC.  Not there: an absolute path, a macro, an odd spelling.
_READS = re.compile(
    r"(?:#|%:)\s*(?:/\*|embed|import|include(?:\s*[\"<](\w[\w+-]*(?:[./][\w+-]+)*)[\">])?)"
    r"|__has_include|\?\?[=/]"
)


def _place(cache: Path, source: str, options: Sequence[str]) -> Path | None:
    """Return the path of the code in the cache; None if a file of the user's may be read."""
    if any(word in option for option in options for word in ("include", "-I", "pch")):
        return None
    digest = hashlib.sha256(repr((_version(), options, source)).encode())
    for found in _READS.finditer(re.sub(r"\\\r?\n", "", source)):
        name = found[1]
        if name in _headers():  # which are part of `_version`
            continue
        paths = [Path(folder, name) for folder in _vendor_folders() if name]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return None
        # The headers that it includes change with it, when another version is installed.
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\0".encode())
    return cache / f"{digest.hexdigest()}.cubin"


# NVRTC 13.0 fails if two first compilations run at once ("failed to open libnvrtc-builtins").
_starting = threading.Lock()


@functools.cache
def _version() -> str:
    """Name the compiler and the headers that go with every source."""
    program = nvrtc.createProgram("", "empty.cu", [], [])
    try:  # the comments of any PTX name the compiler's build
        nvrtc.compileProgram(program, ())
        ptx = nvrtc.getPTX(program).decode()
    finally:
        nvrtc.destroyProgram(program)
    build = [line for line in ptx.splitlines() if line.startswith("//")]
    headers = _headers(), _vendor_folders(), cupy.__version__, pycuda.VERSION_TEXT
    return repr((nvrtc.getVersion(), build, _ALWAYS, headers))


_DIGEST_BYTES = 32


def _load(path: Path) -> bytes | None:
    try:
        content = path.expanduser().read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if digest == hashlib.sha256(code).digest() else None


def _save(path: Path, code: bytes) -> None:
    try:
        path = path.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Elsewhere first: other processes may read or write it.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder, path.name)
            new.write_bytes(hashlib.sha256(code).digest() + code)
            new.replace(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        warnings.warn(
            f"SourceModule: compiled code is not kept for next time: {error}; name a folder in "
            "CUPY_CACHE_DIR or cache_dir",
            stacklevel=7,
        )


def cache_folder(cache_dir: Any) -> Path | None:
    """Return the folder for compiled code, by default CuPy's; None for no cache."""
    if "PYCUDA_DISABLE_CACHE" in os.environ:
        return None
    if cache_dir is not None:
        return Path(cache_dir) if cache_dir else None
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return None
    return Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache")


def architecture(device_id: int) -> str:
    """Return the best target for a device: its own code, or PTX if NVRTC does not know it."""
    capability = int(cupy.cuda.Device(device_id).compute_capability)
    known = nvrtc.getSupportedArchs()
    if capability in known:
        return f"sm_{capability}"
    return f"compute_{max((n for n in known if n < capability), default=capability)}"
