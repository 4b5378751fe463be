"""Conversions: their cost beside that of every other way to do it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import cupy
import numpy as np
import pycuda.driver as drv
from pycuda import gpuarray

import bridge
from benchmarks.measure import Timing, measure, measure_threads, on_cpu
from benchmarks.report import Report
from bridge.interop.ordering import order

SIZES = [4 << 2 * power for power in range(15)] + [8 << 30]  # bytes: 4 B, 16 B, ... 1 GB, 8 GB


class Exporter:
    """Another library's array, with a CUDA Array Interface that names a stream."""

    def __init__(self, array: Any, stream: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            **array.__cuda_array_interface__,
            "stream": stream.ptr,
        }


def package(name: str) -> Any:
    """Import a library that need not be there: None then."""
    try:
        return import_module(name)
    except ImportError:
        return None


def recipe(a: Any) -> Any:
    """Convert as the tutorials do."""
    memory = cupy.cuda.UnownedMemory(int(a.gpudata), a.nbytes, a)
    return cupy.ndarray(a.shape, a.dtype, cupy.cuda.MemoryPointer(memory, 0))


def constructor(x: Any) -> Any:
    """Convert as PyCUDA's constructor allows."""
    return gpuarray.GPUArray(x.shape, x.dtype, gpudata=x.data.ptr, base=x, strides=x.strides)


def to_cupy(report: Report) -> None:
    """Compare the ways from PyCUDA to CuPy."""
    whole = gpuarray.GPUArray((1000,), np.float32)
    arrays = {
        "shape (1000,)": whole,
        "shape (30, 40)": gpuarray.GPUArray((30, 40), np.float32),
        "every other one of 1000": whole[::2],
    }
    for name, a in arrays.items():
        pointer = recipe(a).data
        shape, strides = a.shape, None if a.flags.c_contiguous else a.strides
        calls = {
            "as_cupy(a)": lambda a=a: bridge.as_cupy(a),
            "cupy.asarray(a)": lambda a=a: cupy.asarray(a),
            "UnownedMemory recipe": lambda a=a: recipe(a),
            "cupy.ndarray(shape, dtype, memptr)": lambda s=shape, p=pointer, t=strides: (
                cupy.ndarray(s, np.float32, p, t)
            ),
            "cupy.asarray(a.get())": lambda a=a: cupy.asarray(a.get()),
        }
        if strides:
            del calls["UnownedMemory recipe"]  # it takes no strides: another array
        goals = {
            "cupy.asarray(a)": 0.33 if strides else 0.28,
            "UnownedMemory recipe": 1.0,
            "cupy.ndarray(shape, dtype, memptr)": 1.45,
        }
        report.compare(f"PyCUDA to CuPy, {name}", measure(calls, repeat=1000), goals)


def first_time(report: Report) -> None:
    """Compare the ways from PyCUDA to CuPy for an array that was not converted before."""
    a = gpuarray.GPUArray((30, 40), np.float32)
    bridge.as_cupy(a)
    known_by = [name for name in vars(a) if name.startswith("_bridge")]

    def anew() -> Any:
        for name in known_by:
            vars(a).pop(name, None)
        return a

    calls = {
        "as_cupy(a)": lambda: bridge.as_cupy(anew()),
        "cupy.asarray(a)": lambda: cupy.asarray(anew()),
        "UnownedMemory recipe": lambda: recipe(anew()),
    }
    title = "PyCUDA to CuPy, an array that was not converted before"
    goals = {"cupy.asarray(a)": 0.45, "UnownedMemory recipe": 1.1}
    report.compare(title, measure(calls, repeat=1000), goals)


def to_pycuda(report: Report) -> None:
    """Compare the ways from CuPy to PyCUDA."""
    whole = cupy.zeros(1000, np.float32)
    arrays = {
        "shape (1000,)": whole,
        "shape (30, 40)": cupy.zeros((30, 40), np.float32),
        "every other one of 1000": whole[::2],
    }
    for name, x in arrays.items():
        calls = {
            "as_pycuda(x)": lambda x=x: bridge.as_pycuda(x),
            "GPUArray(gpudata=, base=)": lambda x=x: constructor(x),
            "gpuarray.to_gpu(x.get())": lambda x=x: gpuarray.to_gpu(x.get()),
        }
        goals = {"GPUArray(gpudata=, base=)": 0.5}
        report.compare(f"CuPy to PyCUDA, {name}", measure(calls, repeat=1000), goals)


