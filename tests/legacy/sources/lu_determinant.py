"""Determinants of a batch of small matrices by LU, one block per matrix."""

import numpy as np
import pycuda.gpuarray as gpuarray

TOLERANCE = 1e-12
BATCH, N = 9, 8


def inputs():
    return np.random.default_rng(36).random((BATCH, N, N)) + 3 * np.eye(N)


def run(SourceModule):
    mod = SourceModule("""
    const int N = 8;

    __global__ void determinant(double *det, const double *matrices)
    {
        __shared__ double a[N][N];
        const int row = threadIdx.y, col = threadIdx.x;

        a[row][col] = matrices[(blockIdx.x * N + row) * N + col];
        __syncthreads();

        for (int k = 0; k < N - 1; k++) {
            if (col == k && row > k)
                a[row][k] /= a[k][k];
            __syncthreads();
            if (col > k && row > k)
                a[row][col] -= a[row][k] * a[k][col];
            __syncthreads();
        }

        if (row == 0 && col == 0) {
            double product = 1;
            for (int k = 0; k < N; k++)
                product *= a[k][k];
            det[blockIdx.x] = product;
        }
    }
    """)
    matrices = gpuarray.to_gpu(inputs())
    det = gpuarray.empty(BATCH, np.float64)
    mod.get_function("determinant")(det, matrices, block=(N, N, 1), grid=(BATCH, 1))
    return {"det": det.get()}


def expected():
    return {"det": np.linalg.det(inputs())}
