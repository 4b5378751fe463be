"""Matrix times vector with float4 loads, one block per row."""

import numpy as np
import pycuda.driver as drv

ROWS, COLUMNS = 21, 256


def inputs():
    rng = np.random.default_rng(27)
    matrix = rng.integers(-20, 20, (ROWS, COLUMNS)).astype(np.float32)
    return matrix, rng.integers(-20, 20, COLUMNS).astype(np.float32)


def run(SourceModule):
    mod = SourceModule("""
    #define THREADS 32

    __device__ float dot4(const float4 &a, const float4 &b)
    {
        return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }

    __global__ void sgemv(const float4 *A, const float4 *x, float *y, int columns4)
    {
        __shared__ float partial[THREADS];
        const float4 *row = A + blockIdx.x * columns4;
        float sum = 0.f;

        for (int c = threadIdx.x; c < columns4; c += THREADS)
            sum += dot4(row[c], x[c]);
        partial[threadIdx.x] = sum;
        __syncthreads();

        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half)
                partial[threadIdx.x] += partial[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0)
            y[blockIdx.x] = partial[0];
    }
    """)
    matrix, x = inputs()
    y = np.zeros(ROWS, np.float32)
    func = mod.get_function("sgemv")
    arguments = (drv.In(matrix), drv.In(x), drv.Out(y), np.int32(COLUMNS // 4))
    func(*arguments, block=(32, 1, 1), grid=(ROWS, 1))
    return {"y": y}


def expected():
    matrix, x = inputs()
    return {"y": matrix @ x}
