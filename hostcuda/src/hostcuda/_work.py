"""Queue what a library does: Python functions on device memory, which is host memory here.

A library's function makes views of the pointers that it gets, checks them, and calls ``queue``.
The work then runs on the stream like a kernel, under the driver's lock: it must not call CUDA.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class _Memory:
    def __init__(self, **interface: Any) -> None:
        self.__array_interface__ = {"version": 3, **interface}


def view(pointer: int, dtype: Any, shape: Any, strides: Any = None) -> np.ndarray:
    """View device memory as an array; `strides` in elements."""
    dtype = np.dtype(dtype)
    if strides is not None:
        strides = tuple(int(step) * dtype.itemsize for step in strides)
    if not pointer or 0 in shape:  # NumPy allocates in place of a null pointer
        return np.empty(shape, dtype)
    memory = _Memory(data=(pointer, False), typestr=dtype.str, shape=tuple(shape), strides=strides)
    return np.asarray(memory)


def vector(pointer: int, dtype: Any, n: int, step: int) -> np.ndarray:
    """View a vector of BLAS: with a negative step, it begins at its last element in memory."""
    start = 0 if step >= 0 else (1 - n) * step * np.dtype(dtype).itemsize
    return view(pointer + start, dtype, (n,), (step,))


def current_stream() -> int:
    """Answer the handle of CuPy's current stream."""
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)


def queue(
    name: str,
    function: Callable[[], Any],
    reads: Sequence[np.ndarray],
    writes: Sequence[np.ndarray],
    stream: int | None = None,
) -> int:
    """Queue `function` on a stream, by default CuPy's current one; answer CUDA's status.

    `reads` and `writes` are the views that it uses.  If it raises, the context fails as with a
    kernel: each later call answers CUDA_ERROR_LAUNCH_FAILED.  If a view is not in device memory,
    it is not called, and the context fails with CUDA_ERROR_ILLEGAL_ADDRESS.
    """

    def run() -> str | None:
        try:
            with np.errstate(all="ignore"):  # as a GPU does
                function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the caller of whatever runs the work is not to blame
            return f"{type(error).__name__}: {error}"
        return None

    handle, areas = current_stream() if stream is None else stream, _areas(reads, writes)
    return int(_driver().hostcuda_enqueue(handle, name.encode(), run, *areas))


def use(reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
    """Use more views: a function calls this that runs, for pointers that it has found in memory."""
    if not _driver().hostcuda_use(*_areas(reads, writes)):
        raise ValueError("a pointer outside of the device's memory")


def wait() -> int:
    """Let the host wait for CuPy's current stream, as functions do that answer on the host."""
    return int(_driver().cuStreamSynchronize(current_stream()))


def _areas(*views: Sequence[np.ndarray]) -> list[Any]:
    """Answer the runs of bytes that views use, as the driver gets them: rows and their number."""
    rows = [np.concatenate([np.empty((0, 2), np.uintp), *map(area, some)]) for some in views]
    return [item for some in rows for item in (some.ctypes, len(some))]


def area(view: np.ndarray) -> np.ndarray:
    """Answer start and size of each run of bytes that a view uses."""
    starts, width = np.array([view.ctypes.data]), view.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape, strict=True)):
        if step == width and len(starts) == 1:
            width *= n
        elif n != 1:
            starts = np.add.outer(starts, step * np.arange(n)).ravel()
    starts += sum(s * (n - 1) for s, n in zip(view.strides, view.shape, strict=True) if s < 0)
    rows = np.stack([starts, np.full_like(starts, width)], 1).astype(np.uintp)
    return rows[: view.size]  # none, if it is empty


@functools.cache
def _driver() -> Any:
    import hostcuda

    driver = ctypes.PyDLL(None, handle=hostcuda._driver._handle)  # Python's lock stays held
    driver.hostcuda_enqueue.argtypes = [
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.py_object),
        *(ctypes.c_void_p, ctypes.c_size_t) * 2,
    ]
    driver.hostcuda_use.argtypes = [ctypes.c_void_p, ctypes.c_size_t] * 2
    driver.hostcuda_use.restype = ctypes.c_bool
    driver.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
    return driver
