"""Wave equation on a string, leapfrog over three rotating arrays."""

import numpy as np
import pycuda.gpuarray as gpuarray
from pycuda import driver as drv

TOLERANCE = 1e-5
N, STEPS, C2 = 400, 60, np.float32(0.25)


def inputs():
    x = np.linspace(0, 1, N)
    return np.exp(-(((x - 0.3) / 0.05) ** 2)).astype(np.float32)


def run(SourceModule):
    mod = SourceModule("""
    __global__ void wave_step(float *next, const float *now, const float *before, float c2, int n)
    {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        if (i == 0 || i == n - 1)
            next[i] = 0.0f;  // clamped ends
        else
            next[i] = 2.0f * now[i] - before[i] + c2 * (now[i+1] - 2.0f * now[i] + now[i-1]);
    }
    """)
    wave_step = mod.get_function("wave_step")
    before = gpuarray.to_gpu(inputs())
    now = before.copy()
    after = gpuarray.zeros_like(now)

    start, end = drv.Event(), drv.Event()
    start.record()
    for _ in range(STEPS):
        wave_step(after, now, before, C2, np.int32(N), block=(128, 1, 1), grid=(N // 128 + 1, 1))
        before, now, after = now, after, before
    end.record()
    end.synchronize()
    assert start.time_till(end) >= 0
    return {"u": now.get()}


def expected():
    before = inputs().astype(np.float64)
    now = before.copy()
    for _ in range(STEPS):
        after = np.zeros(N)
        after[1:-1] = 2 * now[1:-1] - before[1:-1]
        after[1:-1] += C2 * (now[2:] - 2 * now[1:-1] + now[:-2])
        before, now = now, after
    return {"u": now.astype(np.float32)}
