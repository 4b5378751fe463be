"""The main job on real data, step by step, each checked and timed: what `python -m bridge` runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import cupy
import numpy as np
from pycuda import gpuarray

import bridge
import bridge.autoinit

SCALE = r"""
__global__ void scale(float *y, const float *x, float factor, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""


class CheckError(Exception):
    """A bridged buffer is not what it should be."""


def run(on_gpu: bool) -> int:
    """Run every check that this machine can run, print a line each; return how many failed."""
    checks: dict[str, Callable[[], str]] = {
        "a GPUArray seen by CuPy": gpuarray_in_cupy,
        "a CuPy array seen by PyCUDA": cupy_array_in_pycuda,
        "a kernel of SourceModule writes into both libraries' arrays, CuPy reads them": kernel,
        "a strided, reversed, transposed view": strided_view,
    }
    if on_gpu and _torch_has_gpu():
        checks["a PyTorch tensor in PyCUDA, a GPUArray in PyTorch"] = pytorch
    if on_gpu and _jax_has_gpu():
        checks["a JAX array in PyCUDA, a GPUArray in JAX"] = jax
    failed = 0
    for title, function in checks.items():
        try:
            verdict, text = "ok", function()
        except Exception as error:  # every check is reported, and the others still run
            verdict, text = "FAILED", f"        {type(error).__name__}: {error}"
            failed += 1
        print(f"{verdict:<8}{title}\n{text}", flush=True)
    return failed


def check(holds: Any, what: str) -> None:
    """Raise CheckError unless `holds`."""
    if not bool(holds):
        raise CheckError(what)


def gpuarray_in_cupy() -> str:
    """Read and write a GPUArray through CuPy."""
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    a = gpuarray.to_gpu(host)
    x = bridge.as_cupy(a)
    check((x.get() == host).all(), "values differ")
    x[1] = 7
    check((a.get()[1] == 7).all(), "a write through CuPy is not seen by PyCUDA")
    return _lines(
        a,
        x,
        "values; a write through CuPy is read by PyCUDA",
        {"as_cupy": lambda: bridge.as_cupy(a), "cupy.asarray": lambda: cupy.asarray(a)},
    )


def cupy_array_in_pycuda() -> str:
    """Read and write a CuPy array through PyCUDA."""
    x = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    a = bridge.as_pycuda(x)
    check((a.get() == np.arange(12).reshape(3, 4)).all(), "values differ")
    a[1].set(np.full(4, 7, np.float32))
    check((x[1].get() == 7).all(), "a write through PyCUDA is not seen by CuPy")
    check(bridge.as_cupy(a) is x, "the way back does not end at the same array")

    def constructor() -> Any:
        return gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x)

    return _lines(
        a,
        x,
        "values; a write through PyCUDA is read by CuPy; the way back ends at the same array",
        {"as_pycuda": lambda: bridge.as_pycuda(x), "GPUArray(gpudata=, base=)": constructor},
    )


def kernel() -> str:
    """Compile a kernel and launch it on arrays of both libraries."""
    n = 1000
    x, y = cupy.arange(n, dtype=np.float32), cupy.empty(n, np.float32)
    b = gpuarray.GPUArray(n, np.float32)
    function = bridge.SourceModule(SCALE).get_function("scale")
    function(b, x, 2, n, block=(128, 1, 1), grid=(8, 1, 1))
    function(y, b, np.float32(1.5), np.int32(n), block=(128, 1, 1), grid=(8, 1, 1))
    total = float((y + 1).sum())
    expected = 3 * n * (n - 1) / 2 + n
    check(total == expected, f"sum is {total}, not {expected}")
    return _lines(
        b,
        bridge.as_cupy(b),
        f"the sum of 3 x + 1 over 1000 elements is {total:.0f}",
        {"a call": lambda: function(b, x, 2, n, block=(128, 1, 1), grid=(8, 1, 1))},
    )


