"""Dask: GPUArrays travel between workers, and workers let go of them.

Importing this module registers how a `GPUArray` is sent; `Plugin` does so on every worker of a
cluster.  It needs ``distributed`` (``pip install 'pycuda-cupy-bridge[dask]'``).

Sources: the documentation of ``distributed``, "Serialization" (families ``dask`` and ``cuda``) and
"Worker Plugins"; ``dask.sizeof``.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
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
from .context import primary_context
from .interface import pointer_device

__all__ = ["Plugin"]

Sent = tuple[dict[str, Any], list[Any]]


class Plugin(WorkerPlugin):  # type: ignore[misc]
    """Have every worker send and let go of GPUArrays.

    On each worker, also on those that join or start again later, this module is imported, and the
    primary context is current on the thread of the event loop: there the results of tasks are
    dropped, and what PyCUDA allocated cannot be freed on a thread without a context.

    Tasks run on other threads, whose context `bridge.wrap_pycuda` and
    ``@bridge.primary_context()`` see to.

    Examples
    --------
    ::

        client = distributed.Client(cluster)
        client.register_plugin(bridge.dask.Plugin())
    """

    name = "pycuda-cupy-bridge"

    def setup(self, worker: Any) -> None:
        """Enter the primary context; called on the event loop's thread."""
        self._context = primary_context()
        self._context.__enter__()

    def teardown(self, worker: Any) -> None:
        """Leave it again."""
        self._context.__exit__(None, None, None)


@sizeof.register(GPUArray)  # type: ignore[untyped-decorator]
def _size(array: Any) -> int:
    return int(array.nbytes)


def _send_on_device(array: Any) -> Sent:
    """Return what describes a device array, and its memory as one-dimensional bytes."""
    is_pycuda = isinstance(array, GPUArray)
    if is_pycuda:
        pointer = address_of(array, "dask")
        with primary_context(pointer_device(pointer, "dask: the array") if array.size else None):
            array = as_cupy(array)
    with array.device:
        if not array.flags.forc:
            array = cupy.ascontiguousarray(array)
        order = "C" if array.flags.c_contiguous else "F"
        header = {"shape": array.shape, "order": order, "dtype": pickle.dumps(array.dtype)}
        # Not `view`, which refuses arrays in Fortran order, and those of no dimensions.
        return header, [cupy.ndarray(array.nbytes, np.uint8, array.data)]


def _send(array: Any) -> Sent:
    header, (data,) = _send_on_device(array)
    return header, [memoryview(data.get())]


def _receive_cupy_on_device(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    (frame,) = frames
    dtype = pickle.loads(header["dtype"])
    return cupy.ndarray(
        tuple(header["shape"]), dtype, cupy.asarray(frame).data, order=header["order"]
    )


def _receive_cupy(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    (frame,) = frames
    return _receive_cupy_on_device(header, [cupy.asarray(np.frombuffer(frame, np.uint8))])


def _receive_on_device(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    with primary_context():
        return as_pycuda(_receive_cupy_on_device(header, frames))


def _receive(header: dict[str, Any], frames: Sequence[Any]) -> Any:
    with primary_context():
        return as_pycuda(_receive_cupy(header, frames))


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
