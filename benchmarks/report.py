"""What a run of the benchmarks found: as Markdown, and as JSON for the plots."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
import pycuda
import pycuda.driver as drv

from benchmarks.measure import Timing


class Goal(NamedTuple):
    """A figure, and the most that it may be."""

    what: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Tell whether the figure, as it is printed, is within the limit."""
        return round(self.value, 2) <= self.limit


class Report:
    """Collects what the parts find; prints it as it comes."""

    def __init__(self) -> None:
        self.goals: list[Goal] = []
        self.text: list[str] = []
        self.data: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Add Markdown."""
        print(f"\n{text}", flush=True)
        self.text.append(text)

    def goal(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """Add a figure that has a goal."""
        self.goals.append(Goal(what, value, limit, unit))
        print(f"{what}: {value:.2f} {unit}", flush=True)

    def compare(
        self,
        title: str,
        timings: Mapping[str, Timing],
        goals: Mapping[str, float] | None = None,
        unit: str = "us",
    ) -> None:
        """Add a table: each call, its time, and the first one as a multiple of it.

        `goals` says, for a call, which multiple of it the first one may be at most.
        """
        subject = next(iter(timings))
        rows = [
            f"### {title}\n",
            f"| call | {unit} | spread | {subject} is |",
            "|---|---|---|---|",
        ]
        for name, timing in timings.items():
            ratio = timings[subject].over(timing)
            times = "" if name == subject else f"{ratio:.2f} of it"
            rows.append(f"| {name} | {timing.median:.2f} | {timing.spread:.2f} | {times} |")
            if goals and name in goals:
                self.goal(f"{title}: {subject} / {name}", ratio, goals[name])
        self.say("\n".join(rows))
        first = timings[subject]
        self.data[title] = {n: [t.median, t.spread, first.over(t)] for n, t in timings.items()}

    def save(self, folder: Path) -> None:
        """Write ``README.md`` and ``results.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        where = machine()
        found = {"machine": where, "goals": [g._asdict() for g in self.goals], **self.data}
        (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        rows = "\n".join(f"| {name} | {value} |" for name, value in where.items())
        parts = [
            "# Results",
            "Medians; spread is the distance of the quartiles, and a multiple the median of the "
            "rounds' multiples.",
            f"| | |\n|---|---|\n{rows}",
            summary(self.goals),
            *self.text,
        ]
        (folder / "README.md").write_text("\n\n".join(parts) + "\n")


# What README.md shows: a label, the table that has it, the unit, its us, and the calls beside it.
HEADLINE: list[tuple[str, str, str, float, dict[str, str]]] = [
    (
        "`bridge.as_cupy(a)`",
        "PyCUDA to CuPy, shape (30, 40)",
        "us",
        1,
        {
            "cupy.asarray(a)": "`cupy.asarray(a)`",
            "UnownedMemory recipe": "the tutorials' recipe",
            "cupy.ndarray(shape, dtype, memptr)": "the bare constructor",
            "cupy.asarray(a.get())": "copying through the host",
        },
    ),
    (
        "`bridge.as_pycuda(x)`",
        "CuPy to PyCUDA, shape (30, 40)",
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
            "PyCUDA f(GPUArrays)": "PyCUDA's `f(...)`",
            "cuda.core launch": "cuda.core's `launch`, unchecked",
        },
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
        "a function wrapped by `wrap_pycuda`, two arrays",
        "wrap_pycuda of a function that does nothing",
        "us",
        1,
        {},
    ),
    (
        "an exporter whose stream is busy for 20 ms",
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


def summary(goals: list[Goal]) -> str:
    """Write the table of all goals."""
    rows = ["## Goals\n", "| what | is | at most | |", "|---|---|---|---|"]
    for goal in goals:
        unit = f" {goal.unit}" if goal.unit else ""
        outcome = "" if goal.is_met else "**missed**"
        rows.append(
            f"| {goal.what} | {goal.value:.2f}{unit} | {goal.limit:.2f}{unit} | {outcome} |"
        )
    return "\n".join(rows)


def machine() -> dict[str, str]:
    """Say what the figures were measured with."""
    runtime = cupy.cuda.runtime
    toolkit, driver = map(_dotted, (runtime.runtimeGetVersion(), drv.get_driver_version()))
    with open("/proc/cpuinfo") as lines:
        cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "date": date.today().isoformat(),
        "GPU": runtime.getDeviceProperties(0)["name"].decode(),
        "CPU": cpu or platform.machine(),
        "Python": platform.python_version(),
        "CUDA": f"{toolkit}, driver {driver}",
        "CuPy": cupy.__version__,
        "PyCUDA": pycuda.VERSION_TEXT,
        "NumPy": np.__version__,
    }


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
