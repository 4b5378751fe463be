"""Transpose of an odd-shaped matrix through a padded tile, with a prepared launch."""

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray

BLOCK_SIZE = 16
SOURCE = """
#define BLOCK_SIZE %(block_size)d

__global__ void transpose(float *A_t, float *A, int a_width, int a_height)
{
    // one column more than needed, against bank conflicts
    __shared__ float tile[BLOCK_SIZE][BLOCK_SIZE + 1];

    int x = blockIdx.x * BLOCK_SIZE + threadIdx.x;
    int y = blockIdx.y * BLOCK_SIZE + threadIdx.y;
    if (x < a_width && y < a_height)
        tile[threadIdx.y][threadIdx.x] = A[y * a_width + x];

    __syncthreads();

    x = blockIdx.y * BLOCK_SIZE + threadIdx.x;
    y = blockIdx.x * BLOCK_SIZE + threadIdx.y;
    if (x < a_height && y < a_width)
        A_t[y * a_height + x] = tile[threadIdx.x][threadIdx.y];
}
"""


def inputs():
    return np.random.default_rng(3).random((37, 51), dtype=np.float32)


def run(SourceModule):
    source = gpuarray.to_gpu(inputs())
    h, w = source.shape
    target = gpuarray.empty((w, h), np.float32)

    mod = SourceModule(SOURCE % {"block_size": BLOCK_SIZE})
    func = mod.get_function("transpose")
    func.prepare("PPii")
    grid = ((w + BLOCK_SIZE - 1) // BLOCK_SIZE, (h + BLOCK_SIZE - 1) // BLOCK_SIZE)
    func.prepared_call(grid, (BLOCK_SIZE, BLOCK_SIZE, 1), target.gpudata, source.gpudata, w, h)
    drv.Context.synchronize()
    return {"transposed": target.get()}


def expected():
    return {"transposed": np.ascontiguousarray(inputs().T)}
