"""Dask: GPUArrays travel between workers, and workers let go of them.

Importing this module registers how a `GPUArray` is sent and pickled; `Plugin` does so on every
worker of a cluster.  It needs ``distributed`` (``pip install 'pycuda-cupy-bridge[dask]'``).

Sources: the documentation of ``distributed``, "Serialization" (families ``dask`` and ``cuda``) and
"Worker Plugins"; ``dask.sizeof``.
"""

from __future__ import annotations

import copyreg
import os
import pickle
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from dask.sizeof import sizeof
from distributed import WorkerPlugin
from distributed.protocol import (
    cuda_deserialize,
    cuda_serialize,
    dask_deserialize,
    dask_serialize,
)
from pycuda.gpuarray import GPUArray

from .arrays import address_of, as_cupy, as_pycuda
from .context import ContextError, keep_at_the_end, primary_context
from .interface import pointer_device

__all__ = ["Plugin"]

Sent = tuple[dict[str, Any], list[Any]]

_HERE = uuid.uuid4().hex


def _process() -> str:
    return f"{_HERE}-{os.getpid()}"  # the former is the same in a forked child


class Plugin(WorkerPlugin):  # type: ignore[misc]
    """Have every worker send GPUArrays, and let go of them wherever Dask does.

    On each worker, also on those that join or start again later, this module is imported.  Dask
    drops what tasks make on threads without a context, where PyCUDA cannot free what it allocated.
    Hence, from then on, every `GPUArray` of the process may be dropped anywhere.  On a worker that
    has a GPU and runs on the main thread of its process, ``bridge.autoinit`` is imported: modules
    that begin with that, or with ``pycuda.autoinit``, come with tasks, on threads that it refuses.

    Examples
    --------
    ::

        client = distributed.Client(cluster)
        client.register_plugin(bridge.dask.Plugin())
    """

    name = "pycuda-cupy-bridge"

    def setup(self, worker: Any) -> None:
        """Begin, on a worker."""
        # Of what tasks make, only results are shown to a plugin, and not all of them: a task may
        # be fused with the next one, cancelled, or fail.  PyCUDA's class has no finalizer.
        GPUArray.__del__ = keep_at_the_end
        if threading.current_thread() is not threading.main_thread():
            return
        # On CuPy's device, where tasks are, and not the one that PyCUDA's rule names.  Where it
        # cannot be imported, whoever needs it is told why.
        with suppress(ContextError, drv.Error), primary_context():
            from . import autoinit  # noqa: F401


@sizeof.register(GPUArray)  # type: ignore[untyped-decorator]
def _size(array: Any) -> int:
    return int(array.nbytes)


def _send_on_device(array: Any) -> Sent:
    """Return what describes a device array, and its memory as one-dimensional bytes."""
    if isinstance(array, GPUArray):
        pointer = address_of(array, "dask")
        with primary_context(pointer_device(pointer, "dask: the array") if array.size else None):
            array = as_cupy(array)
    with array.device:
        if not array.flags.forc:
            array = cupy.ascontiguousarray(array)
        order = "C" if array.flags.c_contiguous else "F"
        header = {
            "shape": array.shape,
            "order": order,
            "dtype": pickle.dumps(array.dtype),
            "home": (_process(), array.device.id),
        }
        # Not `view`, which refuses arrays in Fortran order, and those of no dimensions.
        return header, [cupy.ndarray(array.nbytes, np.uint8, array.data)]


def _send(array: Any) -> Sent:
    header, (data,) = _send_on_device(array)
    return header, [memoryview(data.get())]


def _device(header: dict[str, Any]) -> int | None:
    """Return the device of what Dask has spilled; None, the current one, for what was sent."""
    process, device_id = header["home"]
    return int(device_id) if process == _process() else None


def _receive_cupy_on_device(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    (frame,) = frames
    dtype = pickle.loads(header["dtype"])
    with cupy.cuda.Device(_device(header)):
        data = cupy.asarray(frame).data
        return cupy.ndarray(tuple(header["shape"]), dtype, data, order=header["order"])


def _receive_cupy(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    (frame,) = frames
    with cupy.cuda.Device(_device(header)):
        data = cupy.asarray(np.frombuffer(frame, np.uint8))
        # It may be used on another thread, and each may have a default stream of its own.
        cupy.cuda.get_current_stream().synchronize()
        return _receive_cupy_on_device(header, [data])


def _receive_on_device(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    with primary_context(_device(header)):
        return as_pycuda(_receive_cupy_on_device(header, frames))


def _receive(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    with primary_context(_device(header)):
        return as_pycuda(_receive_cupy(header, frames))


def _pickled(array: Any) -> Any:
    """Pickle as PyCUDA does, but on any thread."""
    header, (data,) = _send(array)
    header["home"] = None, None
    return _receive, (header, [bytearray(data)])


copyreg.pickle(GPUArray, _pickled)  # an argument in a graph, an attribute of an object
cuda_serialize.register(GPUArray)(_send_on_device)
cuda_deserialize.register(GPUArray)(_receive_on_device)
dask_serialize.register(GPUArray)(_send)
dask_deserialize.register(GPUArray)(_receive)

try:
    import distributed.protocol.cupy  # noqa: F401
except ImportError:  # Dask itself sends CuPy's arrays only where RMM or Numba is there
    cuda_serialize.register(cupy.ndarray)(_send_on_device)
    cuda_deserialize.register(cupy.ndarray)(_receive_cupy_on_device)
    dask_serialize.register(cupy.ndarray)(_send)
    dask_deserialize.register(cupy.ndarray)(_receive_cupy)
