"""Compile with g++, and keep what was compiled.

Two things are built: the driver of this folder, once per version of ``cuda.h``, and kernels: CUDA C
compiled for the host through ``device.h``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

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
    folders = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        folders += [header.parent for header in Path(root).glob("*/include/cuda.h")]
    if "CUDA_HOME" in os.environ:
        folders.append(Path(os.environ["CUDA_HOME"], "include"))
    found = [folder for folder in folders if (folder / "cuda.h").exists()]
    if not found:
        raise FileNotFoundError(
            "hostcuda: no cuda.h; install nvidia-cuda-runtime (or -cu12), or set CUDA_HOME"
        )
    return max(found, key=_cuda_version)


@functools.cache
def cuda_version() -> int:
    """Answer ``CUDA_VERSION`` of the header that the driver is built with, e.g. 12090."""
    return _cuda_version(cuda_include())


def _cuda_version(include: Path) -> int:
    found = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    return int(found[1]) if found else 0


def driver() -> Path:
    """Build the driver and answer its path."""
    include = cuda_include()
    apart = FOLDER / "refused.cpp"  # must not see cuda.h
    sources = sorted(set(FOLDER.glob("*.cpp")) - {apart})
    headers = [FOLDER / "core.h", FOLDER / "kernel.h", include / "cuda.h"]
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
    text = f'#include "{_device_header()}"\n#line 1 "kernel.cu"\n{source}\n'
    command = [CXX, *KERNEL_FLAGS, *_host_options(options), "-E", "-fpch-preprocess"]
    return _run([*command, "-x", "c++", "-"], text)


def compile(
    source: str, options: Iterable[str] = (), name_expressions: Iterable[str] = ()
) -> bytes:
    """Compile CUDA C for the host; answer the image of a shared object for ``cuModuleLoadData``.

    Of the options those about headers and macros count (``-I``, ``-D``, ``-U``); the others are for
    a GPU.

    Raises
    ------
    CompileError
        With the compiler's text.
    """
    options = _host_options(options)
    names = tuple(name_expressions)
    # A module must not share its static variables or functions with another module of equal names.
    link = ["-shared", "-fno-gnu-unique", "-fno-threadsafe-statics", "-Wl,-Bsymbolic"]

    def make(target: Path) -> None:
        text = _host_source(preprocess(source, options), names)
        command = [CXX, *KERNEL_FLAGS, *link, "-fpreprocessed", "-x", "c++", "-", "-o", str(target)]
        _run(command, text)
        if _has_variables(target):
            _run(["objcopy", *_MARKED, str(target)])

    # What the source includes may change under it.
    key = preprocess(source, options) if "inc" in source else source
    parts = (compiler_key(), repr((options, names)), key)
    return _cached("kernel", ".so", [part.encode() for part in parts], make).read_bytes()


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


def lowered_name(image: bytes, expressions: list[str], name: str) -> str:
    """Answer the mangled name of a variable's address; a kernel is found by its own text."""
    if not name.startswith("&"):
        return name
    with tempfile.NamedTemporaryFile() as file:
        file.write(image)
        file.flush()
        symbols = _run(["nm", "-D", "--defined-only", file.name])
        relocations = _run(["readelf", "-Wr", file.name])
    at = {symbol: int(address, 16) for address, _, symbol in map(str.split, symbols.splitlines())}
    used = at[f"hostcuda_use_{expressions.index(name)}"]
    target = re.search(rf"^0*{used:x} .*_RELATIVE\s+(\w+)$", relocations, re.MULTILINE)[1]
    return next(symbol for symbol in at if symbol[0] == "_" and at[symbol] == int(target, 16))


def compiler_key() -> str:
    """Name what compiled kernels depend on besides their source, for the caches of others."""
    digest = hashlib.sha256(CXX.encode())
    for path in (*FOLDER.glob("*.h"), *FOLDER.glob("include/**/*.h"), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _host_options(options: Iterable[str]) -> tuple[str, ...]:
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
    return tuple(kept)


_DYNAMIC = r"(?:extern\s+__shared__|__shared__\s+extern)\s+([^;\[\]]*?)(\w+)\s*\[\s*\]\s*;"
_ATTRIBUTE = r"__attribute__\s*\(\(.*?\)\)\s*"
_VOLATILE = r"\bvolatile\s+[\w:<>]+\s*\*\s*(\w+)\s*="
_KERNEL = rf"\b__global__\s+(?:{_ATTRIBUTE}|\w+\s+)*?(\w+)\s*\("


def _host_source(text: str, name_expressions: Iterable[str]) -> str:
    """Give preprocessed CUDA C the host's words, and the table of its kernels (``kernel.h``)."""

    def dynamic(match: re.Match[str]) -> str:
        kind = re.sub(_ATTRIBUTE, "", match[1])
        return f"static {kind} *const {match[2]} = ({kind} *)hostcuda_dynamic_shared;"

    rows = {}
    for match in re.finditer(_KERNEL, text):
        before = re.split(r"[;{}]", text[: match.start()])[-1]
        if not re.search(r"\btemplate\s*<", before):  # templates are named by expressions
            rows[match[1]] = f"hostcuda_entry<&{match[1]}>::make(nullptr)"
    uses = ""
    for index, name in enumerate(name_expressions):
        if name.startswith("&"):  # a variable's address: see `lowered_name`
            uses += f"void *hostcuda_use_{index} = {name};\n"
        else:
            rows[name] = f'hostcuda_entry<&{name}>::make("{name}")'
    # Kernels older than Volta, PyCUDA's reductions among them, count on the threads of a warp
    # running in step where they write through a pointer to volatile. Here such a write waits.
    for pointer in set(re.findall(_VOLATILE, text)):
        text = re.sub(rf"(\b{pointer}\s*\[[^;]*?\]\s*=[^=;][^;]*;)", r"{ \1 __syncwarp(); }", text)
    text = re.sub(_DYNAMIC, dynamic, text)
    text = re.sub(r"(?:\bstatic\s+)?\b__shared__\b", "static", text)
    text = re.sub(r"\b__global__\b", "", text)
    table = "".join(f"{row}, " for row in rows.values())
    return f'{text}\n{uses}extern "C" hostcuda_kernel hostcuda_kernels[] = {{{table}{{}}}};\n'
