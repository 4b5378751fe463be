"""Smooth a large image by a kernel of years ago: ``dask.array``, a worker process for each GPU.

Needs the packages dask and distributed (``pip install '.[cuda12,dask]'``)::

    python examples/dask_blocks.py

The function takes GPUArrays, the blocks are CuPy arrays.  Dask sends CuPy arrays between workers
only where RMM or Numba is installed, so each block's energy is copied to the host.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import cupy
import dask.array as da
import numpy as np
from distributed import Client, Nanny, Scheduler, SpecCluster
from pycuda import gpuarray

import bridge

SHAPE, ROWS = (4096, 1024), 512
SOURCE = """
__global__ void smooth(float *out, const float *in, int rows, int n)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= rows) return;
    const float *row = in + y * n;
    out[y * n + x] = 0.5f * row[x] + 0.25f * (row[max(x - 1, 0)] + row[min(x + 1, n - 1)]);
}
"""


def cluster() -> SpecCluster:
    """Start a worker process for each GPU, which sees no other, as ``LocalCUDACluster()`` does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = cupy.cuda.runtime.getDeviceCount()
    devices = visible.split(",")[:number] if visible else [str(k) for k in range(number)]
    workers = {
        device: {
            "cls": Nanny,  # starts the worker's process, and starts it again if it dies
            "options": {
                "nthreads": 1,
                "memory_limit": 0,
                "env": {"CUDA_VISIBLE_DEVICES": device},
                "silence_logs": logging.WARNING,
            },
        }
        for device in devices
    }
    ports = {"dashboard": False, "dashboard_address": ":0", "port": 0}
    scheduler = {"cls": Scheduler, "options": ports}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.WARNING)


def main() -> None:
    """Smooth the image on all GPUs, and compare its energy with NumPy's."""
    smooth = bridge.SourceModule(SOURCE).get_function("smooth")  # travels as source

    @bridge.wrap_pycuda  # takes CuPy's blocks, and makes the context current on the worker's thread
    def smoothed(image: Any) -> Any:
        out = gpuarray.empty_like(image)
        rows, n = image.shape
        grid = (-(-n // 32), -(-rows // 8), 1)
        smooth(out, image, np.int32(rows), np.int32(n), block=(32, 8, 1), grid=grid)
        return out

    def energy_of(image: Any) -> Any:
        return (image**2).sum(keepdims=True).get()

    image = da.random.default_rng(1).random(SHAPE, np.float32, chunks=(ROWS, -1))  # on the workers
    with cluster() as started, Client(started) as client:
        client.wait_for_workers(len(started.workers), timeout=120)
        blocks = image.map_blocks(cupy.asarray)
        meta = cupy.zeros((0, 0), np.float32)
        smooth_ones = blocks.map_blocks(smoothed, dtype=np.float32, meta=meta)
        energies = smooth_ones.map_blocks(energy_of, chunks=(1, 1), meta=np.zeros((0, 0), "f"))
        energy = energies.sum().compute()
        where = f"{blocks.npartitions} blocks on {len(started.workers)} GPUs"
        host = image.compute()

    beside = np.pad(host, ((0, 0), (1, 1)), mode="edge")
    expected = 0.5 * host + 0.25 * (beside[:, :-2] + beside[:, 2:])
    np.testing.assert_allclose(float(energy), (expected.astype(float) ** 2).sum(), rtol=1e-4)
    print(f"{where}: energy {float(energy):.0f}, as NumPy says")


if __name__ == "__main__":  # the workers import this file, too
    main()
