"""Whole programs under ``python -m bridge run``: their start, their first and their later steps."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from timeit import default_timer as now

from benchmarks.kernels import HAS_NVCC
from benchmarks.measure import Timing
from benchmarks.report import Report

ROOT = Path(__file__).resolve().parents[1]
RUN = ("-m", "bridge", "run")
PROGRAM = """
from timeit import default_timer as now
import numpy as np
import pycuda.autoinit, pycuda.driver
from pycuda import gpuarray

a = gpuarray.to_gpu(np.arange(1024, dtype=np.float32))
pycuda.driver.Context.synchronize()
begin = now()
b = a + 1
pycuda.driver.Context.synchronize()
first = now() - begin
times = []
for _ in range(9):
    begin = now()
    for _ in range(300):
        b = a + a
    pycuda.driver.Context.synchronize()
    times.append((now() - begin) / 300)
print(first * 1e3, sorted(times)[4] * 1e6)
"""


def _run(before: tuple[str, ...], program: str, caches: str) -> tuple[float, list[float]]:
    """Return the seconds that a process takes, and the numbers that it prints."""
    path = Path(caches, "program.py")
    path.write_text(program)
    environment = {**os.environ, "CUPY_CACHE_DIR": caches, "PYCUDA_CACHE_DIR": caches}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), environment.get("PYTHONPATH", "")))
    command = [sys.executable, *before, str(path)]
    begin = now()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return now() - begin, [float(word) for word in done.stdout.split()]


def programs(report: Report) -> None:
    """Compare programs with PyCUDA alone: start, first ``a + 1``, ``a + a`` of 4 KB."""
    ways = {"run": RUN, "run --pool": (*RUN, "--pool"), "PyCUDA alone": ()}
    starts: dict[str, list[float]] = {name: [] for name in (*ways, "import cupy")}
    cold: dict[str, list[float]] = {name: [] for name in ways}
    warm: dict[str, list[float]] = {name: [] for name in ways}
    adding: dict[str, list[float]] = {name: [] for name in ways}
    start = "import pycuda.autoinit, pycuda.gpuarray"
    for _ in range(5):
        with tempfile.TemporaryDirectory() as caches:
            starts["import cupy"].append(1e3 * _run((), "import cupy", caches)[0])
        for name, before in ways.items():
            with tempfile.TemporaryDirectory() as caches:
                starts[name].append(1e3 * _run(before, start, caches)[0])
                if before or HAS_NVCC:
                    _, (first, _) = _run(before, PROGRAM, caches)
                    cold[name].append(first)
                    _, (first, each) = _run(before, PROGRAM, caches)
                    warm[name].append(first)
                    adding[name].append(each)
    start_of = {name: Timing(times) for name, times in starts.items()}
    report.compare("A program's start, with its imports", start_of, unit="ms")
    added = start_of["run"].median - start_of["PyCUDA alone"].median
    report.goal("bridge run, over a program's start", added, 150, "ms")
    if not HAS_NVCC:
        return
    for title, found, most in (
        ("The first a + 1 of a program", cold, 0.2),
        ("The first a + 1 of a program, from the cache", warm, 0.1),
    ):
        timings = {name: Timing(times) for name, times in found.items() if name != "run --pool"}
        report.compare(title, timings, {"PyCUDA alone": most}, unit="ms")
    order = {name: adding[name] for name in ("run --pool", "run", "PyCUDA alone")}
    timings = {name: Timing(times) for name, times in order.items()}
    report.compare("a + a of 4 KB in a program", timings, {"PyCUDA alone": 0.6})


PARTS = [programs]
