"""Sum of a vector: a tree in shared memory per block, and the rest on the host."""

import numpy as np
import pycuda.driver as drv

THREADS = 128


def inputs():
    return np.random.default_rng(4).integers(-1000, 1000, 3001, dtype=np.int32)


def run(SourceModule):
    mod = SourceModule("""
    __global__ void reduce_sum(const int *in, int *out, int n)
    {
        __shared__ int sdata[128];

        unsigned int tid = threadIdx.x;
        unsigned int i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;

        int mine = (i < n) ? in[i] : 0;
        if (i + blockDim.x < n)
            mine += in[i + blockDim.x];
        sdata[tid] = mine;
        __syncthreads();

        for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
            if (tid < s)
                sdata[tid] += sdata[tid + s];
            __syncthreads();
        }
        if (tid == 0)
            out[blockIdx.x] = sdata[0];
    }
    """)
    reduce_sum = mod.get_function("reduce_sum")

    data = inputs()
    blocks = (data.size + 2 * THREADS - 1) // (2 * THREADS)
    partial = np.zeros(blocks, np.int32)

    data_gpu = drv.mem_alloc(data.nbytes)
    partial_gpu = drv.mem_alloc(partial.nbytes)
    drv.memcpy_htod(data_gpu, data)
    reduce_sum(data_gpu, partial_gpu, np.int32(data.size), block=(THREADS, 1, 1), grid=(blocks, 1))
    drv.memcpy_dtoh(partial, partial_gpu)
    return {"partial": partial, "total": np.array(partial.sum())}


def expected():
    padded = np.zeros(12 * 2 * THREADS, np.int32)
    padded[:3001] = inputs()
    return {
        "partial": padded.reshape(12, -1).sum(axis=1, dtype=np.int32),
        "total": np.array(inputs().sum()),
    }
