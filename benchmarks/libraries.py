"""Five libraries: their streams, an array of each, and the ways to take an array.

What is not installed, or finds no GPU, is in `left_out` with the name of its error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from cupy.cuda import Stream
from pycuda import gpuarray

import bridge
import bridge.autoinit

SHAPE, BYTE = (16, 64), np.dtype(np.uint8)
cupy.cuda.get_cuda_path()  # CuPy must find CUDA's headers before those of PyTorch are there
versions: list[str] = []
left_out: list[str] = []
streams: dict[str, Callable[[], list[Any]]] = {
    "PyCUDA": lambda: [None, drv.Stream(), drv.Stream(1)],
    "CuPy": lambda: [Stream.null, Stream(), Stream(non_blocking=True), Stream.ptds],
}
arrays: dict[str, Callable[[int], Any]] = {  # JAX's are new, full of a value, and late
    "PyCUDA": lambda value: gpuarray.to_gpu(np.zeros(SHAPE, BYTE)),
    "CuPy": lambda value: cupy.zeros(SHAPE, BYTE),
}
# (library of the reader, way): a function of an array and the handle of the reader's stream
ways: dict[tuple[str, str], Callable[[Any, int], Any]] = {
    ("CuPy", "cupy.asarray"): lambda a, handle: cupy.asarray(a),
    ("CuPy", "cupy.from_dlpack"): lambda a, handle: cupy.from_dlpack(a),
    ("CuPy", "bridge.as_cupy"): lambda a, handle: bridge.as_cupy(a),
    ("PyCUDA", "bridge.as_pycuda"): lambda a, handle: bridge.as_pycuda(a),
}


@contextmanager
def _optional(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        left_out.append(f"{name} ({type(error).__name__})")


with _optional("PyTorch"):
    import torch

    torch.cuda.init()
    streams["PyTorch"] = lambda: [torch.cuda.default_stream(), torch.cuda.Stream()]
    arrays["PyTorch"] = lambda value: torch.zeros(SHAPE, dtype=torch.uint8, device="cuda")
    ways["PyTorch", "torch.as_tensor"] = lambda a, handle: torch.as_tensor(a, device="cuda")
    ways["PyTorch", "torch.from_dlpack"] = lambda a, handle: torch.from_dlpack(a)
    versions.append(f"PyTorch {torch.__version__}")

with _optional("JAX"):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it takes the whole GPU
    import jax

    @jax.jit
    def _late(value: Any, m: Any) -> Any:
        for _ in range(100):  # 30 to 300 ms; each product is the same
            m = m @ m
        return jax.numpy.full(SHAPE, value) + (m.max() * 0).astype(BYTE)

    _m = jax.device_put(np.full((4096, 4096), 1 / 4096, np.float32), jax.devices("gpu")[0])
    streams["JAX"] = lambda: ["its own"]
    arrays["JAX"] = lambda value: _late(BYTE.type(value), _m)
    ways["JAX", "jax.numpy.from_dlpack"] = lambda a, handle: jax.numpy.from_dlpack(a)
    versions.append(f"JAX {jax.__version__}")

with _optional("cuda.core"):
    import cuda.core
    from cuda.core.utils import StridedMemoryView

    (_gpu := cuda.core.Device()).set_current()
    _default, _blocking = _gpu.default_stream, cuda.core.StreamOptions(nonblocking=False)
    _buffer, _new = _gpu.allocate(1024, stream=_default), _gpu.create_stream
    streams["cuda.core"] = lambda: [_default, _new(options=_blocking), _new()]
    arrays["cuda.core"] = lambda value: StridedMemoryView.from_buffer(_buffer, SHAPE, dtype=BYTE)
    ways["cuda.core", "StridedMemoryView"] = StridedMemoryView.from_any_interface
    versions.append(f"cuda.core {cuda.core.__version__}")


def parts(name: str) -> Iterator[tuple[str, Any]]:
    """Yield arrays whose layout, or whose flag, a reader may lose."""
    a = arrays[name](1)
    if name in ("PyCUDA", "CuPy", "PyTorch"):
        yield "rows [1:]", a[1:]
        yield "columns [:, ::2]", a[:, ::2]
    if name == "CuPy":
        found = {**a.__cuda_array_interface__, "data": (a.data.ptr, True)}
        yield "read-only interface", SimpleNamespace(__cuda_array_interface__=found, owner=a)
    if name == "JAX":
        yield "immutable", a
    if name == "cuda.core":
        yield (
            "read-only",
            StridedMemoryView.from_buffer(_buffer, SHAPE, dtype=BYTE, is_readonly=True),
        )


def handle_of(stream: Any) -> int | None:
    """Return the handle of a stream: 0 for PyCUDA's None, None for JAX's."""
    names = [name for name in ("handle", "ptr", "cuda_stream") if hasattr(stream, name)]
    return int(getattr(stream, names[0])) if names else {None: 0}.get(stream)


def layout(a: Any) -> tuple[int, tuple[int, ...], bool]:
    """Return the pointer, the strides, and whether the array says that it is read-only."""
    if hasattr(a, "ptr"):  # a GPUArray, whose interface orders streams; a StridedMemoryView
        shape, strides, data = a.shape, a.strides, (a.ptr, getattr(a, "readonly", False))
    else:
        shape, strides, data = map(a.__cuda_array_interface__.get, ("shape", "strides", "data"))
    return data[0], tuple(strides or np.empty(shape, BYTE).strides), data[1]
