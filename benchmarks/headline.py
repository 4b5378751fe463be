"""Print the table that README.md shows: ``python -m benchmarks.headline``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "results.json"

# What README.md shows: a label, the table that has it, the unit, its us, and the calls beside it.
HEADLINE: list[tuple[str, str, str, float, dict[str, str]]] = [
    (
        "`bridge.as_cupy(a)`",
        "PyCUDA to CuPy, shape (1000,)",
        "us",
        1,
        {
            "cupy.asarray(a)": "`cupy.asarray(a)`",
            "UnownedMemory recipe": "the `UnownedMemory` recipe",
            "cupy.ndarray(shape, dtype, memptr)": "`cupy.ndarray(shape, dtype, memptr)`",
            "cupy.asarray(a.get())": "copying through the host",
        },
    ),
    (
        "`bridge.as_cupy(a)`, the first time that `a` is converted",
        "PyCUDA to CuPy, an array that was not converted before",
        "us",
        1,
        {
            "cupy.asarray(a)": "`cupy.asarray(a)`",
            "UnownedMemory recipe": "the `UnownedMemory` recipe",
        },
    ),
    (
        "`bridge.as_pycuda(x)`",
        "CuPy to PyCUDA, shape (1000,)",
        "us",
        1,
        {"GPUArray(gpudata=, base=)": "`GPUArray(gpudata=, base=)`"},
    ),
    (
        "`f(...)` of `SourceModule`, checked: 3 arrays, 2 scalars",
        "A checked call of a SourceModule function",
        "us",
        1,
        {
            "cupy.RawKernel": "`cupy.RawKernel`",
            "PyCUDA f(cupy arrays)": "PyCUDA's `f(...)`",
            "cuda.core launch": "cuda.core's `launch`, unchecked",
        },
    ),
    (
        "the same of `GPUArray`s",
        "A checked call of a SourceModule function, of GPUArrays",
        "us",
        1,
        {"PyCUDA f(GPUArrays)": "PyCUDA's `f(...)`"},
    ),
    (
        "`prepared_call` of `SourceModule`",
        "A prepared call",
        "us",
        1,
        {
            "PyCUDA prepared_call": "PyCUDA's",
            "PyCUDA _launch_kernel": "PyCUDA's bare `_launch_kernel`",
        },
    ),
    (
        "`as_cupy` of another library's array, whose interface names a stream",
        "An array interface that names a stream",
        "us",
        1,
        {
            "cupy.asarray(exporter)": "`cupy.asarray`",
            "numba.cuda.as_cuda_array(exporter)": "`numba.cuda.as_cuda_array`",
        },
    ),
    (
        "the same, while that stream is busy for 20 ms",
        "The same, while that stream is busy for 20 ms",
        "us",
        1,
        {"cupy.asarray(exporter)": "`cupy.asarray`, which waits"},
    ),
    (
        "`SourceModule` of a source that is new",
        "A source that is new, no include",
        "ms",
        1e3,
        {"PyCUDA's": "PyCUDA's, which runs nvcc"},
    ),
    (
        "20 small kernels of both libraries as a CUDA graph",
        "20 small kernels to the end, both libraries'",
        "us",
        1,
        {"one by one": "one by one"},
    ),
    (
        "kernel, ufunc, cuFFT, kernel on 2048 x 2048, ten times",
        "Kernel, ufunc, cuFFT, kernel: ten times 2048 x 2048, to the end",
        "ms",
        1e3,
        {"CuPy alone": "CuPy alone", "through the host": "copying through the host"},
    ),
    (
        "100 4K frames: kernel, CuPy's Gaussian filter, kernel",
        "100 frames of 3840 x 2160: kernel, CuPy's Gaussian filter, kernel, GPU time",
        "ms",
        1e3,
        {"CuPy alone": "CuPy alone", "through the host": "copying through the host"},
    ),
    (
        "`pycuda_allocator()(n)`, 4 KB, and letting go",
        "Allocate 4,096 bytes and let go, where CuPy's pool has a block of that size",
        "us",
        1,
        {
            "cupy.cuda.alloc(n)": "`cupy.cuda.alloc(n)`",
            "pycuda.driver.mem_alloc(n)": "`pycuda.driver.mem_alloc(n)`",
        },
    ),
]


def headline(found: Mapping[str, Any]) -> str:
    """Write the table of README.md, out of what ``results.json`` holds."""
    rows = ["| | takes | which is |", "|---|---|---|"]
    for label, title, unit, scale, peers in HEADLINE:
        median = next(iter(found[title].values()))[0] / scale
        times = [f"{_multiple(found[title][call][2])} of {name}" for call, name in peers.items()]
        rows.append(f"| {label} | {median:.3g} {unit} | {', '.join(times)} |")
    return "\n".join(rows)


def _multiple(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.4f}"


if __name__ == "__main__":
    print(headline(json.loads(RESULTS.read_text())))
