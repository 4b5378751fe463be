"""A struct as an argument by value: packed by NumPy, and by struct for a prepared call."""

import struct

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray

params_t = np.dtype(
    [("scale", np.float64), ("offset", np.float32, 2), ("n", np.int32), ("flip", np.uint8)],
    align=True,
)


def run(SourceModule):
    mod = SourceModule("""
    typedef struct {
        double scale;
        float offset[2];
        int n;
        unsigned char flip;
    } params_t;

    __global__ void affine(params_t p, float *x)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < p.n) {
            float value = p.scale * x[i] + p.offset[i % 2];
            x[i] = p.flip ? -value : value;
        }
    }
    """)
    affine = mod.get_function("affine")

    # a record of NumPy goes by value
    first = np.arange(50, dtype=np.float32)
    params = np.array((0.5, (1, 2), 45, 1), params_t)[()]
    affine(params, drv.InOut(first), block=(64, 1, 1))

    # and so do bytes, where the call was prepared
    second = gpuarray.to_gpu(np.arange(50, dtype=np.float32))
    packed = struct.pack("d2fiB3x", 4.0, 8.0, 16.0, 50, 0)
    assert len(packed) == params_t.itemsize
    affine.prepare(["24s", np.intp])
    affine.prepared_call((1, 1), (64, 1, 1), packed, second.gpudata)
    return {"first": first, "second": second.get()}


def expected():
    first = np.arange(50, dtype=np.float32)
    first[:45] = -(0.5 * first[:45] + np.resize([1, 2], 45))
    second = 4 * np.arange(50, dtype=np.float32) + np.resize([8, 16], 50)
    return {"first": first, "second": second.astype(np.float32)}