def round_trip(report: Report) -> None:
    """Compare there and back with there, and back."""
    a, x = gpuarray.GPUArray(1000, np.float32), cupy.zeros(1000, np.float32)
    timings = measure(
        {
            "as_cupy(as_pycuda(x))": lambda: bridge.as_cupy(bridge.as_pycuda(x)),
            "as_pycuda(as_cupy(a))": lambda: bridge.as_pycuda(bridge.as_cupy(a)),
            "as_cupy(a)": lambda: bridge.as_cupy(a),
            "as_pycuda(x)": lambda: bridge.as_pycuda(x),
        }
    )
    report.compare("There and back", timings)
    both = timings["as_cupy(a)"] + timings["as_pycuda(x)"]
    for name in ("as_cupy(as_pycuda(x))", "as_pycuda(as_cupy(a))"):
        report.goal(f"{name} / there + back", timings[name].over(both), 1.0)


def foreign(report: Report) -> None:
    """Compare the ways to take another library's array."""
    x = cupy.zeros(1000, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    exporter = Exporter(x, stream)
    calls = {
        "as_cupy(exporter)": lambda: bridge.as_cupy(exporter),
        "cupy.asarray(exporter)": lambda: cupy.asarray(exporter),
        "as_pycuda(exporter)": lambda: bridge.as_pycuda(exporter),
    }
    if numba := package("numba.cuda"):
        calls["numba.cuda.as_cuda_array(exporter)"] = lambda: numba.as_cuda_array(exporter)
    if core := package("cuda.core.utils"):
        view = core.StridedMemoryView.from_any_interface
        calls["cuda.core's StridedMemoryView"] = lambda: view(exporter, stream_ptr=0)
    title = "An array interface that names a stream"
    report.compare(title, measure(calls, repeat=500), {"cupy.asarray(exporter)": 0.6})

    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n)'
        "{ for (long long t = clock64() + n; clock64() < t;) ; }",
        "spin",
    )
    cycles = np.int64(20e-3 * 1e3 * cupy.cuda.Device().attributes["ClockRate"])

    def while_busy(convert: Any) -> Timing:
        samples = []
        for _ in range(7):
            spin((1,), (1,), (cycles,), stream=stream)
            start = time.perf_counter()
            convert(exporter)
            samples.append((time.perf_counter() - start) * 1e6)
            cupy.cuda.runtime.deviceSynchronize()
        return Timing(samples)

    spin((1,), (1,), (np.int64(0),))
    ways = {"as_cupy(exporter)": bridge.as_cupy, "cupy.asarray(exporter)": cupy.asarray}
    timings = {name: while_busy(way) for name, way in ways.items()}
    report.compare("The same, while that stream is busy for 20 ms", timings)
    report.goal("as_cupy of a busy exporter", timings["as_cupy(exporter)"].median, 100, "us")

    torch = package("torch")
    if torch is None:
        return
    tensor, a = torch.zeros(1000, device="cuda"), gpuarray.GPUArray(1000, np.float32)
    timings = measure(
        {
            "as_cupy(tensor)": lambda: bridge.as_cupy(tensor),
            "cupy.asarray(tensor)": lambda: cupy.asarray(tensor),
            "cupy.from_dlpack(tensor)": lambda: cupy.from_dlpack(tensor),
            "as_pycuda(tensor)": lambda: bridge.as_pycuda(tensor),
        },
        repeat=500,
    )
    report.compare("PyTorch's tensor", timings, {"cupy.asarray(tensor)": 0.35})
    ratio = timings["as_pycuda(tensor)"].over(timings["cupy.asarray(tensor)"])
    report.goal("PyTorch's tensor: as_pycuda(tensor) / cupy.asarray(tensor)", ratio, 0.4)
    view = bridge.as_cupy(a)
    ways = {
        "torch.from_dlpack(a.__dlpack__(...))": lambda: torch.from_dlpack(
            a.__dlpack__(max_version=(1, 0))
        ),
        "torch.from_dlpack(a)": lambda: torch.from_dlpack(a),
        "torch.as_tensor(a)": lambda: torch.as_tensor(a),
        "torch.from_dlpack(as_cupy(a))": lambda: torch.from_dlpack(bridge.as_cupy(a)),
        "torch.from_dlpack(x) of CuPy": lambda: torch.from_dlpack(view),
        "a.__dlpack__(...), of these": lambda: a.__dlpack__(stream=1, max_version=(1, 0)),
    }
    # Of torch.from_dlpack(a), PyTorch takes 3.0 us to find its stream; the capsule takes 1.1.
    title = "A GPUArray to PyTorch"
    report.compare(title, measure(ways, repeat=500), {"torch.as_tensor(a)": 0.9})


