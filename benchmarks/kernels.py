"""Kernels: the cost of a call, of compiling, and of a graph."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pycuda.compiler
import pycuda.driver as drv

import bridge
from benchmarks.conversions import package
from benchmarks.measure import Loop, measure, measure_threads
from benchmarks.report import Report

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


def pycuda_function(source: str, name: str) -> Any:
    """Compile for PyCUDA alone, with nvcc where there is one."""
    if HAS_NVCC:
        return pycuda.compiler.SourceModule(source).get_function(name)
    image, _ = cupy.cuda.compiler.compile_using_nvrtc(f'extern "C" {{ {source} }}')
    return drv.module_from_buffer(image).get_function(name)


def calls(report: Report) -> None:
    """Compare the ways to launch: three arrays and two scalars, on CuPy's default stream."""
    x, y, z = (cupy.zeros(1024, np.float32) for _ in range(3))
    a, b, c = map(bridge.as_pycuda, (x, y, z))
    px, py, pz = (array.data.ptr for array in (x, y, z))
    factor, n = np.float32(2), np.int32(1024)
    grid, block = (8, 1, 1), (128, 1, 1)
    module = bridge.SourceModule(SOURCE)
    ours = module.get_function("axpy")
    theirs = pycuda_function(SOURCE, "axpy")
    raw = cupy.RawKernel(f'extern "C" {SOURCE}', "axpy")
    ours.prepare("PPPfi")
    theirs.prepare("PPPfi")
    buffer = struct.pack("PPPfi", pz, px, py, 2.0, 1024)

    ways = {
        "f(cupy arrays)": lambda: ours(z, x, y, 2.0, 1024, block=128, grid=8),
        "f(GPUArrays)": lambda: ours(c, a, b, 2.0, 1024, block=128, grid=8),
        "cupy.RawKernel": lambda: raw(grid, block, (z, x, y, factor, n)),
        "PyCUDA f(GPUArrays)": lambda: theirs(c, a, b, factor, n, block=block, grid=grid),
        "PyCUDA f(cupy arrays)": lambda: theirs(z, x, y, factor, n, block=block, grid=grid),
    }
    if core := package("cuda.core"):
        ways["cuda.core launch"] = _with_cuda_core(core, (8, 128), (pz, px, py, factor, n))
    handle = module._handle("axpy")
    if package("triton") and package("torch"):
        ways["Triton's launcher"] = _with_triton()
    packed = [*map(ctypes.c_uint64, (pz, px, py)), ctypes.c_float(2), ctypes.c_int(1024)]
    bare = _in_c(handle, packed, buffer)
    ways["cuLaunchKernel in C"], ways["cuLaunchKernel in C, of a buffer"] = bare
    goals = {
        "cupy.RawKernel": 0.64,
        "PyCUDA f(cupy arrays)": 0.38,
        "cuda.core launch": 0.88,
        "cuLaunchKernel in C": 1.4,
    }
    title = "A checked call of a SourceModule function"
    timings = measure(ways)
    of_pycuda = {name: timings.pop(name) for name in ("f(GPUArrays)", "PyCUDA f(GPUArrays)")}
    report.compare(title, timings, goals)
    report.compare(f"{title}, of GPUArrays", of_pycuda, {"PyCUDA f(GPUArrays)": 0.37})
    more = of_pycuda["f(GPUArrays)"].median - timings["f(cupy arrays)"].median
    report.goal("f(GPUArrays) - f(cupy arrays)", more, 0.6, "us")
    _forms(report, ours, z, x, y)
    report.compare(
        "A checked call, time by number, on threads",
        measure_threads(ways["f(cupy arrays)"]),
        {"1 thread": 1.0},
    )
    report.compare(
        "A call of cupy.RawKernel, time by number, on threads",
        measure_threads(ways["cupy.RawKernel"]),
    )
    ways = {
        "prepared_call": lambda: ours.prepared_call(grid, block, pz, px, py, 2.0, 1024),
        "PyCUDA prepared_call": lambda: theirs.prepared_call(grid, block, pz, px, py, 2.0, 1024),
        "PyCUDA _launch_kernel": lambda: theirs._launch_kernel(grid, block, buffer, 0, None),
    }
    goals = {"PyCUDA prepared_call": 1.0, "PyCUDA _launch_kernel": 0.92}
    report.compare("A prepared call", measure(ways), goals)

    p, q, r = (drv.mem_alloc(x.nbytes) for _ in range(3))
    ways = {
        "f(allocations)": lambda: ours(p, q, r, factor, n, block=block, grid=grid),
        "PyCUDA f(allocations)": lambda: theirs(p, q, r, factor, n, block=block, grid=grid),
    }
    report.compare(f"{title}, of mem_alloc's memory", measure(ways), {"PyCUDA f(allocations)": 0.5})
    ways = {
        "prepared_call": lambda: ours.prepared_call(grid, block, p, q, r, 2.0, 1024),
        "PyCUDA prepared_call": lambda: theirs.prepared_call(grid, block, p, q, r, 2.0, 1024),
    }
    goals = {"PyCUDA prepared_call": 1.0}
    report.compare("A prepared call, of mem_alloc's memory", measure(ways), goals)

    launch, other = bridge.launch, drv.Stream(1)
    with cupy.cuda.Stream(non_blocking=True):
        ways = {
            "launch, fenced both ways": lambda: launch(
                theirs, z, x, y, factor, n, grid=grid, block=block, stream=other
            ),
            "PyCUDA f(GPUArrays)": lambda: theirs(c, a, b, factor, n, block=block, grid=grid),
            "f(cupy arrays), fenced": lambda: ours(
                z, x, y, factor, n, block=block, grid=grid, stream=other
            ),
        }
        timings = measure(ways, repeat=500)
    title = "launch of a PyCUDA function on a stream that CUDA does not order with CuPy's"
    report.compare(title, timings, {"PyCUDA f(GPUArrays)": 0.8})


