"""The cache of compiled code: a file for each source, with its options and the compiler."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import pycuda
import pycuda.driver as drv
from cupy.cuda import nvrtc

from ..errors import warn
from .headers import supplied, vendor_folders
from .nvrtc import ALWAYS, Compiled, Program
from .signature import TEMPLATE

_FORMAT = 2  # of what is kept; one more when a compilation asks for more names
# A path that may lead to a folder outside of the vendors': in an option, and in a directive.
_PATH = r"(?:[\"<]/|\.\./)"
_PATH_IN_SOURCE = re.compile(rf"(?:#|%:)(?:[^\n]*\\\r?\n)*[^\n]*{_PATH}")


def path_of(program: Program, cache_dir: Any) -> Path | None:
    """Return the path of the code in the cache; None if it is not cached."""
    # A header in the user's folders may change, or shadow one that a vendor's header includes.
    folder = None if drv.CUDA_DEBUGGING or program.folders else _folder(cache_dir)
    options = program.arch, *program.options, *program.expressions
    if folder is None or any(w in option for option in options for w in ("include", "-I", "pch")):
        return None
    text = program.translation_unit()
    if _PATH_IN_SOURCE.search(text) or any(re.search(_PATH, option) for option in options):
        return None
    digest = hashlib.sha256(repr((fingerprint(), program, text)).encode())
    return folder / f"{digest.hexdigest()}.cubin"


def get(program: Program, cache_dir: Any, compiler: Callable[[Program], Compiled]) -> Compiled:
    """Return the code of a program from the cache, or from the compiler for next time."""
    path = path_of(program, cache_dir)
    if path and (kept := load(path)):
        return kept
    compiled = compiler(program)
    if path:
        save(path, compiled)
    return compiled


def _folder(cache_dir: Any) -> Path | None:
    """Return the folder for compiled code, by default CuPy's; None for no cache."""
    if cache_dir is None and os.environ.get("CUPY_CACHE_IN_MEMORY") != "1":
        cache_dir = os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache"
    return Path(cache_dir) if cache_dir and "PYCUDA_DISABLE_CACHE" not in os.environ else None


@functools.cache
def fingerprint() -> str:
    """Identify the compiler and the headers of every compilation."""
    version = nvrtc.getVersion()  # loads the library
    compiles = nvrtc.compileProgram.__module__  # CuPy's, or what compiles for a CPU in its place
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    files = sorted(Path(name) for name in mapped if "/libnvrtc.so" in name)
    builds = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    # Installing a package changes the times of the folders.
    folders = [(folder, Path(folder).stat().st_mtime_ns) for folder in vendor_folders()]
    headers = TEMPLATE, supplied(), folders, cupy.__version__, pycuda.VERSION_TEXT
    return repr((_FORMAT, version, compiles, builds, ALWAYS, headers))


def load(path: Path) -> Compiled | None:
    """Return the code in a file; None if there is no such file, or it is damaged."""
    try:
        content = path.expanduser().read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, rest = content[:32], content[32:]  # of SHA-256
    if digest != hashlib.sha256(rest).digest():
        return None
    mangled, _, code = rest.partition(b"\n")
    return Compiled(code, json.loads(mangled))


def save(path: Path, compiled: Compiled) -> None:
    """Write code to a file, or warn."""
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
