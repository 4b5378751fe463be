"""What PyCUDA's copies, launches and streams say of arrays and CuPy's objects: they take none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
import pycuda.driver as drv
from pycuda.gpuarray import GPUArray

from ..errors import named
from .importing import Global

_OF_MEMORY = (
    "let CuPy copy (x.set(host), x.get(out=host), x[...] = y, x.fill(value)), or give "
    "a.gpudata of a = bridge.as_pycuda(x), while a is alive"
)
_ADVICE: dict[tuple[type, ...], str] = {
    (cupy.ndarray,): _OF_MEMORY,
    (cupy.cuda.MemoryPointer,): (
        f"{_OF_MEMORY}; as an allocator, pass allocator=bridge.pycuda_allocator()"
    ),
    (GPUArray,): (
        "give a.gpudata (of two arrays: memcpy_dtod), or let the array copy: a.set(host), a.get()"
    ),
    (Global,): "give its pointer, the first item",
    (cupy.cuda.Stream, cupy.cuda.ExternalStream): (
        "make the stream by s = pycuda.driver.Stream(), on which CuPy works under "
        "`with bridge.as_cupy_stream(s):`"
    ),
    (cupy.cuda.Event,): "order two streams by bridge.wait_stream(waiter, awaited)",
}


def _explained(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyCUDA's that says what to do if it refuses an array, for example."""

    @functools.wraps(theirs)
    def explained(*args: Any, **keywords: Any) -> Any:
        try:
            return theirs(*args, **keywords)
        except TypeError:
            for value in (*args, *keywords.values()):
                for types, advice in _ADVICE.items():
                    if isinstance(value, types):
                        text = f"{name}: PyCUDA does not take {named(value)} here; {advice}"
                        raise TypeError(text) from None
            raise

    return explained


_COPIES = [name for name in vars(drv) if name.startswith(("memcpy_", "memset_"))]
_LAUNCH = "prepared_async_call"  # which launches PyCUDA's own kernels
CALLS = {
    drv: {name: _explained(name, getattr(drv, name)) for name in _COPIES},
    drv.Event: {"record": _explained("Event.record", drv.Event.record)},
    drv.Function: {_LAUNCH: _explained(_LAUNCH, getattr(drv.Function, _LAUNCH))},
    drv.Stream: {
        "wait_for_event": _explained("Stream.wait_for_event", drv.Stream.wait_for_event),
        "__cuda_stream__": lambda stream: (0, stream.handle),  # cuda.core's protocol, version 0
    },
}
