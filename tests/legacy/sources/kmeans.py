"""One round of k-means: points go to the nearest centre, and every centre to its points' mean."""

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray

N, K, DIM = 600, 5, 3


def inputs():
    rng = np.random.default_rng(34)
    points = rng.integers(-50, 50, (N, DIM)).astype(np.float32)
    return points, points[:K].copy()


def run(SourceModule):
    mod = SourceModule(
        """
    #include <float.h>

    __global__ void assign(int *labels, float *sums, int *counts,
                           const float *points, const float *centers, int n)
    {
        __shared__ float c[K * DIM];
        if (threadIdx.x < K * DIM)
            c[threadIdx.x] = centers[threadIdx.x];
        __syncthreads();

        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n)
            return;
        int best = -1;
        float best_d = FLT_MAX;
        for (int k = 0; k < K; ++k) {
            float d = 0;
            for (int j = 0; j < DIM; ++j) {
                float t = points[i * DIM + j] - c[k * DIM + j];
                d += t * t;
            }
            if (d < best_d) { best_d = d; best = k; }
        }
        labels[i] = best;
        atomicAdd(counts + best, 1);
        for (int j = 0; j < DIM; ++j)
            atomicAdd(sums + best * DIM + j, points[i * DIM + j]);
    }
    """,
        options=[f"-DK={K}", f"-DDIM={DIM}"],
    )
    points, centers = inputs()
    labels = np.empty(N, np.int32)
    sums, counts = gpuarray.zeros((K, DIM), np.float32), gpuarray.zeros(K, np.int32)
    assign = mod.get_function("assign")
    data = (drv.Out(labels), sums, counts, drv.In(points), drv.In(centers), np.int32(N))
    assign(*data, block=(128, 1, 1), grid=((N + 127) // 128, 1))
    return {"labels": labels, "centers": sums.get() / counts.get()[:, None].astype(np.float32)}


def expected():
    points, centers = inputs()
    labels = ((points[:, None] - centers) ** 2).sum(-1).argmin(1).astype(np.int32)
    return {"labels": labels, "centers": np.array([points[labels == k].mean(0) for k in range(K)])}
