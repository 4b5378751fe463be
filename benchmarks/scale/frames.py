"""Batches of 4K frames, a task each: PyCUDA's kernels, CuPy's Gaussian filter, a reduction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupyx.scipy import ndimage
from pycuda import gpuarray

import bridge

BATCH = 20
LIMIT = 60  # seconds after which the tasks of a round count as stuck
SOURCE = """
__global__ void noise(float *out, unsigned int seed, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned int h = (i + 1u) * 2654435761u + seed * 97531u;
    h = (h ^ (h >> 15)) * (h | 1u);
    h = (h ^ (h >> 13)) * 2654435761u;
    out[i] = (h >> 8) / 16777216.0f;
}
__global__ void develop(float *out, const float *in, float gain, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sqrtf(gain * in[i]);
}
"""
GAIN = np.float32(0.5)
BLOCK = (256, 1, 1)

Shape = tuple[int, int]


@cache
def both_libraries(shape: Shape) -> Callable[[int], Any]:
    """Return what makes a frame as a GPUArray, and gives its brightest spot."""
    module = bridge.SourceModule(SOURCE)
    noise, develop = map(module.get_function, ("noise", "develop"))
    allocate = bridge.pycuda_allocator()
    n, grid = _sizes(shape)

    def brightest(seed: int) -> Any:
        frame = gpuarray.empty(shape, np.float32, allocator=allocate)
        noise(frame, np.uint32(seed), n, block=BLOCK, grid=grid)
        develop(frame, frame, GAIN, n, block=BLOCK, grid=grid)
        return ndimage.gaussian_filter(bridge.as_cupy(frame), 2).max()

    return brightest


@cache
def cupy_alone(shape: Shape) -> Callable[[int], Any]:
    """Return what makes a frame as CuPy's array, and gives its brightest spot."""
    module = cupy.RawModule(code=f'extern "C" {{ {SOURCE} }}')
    noise, develop = map(module.get_function, ("noise", "develop"))
    n, grid = _sizes(shape)

    def brightest(seed: int) -> Any:
        frame = cupy.empty(shape, np.float32)
        noise(grid, BLOCK, (frame, np.uint32(seed), n))
        develop(grid, BLOCK, (frame, frame, GAIN, n))
        return ndimage.gaussian_filter(frame, 2).max()

    return brightest


def _sizes(shape: Shape) -> tuple[Any, tuple[int, int, int]]:
    n = shape[0] * shape[1]
    return np.int32(n), (-(-n // BLOCK[0]), 1, 1)


WAYS = {"both libraries": both_libraries, "CuPy alone": cupy_alone}


def batch(seeds: Sequence[int], way: str, shape: Shape) -> tuple[list[float], float]:
    """Return the brightest spot of the frame of each seed, and the seconds it took: one task."""
    start = time.perf_counter()
    with bridge.primary_context():
        brightest = WAYS[way](shape)
        found = cupy.empty(len(seeds), np.float32)
        for number, seed in enumerate(seeds):
            found[number] = brightest(seed)
        spots = found.get().tolist()
    return spots, time.perf_counter() - start


Seconds = dict[str, list[float]]  # of each round, by way


def measure(
    client: Any, addresses: list[str], frames: int, turns: int, shape: Shape
) -> tuple[Seconds, Seconds, list[float]]:
    """Let the workers do all frames, each way in turn; the spots of both ways must be the same.

    Returns the seconds in all, those within the tasks of one GPU, and the spots.
    """
    from distributed import wait

    seeds = [list(range(k, min(k + BATCH, frames))) for k in range(0, frames, BATCH)]
    seconds: Seconds = {name: [] for name in WAYS}
    within: Seconds = {name: [] for name in WAYS}
    spots: dict[str, list[float]] = {}
    ways = list(WAYS)
    for turn in range(turns + 1):
        ways.reverse()  # neither is always the one after the other
        for way in ways:
            start = time.perf_counter()
            futures = client.map(
                batch, seeds, way=way, shape=shape,
                workers=addresses, allow_other_workers=False, pure=False,
            )  # fmt: skip
            wait(futures, timeout=LIMIT)
            parts = client.gather(futures)
            took = time.perf_counter() - start
            del futures
            spots[way] = [spot for some, _ in parts for spot in some]
            if turn:  # the first one is the warm-up
                seconds[way].append(took)
                within[way].append(sum(task for _, task in parts) / len(addresses))
    np.testing.assert_allclose(spots["both libraries"], spots["CuPy alone"], rtol=1e-6)
    return seconds, within, spots["CuPy alone"]
