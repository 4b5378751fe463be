"""Limits of a launch: its extents, captures, and the reasons why CUDA refuses it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pycuda.driver as drv
from cupy.cuda import driver, runtime

from ..errors import named
from ..interop.cuda_status import failure
from ..interop.streams import is_capturing

# OverflowError: too large for CUDA's types.
REFUSALS = (driver.CUDADriverError, drv.Error, OverflowError)


def extent(value: Any, name: str, caller: str) -> tuple[int, int, int]:
    """Return the three extents of a grid or a block, given as 1 to 3 ints."""
    if value is None and name == "block":
        raise ValueError(
            f"{caller}: block is missing; give it by name, after any arguments of the kernel: "
            "block=(128, 1, 1), grid=(8, 1); CuPy's f(grid, block, args) is f(*args, block=block, "
            "grid=grid)"
        ) from None
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(map(_is_integer, sizes)):
        raise TypeError(
            f"{caller}: {name} is {named(value)}; an int or 1 to 3 of them (a tuple or list) are "
            "accepted"
        ) from None
    if any(n < 1 for n in sizes):
        raise ValueError(f"{caller}: {name} is {named(value)}; each extent is 1 or more") from None
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def shared_bytes(value: Any, caller: str) -> int:
    """Return the bytes of dynamic shared memory."""
    if _is_integer(value) and value >= 0:
        return int(value)
    kind = ValueError if _is_integer(value) else TypeError
    raise kind(f"{caller}: shared is {named(value)}; bytes, an int of 0 or more")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_capture(current: int, launch: int, waits: bool, caller: str) -> None:
    """Raise ValueError for a launch on a stream that CuPy's current stream cannot capture."""
    if current != launch and not launch and is_capturing(current):
        raise ValueError(
            f"{caller}: CuPy's current stream is being captured into a graph, but the launch would "
            "go to the default stream, which cannot be captured; capture a "
            "pycuda.driver.Stream under `with bridge.as_cupy_stream(stream):`, and launch on it"
        )
    if waits and (is_capturing(launch) or is_capturing(current)):
        raise ValueError(
            f"{caller}: for pycuda.driver.In, Out and InOut, and for the time of a kernel, the "
            "host waits, which cannot be captured into a graph; pass device arrays, copy before "
            "and after, and time the graph"
        )


def cuda_refusal(caller: str, reason: str, kind: Any = drv.LogicError) -> Any:
    """Return the error for a call that CUDA refused, or for an earlier kernel that failed."""
    if failed := failure():
        kind, reason = drv.LaunchError, failed
    return kind(f"{caller}: {reason}")


def explain(
    error: Any,
    caller: str,
    function: Any,
    grid: Any,
    block: Any,
    shared: int,
    device_id: int,
    cluster: Any = None,
    is_cooperative: bool = False,
) -> Any:
    """Return a ``pycuda.driver.Error`` that says why CUDA refused a launch, if that is clear.

    `error` comes from either library, or is an OverflowError.
    """
    text = str(error)
    kind = type(error) if isinstance(error, drv.Error) else drv.LogicError
    if "too many resources" in text:
        kind = drv.LaunchError
    if not failure():
        grid, block = extent(grid, "grid", caller), extent(block, "block", caller)
        reason = _reason(text, function, grid, block, shared, device_id, cluster, is_cooperative)
        text = f"{reason} ({text})" if reason else text
    return cuda_refusal(caller, text, kind)


def _reason(
    text: str,
    function: Any,
    grid: Any,
    block: Any,
    shared: int,
    device_id: int,
    cluster: Any,
    is_cooperative: bool,
) -> str | None:
    threads = math.prod(block)
    if is_cooperative and "too many blocks" in text:
        each = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, shared)
        most = each * runtime.getDeviceProperties(device_id)["multiProcessorCount"]
        return (
            f"grid {grid} has {math.prod(grid)} blocks; in a cooperative launch all run at the "
            f"same time, and of blocks with {threads} threads at most {most} do on this device"
        )
    if cluster is not None:
        return (
            f"cluster is {cluster}, grid is {grid}; a cluster must divide the grid, has up to 8 "
            "blocks, and needs a device of compute capability 9.0 or newer"
        )
    if "captur" in text.lower():
        return (
            "a stream is being captured into a graph, and the launch cannot be part of it: it goes "
            "to another stream, or an earlier call has invalidated the capture; capture a "
            "non-blocking stream, and launch on it"
        )
    if threads > function.max_threads_per_block:
        return (
            f"block {block} has {threads} threads; for this kernel, which uses {function.num_regs} "
            f"registers per thread, at most {function.max_threads_per_block} fit; give smaller "
            "blocks, and more of them by grid="
        )
    if "invalid resource handle" in text:
        return (
            f"CUDA does not know the stream, or the function, on device {device_id}, which is "
            "current"
        )
    device = runtime.getDeviceProperties(device_id)
    most_blocks, most_threads = device["maxGridSize"], device["maxThreadsDim"]
    if any(map(operator.gt, (*grid, *block), (*most_blocks, *most_threads))):
        return (
            f"grid is {grid}, block is {block}; this device allows up to {most_blocks} and "
            f"{most_threads}"
        )
    of_pycuda = issubclass(type(function), drv.Function)  # a higher limit needs set_attribute
    bytes_ = device["sharedMemPerBlock" if of_pycuda else "sharedMemPerBlockOptin"]
    if function.shared_size_bytes + shared > bytes_:
        return (
            f"{shared} bytes of dynamic shared memory are asked for, beside the kernel's own "
            f"{function.shared_size_bytes}; a block has {bytes_} bytes"
        )
    if of_pycuda and "invalid argument" in text:
        return (
            "compare number and widths of the arguments with the kernel's parameters, which "
            "CUDA does not report here; a function of bridge.SourceModule checks them"
        )
    return None
