"""float16 with the intrinsics of cuda_fp16.h."""

import numpy as np
import pycuda.gpuarray as gpuarray

N = 300


def inputs():
    return np.random.default_rng(31).normal(size=(2, N)).astype(np.float16)


def run(SourceModule):
    mod = SourceModule(
        """
    #include <cuda_fp16.h>

    extern "C" __global__ void haxpy(half *out, half *sum, const half *x, const half *y, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {
            float value = 0.5f * __half2float(x[i]) + __half2float(y[i]);
            out[i] = __float2half(value);
            sum[i] = __hadd(x[i], y[i]);
        }
    }
    """,
        no_extern_c=True,
    )
    x, y = (gpuarray.to_gpu(array) for array in inputs())
    out, total = gpuarray.empty_like(x), gpuarray.empty_like(x)
    haxpy = mod.get_function("haxpy")
    haxpy(out, total, x, y, np.int32(N), block=(128, 1, 1), grid=(3, 1))
    return {"out": out.get(), "sum": total.get()}


def expected():
    x, y = inputs().astype(np.float32)
    return {"out": (x / 2 + y).astype(np.float16), "sum": (x + y).astype(np.float16)}
