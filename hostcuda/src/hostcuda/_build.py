"""Compile with g++, and keep what was compiled.

Two things are built: the driver of this folder, once per version of ``cuda.h``, and kernels.  The
real NVRTC compiles a kernel to PTX; g++ compiles the C++ that ``ptx.py`` makes of it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import _nvrtc, ptx

FOLDER = Path(__file__).resolve().parent
CXX = os.environ.get("CXX", "g++")


class CompileError(RuntimeError):
    """The compiler refused the source; its text is the message."""


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "hostcuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: Iterable[str], source: str | None = None) -> str:
    done = subprocess.run(list(command), input=source, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout


def _path(kind: str, suffix: str, parts: Iterable[bytes]) -> Path:
    """Answer the file for this content."""
    digest = hashlib.sha256()
    for part in (CXX.encode(), *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return cache_folder() / f"{kind}-{digest.hexdigest()[:24]}{suffix}"


def _cached(kind: str, suffix: str, parts: Iterable[bytes], make: Callable[[Path], None]) -> Path:
    """Answer the file for this content, made first if it is not there."""
    target = _path(kind, suffix, parts)
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
    """Find headers that nvcc would find in its toolkit: CUDA's, cuRAND's, and what they include."""
    if "HOSTCUDA_INCLUDE" not in os.environ:
        found = _nvrtc.find_files("nvidia", "*/include/curand_kernel.h")
        found += _nvrtc.find_files("cupy", "_core/include/cupy/_cccl/libcudacxx/nv")
        folders = [*(path.parent for path in found), cuda_include()]
        # For the processes of `_nvcc.py`, which do not see pip's packages.
        os.environ["HOSTCUDA_INCLUDE"] = os.pathsep.join(map(str, folders))
    return list(filter(None, os.environ["HOSTCUDA_INCLUDE"].split(os.pathsep)))


def _cuda_version(include: Path) -> int:
    found = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    return int(found[1]) if found else 0


def driver() -> Path:
    """Build the driver and answer its path."""
    if not shutil.which(CXX):
        raise FileNotFoundError(f"hostcuda: no {CXX}; install g++, or name it in CXX")
    include = cuda_include()
    apart = FOLDER / "names.cpp"  # must not see cuda.h
    sources = sorted({*FOLDER.glob("*.cpp")} - {apart}, key=lambda path: path.stat().st_size)
    headers = [*sorted(FOLDER.glob("*.h")), include / "cuda.h"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{include}"]
    # The name under which PyCUDA and CuPy ask for the driver.
    link = ["-shared", "-Wl,-soname,libcuda.so.1"]

    parts = [path.read_bytes() for path in (*sources, apart, *headers)]
    target = _path("driver", ".so", [" ".join(flags + link).encode(), *parts])
    if target.exists():
        return target
    with (cache_folder() / "driver.lock").open("w") as lock:  # other processes wait for this one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        folder = target.with_suffix(".new")
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()
        print(
            "hostcuda: compiling its driver, once for this version: 5 to 30 seconds",
            file=sys.stderr,
            flush=True,
        )
        try:
            _compile_driver(sources, [*flags, *link, str(apart)], flags, folder).replace(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _compile_driver(
    sources: list[Path], linking: list[str], flags: list[str], folder: Path
) -> Path:
    # Each file is a unit of its own. But the headers take as long as the code of five files: two
    # processes that compile half of the files each take 3 s, and not 7 (on two cores).
    running = {}
    for half in (sources[::2], sources[1::2]):
        unit = folder / f"{half[0].stem}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in half))
        command = [CXX, *flags, "-c", str(unit), "-o", str(unit.with_suffix(".o"))]
        running[unit.with_suffix(".o")] = subprocess.Popen(command, stderr=subprocess.PIPE)
    for process in running.values():
        _, errors = process.communicate()
        if process.returncode:
            raise CompileError(errors.decode())
    whole = folder / "driver.so"
    _run([CXX, *linking, *map(str, running), "-o", str(whole)])
    return whole


def library(name: str, source: str = "", *needed: str) -> Path:
    """Build a library for the dynamic linker to find by this name."""
    flags = f"-shared -fPIC -Wl,-soname,{name} -x c++ - -x none".split()
    command = [CXX, *flags, *needed, "-o"]
    parts = [part.encode() for part in (source, *needed)]
    return _cached(name, "", parts, lambda target: _run([*command, str(target)], source))


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


_KERNEL_FLAGS = """-std=c++17 -O2 -w -fPIC -shared -ffp-contract=off -fwrapv -fno-strict-aliasing
-fno-finite-loops -fno-math-errno -fvisibility=hidden -fno-exceptions -fno-rtti
-fno-asynchronous-unwind-tables -fno-gnu-unique -Wl,-Bsymbolic -nostdlib -pipe
-Wl,-init=hostcuda.none,-fini=hostcuda.none"""  # a variable may be called _init
KERNEL_FLAGS = _KERNEL_FLAGS.split()


@functools.cache
def _processor_flags() -> list[str]:
    """Return options for instructions that this processor has."""
    try:
        known = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return []
    return ["-mfma"] if "fma" in known else []


class Compiled(NamedTuple):
    """A kernel module for the host."""

    image: bytes  # for ``cuModuleLoadData``; PTX, if it is to be linked
    log: str  # NVRTC's remarks
    lowered: dict[str, str]  # the mangled names of the name expressions


def compile(
    source: str,
    options: Iterable[str] = (_nvrtc.ARCHITECTURE,),
    names: Iterable[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
    of_nvcc: bool = False,
) -> Compiled:
    """Compile CUDA C for the host: NVRTC for the GPU, and g++ what NVRTC makes.

    `options` and `headers` are NVRTC's; or `options` are nvcc's if `of_nvcc`, of which those about
    headers and macros count (``-I``, ``-D``, ``-U``).

    Raises
    ------
    CompileError
        With NVRTC's log, or with the name of what the host cannot run.
    """
    options, names = tuple(options), tuple(names)
    # CuPy's max_len_seq and partition count on threads that run in step.
    step = "state[idx] = next_state;"
    source = source.replace(step, f"__syncwarp(); {step} __syncwarp();")
    if "bitonic_sort_step" in source:
        source = re.sub(
            r"\b(?:merge|bitonic_sort|bitonic_sort_step)<[^;]*;|for \(int w = k / 2;",
            lambda call: f"__syncwarp(); {call[0]}" + " __syncwarp();" * call[0].endswith(");"),
            source,
        )

    @functools.cache
    def checked() -> _nvrtc.Checked:
        return check(source, options, names, headers, of_nvcc)

    copy = _covered_source(source)

    def make(target: Path) -> None:
        _make_image(checked().ptx, checked().limits, target, copy)

    def note(target: Path) -> None:
        target.write_text(json.dumps(checked()[:2]))

    if {"-rdc=true", "--relocatable-device-code=true", "-dc", "--device-c"} & {*options}:
        return Compiled(checked().ptx.encode(), *checked()[:2])
    # What a source includes may change under it.
    key = checked().ptx if "inc" in source else source
    parts = compiler_key(), repr((options, names, of_nvcc, _nvrtc.version(), copy)), key
    encoded = [part.encode() for part in parts]
    image = _cached("kernel", ".so", encoded, make).read_bytes()
    log, lowered = json.loads(_cached("kernel", ".json", encoded, note).read_text())
    return Compiled(image, log, lowered)


def _covered_source(source: str) -> str:
    """Write a program's source beside the file of ``--cover``; return its path, or "" without."""
    report = os.environ.get("HOSTCUDA_COVER", "")
    name = re.search(r"__global__\s+(?:__\w+__\([^)]*\)\s*)?\w+\s+(\w+)", source)
    if not report or not name or "<cupy/carray.cuh>" in source:  # CuPy makes these
        return ""
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    copy = Path(f"{os.path.abspath(report)}.sources", f"{name[1]}-{digest}.cu")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(source)
    return str(copy)


