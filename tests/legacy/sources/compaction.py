"""Elements that pass a test, gathered with a counter that is a variable of the module."""

import numpy as np
import pycuda.driver as drv

N = 900


def inputs():
    return np.random.default_rng(37).permutation(N).astype(np.int32)


def run(SourceModule):
    mod = SourceModule("""
    __device__ unsigned int found;
    __device__ int limits[2] = {100, 250};

    __global__ void select_between(const int *in, int *out, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n && in[i] >= limits[0] && in[i] < limits[1]) {
            unsigned int place = atomicAdd(&found, 1u);
            out[place] = in[i];
        }
    }
    """)
    found_gpu, _ = mod.get_global("found")
    limits_gpu, limits_size = mod.get_global("limits")
    limits = np.empty(limits_size // 4, np.int32)
    drv.memcpy_dtoh(limits, limits_gpu)

    select = mod.get_function("select_between")
    results = {"limits": limits}
    for upper in (250, 600):
        drv.memset_d32(found_gpu, 0, 1)
        drv.memcpy_htod(int(limits_gpu) + 4, np.int32(upper).reshape(1))
        out = np.zeros(N, np.int32)
        select(drv.In(inputs()), drv.Out(out), np.int32(N), block=(128, 1, 1), grid=(8, 1))
        count = np.zeros(1, np.uint32)
        drv.memcpy_dtoh(count, found_gpu)
        results[f"below {upper}"] = np.sort(out[: count[0]])  # they come in any order
    return results


def expected():
    below = {f"below {upper}": np.arange(100, upper, dtype=np.int32) for upper in (250, 600)}
    return {"limits": np.array([100, 250], np.int32), **below}