def _forms(report: Report, f: Any, z: Any, x: Any, y: Any) -> None:
    """Compare the forms in which README.md and docs write a call, and those of older programs."""
    sizes, threads, blocks = {"block": 128, "grid": 8}, np.int64(128), np.int64(8)
    factor, n = np.float32(2), np.int32(1024)
    forms = {
        "f(x, 2.0, block=128, grid=8)": lambda: f(z, x, y, 2.0, 1024, block=128, grid=8),
        "f(x, np.float32(2), ...)": lambda: f(z, x, y, factor, n, block=128, grid=8),
        "tuples": lambda: f(z, x, y, 2.0, 1024, block=(128, 1, 1), grid=(8, 1, 1)),
        "a dict of ints": lambda: f(z, x, y, 2.0, 1024, **sizes),
        "lists": lambda: f(z, x, y, 2.0, 1024, block=[128, 1, 1], grid=[8, 1]),
        "NumPy's ints": lambda: f(z, x, y, 2.0, 1024, block=threads, grid=blocks),
    }
    timings = measure(forms)
    report.compare("A call, in each form", timings, {"tuples": 1.03})
    for form, limit in ("a dict of ints", 1.03), ("lists", 1.15), ("NumPy's ints", 1.15):
        report.goal(f"{form} / tuples", timings[form].over(timings["tuples"]), limit)


LOOP = """
typedef unsigned u;
typedef int launch(void *, u, u, u, u, u, u, u, void *, void **, void **);
int loop(int n, launch *cuLaunchKernel, void *function, void **params, void **extra)
{
    int status = 0;
    while (n-- && !status)
        status = cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, 0, params, extra);
    return status;
}
"""


def _in_c(handle: int, params: list[Any], buffer: bytes) -> Iterator[Loop]:
    """Give loops in C of bare launches: by pointers to the arguments, and by a buffer of them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "loop.c").write_text(LOOP)
        command = "cc", "-O2", "-shared", "-fPIC", "-o", "loop.so", "loop.c"
        subprocess.run(command, cwd=folder, check=True)
        loop = ctypes.CDLL(f"{folder}/loop.so").loop
    pointers = (ctypes.c_void_p * len(params))(*map(ctypes.addressof, params))
    kept, size = ctypes.create_string_buffer(buffer), ctypes.c_size_t(len(buffer))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(kept), 2, ctypes.addressof(size), 0)
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel

    def run(n: int, *params: Any, kept: Any = (params, kept, size)) -> None:
        assert loop(n, launch, ctypes.c_void_p(handle), *params) == 0

    yield Loop(lambda n: run(n, pointers, None))
    yield Loop(lambda n: run(n, None, extra))


def _with_cuda_core(core: Any, size: tuple[int, int], args: tuple[Any, ...]) -> Any:
    """Return a call of cuda.core's launch, with all that can be made ready before."""
    device = core.Device()
    device.set_current()
    options = core.ProgramOptions(arch=f"sm_{device.arch}")
    program = core.Program(f'extern "C" {SOURCE}', code_type="c++", options=options)
    kernel = program.compile("cubin").get_kernel("axpy")
    stream, config = device.default_stream, core.LaunchConfig(grid=size[0], block=size[1])
    launch = core.launch
    return lambda: launch(stream, config, kernel, *args)