def compile_ptx(text: str) -> Path:
    """Compile PTX for the host; return the image's file.

    What a kernel needs of registers is not known.  Raise CompileError as `compile` does.
    """
    parts = compiler_key().encode(), text.encode()
    return _cached("ptx", ".so", parts, lambda target: _make_image(text, {}, target))


def _make_image(
    text: str, limits: Mapping[str, tuple[int, ...]], target: Path, source: str = ""
) -> None:
    try:
        code, made = ptx.translate(text, limits, is_checking(), source)
    except ptx.Unsupported as error:
        raise CompileError(str(error)) from None
    flags = [*KERNEL_FLAGS, *_processor_flags()]
    try:
        _run([CXX, *flags, "-x", "c++", "-", "-o", str(target), "-lm", "-lc"], code)
    except CompileError as error:
        found = re.search(r"<stdin>:(\d+):\d+: +(?:error|required)", str(error))
        if not found:
            raise
        line = code.splitlines()[int(found[1]) - 1]
        statement = made[line].text if line in made else line
        raise CompileError(str(ptx.unknown(statement))) from None


_OF_BOTH = {"std", "use_fast_math", "fmad", "ftz", "prec-div", "prec-sqrt"}  # nvcc and NVRTC
_OF_BOTH |= {"rdc", "relocatable-device-code", "dc", "device-c"}
_LINES = {"-lineinfo", "--generate-line-info", "-G", "--device-debug"}


def check(
    source: str,
    options: Sequence[str],
    names: Sequence[str] = (),
    headers: Mapping[str, str | bytes] | None = None,
    of_nvcc: bool = False,
) -> _nvrtc.Checked:
    """Compile with NVRTC, which notes the lines of the source in the PTX."""
    lines = [] if _LINES & {*options} else ["-lineinfo"]
    try:
        if of_nvcc:
            common = [o for o in options if o.lstrip("-").partition("=")[0] in _OF_BOTH]
            given = [*_host_options(options), *common, *lines]
            return _nvrtc.check_for_nvcc(source, given, _host_macros())
        return _nvrtc.check(source, [*options, *lines], names, headers)
    except _nvrtc.Refused as error:
        raise CompileError(str(error)) from None


def is_checking() -> bool:
    """Tell whether the driver looks at each access; children, such as nvcc's, inherit it."""
    return os.environ.get("HOSTCUDA_CHECK", "") not in ("", "0")


def compiler_key() -> str:
    """Name what compiled kernels depend on besides their source, for the caches of others."""
    digest = hashlib.sha256(CXX.encode() + Path(__file__).read_bytes())
    digest.update(" ".join(_processor_flags()).encode() + b"checks" * is_checking())
    digest.update(os.path.abspath(os.environ.get("HOSTCUDA_COVER") or "/").encode())
    for path in (*ptx.FILES, *FOLDER.glob("_n*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _host_options(options: Iterable[str]) -> tuple[str, ...]:
    """Answer the options about headers and macros, and those for the vendors' headers."""
    kept = []
    rest = iter(options)
    for option in rest:
        option = re.sub("^--include-path(=|$)", "-I", option)
        option = re.sub("^--define-macro(=|$)", "-D", option)
        if option in ("-I", "-D", "-U"):
            option += next(rest)
        if option[:2] in ("-I", "-D", "-U"):
            kept.append(option)
    return (*kept, *(f"-I{folder}" for folder in vendor_folders()))
