"""Maximum per row with warp shuffles, in the manner that followed shared memory."""

import numpy as np
import pycuda.gpuarray as gpuarray

ROWS, COLUMNS = 10, 77


def inputs():
    return np.random.default_rng(40).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def run(SourceModule):
    mod = SourceModule("""
    #define FULL_MASK 0xffffffff

    __inline__ __device__ float warp_max(float value)
    {
        for (int offset = warpSize / 2; offset > 0; offset /= 2)
            value = fmaxf(value, __shfl_down_sync(FULL_MASK, value, offset));
        return value;
    }

    __global__ void row_max(const float *rows, float *result, int columns)
    {
        // a block is one warp wide, and a warp takes a row
        int row = blockIdx.x * blockDim.y + threadIdx.y;
        float value = rows[row * columns];
        for (int c = threadIdx.x; c < columns; c += warpSize)
            value = fmaxf(value, rows[row * columns + c]);
        value = warp_max(value);
        if (threadIdx.x == 0)
            result[row] = value;
    }
    """)
    rows = gpuarray.to_gpu(inputs())
    result = gpuarray.empty(ROWS, np.float32)
    row_max = mod.get_function("row_max")
    row_max(rows, result, np.int32(COLUMNS), block=(32, 2, 1), grid=(ROWS // 2, 1))
    return {"max": result.get()}


def expected():
    return {"max": inputs().max(axis=1)}
