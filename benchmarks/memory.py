"""Memory: what an allocation costs, and what becomes of a workload that needs most of the GPU."""

from __future__ import annotations

import time
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool

import bridge
from benchmarks.measure import measure
from benchmarks.report import Report

SHARE = 0.55  # of the GPU's memory, for each library in turn


def allocations(report: Report) -> None:
    """Compare the ways to allocate and to let go, of a small block and of a large one."""
    theirs = DeviceMemoryPool()
    for nbytes in (4 << 10, 4 << 20):
        for larger in (0, 64 << 20):  # CuPy's pool then cuts it and joins it again each time
            cupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)
            ours = bridge.pycuda_allocator()
            cupy.cuda.alloc(larger or nbytes)
            timings = measure(
                {
                    "pycuda_allocator()(n)": lambda n=nbytes, ours=ours: ours(n),
                    "cupy.cuda.alloc(n)": lambda n=nbytes: cupy.cuda.alloc(n),
                    "DeviceMemoryPool.allocate(n)": lambda n=nbytes: theirs.allocate(n),
                }
            )
            # On its own: it makes the host wait, and disturbs what is measured beside it.
            timings |= measure(
                {"pycuda.driver.mem_alloc(n)": lambda n=nbytes: drv.mem_alloc(n)}, repeat=500
            )
            free = "a larger block" if larger else "a block of that size"
            title = f"Allocate {nbytes:,} bytes and let go, where CuPy's pool has {free}"
            goals = {"pycuda.driver.mem_alloc(n)": 0.6, "cupy.cuda.alloc(n)": 1.2}
            report.compare(title, timings, goals)
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def alternate(allocator: Any, rounds: int = 3) -> str:
    """Give most of the GPU to either library in turn; return what is left to say of it."""
    n = int(SHARE * cupy.cuda.runtime.memGetInfo()[1])
    start = time.perf_counter()
    for number in range(rounds):
        try:
            a = gpuarray.GPUArray(n, np.uint8, allocator=allocator)
            drv.memset_d8(a.gpudata, number, n)
            assert int(bridge.as_cupy(a)[-1]) == number
            del a
            x = cupy.full(n, number + 1, np.uint8)
            last = np.empty(1, np.uint8)
            drv.memcpy_dtoh(last, int(bridge.as_pycuda(x).gpudata) + n - 1)
            assert last[0] == number + 1
            del x
        except (MemoryError, drv.MemoryError) as error:
            library = "CuPy" if "allocated so far" in str(error) else "PyCUDA"
            return f"fails in round {number + 1}: {library} is out of memory"
    return f"finishes, {(time.perf_counter() - start) / rounds:.2f} s a round"


def alternating(report: Report) -> None:
    """Compare one pool with two."""

    def clean() -> None:
        cupy.get_default_memory_pool().free_all_blocks()

    results = {}
    clean()
    results["one pool: pycuda_allocator()"] = alternate(bridge.pycuda_allocator())
    clean()
    results["two pools: CuPy's and PyCUDA's"] = alternate(DeviceMemoryPool().allocate)
    clean()
    rows = "\n".join(f"| {name} | {result} |" for name, result in results.items())
    title = f"PyCUDA and CuPy in turn, each with {SHARE:.0%} of the GPU"
    report.say(f"### {title}\n\n| | |\n|---|---|\n{rows}")


PARTS = [allocations, alternating]
