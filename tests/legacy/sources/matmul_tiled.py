"""Square matrix product, tile by tile through shared memory."""

import numpy as np
import pycuda.driver as drv

TILE = 8
N = 32


def inputs():
    rng = np.random.default_rng(1)
    return rng.integers(-9, 10, (2, N, N)).astype(np.float32)


def run(SourceModule):
    a, b = inputs()
    c = np.empty((N, N), np.float32)

    mod = SourceModule(
        """
    #define TILE 8

    __global__ void MatrixMul(float *A, float *B, float *C, int width)
    {
        __shared__ float As[TILE][TILE];
        __shared__ float Bs[TILE][TILE];

        int tx = threadIdx.x, ty = threadIdx.y;
        int row = blockIdx.y * TILE + ty;
        int col = blockIdx.x * TILE + tx;
        float sum = 0.0f;

        for (int m = 0; m < width / TILE; ++m) {
            As[ty][tx] = A[row * width + m * TILE + tx];
            Bs[ty][tx] = B[(m * TILE + ty) * width + col];
            __syncthreads();

            #pragma unroll
            for (int k = 0; k < TILE; ++k)
                sum += As[ty][k] * Bs[k][tx];
            __syncthreads();
        }
        C[row * width + col] = sum;
    }
    """
    )

    func = mod.get_function("MatrixMul")
    seconds = func(
        drv.In(a),
        drv.In(b),
        drv.Out(c),
        np.int32(N),
        block=(TILE, TILE, 1),
        grid=(N // TILE, N // TILE),
        time_kernel=True,
    )
    assert seconds >= 0
    return {"c": c}


def expected():
    a, b = inputs()
    return {"c": a @ b}
