"""What launches of either library's functions have in common: extents, order, CUDA's refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pycuda.driver as drv
from cupy.cuda import runtime

from . import context
from .errors import named
from .streams import is_capturing, order

_OUT_OF_RESOURCES = 701  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES


def extent(value: Any, name: str, caller: str) -> tuple[int, int, int]:
    """Return the three extents of a grid or a block, given as 1 to 3 ints."""
    if type(value) is tuple and 1 < len(value) < 4:  # the usual forms, without the slower checks
        x, y, z = value if len(value) == 3 else (*value, 1)
        if type(x) is type(y) is type(z) is int and x > 0 and y > 0 and z > 0:
            return x, y, z
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(map(_is_integer, sizes)):
        raise TypeError(
            f"{caller}: {name} is {named(value)}; an int or 1 to 3 of them (a tuple or list) are "
            "accepted"
        )
    if any(n < 1 for n in sizes):
        raise ValueError(f"{caller}: {name} is {named(value)}; each extent is 1 or more")
    x, y, z = tuple(int(n) for n in sizes) + (1,) * (3 - len(sizes))
    return x, y, z


def shared_bytes(value: Any, caller: str) -> int:
    """Return the bytes of dynamic shared memory."""
    if _is_integer(value) and value >= 0:
        return int(value)
    kind = ValueError if _is_integer(value) else TypeError
    raise kind(f"{caller}: shared is {named(value)}; bytes, an int of 0 or more")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def run_in_order(
    start: Callable[[], None],
    here: int,
    there: int,
    device_id: int,
    of_pycuda: bool,
    handlers: Sequence[Any] = (),
) -> None:
    """Call `start`, which launches on stream `there`, as if it were on CuPy's stream `here`.

    With PyCUDA's memory among the arguments, also as if on PyCUDA's default stream.  The handlers
    (``pycuda.driver.In``, ``Out``) copy there before and after.
    """
    others = {here, 0} if of_pycuda else {here}
    others.discard(there)
    for handler in handlers:
        handler.pre_call(None)
    for other in others:
        order(there, other, device_id)
    start()
    for other in others:
        order(other, there, device_id)
    for handler in handlers:
        if hasattr(handler, "post_call"):
            handler.post_call(None)


def refuse_outside_of_capture(here: int, there: int, handlers: Sequence[Any], caller: str) -> None:
    """Raise ValueError where a stream is being captured and the launch could not be part of it."""
    if here != there and not there and is_capturing(here):
        raise ValueError(
            f"{caller}: CuPy's current stream is being captured into a graph, but the launch would "
            "go to the default stream, which cannot be; give it the captured stream, e.g. capture "
            "under `with bridge.use_stream(stream):`, stream a pycuda.driver.Stream"
        )
    if handlers and (is_capturing(there) or is_capturing(here)):
        raise ValueError(
            f"{caller}: pycuda.driver.In, Out and InOut copy at once, which cannot be captured "
            "into a graph; pass device arrays, and copy before and after"
        )


def explain(
    error: Exception,
    function: Any,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    device_id: int,
    caller: str,
) -> Exception:
    """Return a ``pycuda.driver.Error`` that says why CUDA refused a launch, as far as it is clear.

    `error` is CUDA's, from either library, or an OverflowError.  `function` has the attributes of
    ``pycuda.driver.Function``.
    """
    kind: Any = type(error)
    reason = context.failure()
    if reason or getattr(error, "status", 0) == _OUT_OF_RESOURCES:
        kind = drv.LaunchError
    elif not isinstance(error, drv.Error):
        kind = drv.LogicError
    reason = reason or _reason(error, function, grid, block, shared, device_id)
    found: Exception = kind(f"{caller}: {reason}")
    return found


def _reason(
    error: Exception,
    function: Any,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    device_id: int,
) -> str:
    text = str(error)
    if "previous error during capture" in text:
        return (
            "the stream is being captured into a graph, which an earlier call has spoilt; end the "
            f"capture, and begin anew ({text})"
        )
    if "captur" in text.lower():
        return (
            "a stream is being captured into a graph, and the launch went to another, which CUDA "
            "does not allow (the default stream waits for captured ones); launch on the captured "
            f"stream, or capture a non-blocking one ({text})"
        )
    threads = block[0] * block[1] * block[2]
    if threads > function.max_threads_per_block:
        return (
            f"block {tuple(block)} has {threads} threads; for this kernel, which uses "
            f"{function.num_regs} registers a thread, at most {function.max_threads_per_block} fit"
        )
    if getattr(error, "status", 0) == 400 or "invalid resource handle" in text:
        return (
            f"CUDA does not know the stream, or the function, on device {device_id}, which is "
            "current; streams and functions of this device that have not been destroyed are "
            f"accepted ({text})"
        )

    def limit(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), device_id))

    for sizes, name in ((grid, "Grid"), (block, "Block")):
        most = [limit(f"Max{name}Dim{axis}") for axis in "XYZ"]
        if any(n > m for n, m in zip(sizes, most, strict=True)):
            return f"{name.lower()} is {tuple(sizes)}; this device takes up to {most}"
    bytes_ = limit("MaxSharedMemoryPerBlockOptin")
    if isinstance(function, drv.Function):  # to go beyond takes set_attribute
        bytes_ = limit("MaxSharedMemoryPerBlock")
    if function.shared_size_bytes + shared > bytes_:
        return (
            f"{shared} bytes of dynamic shared memory are asked for, beside the kernel's own "
            f"{function.shared_size_bytes}; a block has {bytes_} bytes"
        )
    if isinstance(function, drv.Function) and "invalid argument" in text:
        return (
            f"CUDA refuses the launch ({text}), and the extents are not why: compare number and "
            "widths of the arguments with the kernel's parameters, which CUDA does not tell here; "
            "a function of bridge.SourceModule checks them"
        )
    return text


def no_texture_references(caller: str) -> NotImplementedError:
    """Return the error that says what takes the place of texture and surface references."""
    return NotImplementedError(
        f"{caller}: texture and surface references are gone since CUDA 12; give the kernel a "
        "`cudaTextureObject_t` parameter and pass a cupy.cuda.texture.TextureObject"
    )
