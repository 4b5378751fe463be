"""Dask: send GPUArrays between workers.

Importing this module registers the serialization of `GPUArray`.  `Plugin` imports it on every
worker of a cluster.  Install ``distributed`` first (``pip install 'pycuda-cupy-bridge[dask]'``).

Source: ``distributed`` documentation, "Serialization" (families ``dask`` and ``cuda``), "Plugins".
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from dask.sizeof import sizeof
from distributed import WorkerPlugin, protocol
from pycuda.gpuarray import GPUArray

from ._driver import pointer_home
from .arrays import address_of, as_cupy, as_pycuda
from .context import ContextError, primary_context

__all__ = ["Plugin"]


class Plugin(WorkerPlugin):  # type: ignore[misc]
    """Send and receive GPUArrays on all current and future workers of a cluster.

    Register it with ``client.register_plugin(bridge.dask.Plugin())``.  Each worker then imports
    this module, and each worker process with a GPU also imports ``bridge.autoinit``.  So tasks on
    any thread can import modules that import ``bridge.autoinit`` or ``pycuda.autoinit``.  Arrays
    arrive on the worker's current device.

    Decorate tasks that return GPUArrays with ``@bridge.primary_context()``.  Dask frees results on
    a thread without a context, where PyCUDA leaks their memory.  The decorator is not needed for
    arrays that were converted or that `bridge.pycuda_allocator` allocated.
    """

    name = "pycuda-cupy-bridge"

    def setup(self, worker: Any) -> None:
        """Import ``bridge.autoinit`` if possible; a later import raises the error."""
        with suppress(ContextError, drv.Error), primary_context():  # on CuPy's device, as tasks are
            from . import autoinit  # noqa: F401


def _send_on_device(array: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return a device array's header, and its memory as a one-dimensional array of bytes."""
    is_pycuda = isinstance(array, GPUArray)
    if is_pycuda:
        pointer = address_of(array, "dask")
        # For a pointer that is on no device, `as_cupy` raises.
        with primary_context(max(pointer_home(pointer)[0], 0) if array.size else None):
            array = as_cupy(array)
    if not array.flags.forc:
        with array.device:
            array = cupy.ascontiguousarray(array)
    header = {
        "is_pycuda": is_pycuda,
        "shape": array.shape,
        "strides": array.strides,
        "dtype": pickle.dumps(array.dtype),
    }
    # `view` does not support arrays in Fortran order or without dimensions.
    return header, [cupy.ndarray(array.nbytes, np.uint8, array.data)]


def _send(array: Any) -> tuple[dict[str, Any], list[Any]]:
    header, (data,) = _send_on_device(array)
    frame = bytearray(data.nbytes)  # can be pickled, unlike a memoryview
    data.get(out=np.frombuffer(frame, np.uint8))
    return header, [frame]


def _receive(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    (frame,) = frames
    if hasattr(frame, "__cuda_array_interface__"):
        data = cupy.asarray(frame)
    else:
        data = cupy.asarray(np.frombuffer(frame, np.uint8))
        # Another thread, with its own default stream, may use the array.
        cupy.cuda.get_current_stream().synchronize()
    dtype = pickle.loads(header["dtype"])
    array = cupy.ndarray(header["shape"], dtype, data.data, header["strides"])
    if not header["is_pycuda"]:
        return array
    with primary_context(data.device):
        return as_pycuda(array)


sizeof.register(GPUArray)(lambda array: int(array.nbytes))
# Arguments in a graph and attributes of objects are pickled.  PyCUDA's pickling needs a context.
copyreg.pickle(GPUArray, lambda array: (_receive, _send(array)))
_kinds: list[type] = [GPUArray]
try:
    import distributed.protocol.cupy  # noqa: F401
except ImportError:  # Dask sends CuPy arrays only if RMM or Numba is installed
    _kinds.append(cupy.ndarray)
for _kind in _kinds:
    protocol.cuda_serialize.register(_kind)(_send_on_device)
    protocol.cuda_deserialize.register(_kind)(_receive)
    protocol.dask_serialize.register(_kind)(_send)
    protocol.dask_deserialize.register(_kind)(_receive)
