"""Shortest paths between all pairs, one launch per intermediate node."""

import numpy as np
import pycuda.driver as drv

N = 40
INFINITY = 10**6


def inputs():
    rng = np.random.default_rng(42)
    lengths = rng.integers(1, 100, (N, N), dtype=np.int32)
    distances = np.where(rng.random((N, N)) < 0.1, lengths, np.int32(INFINITY))
    np.fill_diagonal(distances, 0)
    return distances


def run(SourceModule):
    mod = SourceModule("""
    __global__ void relax(int *d, int *via, int k, int n)
    {
        int j = blockIdx.x * blockDim.x + threadIdx.x;
        int i = blockIdx.y;
        if (j >= n)
            return;
        int through = d[i * n + k] + d[k * n + j];
        if (through < d[i * n + j]) {
            d[i * n + j] = through;
            via[i * n + j] = k;
        }
    }
    """)
    relax = mod.get_function("relax")
    distances = inputs()
    via = -np.ones((N, N), np.int32)
    d_gpu, via_gpu = drv.to_device(distances), drv.to_device(via)
    for k in range(N):
        relax(d_gpu, via_gpu, np.int32(k), np.int32(N), block=(64, 1, 1), grid=(1, N))
    drv.memcpy_dtoh(distances, d_gpu)
    drv.memcpy_dtoh(via, via_gpu)
    return {"distances": distances, "via": via}


def expected():
    distances = inputs()
    via = -np.ones((N, N), np.int32)
    for k in range(N):
        through = distances[:, k, None] + distances[k]
        via[through < distances] = k
        distances = np.minimum(distances, through)
    return {"distances": distances, "via": via}
