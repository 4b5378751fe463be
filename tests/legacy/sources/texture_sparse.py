"""A sparse matrix times a vector of doubles, which the kernel fetches through a linear texture."""

from itertools import pairwise

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray as gpuarray

GONE = "texture is not a template|surface_functions.h"
N = 60
SOURCE = """
#include <pycuda-helpers.hpp>

texture<fp_tex_double, 1, cudaReadModeElementType> tex_x;

__global__ void multiply(double *y, const double *data, const int *indices, const int *rows, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double sum = 0;
    for (int k = rows[i]; k < rows[i + 1]; ++k)
        sum += data[k] * fp_tex1Dfetch(tex_x, indices[k]);
    y[i] = sum;
}
"""
TOLERANCE = 1e-12


def inputs():
    rng = np.random.default_rng(51)
    counts = rng.integers(0, 6, N)
    rows = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    indices = rng.integers(0, N, rows[-1]).astype(np.int32)
    return rng.random(rows[-1]), indices, rows, rng.random(N)


def run(SourceModule):
    data, indices, rows, x = map(gpuarray.to_gpu, inputs())
    mod = SourceModule(SOURCE)
    tex_x = mod.get_texref("tex_x")
    func = mod.get_function("multiply")
    func.prepare("PPPPi", texrefs=[tex_x])
    x.bind_to_texref_ext(tex_x, allow_double_hack=True)
    y = gpuarray.zeros(N, np.float64)
    arrays = (a.gpudata for a in (y, data, indices, rows))
    func.prepared_call((2, 1), (32, 1, 1), *arrays, N)
    drv.Context.synchronize()
    return {"y": y.get()}


def expected():
    data, indices, rows, x = inputs()
    products = data * x[indices]
    return {"y": np.array([products[a:b].sum() for a, b in pairwise(rows)])}
