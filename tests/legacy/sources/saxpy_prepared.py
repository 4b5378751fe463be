"""Saxpy, prepared once and then called in a row, timed, and on a stream."""

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray

N = 700


def run(SourceModule):
    mod = SourceModule("""
    __global__ void saxpy(float a, const float *x, float *y, int n)
    {
        unsigned tid = threadIdx.x;
        unsigned total_threads = gridDim.x * blockDim.x;
        unsigned cta_start = blockDim.x * blockIdx.x;

        for (unsigned i = cta_start + tid; i < n; i += total_threads)
            y[i] = a * x[i] + y[i];
    }
    """)
    x = gpuarray.arange(N, dtype=np.float32)
    y = gpuarray.zeros(N, dtype=np.float32)
    grid, block = (3, 1), (64, 1, 1)

    saxpy = mod.get_function("saxpy")
    saxpy.prepare([np.float32, "P", "P", np.int32])
    for a in (1, 2, 3):
        saxpy.prepared_call(grid, block, a, x.gpudata, y.gpudata, N)

    seconds = saxpy.prepared_timed_call(grid, block, 0.5, x.gpudata, y.gpudata, N)
    assert seconds() >= 0

    stream = drv.Stream()
    saxpy.prepared_async_call(grid, block, stream, np.float32(10), x.gpudata, y.gpudata, N // 2)
    stream.synchronize()
    return {"y": y.get()}


def expected():
    y = 6.5 * np.arange(N, dtype=np.float32)
    y[: N // 2] += 10 * np.arange(N // 2)
    return {"y": y.astype(np.float32)}
