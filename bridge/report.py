"""What is installed, what does not fit, and a check of the main job on real buffers."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping

import bridge

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

    import cupy
    import numpy as np
    import pycuda.compiler
    import pycuda.driver as drv

    from .errors import ContextError
    from .interop import patches
    from .interop.contexts import shared_device
    from .interop.cuda_status import start_cuda

    yield "CuPy", f"{cupy.__version__}, NumPy {np.__version__}; more: cupy.show_config()"
    yield "PyCUDA", pycuda.VERSION_TEXT
    nvcc = shutil.which("nvcc") or "not on PATH (pycuda.compiler needs it, bridge does not)"
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


def _cuda_versions() -> dict[str, tuple[int, int]]:
    import pycuda.driver as drv
    from cupy.cuda import driver, nvrtc

    return {
        "PyCUDA": drv.get_version()[:2],
        "CuPy": divmod(driver.get_build_version() // 10, 100),  # 12090 is 12.9
        "NVRTC": nvrtc.getVersion(),
        "driver": divmod(drv.get_driver_version() // 10, 100),
    }


def conflicts(versions: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Yield a sentence for each two parts whose CUDA versions do not fit."""
    parts = "CuPy", "PyCUDA", "NVRTC", "driver"
    cupy, pycuda, nvrtc, driver = (versions[part][0] for part in parts)
    if nvrtc != cupy:
        yield (
            f"CuPy is built for CUDA {cupy} but finds NVRTC of CUDA {nvrtc}; install CuPy for CUDA "
            f"{nvrtc}, or remove that CUDA from pip's packages and CUDA_PATH"
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
