"""Import both libraries, or say which is missing and what to do about it."""

from __future__ import annotations


def _advice(error: ImportError) -> str:
    if error.name == "cupy":
        return (
            "CuPy is not installed: `pip install cupy-cuda12x`, or cupy-cuda13x where PyCUDA is "
            "built for CUDA 13"
        )
    if error.name == "pycuda":
        return (
            "PyCUDA is not installed: `pip install pycuda` builds it with the machine's CUDA "
            "toolkit; tools/build_pycuda.py, in the source of bridge, needs none"
        )
    if "libcuda.so.1" in str(error):
        return (
            "libcuda.so.1 is missing, so there is no NVIDIA driver here: work on a machine with a "
            "GPU, or start the container with its GPUs (`docker run --gpus all`). "
            "`python -m bridge --config` prints what is installed"
        )
    return ""


try:
    import cupy  # noqa: F401
    import pycuda.driver  # noqa: F401
except ImportError as error:
    if advice := _advice(error):
        raise type(error)(f"bridge: {advice} ({error})", name=error.name) from error
    raise
