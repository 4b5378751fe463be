"""Monte Carlo pi with cuRAND's default generator (XORWOW) in the kernel."""

import numpy as np
import pycuda.gpuarray as gpuarray

NEEDS = "curand_kernel.h"
THREADS, SAMPLES, SEED = 64, 100, 1234


def run(SourceModule):
    mod = SourceModule(
        """
    #include <curand_kernel.h>

    extern "C" {

    __global__ void setup(curandState *states, unsigned long long seed)
    {
        int id = blockIdx.x * blockDim.x + threadIdx.x;
        curand_init(seed + id, 0, 0, &states[id]);
    }

    __global__ void throw_darts(curandState *states, int *hits, int samples)
    {
        int id = blockIdx.x * blockDim.x + threadIdx.x;
        curandState local = states[id];
        int inside = 0;
        for (int i = 0; i < samples; i++) {
            float x = curand_uniform(&local);
            float y = curand_uniform(&local);
            if (x * x + y * y <= 1.0f)
                inside++;
        }
        hits[id] = inside;
        states[id] = local;
    }

    }
    """,
        no_extern_c=True,
    )
    states = gpuarray.empty(THREADS * 48, np.uint8)  # sizeof(curandState)
    hits = gpuarray.zeros(THREADS, np.int32)
    shape = {"block": (32, 1, 1), "grid": (THREADS // 32, 1)}
    mod.get_function("setup")(states, np.uint64(SEED), **shape)
    mod.get_function("throw_darts")(states, hits, np.int32(SAMPLES), **shape)
    return {"hits": hits.get()}


def expected():
    u32, ones = np.uint32, np.ones(THREADS, np.uint32)
    t0 = (np.arange(SEED, SEED + THREADS, dtype=u32) ^ u32(0xAAD26B49)) * u32(1099087573)
    t1 = 0xF7DCEFDD * 2591861531 % 2**32  # the seed's upper half is 0
    fixed = [ones * u32((521288629 + t1) % 2**32), ones * u32(88675123 ^ t1)]
    v = [t0 + u32(123456789), t0 ^ u32(362436069), *fixed, t0 + u32(5783321)]
    d = t0 + u32((6615241 + t1) % 2**32)
    draws = []
    for _ in range(2 * SAMPLES):
        t = v[0] ^ (v[0] >> 2)
        v = [*v[1:], (v[4] ^ (v[4] << 4)) ^ (t ^ (t << 1))]
        d = d + u32(362437)
        draws.append((v[4] + d).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33))
    x, y = np.array(draws[::2]), np.array(draws[1::2])
    return {"hits": (x * x + y * y <= 1).sum(axis=0, dtype=np.int32)}