def _with_triton() -> Any:
    """Return a call of Triton's launcher, with tensors of PyTorch."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def axpy(z, x, y, a, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(z + i, a * tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

    globals()["tl"] = tl  # the kernel's names are looked up in its module
    z, x, y = (torch.zeros(1024, device="cuda") for _ in range(3))
    kernel = axpy[(8,)]
    return lambda: kernel(z, x, y, 2.0, 1024, BLOCK=128)


def wrapped(report: Report) -> None:
    """Measure what `wrap_pycuda` adds to a function of two arrays."""
    x, y = cupy.zeros(1000, np.float32), cupy.zeros(1000, np.float32)
    a, b = map(bridge.as_pycuda, (x, y))

    def second(one: Any, other: Any) -> Any:
        return other

    function = bridge.wrap_pycuda(second)
    timings = measure({"wrapped(x, y)": lambda: function(x, y), "f(a, b)": lambda: second(a, b)})
    report.compare("wrap_pycuda of a function that does nothing", timings)
    over = timings["wrapped(x, y)"].median - timings["f(a, b)"].median
    report.goal("wrap_pycuda of two arrays, over the function", over, 2.5, "us")


def compiling(report: Report) -> None:
    """Compare compiling: a source that is new, and one that is in the cache."""
    if not HAS_NVCC:
        report.say("### Compiling\n\nnvcc is not installed, so there is nothing to compare with.")
        return
    number = itertools.count()
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:

        def compile_new(module: Any, source: str, folder: str) -> None:
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
            report.compare(f"A source that is new, {title}", timings, {"PyCUDA's": 0.15})
        timings = measure(
            {
                "SourceModule": lambda: bridge.SourceModule(COMPLEX, cache_dir=ours),
                "PyCUDA's": lambda: pycuda.compiler.SourceModule(COMPLEX, cache_dir=theirs),
            },
            rounds=7,
            repeat=3,
        )
        report.compare("A source in the cache, with an include", timings)
        report.goal("A source in the cache", timings["SourceModule"].median / 1e3, 1.0, "ms")


def graph(report: Report) -> None:
    """Compare twenty small kernels of both libraries, launched one by one and as a CUDA graph."""
    stream = drv.Stream(1)
    x, y, z = (cupy.zeros(1024, np.float32) for _ in range(3))
    ours = bridge.SourceModule(SOURCE).get_function("axpy")
    theirs = pycuda_function(SOURCE, "axpy")
    args = (np.float32(0.5), np.int32(1024))
    keywords = {"block": (128, 1, 1), "grid": (8, 1, 1)}

    def work() -> None:
        for _ in range(5):
            ours(z, x, y, *args, **keywords)
            bridge.launch(theirs, y, z, x, *args, **keywords)
            cupy.multiply(y, args[0], out=y)
            cupy.add(x, z, out=x)

    with bridge.as_cupy_stream(stream) as current:
        work()
        current.begin_capture()
        work()
        captured = current.end_capture()

        def run(what: Any) -> None:
            what()
            current.synchronize()

        timings = measure(
            {
                "as a graph": lambda: run(captured.launch),
                "one by one": lambda: run(work),
            },
            repeat=200,
        )
        report.compare("20 small kernels to the end, both libraries'", timings, {"one by one": 0.4})

        current.begin_capture()
        nodes = [ours.capture(z, x, y, *args, **keywords) for _ in range(20)]
        captured = current.end_capture()

        def update() -> None:
            for node in nodes:
                node.update(captured, y, z, x, *args)

        def launch() -> None:
            for _ in nodes:
                ours(y, z, x, *args, **keywords)

        ways = {"node.update(...)": update, "launched": launch}
        timings = measure(ways, repeat=200)
        report.compare("20 kernels of a graph get other arrays", timings, {"launched": 0.5})


PARTS = [calls, wrapped, compiling, graph]
