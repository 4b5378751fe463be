"""Matrix product with one thread per element; the size is written into the source with %."""

import numpy as np
import pycuda.gpuarray as gpuarray

MATRIX_SIZE = 12

KERNEL_TEMPLATE = """
__global__ void MatrixMulKernel(float *a, float *b, float *c)
{
    // 2D thread ID, one block only
    int tx = threadIdx.x;
    int ty = threadIdx.y;

    float Pvalue = 0;
    for (int k = 0; k < %(MATRIX_SIZE)s; ++k) {
        float Aelement = a[ty * %(MATRIX_SIZE)s + k];
        float Belement = b[k * %(MATRIX_SIZE)s + tx];
        Pvalue += Aelement * Belement;
    }
    c[ty * %(MATRIX_SIZE)s + tx] = Pvalue;
}
"""


def inputs():
    rng = np.random.default_rng(2)
    return rng.integers(0, 50, (2, MATRIX_SIZE, MATRIX_SIZE)).astype(np.float32)


def run(SourceModule):
    a_cpu, b_cpu = inputs()
    a_gpu = gpuarray.to_gpu(a_cpu)
    b_gpu = gpuarray.to_gpu(b_cpu)
    c_gpu = gpuarray.empty((MATRIX_SIZE, MATRIX_SIZE), np.float32)

    kernel_code = KERNEL_TEMPLATE % {"MATRIX_SIZE": MATRIX_SIZE}
    mod = SourceModule(kernel_code)
    matrixmul = mod.get_function("MatrixMulKernel")
    matrixmul(a_gpu, b_gpu, c_gpu, block=(MATRIX_SIZE, MATRIX_SIZE, 1))
    return {"c": c_gpu.get()}


def expected():
    a, b = inputs()
    return {"c": np.dot(a, b)}
