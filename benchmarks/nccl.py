"""All-reduce by NCCL over all GPUs, of CuPy's arrays and of PyCUDA's: `python -m benchmarks.nccl`.

One process drives all GPUs. The bus bandwidth is that of NCCL's own tests,
``bytes / time * 2 (n - 1) / n`` for n GPUs, which compares with what the hardware can do:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy.cuda import nccl
from pycuda import gpuarray

import bridge
import bridge.autoinit
from benchmarks.measure import Timing, measure_gpu
from benchmarks.report import machine

CALLS = {1 << 20: 200, 64 << 20: 40, 1 << 30: 5}  # bytes -> all-reduces a round
ROUNDS = 21
GOAL = 0.95  # of the bandwidth of CuPy's arrays, at least
CUPY, KEPT, EACH = "CuPy's arrays", "GPUArrays, views kept", "GPUArrays, converted for each call"


def all_reduces(
    nbytes: int, devices: Iterable[int], communicators: list[Any]
) -> dict[str, Callable[[], None]]:
    """Return calls that queue an all-reduce of float32 on CuPy's stream of each device."""
    n = nbytes // 4
    theirs, ours, views = [], [], []
    for device in devices:
        with bridge.primary_context(device):
            theirs.append((cupy.full(n, device + 1, np.float32), cupy.zeros(n, np.float32)))
            ours.append(tuple(gpuarray.GPUArray(n, np.float32) for _ in range(2)))
            views.append(tuple(map(bridge.as_cupy, ours[-1])))
            views[-1][0].fill(device + 1)
            views[-1][1].fill(0)
            cupy.cuda.Device().synchronize()

    def of(
        pairs: list[Any], on: Callable[[int], Any], view: Callable[[Any], Any]
    ) -> Callable[[], None]:
        def call() -> None:
            nccl.groupStart()
            for device, communicator, pair in zip(devices, communicators, pairs, strict=True):
                with on(device):
                    sent, received = map(view, pair)
                    what = sent.data.ptr, received.data.ptr, n, nccl.NCCL_FLOAT32, nccl.NCCL_SUM
                    communicator.allReduce(*what, cupy.cuda.get_current_stream().ptr)
            nccl.groupEnd()

        return call

    def same(array: Any) -> Any:
        return array

    calls = {
        CUPY: of(theirs, cupy.cuda.Device, same),
        KEPT: of(views, cupy.cuda.Device, same),
        EACH: of(ours, bridge.primary_context, bridge.as_cupy),
    }
    expected = sum(device + 1 for device in devices)
    for name, pairs in (CUPY, theirs), (KEPT, views), (EACH, views):
        for device, (_, received) in zip(devices, pairs, strict=True):
            with bridge.primary_context(device):
                received.fill(0)
        calls[name]()
        for device, (_, received) in zip(devices, pairs, strict=True):
            with bridge.primary_context(device):
                assert bool((received == expected).all()), (name, device)
    return calls


def row(nbytes: int, timings: dict[str, Timing], gpus: int) -> str:
    """Write a size's row: bandwidths in GB/s, and those of PyCUDA's arrays over that of CuPy's."""
    cells = [f"{nbytes >> 20} MiB"]
    for name, timing in timings.items():
        bandwidth = nbytes / timing.median / 1e3 * 2 * (gpus - 1) / gpus  # from us to GB/s
        cells.append(f"{bandwidth:.1f}")
        if name != CUPY:
            ratio = timings[CUPY].over(timing)
            cells.append(f"{ratio:.3f}" if ratio >= GOAL else f"**{ratio:.3f}, missed**")
    return f"| {' | '.join(cells)} |"


def main(output: Path) -> None:
    """Measure, print a table, and write it with what it was measured on."""
    gpus = cupy.cuda.runtime.getDeviceCount()
    if gpus < 2:
        sys.exit("benchmarks.nccl: this machine has no second GPU")
    if not nccl.available:
        sys.exit("benchmarks.nccl: CuPy finds no NCCL; pip install nvidia-nccl-cu12 (or -cu13)")
    devices = list(range(gpus))
    communicators = nccl.NcclCommunicator.initAll(gpus)
    rows = [
        f"| float32, a GPU | {CUPY}, GB/s | {KEPT}, GB/s | of CuPy's | {EACH}, GB/s | of CuPy's |",
        "|---|---|---|---|---|---|",
    ]
    for nbytes, repeat in CALLS.items():
        calls = all_reduces(nbytes, devices, communicators)
        timings = measure_gpu(calls, ROUNDS, repeat)
        rows.append(row(nbytes, timings, gpus))
        print(rows[-1], flush=True)
        for device in devices:
            with bridge.primary_context(device):
                cupy.cuda.Device().synchronize()
        del calls
        cupy.get_default_memory_pool().free_all_blocks()
    for communicator in communicators:
        communicator.destroy()

    version = nccl.get_version()
    where = machine()
    where["GPU"] = f"{gpus} x {where['GPU']}"
    where["NCCL"] = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    facts = "\n".join(f"| {name} | {value} |" for name, value in where.items())
    parts = [
        "# All-reduce by NCCL",
        "Bus bandwidth (bytes / time x 2 (n - 1) / n for n GPUs) between CUDA events, medians of "
        f"{ROUNDS} rounds in which the three take turns; a ratio is the median of the rounds'. One "
        "process drives all GPUs, one after another, each time on CuPy's current stream. CuPy's "
        "arrays, and the views of GPUArrays that are kept, are sent under `cupy.cuda.Device`; to "
        "convert two for each call, and for each GPU, takes `bridge.primary_context`. The goal is "
        f"{GOAL} of CuPy's.",
        "\n".join(rows),
        f"| | |\n|---|---|\n{facts}",
    ]
    text = "\n\n".join(parts) + "\n"
    print(f"\n{text}", flush=True)
    output.write_text(text)


if __name__ == "__main__":
    main(Path(__file__).with_name("results") / "nccl.md")
