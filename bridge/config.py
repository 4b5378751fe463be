"""What is installed, which GPUs and contexts there are, and what is known not to fit."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NOT_INITIALIZED, _NO_DEVICE = 3, 100  # CUDA_ERROR_...
_DISTRIBUTIONS = ("numpy", "torch", "jax", "numba", "rmm", "cuda-core", "cuda-python")


def show_config() -> None:
    """Print versions, devices, contexts, compilers and known conflicts.

    Imports CuPy and PyCUDA and initialises CUDA, but makes no context and never fails: what
    cannot be read is said.

    Examples
    --------
    >>> import bridge
    >>> bridge.show_config()  # doctest: +SKIP

    Notes
    -----
    *Ownership:* none. *Ordering:* none. *Cost:* a few milliseconds; a report, not a check
    (``python -m bridge`` is one).
    """
    width = 20
    for name, value in _rows():
        print(f"{name:<{width}}{value}")
    for conflict in conflicts():
        print(f"{'conflict':<{width}}{conflict}")


def count_gpus() -> int:
    """Return the number of GPUs that CUDA sees; 0 also where there is no driver."""
    return _gpus()[0]


def _gpus() -> tuple[int, str]:
    """Return the number of GPUs; where there are none, why."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "there is no libcuda.so.1: install NVIDIA's driver"
    count, name = ctypes.c_int(), ctypes.c_char_p()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NOT_INITIALIZED:  # what cuInit answers there
        return 0, "CUDA does not survive fork(): start processes with the 'spawn' method"
    if status in (0, _NO_DEVICE):
        return count.value, "it sees no GPU; CUDA_VISIBLE_DEVICES may hide them"
    driver.cuGetErrorName(status, ctypes.byref(name))
    return 0, f"cuInit fails: {(name.value or b'error').decode()} ({status})"


def _rows() -> Iterator[tuple[str, str]]:
    from . import __version__

    yield "bridge", __version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    gpus, why = _gpus()
    if not gpus:
        yield "CUDA driver", why
    yield from _guarded("CuPy", _cupy_row)
    yield from _guarded("PyCUDA", _pycuda_row)
    for name in _DISTRIBUTIONS:
        version = _version(name)
        if version:
            yield name, version
    yield "nvcc", _nvcc()
    if gpus:
        yield from _guarded("CUDA driver", _driver_row)
        for device_id in range(gpus):
            yield from _guarded(f"device {device_id}", _device_row, device_id)
        yield from _guarded("this thread", _thread_row)


def _guarded(name: str, row: Any, *args: Any) -> Iterator[tuple[str, str]]:
    try:
        yield name, row(*args)
    except Exception as error:  # a report must come to its end
        yield name, f"{type(error).__name__}: {error}"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cupy_row() -> str:
    import cupy
    from cupy.cuda import nvrtc

    built = _cuda(cupy.cuda.driver.get_build_version())
    major, minor = nvrtc.getVersion()
    return f"{cupy.__version__} ({_cupy_package()}, CUDA {built}, NVRTC {major}.{minor})"


def _cupy_package() -> str:
    found = [name for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy") if _version(name)]
    return " and ".join(found) or "from source"


def _pycuda_row() -> str:
    import pycuda
    import pycuda.driver as drv

    built = ".".join(map(str, drv.get_version()[:2]))
    return f"{pycuda.VERSION_TEXT} (CUDA {built})"


def _driver_row() -> str:
    import pycuda.driver as drv

    return f"CUDA {_cuda(drv.get_driver_version())}"


def _device_row(device_id: int) -> str:
    import pycuda.driver as drv

    drv.init()
    device = drv.Device(device_id)
    major, minor = device.compute_capability()
    size = device.total_memory() / 2**30
    return f"{device.name()}, compute capability {major}.{minor}, {size:.1f} GiB"


def _thread_row() -> str:
    import pycuda.driver as drv

    from .context import ContextError, current_device

    if drv.Context.get_current() is None:
        return "PyCUDA has no context here (import bridge.autoinit, or use primary_context)"
    try:
        return f"PyCUDA and CuPy share the primary context of device {current_device()}"
    except ContextError as error:
        return str(error)


def _nvcc() -> str:
    path = shutil.which("nvcc")
    if path is None:
        return "not on PATH (pycuda.compiler needs it; the bridge does not)"
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    except OSError as error:
        return f"{path}: {error}"
    found = re.search(r"release ([\d.]+)", text)
    return f"{found.group(1) if found else 'of unknown version'} at {path}"


def _headers_major(toolkit: str) -> int | None:
    """Return the CUDA major version of a toolkit's headers."""
    try:
        text = Path(toolkit, "include", "cuda.h").read_text(errors="replace")
    except OSError:
        return None
    version = re.search(r"#define CUDA_VERSION (\d+)", text)
    return int(version[1]) // 1000 if version else None


def conflicts() -> list[str]:
    """Return what is known not to fit together, one sentence each."""
    found = []
    if _version("cupy-cuda12x") and _version("cupy-cuda13x"):
        found.append(
            "cupy-cuda12x and cupy-cuda13x are both installed and overwrite each other; "
            "uninstall both, then install one"
        )
    try:
        import cupy
        import pycuda.driver as drv
        from cupy.cuda import nvrtc
    except (ImportError, OSError):
        return found
    cupy_major = cupy.cuda.driver.get_build_version() // 1000
    nvrtc_major = nvrtc.getVersion()[0]
    if cupy_major != nvrtc_major:
        where = os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME") or "the library path"
        found.append(
            f"CuPy is built for CUDA {cupy_major} but loads NVRTC of CUDA {nvrtc_major} from "
            f"{where}; install nvidia-cuda-nvrtc for CUDA {cupy_major} or unset CUDA_PATH"
        )
    toolkit = cupy.cuda.get_cuda_path()
    headers_major = _headers_major(toolkit) if toolkit else None
    if headers_major not in (None, nvrtc_major):
        found.append(
            f"NVRTC is of CUDA {nvrtc_major}, but CuPy takes the headers of CUDA {headers_major} "
            f"from {toolkit}: what includes some may not compile; set CUDA_PATH to a toolkit of "
            f"CUDA {nvrtc_major}"
        )
    pycuda_major = drv.get_version()[0]
    driver_major = drv.get_driver_version() // 1000
    if driver_major and pycuda_major > driver_major:
        found.append(
            f"PyCUDA is built for CUDA {pycuda_major}, the driver offers CUDA {driver_major}; "
            "rebuild PyCUDA or update the driver"
        )
    if "pycuda.autoinit" in sys.modules:
        from .context import autoinit_ran

        if autoinit_ran():
            found.append(
                "pycuda.autoinit was imported and made a second context; import bridge.autoinit "
                "instead"
            )
    return found
