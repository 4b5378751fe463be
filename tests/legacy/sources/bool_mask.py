"""NumPy's bool arrays as unsigned char: a mask is read, and another one written."""

import numpy as np
import pycuda.driver as drv

N = 333


def inputs():
    rng = np.random.default_rng(30)
    return rng.integers(0, 100, N, dtype=np.int64), rng.random(N) < 0.4


def run(SourceModule):
    mod = SourceModule("""
    __global__ void masked(long long *values, const unsigned char *mask, bool *even, int n)
    {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) {
            if (mask[i])
                values[i] = -values[i];
            even[i] = !(values[i] & 1);
        }
    }
    """)
    values, mask = inputs()
    even = np.zeros(N, bool)
    masked = mod.get_function("masked")
    args = drv.InOut(values), drv.In(mask), drv.Out(even), np.int32(N)
    masked(*args, block=(64, 1, 1), grid=(6, 1))
    return {"values": values, "even": even}


def expected():
    values, mask = inputs()
    return {"values": np.where(mask, -values, values), "even": values % 2 == 0}
