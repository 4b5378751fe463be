"""Histogram of bytes: atomics in shared memory first, then in global memory."""

import numpy as np
import pycuda.gpuarray as gpuarray


def inputs():
    return np.random.default_rng(6).normal(128, 30, 5000).clip(0, 255).astype(np.uint8)


def run(SourceModule):
    mod = SourceModule("""
    #define BINS 256

    __global__ void histogram(const unsigned char *data, unsigned int *bins, int n)
    {
        __shared__ unsigned int local[BINS];

        for (int b = threadIdx.x; b < BINS; b += blockDim.x)
            local[b] = 0;
        __syncthreads();

        int stride = blockDim.x * gridDim.x;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
            atomicAdd(&local[data[i]], 1);
        __syncthreads();

        for (int b = threadIdx.x; b < BINS; b += blockDim.x)
            atomicAdd(&bins[b], local[b]);
    }
    """)
    data = gpuarray.to_gpu(inputs())
    bins = gpuarray.zeros(256, np.uint32)
    mod.get_function("histogram")(data, bins, np.int32(data.size), block=(96, 1, 1), grid=(4, 1))
    return {"bins": bins.get()}


def expected():
    return {"bins": np.bincount(inputs(), minlength=256).astype(np.uint32)}
