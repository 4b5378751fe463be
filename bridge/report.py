"""What is installed, what does not fit, and a check of the main job on real buffers."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from timeit import repeat
from typing import Any

import bridge

_PACKAGES = (
    *("cupy-cuda12x", "cupy-cuda13x", "cupy", "pycuda", "numpy"),
    *("torch", "jax", "numba", "rmm", "cuda-core", "cuda-python"),
)
_SOURCE = "__global__ void add(float *y, const float *x) { y[0] += x[0]; }"


def show_config() -> None:
    """Print versions, devices, contexts, compilers and known conflicts.

    Imports CuPy and PyCUDA and initialises CUDA, but makes no context.  Prints errors instead of
    raising them.  ``python -m bridge`` also checks that the installation works.

    Notes
    -----
    *Ownership:* none. *Ordering:* none. *Cost:* a few milliseconds.
    """
    try:
        for name, text in _rows():
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
    yield "nvcc", shutil.which("nvcc") or "not on PATH (pycuda.compiler needs it, bridge does not)"

    import pycuda.driver as drv

    from .context import ContextError, current_device, start_cuda

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
        device_id = current_device()
        yield "this thread", f"PyCUDA and CuPy share the primary context of device {device_id}"
    except ContextError as error:
        yield "this thread", str(error)


def _cuda_versions() -> dict[str, tuple[int, int]]:
    """Return the CUDA version of each part."""
    import cupy
    import pycuda.driver as drv
    from cupy.cuda import driver, nvrtc

    found = {
        "PyCUDA": drv.get_version()[:2],
        "CuPy": divmod(driver.get_build_version() // 10, 100),  # 12090 is 12.9
        "NVRTC": nvrtc.getVersion(),
        "driver": divmod(drv.get_driver_version() // 10, 100),
    }
    header = Path(cupy.cuda.get_cuda_path() or "", "include", "cuda.h")
    text = header.read_text(errors="replace") if header.is_file() else ""
    if defined := re.search(r"#define CUDA_VERSION (\d+)", text):
        found["headers"] = divmod(int(defined[1]) // 10, 100)
    return found


def conflicts(versions: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Yield a sentence for each two parts whose CUDA versions do not fit."""
    major = {part: version[0] for part, version in versions.items()}
    for part in ("NVRTC", "headers"):
        if major.get(part, major["CuPy"]) != major["CuPy"]:
            yield (
                f"CuPy is built for CUDA {major['CuPy']} but finds {part} of CUDA {major[part]}; "
                f"unset CUDA_PATH, or set it to a toolkit of CUDA {major['CuPy']}"
            )
    if major["PyCUDA"] > major["driver"]:
        yield (
            f"PyCUDA is built for CUDA {major['PyCUDA']}, the driver offers CUDA "
            f"{major['driver']}; rebuild PyCUDA or update the driver"
        )


def count_gpus() -> int:
    """Return the number of GPUs; 0 also where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def check() -> int:
    """Share arrays, print what each library sees and the cost; return 1 if a check failed."""
    import cupy
    import numpy as np
    from pycuda import gpuarray

    import bridge.autoinit

    a, x = gpuarray.GPUArray((6, 2), np.float32), cupy.empty((6, 2), np.float32)
    arrays = {
        "a GPUArray seen by CuPy": a,
        "a CuPy array seen by PyCUDA": x,
        "a strided view": a[::2],
    }
    failed = 0
    for title, array in arrays.items():
        try:
            print(f"ok      {title}\n{_share(array)}")
        except Exception as error:
            print(f"FAILED  {title}\n        {type(error).__name__}: {error}")
            failed += 1
    if failed:
        print(f"\n{failed} checks failed")
        return 1
    for convert, array in ((bridge.as_cupy, a), (bridge.as_pycuda, x), (cupy.asarray, a)):
        time = min(repeat(partial(convert, array), number=1000)) * 1000
        print(f"time    {convert.__name__} {time:.2f} us")
    print("\nall checks passed")
    return 0


def _share(array: Any) -> str:
    """Write and read an array through views of both libraries; return what was seen."""
    a, x = bridge.as_pycuda(array), bridge.as_cupy(array)
    pointers = f"PyCUDA 0x{int(a.gpudata):x}, CuPy 0x{x.data.ptr:x}"
    if int(a.gpudata) != x.data.ptr:
        raise ValueError(f"pointers differ: {pointers}")
    x[...] = 2
    a.set(3 * a.get())
    bridge.SourceModule(_SOURCE).get_function("add")(a, x, block=(1, 1, 1), strided=True)
    if x.get().ravel().tolist() != [12] + [6] * (x.size - 1):
        raise ValueError(f"12 and then 6 were written, this is read:\n{x}")
    return f"        {pointers}; writes of both libraries and of a kernel seen"
