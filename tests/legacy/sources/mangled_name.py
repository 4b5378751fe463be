"""A C++ kernel without extern "C", found by its mangled name."""

import numpy as np
import pycuda.gpuarray as gpuarray


def run(SourceModule):
    mod = SourceModule(
        """
    __device__ float area(float radius) { return 3.0f * radius * radius; }
    __device__ float area(float width, float height) { return width * height; }

    __global__ void areas(float *out, const float *a, int n)
    {
        int i = threadIdx.x;
        if (i < n)
            out[i] = area(a[i]) + area(a[i], 2.0f);
    }
    """,
        no_extern_c=1,
    )
    a = gpuarray.arange(40, dtype=np.float32)
    out = gpuarray.empty_like(a)
    func = mod.get_function("_Z5areasPfPKfi")
    func(out, a, np.int32(a.size), block=(64, 1, 1))
    return {"out": out.get()}


def expected():
    a = np.arange(40, dtype=np.float32)
    return {"out": 3 * a * a + 2 * a}
