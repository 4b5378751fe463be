"""Kernels of a .cu file that is a program of its own, from the days of CUDA 8."""

import numpy as np
import pycuda.driver as drv

GONE = '__shfl_down|"vector"'  # hostcuda's nvcc stops at the header
N = 256
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#define CHECK(call) do { cudaError_t e = call; if (e) fail(cudaGetErrorString(e)); } while (0)

const float LENGTH = 2.0f;
const float STEP = LENGTH / 8;

__host__ void fail(const char *text)
{
    fprintf(stderr, "failed: %s }\\n", text);
    exit(1);
}

__device__ float warp_sum(float v)
{
    for (int offset = 16; offset; offset /= 2)
        v += __shfl_down(v, offset);
    return v;
}

extern "C" __global__ void integrate(float *sums, const float *values, int *any, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? values[i] * STEP : 0;
    float sum = warp_sum(v);
    int negative = __any(v < 0);
    if (threadIdx.x % 32 == 0) {
        sums[i / 32] = sum;
        any[i / 32] = negative != 0;
    }
}

int main(int argc, char **argv)
{
    std::vector<float> host(1000);
    float *values, *sums;
    int *any;
    CHECK(cudaMalloc(&values, 4000));
    CHECK(cudaMalloc(&sums, 4000));
    CHECK(cudaMalloc(&any, 4000));
    integrate<<<4, 256>>>(sums, values, any, 1000);
    return cudaDeviceSynchronize();
}
"""
TOLERANCE = 1e-6


def inputs():
    return np.random.default_rng(53).integers(-3, 90, N).astype(np.float32)


def run(SourceModule):
    func = SourceModule(SOURCE, no_extern_c=True).get_function("integrate")
    sums, signs = np.empty(N // 32, np.float32), np.empty(N // 32, np.int32)
    args = drv.Out(sums), drv.In(inputs()), drv.Out(signs), np.int32(N)
    func(*args, block=(64, 1, 1), grid=(4, 1))
    return {"sums": sums, "any": signs}


def expected():
    warps = inputs().reshape(-1, 32)
    return {
        "sums": (warps.sum(axis=1) / 4).astype(np.float32),
        "any": (warps < 0).any(axis=1).astype(np.int32),
    }
