#!/usr/bin/env python3
"""Build PyCUDA from PyPI alone: no CUDA toolkit, no driver, no GPU.

Run it with the interpreter of the environment that PyCUDA is for::

    python3 -m venv env && env/bin/python tools/build_pycuda.py --cuda 12

PyPI has PyCUDA as source only. It wants CUDA's headers, libcurand and libcuda. The tricks:

*Headers, libcurand* are in NVIDIA's wheels, which ``cuda-toolkit`` requires; its minor version is
pinned, else pip mixes releases. They have ``libcurand.so.10``; the linker wants a ``libcurand.so``:
hence a symlink. A relative rpath finds it from site-packages/pycuda at run time. ``curand.h``
includes ``crt/host_config.h``, which is in the wheel ``nvcc`` of CUDA 12, 95 MB, and ``crt`` of
CUDA 13: that wheel is installed in a temporary folder.

*libcuda* belongs to the driver, and no wheel has it. To link, a stand-in of the same name (soname
``libcuda.so.1``) will do, with an empty function for each name in ``cuda.h``. Without these, a
linker that drops unused libraries drops it, and the import fails with 'undefined symbol'. The
stand-in also lets PyCUDA be imported once, as a check, where there is no driver.

*Configuration* has one place when pip builds PyCUDA, ``~/.aksetup-defaults.py``, so the build has
a private HOME with that file in it. It wins over the toolkit of an ``nvcc`` on PATH; without it
``setup.py`` waits three times 10 seconds. PyCUDA's C++ only forwards calls to the driver, so
``-O1 -g0`` costs nothing, and takes 0.65 MB instead of 5.5. The file is Python, which ``setup.py``
runs: it also makes setuptools compile two units instead of 40, in 27 s of CPU instead of 76, since
most of that are Boost's headers.

*Cache*: pip's does not know which CUDA a wheel was built for; ours has a folder per CUDA version.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # said before what an older one cannot run
    sys.exit(f"build_pycuda: Python 3.10 or newer is needed, and this is {sys.version.split()[0]}")

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import NoReturn

# Per major version: the release, the wheel of crt/host_config.h, and where in site-packages headers
# and libcurand are. The wheels of CUDA 12 have a folder each, which may lie beside those of 13.
CUDA = {
    "12": ("12.9", "nvidia-cuda-nvcc-cu12", "nvidia/cu[!0-9]*", "nvidia/curand"),
    "13": ("13.0", "nvidia-cuda-crt", "nvidia/cu13", "nvidia/cu13"),
}
LIBRARIES = "cuda-toolkit[cudart,nvrtc,curand,profiler]=={}.*"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pycuda-cupy-bridge"
SITE = Path(sysconfig.get_path("platlib"))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]

# Compiles two units side by side: the wrapper of the driver, and all the rest, which is as large.
UNITS = """
from distutils.ccompiler import CCompiler

def compile(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
            extra_preargs=None, extra_postargs=None, depends=None):
    from multiprocessing.pool import ThreadPool
    from os.path import abspath
    large = [name for name in sources if name.endswith("wrap_cudadrv.cpp")]
    if large:
        with open("rest.cpp", "w") as file:
            for name in sorted(set(sources) - set(large)):
                print(f'#include "{abspath(name)}"', file=file)
        sources = [*large, "rest.cpp"]
    _, objects, extra, options, sources_of = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    arguments = self._get_cc_args(options, debug, extra_preargs)
    with ThreadPool() as pool:
        pool.map(lambda name: self._compile(
            name, *sources_of[name], arguments, extra, options), sources_of, 1)
    return objects