def fences(report: Report) -> None:
    """Show what the ordering costs where CUDA does not order the streams itself."""
    a, x = gpuarray.GPUArray(1000, np.float32), cupy.zeros(1000, np.float32)
    stream, current = drv.Stream(1), cupy.cuda.Stream(non_blocking=True)
    handles = stream.handle, current.ptr
    event, theirs = cupy.cuda.Event(disable_timing=True), drv.Event(drv.event_flags.DISABLE_TIMING)
    record, wait = cupy.cuda.runtime.eventRecord, cupy.cuda.runtime.streamWaitEvent

    def bare() -> None:
        record(event.ptr, handles[0])
        wait(handles[1], event.ptr)

    def bare_of_pycuda() -> None:
        theirs.record(stream)
        stream.wait_for_event(theirs)

    with current:
        timings = measure(
            {
                "a fence of the bridge": lambda: order(*handles),
                "CUDA's record and wait, through CuPy": bare,
                "PyCUDA's record and wait": bare_of_pycuda,
                "wait_stream(s, t)": lambda: bridge.wait_stream(stream, current),
            },
            repeat=200,
        )
        report.compare("Ordering one non-blocking stream after another", timings)
        fence = timings["a fence of the bridge"].median
        report.goal("A fence, one direction", fence, 0.7, "us")

        ways: dict[str, Callable[[], Any]] = {
            "as_cupy(a, stream=s)": lambda: bridge.as_cupy(a, stream=stream),
            "as_cupy(a, stream=-1)": lambda: bridge.as_cupy(a, stream=-1),
            "as_pycuda(x, stream=s)": lambda: bridge.as_pycuda(x, stream=stream),
            "as_pycuda(x, stream=-1)": lambda: bridge.as_pycuda(x, stream=-1),
        }
        made = {name: Timing([], "made") for name in ways}
        dropped = {name: Timing([], "dropped") for name in ways}
        views: list[Any] = []
        for _ in range(31):
            for name, convert in ways.items():
                made[name].samples.append(on_cpu(lambda c=convert: views.append(c()), 200))
                dropped[name].samples.append(on_cpu(views.pop, 200))
    report.compare("Two non-blocking streams: converting", made)
    report.compare("Two non-blocking streams: letting go of the view", dropped)
    for name in ("as_cupy(a, stream=s)", "as_pycuda(x, stream=s)"):
        report.goal(f"Letting go of {name}, with a fence", dropped[name].median, 1.6, "us")


def contexts(report: Report) -> None:
    """Show what `with primary_context():` takes, whatever PyCUDA works in before."""
    home = drv.Context.get_current()

    def entered() -> None:
        with bridge.primary_context():
            pass

    def pushed() -> None:
        home.push()
        drv.Context.pop()

    def timed() -> Timing:
        return measure({"": entered})[""]

    timings = {"where it is current already": timed()}
    home.pop()
    timings["where PyCUDA has none"] = timed()
    other = home.get_device().make_context()
    timings["where another is current"] = timed()
    other.pop()
    other.detach()
    home.push()
    for name, timing in timings.items():
        report.goal(f"with primary_context():, {name}", timing.median, 0.9, "us")
    timings |= measure({"PyCUDA's push and pop": pushed})
    report.compare("Entering and leaving `primary_context`", timings)


