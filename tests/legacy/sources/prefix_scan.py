"""Exclusive prefix sum of every block of a vector (Blelloch), in dynamic shared memory."""

import numpy as np
import pycuda.gpuarray as gpuarray

N, BLOCKS = 128, 5


def inputs():
    return np.random.default_rng(23).integers(0, 1000, (BLOCKS, N), dtype=np.int32)


def run(SourceModule):
    mod = SourceModule("""
    __global__ void prescan(int *odata, int *idata, int n)
    {
        extern __shared__ int temp[];
        int thid = threadIdx.x;
        int offset = 1;
        int base = blockIdx.x * n;

        temp[2*thid] = idata[base + 2*thid];
        temp[2*thid+1] = idata[base + 2*thid+1];

        for (int d = n >> 1; d > 0; d >>= 1) {  // build sums in place up the tree
            __syncthreads();
            if (thid < d) {
                int ai = offset*(2*thid+1)-1;
                int bi = offset*(2*thid+2)-1;
                temp[bi] += temp[ai];
            }
            offset *= 2;
        }
        __syncthreads();
        if (thid == 0)
            temp[n - 1] = 0;
        for (int d = 1; d < n; d *= 2) {  // and down the tree
            offset >>= 1;
            __syncthreads();
            if (thid < d) {
                int ai = offset*(2*thid+1)-1;
                int bi = offset*(2*thid+2)-1;
                int t = temp[ai];
                temp[ai] = temp[bi];
                temp[bi] += t;
            }
        }
        __syncthreads();
        odata[base + 2*thid] = temp[2*thid];
        odata[base + 2*thid+1] = temp[2*thid+1];
    }
    """)
    prescan = mod.get_function("prescan")
    prescan.prepare("PPi")
    data = gpuarray.to_gpu(inputs())
    sums = gpuarray.empty_like(data)
    prescan.prepared_call(
        (BLOCKS, 1), (N // 2, 1, 1), sums.gpudata, data.gpudata, N, shared_size=N * 4
    )
    return {"sums": sums.get()}


def expected():
    data = inputs()
    return {"sums": np.cumsum(data, axis=1, dtype=np.int32) - data}