CCompiler.compile = compile
del CCompiler, compile  # the rest is PyCUDA's configuration
"""

# Says which PyCUDA is installed and what for. Takes the driver's own libcuda where there is one.
CHECK = """
import ctypes, sys
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    ctypes.CDLL(sys.argv[1])
import pycuda.gpuarray, pycuda.driver
print(pycuda.VERSION_TEXT, "for CUDA", "%d.%d" % pycuda.driver.get_version()[:2])
"""


def main() -> None:
    args = parse_args()
    compiler = find_compiler()
    if args.check:
        return
    release, crt, headers, curand = CUDA[args.cuda]
    wanted = f"{args.version} for CUDA {release}"
    with tempfile.TemporaryDirectory(prefix="build_pycuda-") as folder:
        work = Path(folder)
        say(f"CUDA {release} headers and libraries -> {SITE / 'nvidia'}")
        install(LIBRARIES.format(release))
        includes = sorted(SITE.glob(f"{headers}/include"))
        make_libcuda(work / "libcuda.so", includes, compiler)
        if installed(work)[0] == wanted:
            say(f"PyCUDA {wanted} is installed already")
            return
        wheel = args.wheel_dir.expanduser().resolve() / f"cuda{release}" / wheel_name(args.version)
        if not wheel.exists():
            say(f"compiling PyCUDA {wanted}: half a minute")
            install("--no-deps", "--target", str(work), f"{crt}=={release}.*")
            includes += work.glob("nvidia/*/include")
            (work / "libcurand.so").symlink_to(SITE / curand / "lib/libcurand.so.10")
            write_config(work, includes, f"$ORIGIN/../{curand}/lib")
            build(work, args.version, compiler, wheel)
        if args.wheel:
            return
        say(f"{wheel} -> {SITE / 'pycuda'}")
        # By force: to pip a PyCUDA of this version is this PyCUDA, whatever CUDA it was built for.
        install("--force-reinstall", "--no-deps", str(wheel))
        install("numpy", f"pycuda=={args.version}")
        found, error = installed(work)
        if found != wanted:
            fail(f"wanted PyCUDA {wanted}, got {found or error}; remove {wheel} to build it anew")
    say(f"PyCUDA {wanted} is installed, and imports")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Build PyCUDA against the CUDA headers of NVIDIA's wheels and install it for "
        "this interpreter. Needs a C++ compiler, Python's headers and PyPI, but no CUDA toolkit "
        "and no GPU. Takes half a minute, or seconds with the wheel in the cache.",
        epilog="The variable CXX chooses the C++ compiler.",
    )
    parser.add_argument("--cuda", choices=CUDA, default="12", help="CUDA's major (%(default)s)")
    parser.add_argument("--version", default="2026.1", help="version of PyCUDA (%(default)s)")
    parser.add_argument("--wheel-dir", type=Path, default=CACHE, help="cache (%(default)s)")
    parser.add_argument("--check", action="store_true", help="only look for compiler and headers")
    parser.add_argument("--wheel", action="store_true", help="only build the wheel in the cache")
    return parser.parse_args()


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler; end here if that or Python.h is missing."""
    if not sys.platform.startswith("linux"):
        fail("this works on Linux only")
    names = (os.environ.get("CXX"), sysconfig.get_config_var("CXX"), "c++", "g++", "clang++")
    found = [shlex.split(name) for name in names if name and shutil.which(shlex.split(name)[0])]
    if not found:
        fail("no C++ compiler: install one (apt install g++), or name yours in the variable CXX")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        fail("no Python.h: install the headers of this Python (apt install python3-dev)")
    return found[0]


def make_libcuda(path: Path, includes: list[Path], compiler: list[str]) -> None:
    """Make a libcuda.so to link against: a function for each name of the driver API."""
    headers = [folder / name for folder in includes for name in ("cuda.h", "cudaProfiler.h")]
    text = "".join(header.read_text() for header in headers if header.exists())
    functions = sorted(set(re.findall(r"\bcu[A-Z]\w+", text)))
    source = path.with_suffix(".c")
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in functions))
    options = ["-x", "c", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    run([*compiler, *options, "-o", str(path), str(source)], "cannot make a stand-in for libcuda")


def write_config(home: Path, includes: list[Path], rpath: str) -> None:
    """Put PyCUDA's configuration into `home`, beside links to what pip and compilers look for."""
    config = {
        "CUDA_INC_DIR": [str(path) for path in includes],
        "CUDADRV_LIB_DIR": [str(home)],
        "CURAND_LIB_DIR": [str(home)],
        "CXXFLAGS": ["-O1", "-g0", "-w"],
        "LDFLAGS": [f"-Wl,-rpath,{rpath}"],
    }
    lines = [f"{name} = {value!r}\n" for name, value in config.items()]
    (home / ".aksetup-defaults.py").write_text(UNITS + "".join(lines))
    for name in (".config", ".pip", ".netrc", ".cache"):
        if (Path.home() / name).exists():
            (home / name).symlink_to(Path.home() / name)


def wheel_name(version: str) -> str:
    """Return the file name of PyCUDA's wheel for this interpreter and machine."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    return f"pycuda-{version}-{python}-{python}{sys.abiflags}-{platform}.whl"


def build(home: Path, version: str, compiler: list[str], wheel: Path) -> None:
    """Build PyCUDA as the configuration in `home` says, and put the wheel into the cache."""
    options = ["--no-cache-dir", "--no-deps", "--no-binary", "pycuda", "-w", str(home)]
    env = {**os.environ, "HOME": str(home), "CXX": shlex.join(compiler)}
    run([*PIP, "wheel", *options, f"pycuda=={version}"], "cannot build PyCUDA", env)
    wheel.parent.mkdir(parents=True, exist_ok=True)
    partial = wheel.with_suffix(f".{os.getpid()}")  # renamed when whole: others share this cache
    shutil.copyfile(next(home.glob("pycuda-*.whl")), partial)
    partial.replace(wheel)


def installed(work: Path) -> tuple[str, str]:
    """Import PyCUDA in a new process; return what CHECK says, and the last line of any error."""
    command = [sys.executable, "-c", CHECK, str(work / "libcuda.so")]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True)
    return result.stdout.strip(), result.stderr.strip().rpartition("\n")[2]


def install(*what: str) -> None:
    run([*PIP, "install", "-q", *what], f"cannot install {what[-1]}; is PyPI reachable?")


def run(command: list[str], failure: str, env: dict[str, str] | None = None) -> None:
    """Run a command; if it fails, show the tail of its output and end."""
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    if result.returncode:
        output = (result.stdout + result.stderr).splitlines()
        print(*output[-30:], sep="\n", file=sys.stderr)
        fail(failure)


def say(message: str) -> None:
    print(f"build_pycuda: {message}", flush=True)


def fail(message: str) -> NoReturn:
    sys.exit(f"build_pycuda: {message}")


if __name__ == "__main__":
    main()
