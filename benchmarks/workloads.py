"""Whole computations: native arrays beside bridged ones, on the GPU, and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy
import numpy as np
from cupyx.scipy import ndimage
from pycuda import gpuarray

import bridge
from benchmarks.conversions import package
from benchmarks.measure import Timing, measure, measure_gpu
from benchmarks.report import Report

FRAMES, FRAME = 100, (2160, 3840)
MATRICES = [512, 1024, 2048, 4096, 8192]

SOURCE = """
__global__ void before(float *out, const float *in, float gain, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sqrtf(gain * in[i]);
}
__global__ void after(float *out, const float *in, float gain, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * in[i] / gain;
}
"""
FOURIER = """
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
SIGMOID = """
extern "C" __global__ void sigmoid(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 1.0f / (1.0f + expf(-x[i]));
}
"""


def pipeline(report: Report, shape: tuple[int, int] = (2048, 2048)) -> None:
    """Compare kernel, ufunc, cuFFT, kernel: with PyCUDA's kernels, CuPy alone, and staged."""
    module = bridge.SourceModule(FOURIER)
    raw = cupy.RawModule(code=f'extern "C" {{ {FOURIER} }}')
    x = cupy.random.default_rng(1).random(shape, dtype=np.float32)
    z, p = cupy.empty(shape, np.complex64), cupy.empty(shape, np.float32)
    n = np.int32(x.size)
    grid, block = ((x.size + 255) // 256, 1, 1), (256, 1, 1)
    window, power = map(module.get_function, ("window", "power"))
    raw_window, raw_power = map(raw.get_function, ("window", "power"))
    a, b = bridge.as_pycuda(x), bridge.as_pycuda(p)

    def between() -> Any:
        cupy.sqrt(z, out=z)
        return cupy.fft.fft2(z)

    def mixed() -> None:
        window(bridge.as_pycuda(z), a, n, block=block, grid=grid)
        power(b, between(), n, block=block, grid=grid)

    def alone() -> None:
        raw_window(grid, block, (z, x, n))
        raw_power(grid, block, (p, between(), n))

    def staged() -> None:
        window(z, cupy.asarray(a.get()), n, block=block, grid=grid)
        power(p, between(), n, block=block, grid=grid)

    def run(way: Callable[[], None]) -> None:
        for _ in range(10):
            way()
        cupy.cuda.runtime.deviceSynchronize()

    ways = {"both libraries": mixed, "CuPy alone": alone, "through the host": staged}
    results = {}
    for name, way in ways.items():
        run(way)
        results[name] = p.get()
    for name in ways:
        np.testing.assert_array_equal(results[name], results["CuPy alone"], err_msg=name)
    runs = {name: partial(run, way) for name, way in ways.items()}
    title = "Kernel, ufunc, cuFFT, kernel: ten times 2048 x 2048, to the end"
    report.compare(title, measure(runs, repeat=3), {"CuPy alone": 1.02})
    say_copies(report, "That pipeline", runs)


def frames(report: Report) -> None:
    """Compare 100 4K frames: a kernel, CuPy's Gaussian filter, a kernel."""
    module = bridge.SourceModule(SOURCE)
    raw = cupy.RawModule(code=f'extern "C" {{ {SOURCE} }}')
    n, gain = np.int32(FRAME[0] * FRAME[1]), np.float32(0.5)
    sizes = {"grid": ((int(n) + 255) // 256, 1, 1), "block": (256, 1, 1)}
    before, after = map(module.get_function, ("before", "after"))
    raw_before, raw_after = map(raw.get_function, ("before", "after"))
    pixels = cupy.arange(int(n), dtype=np.float32).reshape(FRAME)
    x = [cupy.sin(pixels * (number + 1)) ** 2 for number in range(FRAMES)]
    a = [gpuarray.GPUArray(FRAME, np.float32) for _ in x]  # what the old code has
    for one, other in zip(a, x, strict=True):
        bridge.as_cupy(one)[...] = other
    out = cupy.empty(FRAME, np.float32)

    def alone(frame: int) -> Any:
        image = cupy.empty(FRAME, np.float32)
        raw_before(sizes["grid"], sizes["block"], (image, x[frame], gain, n))
        image = ndimage.gaussian_filter(image, 2)
        raw_after(sizes["grid"], sizes["block"], (out, image, gain, n))
        return out

    def mixed(frame: int) -> Any:
        image = gpuarray.GPUArray(FRAME, np.float32, allocator=allocator)
        before(image, a[frame], gain, n, **sizes)
        image = bridge.as_pycuda(ndimage.gaussian_filter(bridge.as_cupy(image), 2))
        after(out, image, gain, n, **sizes)
        return out

    def staged(frame: int) -> Any:
        image = gpuarray.GPUArray(FRAME, np.float32, allocator=allocator)
        before(image, a[frame], gain, n, **sizes)
        image = gpuarray.to_gpu(ndimage.gaussian_filter(cupy.asarray(image.get()), 2).get())
        after(out, image, gain, n, **sizes)
        return out

    allocator = bridge.pycuda_allocator()
    ways = {"both libraries": mixed, "CuPy alone": alone, "through the host": staged}
    expected = alone(7).copy()
    for name, way in ways.items():
        np.testing.assert_array_equal(way(7).get(), expected.get(), err_msg=name)

    def all_frames(way: Callable[[int], Any], number: int = FRAMES) -> Callable[[], None]:
        def run() -> None:
            for frame in range(number):
                way(frame)

        return run

    title = f"{FRAMES} frames of {FRAME[1]} x {FRAME[0]}: kernel, CuPy's Gaussian filter, kernel"
    gpu = measure_gpu({name: all_frames(ways[name]) for name in ways}, rounds=5, repeat=1)
    report.compare(f"{title}, GPU time", gpu, {"CuPy alone": 1.02})
    queued = {name: all_frames(ways[name], 10) for name in ("both libraries", "CuPy alone")}
    cpu = {
        name: Timing([sample * FRAMES / 10 for sample in timing.samples], timing.rounds)
        for name, timing in measure(queued, rounds=15, repeat=1).items()
    }
    report.compare(f"{title}, CPU time to queue", cpu)
    nbytes = 2 * 2 * FRAMES * out.nbytes
    rows = [f"| through the host | {nbytes / 1e9:.1f} GB |", "| both libraries | 0 |"]
    text = (
        "### What those frames copy between host and device\n\n| way | by its code |\n|---|---|\n"
    )
    report.say(text + "\n".join(rows))
    report.data["copied bytes"] = {"through the host": nbytes, "both libraries": 0}
    say_copies(report, "10 of those frames", {n: all_frames(way, 10) for n, way in ways.items()})


def say_copies(report: Report, what: str, runs: dict[str, Callable[[], None]]) -> None:
    """Add what a profiler sees of each way, where PyTorch brings one."""
    if package("torch") is None:
        report.say(f"{what} in the profiler: PyTorch, which brings one, is not installed.")
        return
    rows = [f"### {what} in the profiler (CUPTI)\n", "| way | kernels | copies |", "|---|---|---|"]
    for name, work in runs.items():
        kernels, copies = profiled(work)
        rows.append(f"| {name} | {kernels} | {copies} |")
    report.say("\n".join(rows))


def profiled(work: Callable[[], Any]) -> tuple[int, int]:
    """Return how many kernels and how many memory copies CUPTI saw, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        cupy.cuda.runtime.deviceSynchronize()
    names = [event.name for event in seen.events()]
    kernels = [name for name in names if not name.startswith(("Mem", "cu"))]
    return len(kernels), sum(name.startswith("Memcpy") for name in names)


def tutorials(report: Report) -> None:
    """Compare the tutorials' cases on native arrays and on bridged ones."""
    rng = np.random.default_rng(1)
    rows = [
        "### The tutorials' cases\n",
        "GPU time on CuPy's own arrays and on views of PyCUDA's.\n",
        "| case | CuPy ms | bridged ms | bridged / native |",
        "|---|---|---|---|",
    ]
    found = []
    for name, host, work, times in _cases(rng):
        native = [cupy.asarray(array) for array in host]
        arrays = [gpuarray.to_gpu(array) for array in host]
        bridged = [bridge.as_cupy(array) for array in arrays]
        np.testing.assert_array_equal(work(*native).get(), work(*bridged).get())
        ways = {"bridged": partial(work, *bridged), "native": partial(work, *native)}
        gpu = measure_gpu(ways, rounds=15, repeat=5)
        ours, theirs = gpu["bridged"].median * times, gpu["native"].median * times
        report.goal(f"{name}: bridged / native, GPU time", ours / theirs, 1.01)
        found.append([name, theirs, ours])
        rows.append(f"| {name} | {theirs / 1e3:.3f} | {ours / 1e3:.3f} | {ours / theirs:.3f} |")
        del native, arrays, bridged, ways
        cupy.get_default_memory_pool().free_all_blocks()
    report.say("\n".join(rows))
    report.data["tutorials"] = found


def _cases(rng: Any) -> Any:
    """Yield name, host arrays, the work on the device, and how often it is done."""
    for n in MATRICES:
        two = [rng.random((n, n), dtype=np.float32) for _ in range(2)]
        yield f"matmul {n}", two, cupy.matmul, 1
    two = [rng.random((5000, 5000), dtype=np.float32) for _ in range(2)]

    def chain(x: Any, y: Any) -> Any:
        return cupy.sqrt(cupy.sin(x) ** 2 + cupy.cos(y) ** 2) * cupy.exp(-x)

    yield "element-wise chain, 5000 x 5000", two, chain, 1

    kernel = cupy.RawKernel(SIGMOID, "sigmoid")
    x = rng.standard_normal(10_000_000, dtype=np.float32)

    def sigmoid(x: Any) -> Any:
        y = cupy.empty_like(x)
        kernel(((x.size + 255) // 256,), (256,), (x, y, np.int32(x.size)))
        return y

    yield "sigmoid of 10 M", [x], sigmoid, 1
    frame = [rng.random(FRAME, dtype=np.float32)]  # one, counted a hundred times

    def blurred(image: Any) -> Any:
        return ndimage.gaussian_filter(image, 2)

    yield f"Gaussian filter of {FRAMES} 4K frames", frame, blurred, FRAMES


PARTS = [tutorials, frames, pipeline]  # what a profiler looks at comes last
