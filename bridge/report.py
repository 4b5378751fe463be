"""What is installed, what does not fit, and a check of the main job on real buffers."""

from __future__ import annotations

import platform
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from itertools import combinations
from pathlib import Path

import bridge

_PACKAGES = (
    *("cupy-cuda12x", "cupy-cuda13x", "cupy", "pycuda", "numpy"),
    *("torch", "jax", "numba", "rmm", "cuda-core", "cuda-python"),
)
_MAJOR = re.compile(r"-cu(?:da)?(\d\d)(?!\d)|^nvidia/cu(\d\d)/", re.MULTILINE)
_FIELDS = re.compile(r"^(?:Name|Requires-Dist): *(?!.*extra *==)(.+)", re.MULTILINE)
_SOURCE = "__global__ void add(float *y, const float *x) { y[0] += x[0]; }"


def show_config() -> None:
    """Print versions, devices, this thread's context and known conflicts.

    Imports CuPy and PyCUDA and initialises CUDA, but makes no context.  Prints errors instead of
    raising them.  ``python -m bridge`` also checks that the installation works.

    Notes
    -----
    *Cost:* up to a tenth of a second.
    """
    print_rows()


def print_rows(omitted: str = "") -> None:
    """Print the rows of `show_config`, except those of a name."""
    try:
        for name, text in _rows():
            if name != omitted:
                print(f"{name:<20}{text}")
    except Exception as error:
        print(f"{'error':<20}{type(error).__name__}: {error}")


def _rows() -> Iterator[tuple[str, str]]:
    """Yield names and texts; those that may fail come last."""
    yield "bridge", bridge.__version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)
    yield from mixed_packages(metadata.distributions())
    nvcc = shutil.which("nvcc") or "not on PATH (pycuda.compiler needs it, bridge does not)"

    import pycuda.compiler
    import pycuda.driver as drv

    from .errors import ContextError
    from .interop import patches
    from .interop.contexts import shared_device
    from .interop.failures import start_cuda

    is_nvrtc = pycuda.compiler.compile.__module__.startswith("bridge.")
    yield "nvcc", "not used: bridge.use_nvrtc" if is_nvrtc else nvcc
    replaced: dict[str, list[str]] = {}
    for _, name, why in patches.listed():
        replaced.setdefault(why, []).append(name)
    for why, names in replaced.items():
        yield "replaced", f"{', '.join(names)}: {why}"
    versions = _cuda_versions()
    yield "CUDA", ", ".join(f"{part} {x}.{y}" for part, (x, y) in versions.items())
    for conflict in conflicts(versions):
        yield "conflict", conflict
    start_cuda()
    for device_id in range(drv.Device.count()):
        device = drv.Device(device_id)
        major, minor = device.compute_capability()
        size = f"{device.total_memory() / 2**30:.1f} GiB"
        yield f"device {device_id}", f"{device.name()}, compute capability {major}.{minor}, {size}"
    try:
        device_id = shared_device()
        yield "this thread", f"PyCUDA and CuPy share the primary context of device {device_id}"
    except ContextError as error:
        yield "this thread", str(error)


def mixed_packages(installed: Iterable[metadata.Distribution]) -> Iterator[tuple[str, str]]:
    """Yield rows on packages for several majors of CUDA, and on those that overwrite each other.

    The major is in a package's name, in what it requires, or in the folder of NVIDIA's wheels.
    """
    majors: dict[str, set[str]] = defaultdict(set)
    variants: dict[str, dict[str, metadata.Distribution]] = defaultdict(dict)
    for package in installed:
        head = (package.read_text("METADATA") or "").partition("\n\n")[0]
        if not (fields := _FIELDS.findall(head)):  # by hand: `requires` takes several times as long
            continue
        name = fields[0].lower().replace("_", "-")
        files = package.read_text("RECORD") if name.startswith("nvidia-") else None
        if found := _MAJOR.search("\n".join((name, *fields[1:], files or ""))):
            majors[found[1] or found[2]].add(name)
        variants[_MAJOR.split(name)[0]][name] = package
    for major, names in sorted(majors.items()):
        if len(majors) > 1:
            yield f"CUDA {major} packages", ", ".join(sorted(names))
    for packages in variants.values():
        for one, other in combinations(sorted(packages), 2):
            shared = {*(packages[one].files or ())} & {*(packages[other].files or ())}
            if any(file.name != "__init__.py" for file in shared):
                yield (
                    "conflict",
                    f"{one} and {other} overwrite each other's files; uninstall both, then install "
                    "the one that you need",
                )


def _cuda_versions() -> dict[str, tuple[int, int]]:
    import cupy
    import pycuda.driver as drv
    from cupy.cuda import driver, nvrtc

    found = {
        "PyCUDA": drv.get_version()[:2],
        "CuPy": divmod(driver.get_build_version() // 10, 100),  # 12090 is 12.9
        "NVRTC": nvrtc.getVersion(),
        "driver": divmod(drv.get_driver_version() // 10, 100),
    }
    with suppress(OSError):  # no toolkit, or one without headers
        header = Path(cupy.cuda.get_cuda_path() or "/", "include", "cuda.h")
        if defined := re.search(r"#define CUDA_VERSION (\d+)", header.read_text(errors="replace")):
            found["headers"] = divmod(int(defined[1]) // 10, 100)
    return found


def conflicts(versions: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Yield a sentence for each two parts whose CUDA versions do not fit."""
    cupy, pycuda, driver = (versions[part][0] for part in ("CuPy", "PyCUDA", "driver"))
    for part in ("NVRTC", "headers"):
        found = versions.get(part, versions["CuPy"])[0]
        if found != cupy:
            yield (
                f"CuPy is built for CUDA {cupy} but finds {part} of CUDA {found}; install CuPy for "
                f"CUDA {found}, or remove that CUDA from pip's packages and CUDA_PATH"
            )
    if pycuda > driver:
        yield (
            f"PyCUDA is built for CUDA {pycuda}, the driver offers CUDA {driver}; rebuild PyCUDA "
            "or update the driver"
        )


def self_test() -> None:
    """Share arrays, and print what both libraries see; raise where something is wrong."""
    import cupy
    import numpy as np
    from pycuda import gpuarray

    add = bridge.SourceModule(_SOURCE).get_function("add")
    a, x = gpuarray.GPUArray((6, 2), np.float32), cupy.empty((6, 2), np.float32)
    for title, array in (
        ("a GPUArray seen by CuPy", a),
        ("a CuPy array seen by PyCUDA", x),
        ("a strided view", a[::2]),
    ):
        in_pycuda, in_cupy = bridge.as_pycuda(array), bridge.as_cupy(array)
        pointers = f"PyCUDA 0x{int(in_pycuda.gpudata):x}, CuPy 0x{in_cupy.data.ptr:x}"
        in_cupy[...] = 2
        in_pycuda.set(3 * in_pycuda.get())
        add(in_pycuda, in_cupy, block=(1, 1, 1), strided=True)
        found = in_cupy.get().ravel().tolist()
        if found != [12] + [6] * (array.size - 1):
            raise ValueError(f"{title} ({pointers}): 12 and then 6 were written, {found} is read")
        print(f"ok    {title}\n      {pointers}; writes of both libraries and of a kernel seen")
    print("\nall checks passed")
