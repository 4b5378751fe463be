"""Where a notebook runs: on a GPU, or without one on hostcuda, a CUDA driver on host memory.

The first cell of each notebook calls `gpu_or_host` or `need_gpu`, before it imports PyCUDA.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

NEEDS_GPU = "# Needs a GPU: "  # how a cell begins that is skipped without one
EVERYWHERE = "bridge", "cupy", "matplotlib", "pycuda"
COUNT = """
import ctypes
cuda, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(n))
print(0 if failed else n.value)
"""


class Stop(Exception):  # noqa: N818 - it is no error, and its name is not shown
    """End a notebook with one sentence."""

    def _render_traceback_(self) -> list[str]:
        """Return what Jupyter shows instead of a traceback."""
        return [str(self)]


def gpu_or_host(*packages: str, devices: int = 1) -> bool:
    """Return whether there is a GPU; without one, let CUDA's work run on host memory."""
    gpus = count_gpus()
    require(*EVERYWHERE, *packages, *["hostcuda"] * (not gpus))
    if gpus >= devices:
        return True
    if gpus:
        raise Stop(
            f"This notebook needs {devices} GPUs, and CUDA sees {gpus}. Read its kept outputs, "
            "or start Jupyter with CUDA_VISIBLE_DEVICES= to run it on host memory."
        )
    import hostcuda

    try:
        hostcuda.install(devices)
    except hostcuda.Unsupported as error:
        raise Stop(str(error)) from None
    print(
        "This machine has no GPU: the notebook runs on a CUDA driver on host memory. "
        "Sizes are small, and times are not those of a GPU."
    )
    skip_cells()
    return False


def need_gpu(*packages: str) -> None:
    """Stop the notebook where there is no GPU, or a package is missing."""
    if not count_gpus():
        raise Stop(
            "This machine has no GPU, which this notebook needs: "
            f"{' and '.join(packages)} cannot work on host memory. Read the outputs kept in it."
        )
    require(*EVERYWHERE, *packages)


def python() -> list[str]:
    """Return the command of a Python in which CUDA runs where it runs here."""
    return [sys.executable, *["-m", "hostcuda"] * host_driver()]


def host_driver() -> bool:
    """Return whether hostcuda is this process's CUDA driver."""
    hostcuda = sys.modules.get("hostcuda")
    return hostcuda is not None and hostcuda.installed()


def count_gpus() -> int:
    """Ask another process how many GPUs CUDA sees; this one must load hostcuda's driver first."""
    if host_driver():
        return 0
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True)
    return int(done.stdout or 0)


def require(*packages: str) -> None:
    """Stop the notebook where a package is missing, and say how to install it."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise Stop(
            f"Not installed in this kernel's environment, {sys.prefix}: {', '.join(missing)}. "
            "`make notebooks-view` installs what the notebooks need, except PyTorch, JAX and Numba."
        )


def skip_cells() -> None:
    """Let the kernel skip cells that need a GPU."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell and skipped not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(skipped)


def skipped(lines: list[str]) -> list[str]:
    """Return a cell's lines, or of a cell that needs a GPU the statement that prints why."""
    if not lines or not lines[0].startswith(NEEDS_GPU):
        return lines
    reason = lines[0].removeprefix(NEEDS_GPU).strip()
    return [f"print({'Skipped, as this cell needs a GPU: ' + reason!r})\n"]
