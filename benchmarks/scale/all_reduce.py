"""All-reduce by NCCL over all GPUs, of CuPy's arrays and of PyCUDA's; one process drives all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from pycuda import gpuarray

import bridge
from benchmarks.measure import Timing, measure_gpu
from benchmarks.scale.exchange import available

CALLS = {1 << 20: 200, 64 << 20: 40, 1 << 30: 5}  # bytes -> all-reduces a round
ROUNDS = 21
CUPY, KEPT, EACH = "CuPy's arrays", "GPUArrays, views kept", "GPUArrays, converted for each call"


def calls(nccl: Any, nbytes: int, communicators: list[Any]) -> dict[str, Callable[[], None]]:
    """Return calls that queue an all-reduce of float32 on CuPy's stream of each device."""
    n, devices = nbytes // 4, range(len(communicators))
    theirs, ours, views = [], [], []
    for device in devices:
        with bridge.primary_context(device):
            theirs.append((cupy.full(n, device + 1, np.float32), cupy.zeros(n, np.float32)))
            ours.append(tuple(gpuarray.GPUArray(n, np.float32) for _ in range(2)))
            views.append(tuple(map(bridge.as_cupy, ours[-1])))
            views[-1][0].fill(device + 1)
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

    found = {
        CUPY: of(theirs, cupy.cuda.Device, lambda x: x),
        KEPT: of(views, cupy.cuda.Device, lambda x: x),
        EACH: of(ours, bridge.primary_context, bridge.as_cupy),
    }
    expected = sum(device + 1 for device in devices)
    for name, pairs in (CUPY, theirs), (KEPT, views), (EACH, views):
        for device, (_, received) in zip(devices, pairs, strict=True):
            with bridge.primary_context(device):
                received.fill(0)
        found[name]()
        for device, (_, received) in zip(devices, pairs, strict=True):
            with bridge.primary_context(device):
                assert bool((received == expected).all()), (name, device)
    return found


def measure(gpus: int) -> dict[int, dict[str, Timing]]:
    """Return what an all-reduce of each size takes, each way."""
    nccl = available()
    communicators = nccl.NcclCommunicator.initAll(gpus)
    found = {}
    for nbytes, repeat in CALLS.items():
        with bridge.primary_context(0):
            queue = calls(nccl, nbytes, communicators)
            found[nbytes] = measure_gpu(queue, ROUNDS, repeat)
            for device in range(gpus):
                with bridge.primary_context(device):
                    cupy.cuda.Device().synchronize()
            del queue  # the arrays, now that all work on them is done
            cupy.get_default_memory_pool().free_all_blocks()
    for communicator in communicators:
        communicator.destroy()
    return found
