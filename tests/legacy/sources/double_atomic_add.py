"""Atomic addition of doubles through atomicCAS, as needed before Pascal."""

import numpy as np
import pycuda.gpuarray as gpuarray

N, BINS = 1500, 7


def inputs():
    rng = np.random.default_rng(32)
    return rng.integers(0, BINS, N, dtype=np.int32), rng.integers(-999, 999, N) / 8


def run(SourceModule):
    mod = SourceModule("""
    __device__ double atomicAddDouble(double *address, double val)
    {
        unsigned long long int *address_as_ull = (unsigned long long int *)address;
        unsigned long long int old = *address_as_ull, assumed;
        do {
            assumed = old;
            old = atomicCAS(address_as_ull, assumed,
                            __double_as_longlong(val + __longlong_as_double(assumed)));
        } while (assumed != old);
        return __longlong_as_double(old);
    }

    __global__ void sum_by_key(double *sums, const int *keys, const double *values, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n)
            atomicAddDouble(&sums[keys[i]], values[i]);
    }
    """)
    keys, values = map(gpuarray.to_gpu, inputs())
    sums = gpuarray.zeros(BINS, np.float64)
    func = mod.get_function("sum_by_key")
    func(sums, keys, values, np.int32(N), block=(256, 1, 1), grid=(6, 1))
    return {"sums": sums.get()}


def expected():
    keys, values = inputs()
    return {"sums": np.bincount(keys, values, BINS)}
