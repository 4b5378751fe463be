"""Bitonic sort of one block's worth of numbers in shared memory."""

import numpy as np
import pycuda.driver as drv

N = 256


def inputs():
    return np.random.default_rng(24).normal(size=N).astype(np.float32)


def run(SourceModule):
    mod = SourceModule("""
    #define N 256

    __device__ inline void swap(float &a, float &b)
    {
        float tmp = a;
        a = b;
        b = tmp;
    }

    __global__ void bitonicSort(float *values)
    {
        __shared__ float shared[N];
        const unsigned int tid = threadIdx.x;

        shared[tid] = values[tid];
        __syncthreads();

        for (unsigned int k = 2; k <= N; k *= 2) {
            for (unsigned int j = k / 2; j > 0; j /= 2) {
                unsigned int ixj = tid ^ j;
                if (ixj > tid) {
                    if ((tid & k) == 0) {
                        if (shared[tid] > shared[ixj])
                            swap(shared[tid], shared[ixj]);
                    } else {
                        if (shared[tid] < shared[ixj])
                            swap(shared[tid], shared[ixj]);
                    }
                }
                __syncthreads();
            }
        }
        values[tid] = shared[tid];
    }
    """)
    values = inputs()
    mod.get_function("bitonicSort")(drv.InOut(values), block=(N, 1, 1), grid=(1, 1))
    return {"values": values}


def expected():
    return {"values": np.sort(inputs())}
