"""Kernels: the cost of a call, of compiling, of a graph, and of a pipeline of both libraries."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from importlib.util import find_spec

import cupy
import numpy as np
import pycuda.compiler
import pycuda.driver as drv

import bridge
from benchmarks.measure import measure, table

SOURCE = """
__global__ void axpy(float *z, const float *x, const float *y, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + y[i];
}
"""
COMPLEX = """
#include <pycuda-complex.hpp>
__global__ void square(pycuda::complex<float> *z, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = z[i] * z[i];
}
"""
HAS_NVCC = shutil.which("nvcc") is not None


def pycuda_function(source, name):
    """Compile for PyCUDA alone, with nvcc where there is one."""
    if HAS_NVCC:
        return pycuda.compiler.SourceModule(source).get_function(name)
    image, _ = cupy.cuda.compiler.compile_using_nvrtc(f'extern "C" {{ {source} }}')
    return drv.module_from_buffer(image).get_function(name)


def calls():
    """Compare the ways to launch: three arrays and two scalars, one block."""
    x, y, z = (cupy.zeros(1024, np.float32) for _ in range(3))
    a, b, c = map(bridge.as_pycuda, (x, y, z))
    px, py, pz = (array.data.ptr for array in (x, y, z))
    factor, n = np.float32(2), np.int32(1024)
    grid, block = (8, 1, 1), (128, 1, 1)
    ours = bridge.SourceModule(SOURCE).get_function("axpy")
    theirs = pycuda_function(SOURCE, "axpy")
    raw = cupy.RawKernel(f'extern "C" {SOURCE}', "axpy")
    ours.prepare("PPPfi")
    theirs.prepare("PPPfi")
    other, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)

    timings = measure(
        {
            "f(cupy arrays)": lambda: ours(z, x, y, factor, n, block=block, grid=grid),
            "f(GPUArrays)": lambda: ours(c, a, b, factor, n, block=block, grid=grid),
            "cupy.RawKernel": lambda: raw(grid, block, (z, x, y, factor, n)),
            "PyCUDA f(GPUArrays)": lambda: theirs(c, a, b, factor, n, block=block, grid=grid),
            "PyCUDA f(cupy arrays)": lambda: theirs(z, x, y, factor, n, block=block, grid=grid),
        }
    )
    goals = {"cupy.RawKernel": 1.0, "PyCUDA f(GPUArrays)": 0.7}
    text = table("A checked call of a SourceModule function", timings, "f(cupy arrays)", goals)
    timings = measure(
        {
            "prepared_call": lambda: ours.prepared_call(grid, block, pz, px, py, 2.0, 1024),
            "PyCUDA prepared_call": lambda: theirs.prepared_call(
                grid, block, pz, px, py, 2.0, 1024
            ),
        }
    )
    goals = {"PyCUDA prepared_call": 1.0}
    text += "\n" + table("A prepared call", timings, "prepared_call", goals)
    launch = bridge.launch
    with current:
        timings = measure(
            {
                "launch, fenced both ways": lambda: launch(
                    theirs, z, x, y, factor, n, grid=grid, block=block, stream=other
                ),
                "PyCUDA f(GPUArrays)": lambda: theirs(c, a, b, factor, n, block=block, grid=grid),
                "f(cupy arrays), fenced": lambda: ours(
                    z, x, y, factor, n, block=block, grid=grid, stream=other
                ),
            },
            repeat=500,
        )
    cupy.cuda.Device().synchronize()
    goals = {"PyCUDA f(GPUArrays)": 1.0}
    return (
        text
        + "\n"
        + table(
            "launch of a PyCUDA function on a stream that CUDA does not order with CuPy's",
            timings,
            "launch, fenced both ways",
            goals,
        )
    )


def compiling():
    """Compare compiling: a source that is new, and one that is in the cache."""
    if not HAS_NVCC:
        return "\n### Compiling\n\nnvcc is not installed, so there is nothing to compare with."
    number = itertools.count()
    text = ""
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:

        def compile_new(module, source, folder):
            # No comment: PyCUDA's cache looks at the preprocessed text.
            module(f"{source}\n__device__ int version_{next(number)};\n", cache_dir=folder)

        for title, source in (("no include", SOURCE), ("pycuda-complex.hpp", COMPLEX)):
            timings = measure(
                {
                    "SourceModule": lambda s=source: compile_new(bridge.SourceModule, s, ours),
                    "PyCUDA's": lambda s=source: compile_new(
                        pycuda.compiler.SourceModule, s, theirs
                    ),
                },
                rounds=7,
                repeat=1,
            )
            text += table(f"A source that is new, {title}", timings, "SourceModule",
                          {"PyCUDA's": 0.2}) + "\n"  # fmt: skip
        timings = measure(
            {
                "SourceModule": lambda: bridge.SourceModule(COMPLEX, cache_dir=ours),
                "PyCUDA's": lambda: pycuda.compiler.SourceModule(COMPLEX, cache_dir=theirs),
            },
            rounds=7,
            repeat=3,
        )
        text += table("A source that is in the cache, with an include", timings, "SourceModule",
                      {"PyCUDA's": 0.2})  # fmt: skip
    return text


def graph():
    """Compare twenty small kernels of both libraries, launched one by one and as a CUDA graph."""
    stream = drv.Stream(1)
    x, y, z = (cupy.zeros(1024, np.float32) for _ in range(3))
    ours = bridge.SourceModule(SOURCE).get_function("axpy")
    theirs = pycuda_function(SOURCE, "axpy")
    args = (np.float32(0.5), np.int32(1024))
    keywords = {"block": (128, 1, 1), "grid": (8, 1, 1)}

    def work():
        for _ in range(5):
            ours(z, x, y, *args, **keywords)
            bridge.launch(theirs, y, z, x, *args, **keywords)
            cupy.multiply(y, args[0], out=y)
            cupy.add(x, z, out=x)

    with bridge.use_stream(stream) as current:
        work()
        current.begin_capture()
        work()
        captured = current.end_capture()

        def run(what):
            what()
            current.synchronize()

        timings = measure(
            {
                "as a graph": lambda: run(captured.launch),
                "one by one": lambda: run(work),
            },
            repeat=200,
        )
    goals = {"one by one": 0.4}
    return table("20 small kernels to the end, both libraries'", timings, "as a graph", goals)


def pipelines(shape=(2048, 2048)):
    """Return the pipeline kernel, ufunc, cuFFT, kernel: with PyCUDA's kernels, and CuPy alone."""
    source = """
    __global__ void window(float2 *z, const float *x, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) z[i] = make_float2(x[i] * (1.0f - x[i]), 0.0f);
    }
    __global__ void power(float *p, const float2 *z, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) p[i] = z[i].x * z[i].x + z[i].y * z[i].y;
    }
    """
    module = bridge.SourceModule(source)
    raw = cupy.RawModule(code=f'extern "C" {{ {source} }}')
    x = cupy.random.default_rng(1).random(shape, dtype=np.float32)
    z, p = cupy.empty(shape, np.complex64), cupy.empty(shape, np.float32)
    n = np.int32(x.size)
    grid, block = ((x.size + 255) // 256, 1, 1), (256, 1, 1)
    window, power = map(module.get_function, ("window", "power"))
    raw_window, raw_power = map(raw.get_function, ("window", "power"))
    a, b = bridge.as_pycuda(x), bridge.as_pycuda(p)

    def between():
        cupy.sqrt(z, out=z)
        return cupy.fft.fft2(z)

    def mixed():
        window(bridge.as_pycuda(z), a, n, block=block, grid=grid)
        power(b, between(), n, block=block, grid=grid)

    def alone():
        raw_window(grid, block, (z, x, n))
        raw_power(grid, block, (p, between(), n))

    def staged():
        host = bridge.as_pycuda(x).get()
        window(z, cupy.asarray(host), n, block=block, grid=grid)
        power(p, between(), n, block=block, grid=grid)

    return {"both libraries": mixed, "CuPy alone": alone, "through the host": staged}, p


def pipeline():
    """Compare the pipelines' time to the end, and what a profiler sees copied."""
    ways, result = pipelines()
    results = {}

    def run(way):
        for _ in range(10):
            way()
        cupy.cuda.Device().synchronize()

    for name, way in ways.items():
        run(way)
        results[name] = result.get()
    np.testing.assert_array_equal(results["both libraries"], results["CuPy alone"])
    np.testing.assert_array_equal(results["through the host"], results["CuPy alone"])
    timings = measure({name: lambda w=way: run(w) for name, way in ways.items()}, repeat=3)
    text = table("Kernel, ufunc, cuFFT, kernel: ten times 2048 x 2048, to the end", timings,
                 "both libraries", {"CuPy alone": 1.02})  # fmt: skip
    if not find_spec("torch"):
        return f"{text}\n\nPyTorch's profiler is not installed: bytes copied were not read."
    copied = {name: copies(lambda w=way: run(w)) for name, way in ways.items()}
    rows = "".join(
        f"\n| {name} | {kernels} | {count} |" for name, (kernels, count) in copied.items()
    )
    return f"{text}\n\n| in the profiler | kernels | copies |\n|---|---|---|{rows}"


def copies(work):
    """Return how many kernels and how many memory copies CUPTI saw, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
    names = [event.name for event in seen.events()]
    kernels = [name for name in names if not name.startswith(("Mem", "cu"))]
    return len(kernels), sum(name.startswith("Memcpy") for name in names)


def main():
    """Print everything about kernels."""
    for part in (calls, compiling, graph, pipeline):
        print(part(), flush=True)
