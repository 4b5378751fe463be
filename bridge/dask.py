"""Dask: GPUArrays travel between workers.

Importing this module registers how a `GPUArray` is sent and pickled; `Plugin` does so on every
worker of a cluster.  It needs ``distributed`` (``pip install 'pycuda-cupy-bridge[dask]'``).

Sources: the documentation of ``distributed``, "Serialization" (families ``dask`` and ``cuda``) and
"Worker Plugins"; ``dask.sizeof``.
"""

from __future__ import annotations

import copyreg
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
from distributed import WorkerPlugin, protocol
from pycuda.gpuarray import GPUArray

from ._core import pointer_home
from .arrays import address_of, as_cupy, as_pycuda
from .context import ContextError, primary_context

__all__ = ["Plugin"]

_HERE = uuid.uuid4().hex  # names this process


class Plugin(WorkerPlugin):  # type: ignore[misc]
    """Have every worker of a cluster send and receive GPUArrays.

    Each worker imports this module, also one that joins or restarts later.  A worker that has a
    GPU and runs on the main thread of its process also imports ``bridge.autoinit``: tasks may then
    import modules that begin with that, or with ``pycuda.autoinit``, on other threads.

    Dask drops what a task returns on a thread without a context.  Memory is freed there if the
    array was converted or is from `bridge.pycuda_allocator`, or if the task is decorated with
    ``@bridge.primary_context()``; else PyCUDA loses it.

    Examples
    --------
    ::

        client = distributed.Client(cluster)
        client.register_plugin(bridge.dask.Plugin())
    """

    name = "pycuda-cupy-bridge"

    def setup(self, worker: Any) -> None:
        """Begin, on a worker."""
        if threading.current_thread() is threading.main_thread():
            # On CuPy's device, where tasks run.  A later import says why this one has failed.
            with suppress(ContextError, drv.Error), primary_context():
                from . import autoinit  # noqa: F401


def _send_on_device(array: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return what describes a device array, and its memory as one-dimensional bytes."""
    is_pycuda = isinstance(array, GPUArray)
    if is_pycuda:
        pointer = address_of(array, "dask")
        with primary_context(pointer_home(pointer)[0] if array.size else None):
            array = as_cupy(array)
    with array.device:
        if not array.flags.forc:
            array = cupy.ascontiguousarray(array)
        header = {
            "is_pycuda": is_pycuda,
            "shape": array.shape,
            "strides": array.strides,
            "dtype": pickle.dumps(array.dtype),
            "home": (_HERE, array.device.id),
        }
        # Not `view`, which refuses arrays in Fortran order, and those of no dimensions.
        return header, [cupy.ndarray(array.nbytes, np.uint8, array.data)]


def _send(array: Any) -> tuple[dict[str, Any], list[Any]]:
    header, (data,) = _send_on_device(array)
    return header, [memoryview(data.get())]


def _receive(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    (frame,) = frames
    process, device_id = header["home"]
    # What this process has spilled comes back to its device, what was sent to the current one.
    with primary_context(device_id if process == _HERE else None):
        is_on_host = not hasattr(frame, "__cuda_array_interface__")
        data = cupy.asarray(np.frombuffer(frame, np.uint8) if is_on_host else frame).data
        if is_on_host:  # the array may be used on a thread with a default stream of its own
            cupy.cuda.get_current_stream().synchronize()
        dtype, strides = pickle.loads(header["dtype"]), tuple(header["strides"])
        array = cupy.ndarray(tuple(header["shape"]), dtype, data, strides)
        return as_pycuda(array) if header["is_pycuda"] else array


def _pickled(array: Any) -> Any:
    """Pickle as PyCUDA does, but on any thread."""
    header, (data,) = _send(array)
    header["home"] = None, None
    return _receive, (header, [bytearray(data)])


def _register(kind: type) -> None:
    protocol.cuda_serialize.register(kind)(_send_on_device)
    protocol.cuda_deserialize.register(kind)(_receive)
    protocol.dask_serialize.register(kind)(_send)
    protocol.dask_deserialize.register(kind)(_receive)


_register(GPUArray)
sizeof.register(GPUArray)(lambda array: int(array.nbytes))
copyreg.pickle(GPUArray, _pickled)  # an argument in a graph, an attribute of an object
try:
    import distributed.protocol.cupy  # noqa: F401
except ImportError:  # Dask itself sends CuPy arrays only where RMM or Numba is installed
    _register(cupy.ndarray)
