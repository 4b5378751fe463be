# cython: auto_pickle=False
"""What PyCUDA's copies, launches and streams say of arrays and CuPy's objects: they take none.

It is compiled, since each launch of PyCUDA goes through `_launch_kernel`.
"""

from functools import wraps

import cupy
import pycuda.driver as drv
from pycuda.gpuarray import GPUArray

from bridge.errors import named
from bridge.interop.memory_kinds import Global

_OF_MEMORY = (
    "let CuPy copy (x.set(host), x.get(out=host), x[...] = y, x.fill(value)), or give "
    "a.gpudata of a = bridge.as_pycuda(x), while a is alive"
)
_ADVICE = {
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


def _explained(name, theirs):
    """Return a function of PyCUDA's that says what to do if it refuses an array, for example."""

    def explained(*args, **keywords):
        try:
            return theirs(*args, **keywords)
        except TypeError:
            _explain(name, args, keywords)
            raise

    return wraps(theirs)(explained)


def _explain(name, args, keywords):
    for value in (*args, *keywords.values()):
        for types, advice in _ADVICE.items():
            if isinstance(value, types):
                raise TypeError(
                    f"{name}: PyCUDA does not take {named(value)} here; {advice}"
                ) from None


_PYCUDAS_LAUNCH = drv.Function._launch_kernel


def _launch_kernel(self, grid, block, arguments, shared, stream):
    """Launch as PyCUDA does; each of its launches ends here."""
    try:
        return _PYCUDAS_LAUNCH(self, grid, block, arguments, shared, stream)
    except TypeError:
        _explain("a launch", (stream,), {})
        raise


_COPIES = [name for name in vars(drv) if name.startswith(("memcpy_", "memset_"))]
CALLS = {
    drv: {name: _explained(name, getattr(drv, name)) for name in _COPIES},
    drv.Event: {"record": _explained("Event.record", drv.Event.record)},
    drv.Function: {"_launch_kernel": _launch_kernel},
    drv.Stream: {
        "wait_for_event": _explained("Stream.wait_for_event", drv.Stream.wait_for_event),
        "__cuda_stream__": lambda stream: (0, stream.handle),  # cuda.core's protocol, version 0
    },
}
