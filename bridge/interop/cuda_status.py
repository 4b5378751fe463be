"""Why CUDA cannot be used: no GPU, a forked process, no context, or a kernel that has failed."""

from __future__ import annotations

import os

import cupy
import pycuda.driver as drv

from ..errors import ContextError

# CUDA's errors after a kernel has failed.  (CUDA Driver API, CUresult: "the process must be
# terminated".)
FATAL = frozenset((700, 702, 710, *range(714, 720)))


_FORKED = (
    "CUDA does not survive fork(): this process was forked from one that had already used the GPU. "
    "Start worker processes with the 'spawn' or 'forkserver' method, e.g. "
    "multiprocessing.get_context('spawn')"
)


def failure() -> str:
    """Return a message with advice if an earlier kernel has failed, and '' otherwise."""
    try:
        cupy.cuda.runtime.memGetInfo()  # allowed in a stream capture
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status in FATAL:
            return (
                f"an earlier kernel has failed ({error}), and this process cannot use the GPU any "
                "more. Start a new one, with CUDA_LAUNCH_BLOCKING=1 in its environment to see "
                "which call fails, or under compute-sanitizer, which names kernel and line"
            )
    return ""


_process = os.getpid()


def explain_context(error: Exception) -> str:
    """Return the text of PyCUDA's error; say what to do on a thread that has no context."""
    text = Exception.__str__(error)
    if "invalid device context" in text:
        text += (
            "; a thread needs a context: work under `with bridge.primary_context():`. To another "
            "process, send a.get() or bridge.as_cupy(a)"
        )
    if "initialization error" in text and os.getpid() != _process:
        text += f"; {_FORKED}"
    return text


def start_cuda() -> None:
    """Initialize CUDA; raise ContextError if there is no GPU, or in a forked child process."""
    try:
        drv.init()
    except drv.Error as error:
        if "no CUDA-capable device" in str(error):
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise ContextError(
                f"CUDA finds no GPU ({error}): `nvidia-smi` lists the machine's GPUs; "
                f"CUDA_VISIBLE_DEVICES hides some ({hidden!r} here), and a container has only "
                "the GPUs that it was started with (`docker run --gpus all`)"
            ) from error
        if "initialization error" in str(error):
            raise ContextError(_FORKED) from error
        raise
