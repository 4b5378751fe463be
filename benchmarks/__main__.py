"""Print the conversions' cost beside that of every other way to do it, as Markdown tables."""

from __future__ import annotations

import gc
import sys

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray

import bridge
import bridge.autoinit
from benchmarks import kernels, memory as pools
from benchmarks.measure import measure, table

SIZES = [4, 4 << 10, 4 << 20, 1 << 30, 8 << 30]  # bytes


def recipe(a):
    """Convert as the tutorials do."""
    memory = cupy.cuda.UnownedMemory(int(a.gpudata), a.nbytes, a)
    return cupy.ndarray(a.shape, a.dtype, cupy.cuda.MemoryPointer(memory, 0))


def constructor(x):
    """Convert as PyCUDA's constructor allows."""
    return gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x)


def to_cupy(shape):
    """Compare the ways from PyCUDA to CuPy."""
    a = gpuarray.GPUArray(shape, np.float32)
    pointer = recipe(a).data
    timings = measure(
        {
            "as_cupy(a)": lambda: bridge.as_cupy(a),
            "cupy.asarray(a)": lambda: cupy.asarray(a),
            "UnownedMemory recipe": lambda: recipe(a),
            "bare cupy.ndarray(shape, dtype, memptr)": lambda: cupy.ndarray(
                shape, np.float32, pointer
            ),
        }
    )
    goals = {"cupy.asarray(a)": 0.4, "UnownedMemory recipe": 1.0}
    return table(f"PyCUDA to CuPy, shape {shape}", timings, "as_cupy(a)", goals)


def to_pycuda(shape):
    """Compare the ways from CuPy to PyCUDA."""
    x = cupy.zeros(shape, np.float32)
    timings = measure(
        {
            "as_pycuda(x)": lambda: bridge.as_pycuda(x),
            "GPUArray(gpudata=, base=)": lambda: constructor(x),
        }
    )
    goals = {"GPUArray(gpudata=, base=)": 1.0}
    return table(f"CuPy to PyCUDA, shape {shape}", timings, "as_pycuda(x)", goals)


def fences():
    """Show what the ordering costs where CUDA does not order the streams itself."""
    a, x = gpuarray.GPUArray(1000, np.float32), cupy.zeros(1000, np.float32)
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    with current:
        timings = measure(
            {
                "as_cupy(a, stream=s)": lambda: bridge.as_cupy(a, stream=stream),
                "as_cupy(a, stream=-1)": lambda: bridge.as_cupy(a, stream=-1),
                "as_pycuda(x, stream=s)": lambda: bridge.as_pycuda(x, stream=stream),
                "as_pycuda(x, stream=-1)": lambda: bridge.as_pycuda(x, stream=-1),
                "wait_stream(s, t)": lambda: bridge.wait_stream(stream, current),
            },
            repeat=200,
        )
        current.synchronize()
    title = "Two non-blocking streams: a fence at the conversion and one at the release"
    return table(title, timings, "as_cupy(a, stream=s)", {})


def sizes():
    """Show that the cost does not depend on the size."""
    free = cupy.cuda.runtime.memGetInfo()[0]
    rows = ["\n### Any size\n", "| bytes | as_cupy us | as_pycuda us |", "|---|---|---|"]
    for nbytes in SIZES:
        if nbytes > free // 2:
            rows.append(f"| {nbytes:,} | does not fit | |")
            continue
        a = gpuarray.GPUArray(nbytes // 4, np.float32)
        cupy_us = measure({"": lambda a=a: bridge.as_cupy(a)})[""].median
        del a
        x = cupy.empty(nbytes // 4, np.float32)
        pycuda_us = measure({"": lambda x=x: bridge.as_pycuda(x)})[""].median
        del x
        cupy.get_default_memory_pool().free_all_blocks()
        rows.append(f"| {nbytes:,} | {cupy_us:.2f} | {pycuda_us:.2f} |")
    return "\n".join(rows)


def memory():
    """Show that conversions leave nothing behind."""
    a, x = gpuarray.GPUArray(1000, np.float32), cupy.zeros(1000, np.float32)
    pool = cupy.get_default_memory_pool()
    gc.collect()
    before = cupy.cuda.runtime.memGetInfo()[0], pool.used_bytes(), len(gc.get_objects())
    for _ in range(100_000):
        bridge.as_cupy(a)
        bridge.as_pycuda(x)
    gc.collect()
    after = cupy.cuda.runtime.memGetInfo()[0], pool.used_bytes(), len(gc.get_objects())
    kinds = ("device memory, bytes", "CuPy's pool, bytes", "Python objects")
    differences = [first - second for first, second in zip(before, after, strict=True)]
    text = ", ".join(f"{kind} {abs(n)}" for kind, n in zip(kinds, differences, strict=True))
    return f"\n### 100,000 conversions each way\n\nLeft behind: {text}."


def main() -> int:
    """Print everything."""
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"## Conversions on {device}\n")
    bridge.show_config()
    for shape in [(1000,), (30, 40), (4, 5, 6)]:
        print(to_cupy(shape), flush=True)
        print(to_pycuda(shape), flush=True)
    print(fences(), flush=True)
    print(sizes(), flush=True)
    print(memory(), flush=True)
    print("\n## Kernels")
    kernels.main()
    print("\n## Memory")
    pools.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