def strided_view() -> str:
    """Bridge views that are not contiguous."""
    host = np.arange(60, dtype=np.complex64).reshape(3, 4, 5)
    x = cupy.asarray(host)[::2, ::-1].transpose(2, 0, 1)
    a = bridge.as_pycuda(x)
    b = gpuarray.to_gpu(host)[::2]
    check(a.strides == x.strides, f"strides are {a.strides}, not {x.strides}")
    check((bridge.as_cupy(b).get() == host[::2]).all(), "values of the GPUArray's slice differ")
    return _lines(
        a,
        x,
        f"shape {a.shape}, strides {a.strides}; the values of a GPUArray's slice in CuPy",
        {"as_cupy": lambda: bridge.as_cupy(b), "cupy.asarray": lambda: cupy.asarray(b)},
    )


def pytorch() -> str:
    """Hand buffers to and from PyTorch."""
    import torch

    tensor = torch.arange(6, dtype=torch.float32, device="cuda")
    a = bridge.as_pycuda(tensor)
    a.set(np.full(6, 5, np.float32))
    check(tensor.sum().item() == 30, "a write through PyCUDA is not seen by PyTorch")
    back = torch.from_dlpack(bridge.as_cupy(gpuarray.to_gpu(np.ones(4, np.float32))))
    check(back.sum().item() == 4, "a GPUArray's values differ in PyTorch")
    return _lines(
        a,
        tensor,
        "a write through PyCUDA is read by PyTorch; a GPUArray's values in PyTorch",
        {
            "as_pycuda": lambda: bridge.as_pycuda(tensor),
            "cupy.asarray": lambda: cupy.asarray(tensor),
        },
    )


def jax() -> str:
    """Hand buffers to and from JAX."""
    import jax.numpy as jnp

    array = jnp.arange(6.0)
    a = bridge.as_pycuda(array)
    check((a.get() == np.arange(6)).all(), "a JAX array's values differ in PyCUDA")
    back = jnp.from_dlpack(bridge.as_cupy(gpuarray.to_gpu(np.ones(4, np.float32))))
    check(float(back.sum()) == 4, "a GPUArray's values differ in JAX")
    return _lines(
        a,
        array,
        "a JAX array's values in PyCUDA; a GPUArray's values in JAX",
        {
            "as_pycuda": lambda: bridge.as_pycuda(array),
            "cupy.from_dlpack": lambda: cupy.from_dlpack(array),
        },
    )


def _torch_has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _jax_has_gpu() -> bool:
    if find_spec("jax") is None:
        return False
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave memory for the rest
    import jax

    device = cupy.cuda.Device()
    found = bool(jax.default_backend() == "gpu")
    device.use()  # when JAX starts, it leaves the last of several GPUs current (0.11.2)
    return found


def _lines(gpuarray: Any, other: Any, checked: str, calls: dict[str, Callable[[], object]]) -> str:
    """Check that both are one memory; describe that, what else was checked, and the cost."""
    one = int(gpuarray.gpudata)
    if hasattr(other, "data_ptr"):  # PyTorch
        library, two = "PyTorch", int(other.data_ptr())
    elif hasattr(other, "unsafe_buffer_pointer"):
        library, two = "JAX", int(other.unsafe_buffer_pointer())
    else:
        library, two = "CuPy", int(other.data.ptr)
    check(one == two, f"pointers differ: PyCUDA 0x{one:x}, {library} 0x{two:x}")
    times = ", ".join(f"{name} {_microseconds(call):.2f} us" for name, call in calls.items())
    lines = [
        f"pointers  PyCUDA 0x{one:x}, {library} 0x{two:x}",
        f"checked   {checked}",
        f"time      {times}",
    ]
    return "\n".join(f"        {line}" for line in lines)


def _microseconds(function: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            function()
        return time.perf_counter() - start

    return min(once() for _ in range(5)) * 1000