def sizes(report: Report) -> None:
    """Show that the cost does not depend on the size, while staging's does."""
    free = cupy.cuda.runtime.memGetInfo()[0]
    rows = [
        "### Any size\n",
        "| bytes | as_cupy us | as_pycuda us | cupy.asarray(a.get()) us |",
        "|---|---|---|---|",
    ]
    found = []
    for nbytes in SIZES:
        if nbytes > free // 3:
            rows.append(f"| {nbytes:,} | does not fit | | |")
            continue
        a = gpuarray.zeros(nbytes // 4, np.float32)
        x = cupy.zeros(nbytes // 4, np.float32)
        timings = measure(
            {
                "as_cupy": lambda a=a: bridge.as_cupy(a),
                "as_pycuda": lambda x=x: bridge.as_pycuda(x),
            },
            rounds=15,
            repeat=1000,
        )
        few = 1 if nbytes > 1 << 26 else 20
        staged = measure(
            {"": lambda a=a: cupy.asarray(a.get())},
            rounds=2 if nbytes > 1 << 31 else 7,
            repeat=few,
        )[""]
        del a, x
        cupy.get_default_memory_pool().free_all_blocks()
        row = [timings["as_cupy"].median, timings["as_pycuda"].median, staged.median]
        found.append([nbytes, *row])
        rows.append(f"| {nbytes:,} | {row[0]:.2f} | {row[1]:.2f} | {row[2]:,.0f} |")
    report.say("\n".join(rows))
    report.data["sizes"] = found


def memory(report: Report) -> None:
    """Show that conversions leave nothing behind."""
    a, x = gpuarray.GPUArray(1000, np.float32), cupy.zeros(1000, np.float32)
    pool = cupy.get_default_memory_pool()

    def state() -> tuple[int, int, int]:
        gc.collect()
        return cupy.cuda.runtime.memGetInfo()[0], pool.used_bytes(), len(gc.get_objects())

    before = state()
    for _ in range(100_000):
        bridge.as_cupy(a)
        bridge.as_pycuda(x)
    left = [abs(first - second) for first, second in zip(before, state(), strict=True)]
    report.say(
        "### 100,000 conversions each way\n\n"
        "Left behind: device memory {}, CuPy's pool {} bytes, Python objects {}.".format(*left)
    )


def threads(report: Report) -> None:
    """Compare four threads with one."""
    a = gpuarray.GPUArray(1000, np.float32)
    timings = measure_threads(lambda: bridge.as_cupy(a))
    title = "as_cupy, time by number, on threads of one process"
    report.compare(title, timings, {"1 thread": 1.0})


IMPORT = """
import time
import cupy, pycuda.driver, pycuda.gpuarray
start = time.perf_counter()
import bridge
{names}
print((time.perf_counter() - start) * 1e3)
"""


def imports(report: Report) -> None:
    """Measure what the import takes over CuPy's and PyCUDA's, with all public names."""
    names = "\n".join(f"bridge.{name}" for name in bridge.__all__)
    codes = {"import bridge, and all names": names, "import bridge": ""}
    times: dict[str, list[float]] = {name: [] for name in codes}
    with tempfile.TemporaryDirectory() as bytecode:  # as an installed package has it
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(8):
            for name, code in codes.items():
                done = subprocess.run(
                    [sys.executable, "-c", IMPORT.format(names=code)],
                    env=environment, capture_output=True, text=True, check=True,
                )  # fmt: skip
                times[name].append(float(done.stdout))
    # The first run writes the files of compiled Python.
    timings = {name: Timing(found[1:], times) for name, found in times.items()}
    report.compare("After CuPy and PyCUDA", timings, unit="ms")
    what = "import bridge, and all names"
    report.goal(what, timings[what].median, 20.0, "ms")


PARTS = [
    to_cupy,
    first_time,
    to_pycuda,
    round_trip,
    foreign,
    fences,
    contexts,
    sizes,
    memory,
    threads,
    imports,
]
