"""Moving average: a tile and its halo in dynamic shared memory, two arrays in one block of it."""

import numpy as np
import pycuda.driver as drv

TOLERANCE = 1e-6
N, RADIUS, THREADS = 1000, 4, 64


def inputs():
    return np.random.default_rng(5).random(N, dtype=np.float32)


def run(SourceModule):
    mod = SourceModule("""
    extern __shared__ float shared[];

    __global__ void moving_average(float *out, const float *in, int n, int radius)
    {
        float *tile = shared;
        int *valid = (int *)&tile[blockDim.x + 2 * radius];
        int first = blockIdx.x * blockDim.x - radius;

        for (int t = threadIdx.x; t < blockDim.x + 2 * radius; t += blockDim.x) {
            int i = first + t;
            valid[t] = (i >= 0 && i < n);
            tile[t] = valid[t] ? in[i] : 0.0f;
        }
        __syncthreads();

        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {
            float sum = 0;
            int count = 0;
            for (int k = 0; k <= 2 * radius; ++k) {
                sum += tile[threadIdx.x + k];
                count += valid[threadIdx.x + k];
            }
            out[i] = sum / count;
        }
    }
    """)
    func = mod.get_function("moving_average")
    out = np.empty(N, np.float32)
    func(
        drv.Out(out),
        drv.In(inputs()),
        np.int32(N),
        np.int32(RADIUS),
        block=(THREADS, 1, 1),
        grid=((N + THREADS - 1) // THREADS, 1),
        shared=(THREADS + 2 * RADIUS) * (4 + 4),
    )
    return {"average": out}


def expected():
    window = np.ones(2 * RADIUS + 1)
    sums = np.convolve(inputs(), window, "same")
    return {"average": (sums / np.convolve(np.ones(N), window, "same")).astype(np.float32)}
