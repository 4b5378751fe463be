"""Random numbers of one's own: xorshift per thread, seeded by a linear congruential generator."""

import numpy as np
import pycuda.driver as drv

THREADS, DRAWS, SEED = 96, 20, 2463534242


def run(SourceModule):
    mod = SourceModule("""
    #include <stdint.h>

    __device__ uint32_t lcg(uint32_t x) { return 1664525u * x + 1013904223u; }

    __device__ uint32_t xorshift32(uint32_t *state)
    {
        uint32_t x = *state;
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        return *state = x;
    }

    __global__ void draw(uint32_t *numbers, float *uniform, uint32_t seed, int draws)
    {
        int id = blockIdx.x * blockDim.x + threadIdx.x;
        int threads = gridDim.x * blockDim.x;
        uint32_t state = lcg(seed ^ lcg(id)) | 1u;

        for (int k = 0; k < draws; ++k) {
            uint32_t r = xorshift32(&state);
            numbers[k * threads + id] = r;
            uniform[k * threads + id] = (r >> 8) * (1.0f / 16777216.0f);
        }
    }
    """)
    numbers = np.empty((DRAWS, THREADS), np.uint32)
    uniform = np.empty((DRAWS, THREADS), np.float32)
    draw = mod.get_function("draw")
    arguments = drv.Out(numbers), drv.Out(uniform), np.uint32(SEED), np.int32(DRAWS)
    draw(*arguments, block=(32, 1, 1), grid=(THREADS // 32, 1))
    return {"numbers": numbers, "uniform": uniform}


def lcg(x):
    return np.uint32(1664525) * x + np.uint32(1013904223)


def expected():
    x = lcg(np.uint32(SEED) ^ lcg(np.arange(THREADS, dtype=np.uint32))) | np.uint32(1)
    numbers = np.empty((DRAWS, THREADS), np.uint32)
    for k in range(DRAWS):
        x ^= x << 13
        x ^= x >> 17
        x ^= x << 5
        numbers[k] = x
    return {"numbers": numbers, "uniform": (numbers >> 8).astype(np.float32) / np.float32(2**24)}
